package p4info

import (
	"encoding/hex"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/nf/value"
)

// MaxString is the longest string that may be a value, in bytes.
const MaxString = 1 << 20

// Type is the type of a value.
type Type struct {
	// Bits is the width of an unsigned integer. If it is 0, the value is a string of UTF-8, which may be empty
	// (@p4runtime_translation with a string).
	Bits int
	// Named is the P4 type's name, if it has one.
	Named string
}

// Canonical returns the shortest form of an unsigned integer of at most width bits: without leading zero bytes,
// and one zero byte for 0. It does not change v; the result shares v's memory.
func Canonical(v []byte, width int) ([]byte, error) {
	if len(v) == 0 {
		return nil, refuse(codes.OutOfRange, "the value is empty")
	}
	c := value.Canonical(v)
	if n := value.BitLen(c); n > width {
		return nil, refuse(codes.OutOfRange, "value 0x%s needs %d bits, there are %d", hex.EncodeToString(c), n, width)
	}
	return c, nil
}

// canonical is like Canonical, for values of any type.
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

// ParseValue reads a value as people write it; see value.Parse. It takes a string as it is.
func ParseValue(t Type, s string) ([]byte, error) {
	if t.Bits == 0 {
		return []byte(s), nil
	}
	return value.ParseBits(s, t.Bits)
}

// FormatValue writes a value for people: as an IPv4, IPv6 or MAC address if name and width tell that it is one,
// else decimal up to 32 bits, else hexadecimal.
func FormatValue(name string, t Type, v []byte) string {
	return value.Format(value.FormOf(name, t.Bits), t.Bits, v)
}
