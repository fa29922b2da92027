package value_test

import (
	"bytes"
	"encoding/hex"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/value"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		bits int
		want string // hexadecimal; "" is an error
	}{
		{"0", 9, "00"}, {"511", 9, "01ff"}, {"512", 9, ""}, {"0x1ff", 9, "01ff"}, {"0b11", 9, "03"}, {"0x0b11", 16, "0b11"}, {"0o17", 9, "0f"},
		{"017", 9, "11"}, {"1_000", 10, "03e8"}, {"true", 1, "01"}, {"false", 8, "00"}, {"-1", 9, ""}, {"+1", 9, ""}, {"", 9, ""}, {"0x", 9, ""}, {"1.5", 9, ""}, {"_", 9, ""},
		{"10.0.0.1", 32, "0a000001"}, {"10.0.0.1", 33, ""}, {"10.0.0", 32, ""}, {"0.0.0.0", 32, "00"},
		{"::1", 128, "01"}, {"fe80::1", 128, "fe800000000000000000000000000001"}, {"fe80::1%eth0", 128, ""}, {"::1", 48, ""},
		{"00:00:00:00:00:10", 48, "10"}, {"02-00-00-00-00-01", 48, "020000000001"}, {"02:00:00:00:00:01", 49, ""}, {"02:00:00:00:00", 48, ""},
		{"hello", 8, ""}, {"99999999999999999999999999", 64, ""}, {"0x00000001", 1, "01"},
	} {
		got, err := value.ParseBits(c.text, c.bits)
		if hex.EncodeToString(got) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q of %d bits: %x %v, want %q", c.text, c.bits, got, err, c.want)
		}
	}
}

func TestFormat(t *testing.T) {
	for want, c := range map[string]struct {
		form value.Form
		bits int
		v    string
	}{
		"10.0.0.1": {value.IP, 32, "0a000001"}, "0.0.0.7": {value.IP, 32, "07"}, "::7": {value.IP, 128, "07"}, "7": {value.IP, 33, "07"},
		"00:00:00:00:00:07": {value.MAC, 48, "07"}, "8": {value.MAC, 47, "08"}, "0x1ff": {value.Hex, 9, "01ff"}, "511": {value.Decimal, 9, "01ff"},
		"0": {value.Decimal, 9, "00"}, "0x0": {value.Hex, 9, "00"}, "hi": {value.Words, 0, "6869"}, "0x010203": {value.Decimal, 9, "010203"},
	} {
		v, err := hex.DecodeString(c.v)
		if err != nil {
			t.Fatal(err)
		}
		if got := value.Format(c.form, c.bits, v); got != want {
			t.Errorf("%v %d %s: %s, want %s", c.form, c.bits, c.v, got, want)
		}
	}
}

// TestNumbers compares with math/big.
func TestNumbers(t *testing.T) {
	number := rapid.SliceOfN(rapid.Byte(), 0, 20)
	rapid.Check(t, func(t *rapid.T) {
		v, o := number.Draw(t, "v"), number.Draw(t, "o")
		if n := rapid.IntRange(0, len(v)).Draw(t, "zeros"); rapid.Bool().Draw(t, "lead") {
			clear(v[:n])
		}
		a, b := new(big.Int).SetBytes(v), new(big.Int).SetBytes(o)
		x, y := value.Canonical(v), value.Canonical(o)
		if want := a.Bytes(); !bytes.Equal(x, want) && (len(want) > 0 || !bytes.Equal(x, []byte{0})) {
			t.Fatalf("%x became %x", v, x)
		}
		if value.BitLen(v) != a.BitLen() || value.IsZero(v) != (a.Sign() == 0) {
			t.Fatalf("%x: %d bits", v, value.BitLen(v))
		}
		if got, want := value.Compare(x, y), a.Cmp(b); got < 0 != (want < 0) || got > 0 != (want > 0) {
			t.Fatalf("%x and %x: %d, want %d", x, y, got, want)
		}
		if got, want := value.Within(v, o), new(big.Int).AndNot(a, b).Sign() == 0; got != want {
			t.Fatalf("%x within %x: %v", v, o, got)
		}
		if got := value.And(v, o); !bytes.Equal(got, value.Canonical(new(big.Int).And(a, b).Bytes())) {
			t.Fatalf("%x and %x: %x", v, o, got)
		}
		if a.Sign() != 0 && value.TrailingZeros(v) != int(a.TrailingZeroBits()) {
			t.Fatalf("%x: %d zeros", v, value.TrailingZeros(v))
		}
		if a.IsUint64() && (value.Uint64(v) != a.Uint64() || !bytes.Equal(value.Bytes(a.Uint64()), x)) {
			t.Fatalf("%x: %d", v, value.Uint64(v))
		}
		width := rapid.IntRange(1, 200).Draw(t, "width")
		n := rapid.IntRange(0, width).Draw(t, "n")
		one := big.NewInt(1)
		ones := func(n int) *big.Int { return new(big.Int).Sub(new(big.Int).Lsh(one, uint(n)), one) }
		if got := new(big.Int).SetBytes(value.Ones(width)); got.Cmp(ones(width)) != 0 {
			t.Fatalf("%d ones: %x", width, got)
		}
		if got := new(big.Int).SetBytes(value.Prefix(n, width)); got.Cmp(new(big.Int).Xor(ones(width), ones(width-n))) != 0 {
			t.Fatalf("%d of %d: %x", n, width, got)
		}
	})
}

