package table

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"unique"

	"github.com/quillon/quillon/nf/value"
)

// Value is a number of up to 128 bits, or a text (of a field whose Form is Words).
// Values compare with ==.
type Value struct {
	Hi, Lo uint64
	text   unique.Handle[string] // the zero handle: ""
}

// String returns the text s as a Value.
func String(s string) Value {
	if s == "" {
		return Value{}
	}
	return Value{text: unique.Make(s)}
}

// Str returns the text of v, or "" if v is a number.
func (v Value) Str() string {
	if v.text == (unique.Handle[string]{}) {
		return ""
	}
	return v.text.Value()
}

// Equal reports whether v == o.
func (v Value) Equal(o Value) bool { return v == o }

// number reports whether v is a number or the empty text.
func (v Value) number() bool { return v.text == (unique.Handle[string]{}) }

// Uint returns v as a Value.
func Uint(v uint64) Value { return Value{Lo: v} }

// Bool returns the Value 1 for true and 0 for false.
func Bool(v bool) Value {
	if v {
		return Value{Lo: 1}
	}
	return Value{}
}

// Ones returns the Value with the n lowest bits set.
func Ones(n int) Value {
	if n >= 64 {
		return Value{Hi: 1<<(n-64) - 1, Lo: ^uint64(0)}
	}
	return Value{Lo: 1<<n - 1}
}

// Prefix returns the mask of the n highest of w bits.
func Prefix(n, w int) Value { return Ones(w).AndNot(Ones(w - n)) }

// PrefixLen returns n if v is Prefix(n, w), or -1 if v is no prefix of w bits.
func (v Value) PrefixLen(w int) int {
	n := bits.OnesCount64(v.Hi) + bits.OnesCount64(v.Lo)
	if n > w || v != Prefix(n, w) {
		return -1
	}
	return n
}

// Fits reports whether v is a number that has no bits above the n lowest.
func (v Value) Fits(n int) bool { return v.number() && v.AndNot(Ones(n)) == Value{} }

func (v Value) And(m Value) Value    { return Value{Hi: v.Hi & m.Hi, Lo: v.Lo & m.Lo} }
func (v Value) AndNot(m Value) Value { return Value{Hi: v.Hi &^ m.Hi, Lo: v.Lo &^ m.Lo} }
func (v Value) Less(o Value) bool    { return v.Hi < o.Hi || v.Hi == o.Hi && v.Lo < o.Lo }

// Compare returns 0 if the numbers v and o are equal, -1 if v is less than o, and 1 otherwise.
func (v Value) Compare(o Value) int {
	switch {
	case v == o:
		return 0
	case v.Less(o):
		return -1
	}
	return 1
}

// Bytes returns the number v in network byte order without leading zeros. The number 0 is one byte.
func (v Value) Bytes() []byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], v.Hi)
	binary.BigEndian.PutUint64(b[8:], v.Lo)
	return value.Canonical(b[:])
}

// FromBytes reads a number in network byte order, with any number of leading zeros. It returns false
// if b is empty or the number has more than 128 bits.
func FromBytes(b []byte) (Value, bool) {
	for len(b) > 16 && b[0] == 0 {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 16 {
		return Value{}, false
	}
	var p [16]byte
	copy(p[16-len(b):], b)
	return Value{Hi: binary.BigEndian.Uint64(p[:]), Lo: binary.BigEndian.Uint64(p[8:])}, true
}

// Addr returns a as a Value of 32 or 128 bits.
func Addr(a netip.Addr) Value {
	v, _ := FromBytes(a.AsSlice())
	return v
}

// Addr returns v as an address of w bits, which is 32 or 128.
func (v Value) Addr(w int) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], v.Hi)
	binary.BigEndian.PutUint64(b[8:], v.Lo)
	a, _ := netip.AddrFromSlice(b[16-w/8:])
	return a
}
