// Package value is numbers as P4Runtime has them, bytes in network order of any length, and as people write them.
//
//	v, width, err := value.Parse("10.0.0.1") // 0a 00 00 01, and 32: an address has a width of its own
//	text := value.Format(value.IP, 32, v)    // 10.0.0.1
//
// The canonical form of a number is the shortest: without leading zero bytes, 0 is one zero byte.
package value

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/big"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Form is how people write a value.
type Form uint8

const (
	Decimal Form = iota
	Hex
	IP    // of 32 bits: IPv4; of 128: IPv6
	MAC   // of 48 bits
	Words // no number but a text
)

// FormOf is how people write the field of that name: an address where name and width say that it is one, a decimal
// number up to 32 bits, else hexadecimal. A field of 0 bits is a text.
func FormOf(name string, width int) Form {
	switch width {
	case 0:
		return Words
	case 48:
		return MAC
	case 32, 128:
		name = strings.ToLower(name)
		if strings.Contains(name, "ip") || strings.Contains(name, "addr") || width == 128 && strings.Contains(name, "gid") {
			return IP
		}
	}
	if width <= 32 {
		return Decimal
	}
	return Hex
}

// maxDigits is how many digits of a number are read.
const maxDigits = 1 << 12

// Parse reads a number (5, 0x5, 0b101, 0o5, each also with _ between digits), an address (IPv4, IPv6, MAC), true or
// false. The number is in canonical form. Width is that of an address, in bits; 0 for all others.
func Parse(s string) (v []byte, width int, err error) {
	switch s {
	case "":
		return nil, 0, fmt.Errorf("the value is empty")
	case "true":
		return []byte{1}, 0, nil
	case "false":
		return []byte{0}, 0, nil
	}
	if strings.ContainsAny(s, ":-.") {
		if mac, err := net.ParseMAC(s); err == nil && len(mac) == 6 {
			return Canonical(mac), 48, nil
		}
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			return Canonical(a.AsSlice()), a.BitLen(), nil
		}
	}
	// A leading 0 is no octal number, as it is for big.Int with base 0: nobody means that.
	digits, base := strings.ReplaceAll(s, "_", ""), 10
	if len(digits) > 2 && digits[0] == '0' {
		switch digits[1] {
		case 'x', 'X':
			digits, base = digits[2:], 16
		case 'b', 'B':
			digits, base = digits[2:], 2
		case 'o', 'O':
			digits, base = digits[2:], 8
		}
	}
	// In each base, so that what is read can be written in all of them: a hexadecimal digit takes up to 1.21 decimal ones.
	if most := maxDigits * 4 / 5; len(digits) > maxDigits || base > 10 && len(digits) > most {
		return nil, 0, fmt.Errorf("the number has %d digits", len(digits))
	}
	n, ok := new(big.Int).SetString(digits, base)
	if !ok || digits[0] == '+' || digits[0] == '-' {
		return nil, 0, fmt.Errorf("%q is not a value: want a number (5, 0x5), an address or true or false", s)
	}
	return Canonical(n.Bytes()), 0, nil
}

// ParseBits is Parse for a field of so many bits: an address must have as many, a number at most.
func ParseBits(s string, width int) ([]byte, error) {
	v, own, err := Parse(s)
	switch {
	case err != nil:
		return nil, err
	case own != 0 && own != width:
		return nil, fmt.Errorf("%s has %d bits, the field has %d", s, own, width)
	case BitLen(v) > width:
		return nil, fmt.Errorf("%s needs %d bits, the field has %d", s, BitLen(v), width)
	}
	return v, nil
}

