package ctl

import (
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strings"

	"github.com/quillon/quillon/controlplane/p4info"
)

// parseValue reads a value as people write it: decimal, 0x, 0b or 0o numbers,
// IPv4, IPv6 and MAC addresses, true and false. A type that is a string takes the
// text.
func parseValue(t p4info.Type, s string) ([]byte, error) {
	if t.Bits == 0 {
		return []byte(s), nil
	}
	v, width, err := parseNumber(s)
	if err != nil {
		return nil, err
	}
	if width != 0 && width != t.Bits {
		return nil, fmt.Errorf("%s has %d bits, the field has %d", s, width, t.Bits)
	}
	if v.BitLen() > t.Bits {
		return nil, fmt.Errorf("%s needs %d bits, the field has %d", s, v.BitLen(), t.Bits)
	}
	return bytesOf(v), nil
}

// bytesOf is v in canonical form: in as few bytes as hold it, 0 in one.
func bytesOf(v *big.Int) []byte {
	if v.Sign() == 0 {
		return []byte{0}
	}
	return v.Bytes()
}

// parseNumber reads a number or an address; width is the address' own, 0 for a
// number.
func parseNumber(s string) (v *big.Int, width int, err error) {
	switch s {
	case "":
		return nil, 0, fmt.Errorf("the value is empty")
	case "true":
		return big.NewInt(1), 0, nil
	case "false":
		return new(big.Int), 0, nil
	}
	if strings.Count(s, ":") == 5 || strings.Count(s, "-") == 5 {
		if mac, err := net.ParseMAC(s); err == nil && len(mac) == 6 {
			return new(big.Int).SetBytes(mac), 48, nil
		}
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return new(big.Int).SetBytes(a.AsSlice()), a.BitLen(), nil
	}
	// Not base 0 of big.Int: it takes a leading 0 for octal, which nobody means.
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
	if len(digits) > 1<<12 {
		return nil, 0, fmt.Errorf("the number has %d digits", len(digits))
	}
	v, ok := new(big.Int).SetString(digits, base)
	if !ok || digits[0] == '+' || digits[0] == '-' {
		return nil, 0, fmt.Errorf("%q is not a value: want a number (5, 0x5), an address or true or false", s)
	}
	return v, 0, nil
}

// ones is the greatest value of so many bits.
func ones(bits int) *big.Int {
	return new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(bits)), big.NewInt(1))
}

// portBytes is a port's number in canonical form.
func portBytes(port uint32) []byte {
	return bytesOf(new(big.Int).SetUint64(uint64(port)))
}