// FuzzText: what can be read is in canonical form, and every form of it is read as the same number.
func FuzzText(f *testing.F) {
	for _, s := range []string{"5", "0x1ff", "0b1", "017", "1_0", "10.0.0.1", "::1", "::ffff:1.2.3.4", "02:00:00:00:00:01", "0200.0000.0001", "true", "+1", "-", ".", "0x_"} {
		f.Add(s, uint8(32))
	}
	// As wide as is read, and one bit more: bases differ in the number of digits that one number takes.
	for _, base := range []int{2, 8, 10, 16} {
		prefix := map[int]string{2: "0b", 8: "0o", 10: "", 16: "0x"}[base]
		for _, bits := range []uint{4096, 4097, 13433} {
			f.Add(prefix+new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), bits), big.NewInt(1)).Text(base), uint8(32))
		}
	}
	f.Fuzz(func(t *testing.T, s string, bits uint8) {
		v, width, err := value.Parse(s)
		if err != nil {
			if v != nil || width != 0 {
				t.Fatalf("%q: %x and %v", s, v, err)
			}
			return
		}
		if !bytes.Equal(v, value.Canonical(v)) || width != 0 && value.BitLen(v) > width {
			t.Fatalf("%q: %x of %d bits", s, v, width)
		}
		if width == 0 {
			width = max(int(bits), value.BitLen(v))
		}
		for form := value.Decimal; form < value.Words; form++ {
			text := value.Format(form, width, v)
			if again, err := value.ParseBits(text, width); err != nil || !bytes.Equal(again, v) {
				t.Fatalf("%q: %x, written %q, read %x, %v", s, v, text, again, err)
			}
		}
	})
}

// TestParseCond: each form of a condition, where fields are compared that way; what does not mean anything is refused.
func TestParseCond(t *testing.T) {
	for _, c := range []struct {
		match value.Match
		bits  int
		text  string
		want  string // V M in hexadecimal, or *; "" is an error
	}{
		{value.Exact, 9, "5", "05 "}, {value.Exact, 9, "*", ""}, {value.Exact, 9, "5/9", ""}, {value.Optional, 9, "5..6", ""}, {value.Optional, 9, "*", "*"},
		{value.Exact, 0, "a/b..c&&&d", "612f622e2e6326262664 "}, {value.Exact, 48, "02-00-00-00-00-01", "020000000001 "},
		{value.LPM, 32, "10.0.0.0/8", "0a000000 ff000000"}, {value.LPM, 32, "10.0.0.1", "0a000001 ffffffff"}, {value.LPM, 32, "0/0", "*"}, {value.LPM, 32, "1/0", ""},
		{value.LPM, 32, "10.0.0.1/8", ""}, {value.LPM, 32, "10.0.0.0/33", ""}, {value.LPM, 32, "10.0.0.0/-1", ""}, {value.LPM, 32, "1&&&1", ""}, {value.LPM, 32, "1..1", ""},
		{value.Ternary, 32, "10.0.0.0/8", "0a000000 ff000000"}, {value.Ternary, 32, "10.0.0.1 &&& 255.0.0.255", "0a000001 ff0000ff"}, {value.Ternary, 9, "0&&&0", "*"},
		{value.Ternary, 9, "1&&&2", ""}, {value.Ternary, 9, "1&&&x", ""}, {value.Ternary, 9, "1..2", ""}, {value.Ternary, 9, "7", "07 01ff"},
		{value.Range, 16, "80..90", "50 5a"}, {value.Range, 16, "80-90", "50 5a"}, {value.Range, 16, "80", "50 50"}, {value.Range, 16, "90..80", ""}, {value.Range, 16, "0..65535", "*"},
		{value.Range, 16, "0..65536", ""}, {value.Range, 16, "-80", ""}, {value.Range, 16, "5/8", ""}, {value.Range, 48, "02-00-00-00-00-01", "020000000001 020000000001"},
		{value.Range, 16, "..", ""}, {value.Range, 16, "", ""},
	} {
		got, err := value.ParseCond(c.match, c.bits, c.text, func(s string) ([]byte, error) {
			if c.bits == 0 {
				return []byte(s), nil
			}
			return value.ParseBits(s, c.bits)
		})
		text := hex.EncodeToString(got.V) + " " + hex.EncodeToString(got.M)
		switch {
		case err != nil:
			text = ""
		case got.Any:
			text = "*"
		}
		if text != c.want {
			t.Errorf("%v of %d bits, %q: %q %v, want %q", c.match, c.bits, c.text, text, err, c.want)
		}
	}
}