// Format is v as people write it. A form that the width does not fit is decimal; a number that the width does not
// hold is hexadecimal.
func Format(f Form, width int, v []byte) string {
	if f == Words {
		return string(v)
	}
	if len(v) > (width+7)/8 {
		return "0x" + hex.EncodeToString(v)
	}
	var full [16]byte
	switch {
	case f == IP && width == 32:
		copy(full[4-len(v):], v)
		return netip.AddrFrom4([4]byte(full[:4])).String()
	case f == IP && width == 128:
		copy(full[16-len(v):], v)
		return netip.AddrFrom16(full).String()
	case f == MAC && width == 48:
		copy(full[6-len(v):], v)
		return net.HardwareAddr(full[:6]).String()
	case f == Hex:
		return "0x" + digits(v, 16)
	}
	return digits(v, 10)
}

func digits(v []byte, base int) string {
	if len(v) <= 8 {
		return strconv.FormatUint(Uint64(v), base)
	}
	return new(big.Int).SetBytes(v).Text(base)
}

// Canonical is v in its canonical form, in v's memory.
func Canonical(v []byte) []byte {
	if len(v) == 0 {
		return []byte{0}
	}
	for len(v) > 1 && v[0] == 0 {
		v = v[1:]
	}
	return v
}

// Bytes is n in canonical form.
func Bytes(n uint64) []byte { return Canonical(binary.BigEndian.AppendUint64(nil, n)) }

// Uint64 are the lowest 64 bits of v.
func Uint64(v []byte) (n uint64) {
	for _, b := range v {
		n = n<<8 | uint64(b)
	}
	return n
}

// BitLen is the length of v without its leading zeros.
func BitLen(v []byte) int {
	for len(v) > 0 && v[0] == 0 {
		v = v[1:]
	}
	if len(v) == 0 {
		return 0
	}
	return 8*(len(v)-1) + bits.Len8(v[0])
}

// IsZero reports whether v is 0.
func IsZero(v []byte) bool { return BitLen(v) == 0 }

// Signed is the shortest two's complement of the number that the lowest width bits of v are in two's complement.
func Signed(v []byte, width int) []byte {
	b := make([]byte, (width+7)/8)
	for i := range min(len(b), len(v)) {
		b[len(b)-1-i] = v[len(v)-1-i]
	}
	if r := (width-1)%8 + 1; b[0]>>(r-1)&1 != 0 {
		b[0] |= byte(0xff << r)
	} else {
		b[0] &^= byte(0xff << r)
	}
	for len(b) > 1 && (b[0] == 0 && b[1] < 0x80 || b[0] == 0xff && b[1] >= 0x80) {
		b = b[1:]
	}
	return b
}

// Ones is the greatest number of a width, in canonical form.
func Ones(width int) []byte {
	if width == 0 {
		return []byte{0}
	}
	b := bytes.Repeat([]byte{0xff}, (width+7)/8)
	if r := width % 8; r != 0 {
		b[0] = 1<<r - 1
	}
	return b
}

// Prefix is the mask of the n highest of width bits, in canonical form.
func Prefix(n, width int) []byte {
	m, host := Ones(width), Ones(width-n)
	for i, b := range host {
		m[len(m)-len(host)+i] &^= b
	}
	return Canonical(m)
}

// Compare compares two numbers in canonical form, as bytes.Compare does.
func Compare(a, b []byte) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return bytes.Compare(a, b)
}

// And is a new number with the bits that both have, in canonical form.
func And(a, b []byte) []byte {
	n := min(len(a), len(b))
	a, b = bytes.Clone(a[len(a)-n:]), b[len(b)-n:]
	for i := range a {
		a[i] &= b[i]
	}
	return Canonical(a)
}

// Within reports whether v has no bit that mask does not have.
func Within(v, mask []byte) bool {
	for i := range v {
		at := len(mask) - len(v) + i
		if at < 0 && v[i] != 0 || at >= 0 && v[i]&^mask[at] != 0 {
			return false
		}
	}
	return true
}

// TrailingZeros is the number of zero bits at the end of v; of 0: more than any width.
func TrailingZeros(v []byte) int {
	for i := range v {
		if x := v[len(v)-1-i]; x != 0 {
			return 8*i + bits.TrailingZeros8(x)
		}
	}
	return 1 << 30
}
