// Package value converts numbers between the form of P4Runtime (any number of bytes in network order) and text.
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

// Form says how people write a value.
type Form uint8

const (
	Decimal Form = iota
	Hex
	IP    // of 32 bits: IPv4; of 128: IPv6
	MAC   // of 48 bits
	Words // no number but a text
)

// FormOf returns the form of a field: an address if name and width indicate one; otherwise decimal up to 32 bits, and
// hexadecimal above. A field of 0 bits is a text.
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

// maxBits is the largest width of a number that Parse reads, and the largest number of its digits in each base, leading
// zeros counted: p4c's widest type has 2048 bits.
const maxBits = 1 << 12

// Parse reads a number (5, 0x5, 0b101, 0o5, each also with _ between digits), an address (IPv4, IPv6, MAC), true or
// false. It returns v in canonical form, and the width of an address in bits, or 0 for all other values.
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
	if len(digits) > maxBits {
		return nil, 0, fmt.Errorf("the number has %d digits: want at most %d", len(digits), maxBits)
	}
	n, ok := new(big.Int).SetString(digits, base)
	if !ok || digits[0] == '+' || digits[0] == '-' {
		return nil, 0, fmt.Errorf("%q is not a value: want a number (5, 0x5), an address or true or false", s)
	}
	// By bits, not only by digits: a number that is read in one base must be short enough to be read again in each other.
	if n.BitLen() > maxBits {
		return nil, 0, fmt.Errorf("the number has %d bits: want at most %d", n.BitLen(), maxBits)
	}
	return Canonical(n.Bytes()), 0, nil
}

// ParseBits does what Parse does, for a field of width bits: an address must have exactly that width, a number at most.
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

// Format returns the text of v. If the width does not fit form f, the text is decimal. If v has more bytes than the
// width holds, the text is hexadecimal.
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

// Canonical returns the canonical form of v. The result shares the memory of v unless v is empty.
func Canonical(v []byte) []byte {
	if len(v) == 0 {
		return []byte{0}
	}
	for len(v) > 1 && v[0] == 0 {
		v = v[1:]
	}
	return v
}

// Bytes returns n in canonical form.
func Bytes(n uint64) []byte { return Canonical(binary.BigEndian.AppendUint64(nil, n)) }

// Uint64 returns the lowest 64 bits of v.
func Uint64(v []byte) (n uint64) {
	for _, b := range v {
		n = n<<8 | uint64(b)
	}
	return n
}

// BitLen returns the length of v in bits without leading zeros.
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

// Signed reads the lowest width bits of v as a number in two's complement, and returns the number's shortest two's
// complement in whole bytes.
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

// Ones returns the greatest number of width bits, in canonical form.
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

// Prefix returns the mask of the n highest of width bits, in canonical form.
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

// And returns a new number with the bits that both a and b have, in canonical form.
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

// TrailingZeros returns the number of zero bits at the end of v. For 0 it returns a number above any width.
func TrailingZeros(v []byte) int {
	for i := range v {
		if x := v[len(v)-1-i]; x != 0 {
			return 8*i + bits.TrailingZeros8(x)
		}
	}
	return 1 << 30
}
