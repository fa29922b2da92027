package p4info

import (
	"bytes"
	"encoding/hex"
	"math/big"
	"math/bits"
	"net/netip"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
)

// MaxString is how long a value is at most that is a string.
const MaxString = 1 << 20

// Type is what a value must be.
type Type struct {
	// Bits is the width of an unsigned integer; 0: the value is a string of
	// UTF-8, or of nothing (@p4runtime_translation with a string).
	Bits int
	// Named is the P4 type's name, if it has one.
	Named string
}

// Canonical is the shortest form of an unsigned integer of at most so many
// bits: no leading zero bytes, 0 is one zero byte. It does not change v, and
// shares its memory.
func Canonical(v []byte, width int) ([]byte, error) {
	if len(v) == 0 {
		return nil, refuse(codes.OutOfRange, "the value is empty")
	}
	c := v
	for len(c) > 1 && c[0] == 0 {
		c = c[1:]
	}
	if bitLen(c) > width {
		return nil, refuse(codes.OutOfRange, "value 0x%s needs %d bits, there are %d", hex.EncodeToString(c), bitLen(c), width)
	}
	return c, nil
}

// bitLen is the length of a number without its leading zeros.
func bitLen(v []byte) int {
	for len(v) > 0 && v[0] == 0 {
		v = v[1:]
	}
	if len(v) == 0 {
		return 0
	}
	return 8*(len(v)-1) + bits.Len8(v[0])
}

// canonical is Canonical for any type.
func (t Type) canonical(v []byte) ([]byte, error) {
	if t.Bits == 0 {
		if len(v) > MaxString {
			return nil, refuse(codes.OutOfRange, "a string of %d bytes: at most %d", len(v), MaxString)
		}
		if !utf8.Valid(v) {
			return nil, invalid("a string that is no UTF-8: %q", v[:min(len(v), 32)])
		}
		return v, nil
	}
	return Canonical(v, t.Bits)
}

// ones is the greatest number of a width, in canonical form.
func ones(width int) []byte {
	b := bytes.Repeat([]byte{0xff}, (width+7)/8)
	if r := width % 8; r != 0 {
		b[0] = 1<<r - 1
	}
	return b
}

// zero reports that v is 0.
func zero(v []byte) bool { return bitLen(v) == 0 }

// compare compares two numbers in canonical form.
func compare(a, b []byte) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return bytes.Compare(a, b)
}

// within reports that v has no bit that m does not have.
func within(v, m []byte) bool {
	if len(v) > len(m) {
		return false
	}
	m = m[len(m)-len(v):]
	for i := range v {
		if v[i]&^m[i] != 0 {
			return false
		}
	}
	return true
}

// trailingZeros is the number of zero bits at the end of v; of 0: more than any
// width.
func trailingZeros(v []byte) int {
	for i := range v {
		if x := v[len(v)-1-i]; x != 0 {
			return 8*i + bits.TrailingZeros8(x)
		}
	}
	return 1 << 30
}

// FormatValue writes a value for people: an IPv4 or IPv6 address or a MAC
// address where name and width say that it is one, decimal up to 32 bits, else
// hexadecimal.
func FormatValue(name string, t Type, v []byte) string {
	if t.Bits == 0 {
		return string(v)
	}
	full := make([]byte, (t.Bits+7)/8)
	if len(v) > len(full) {
		return "0x" + hex.EncodeToString(v)
	}
	copy(full[len(full)-len(v):], v)
	n := strings.ToLower(name)
	switch {
	case t.Bits == 32 && (strings.Contains(n, "ip") || strings.Contains(n, "addr")):
		return netip.AddrFrom4([4]byte(full)).String()
	case t.Bits == 128 && (strings.Contains(n, "ip") || strings.Contains(n, "addr") || strings.Contains(n, "gid")):
		return netip.AddrFrom16([16]byte(full)).String()
	case t.Bits == 48:
		s := hex.EncodeToString(full)
		return s[0:2] + ":" + s[2:4] + ":" + s[4:6] + ":" + s[6:8] + ":" + s[8:10] + ":" + s[10:12]
	case t.Bits <= 32:
		return new(big.Int).SetBytes(v).String()
	}
	return "0x" + new(big.Int).SetBytes(v).Text(16)
}
