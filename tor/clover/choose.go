package clover

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/table"
)

// addr is an IP address, an IPv4 address in IPv4-mapped form, so that masks can be compared with it.
type addr struct{ hi, lo uint64 }

// rule says whether requests for some keys, of some servers, are steered.
type rule struct {
	lo, hi       uint64 // keys
	server, mask netip.Addr
	priority     int32
	leave        bool
	// The server's address and its mask, in the form in which rows have addresses.
	of, under addr
}

// named reports whether the rule is for certain servers only.
func (r *rule) named() bool { return r.server.IsValid() }

func (r *rule) holds(server addr, key uint64) bool {
	return key >= r.lo && key <= r.hi &&
		server.hi&r.under.hi == r.of.hi && server.lo&r.under.lo == r.of.lo &&
		(!r.named() || r.server.Is4() == server.is4())
}

func (a addr) is4() bool { return a.hi == 0 && a.lo>>32 == 0xFFFF }

// maskOf returns m as a mask of addr: an IPv4 mask as that of an IPv4-mapped address.
func maskOf(m netip.Addr) addr {
	b := m.As16()
	if m.Is4() {
		for i := range 12 {
			b[i] = 0xFF
		}
	}
	return addr{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

func addrOf(a netip.Addr) addr {
	b := a.As16()
	return addr{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

// choice says which keys are steered.
type choice struct {
	rules []rule // by descending priority
	rest  bool   // whether keys are steered for which no rule holds
	named bool   // at least one rule is for certain servers only
	// If no rule is named: steer[i] is valid for the keys from from[i] up to from[i+1]; from[0] is 0.
	from  []uint64
	steer []bool
}

const maxRules = 1024

// UnmarshalText implements encoding.TextUnmarshaler by parseChoice.
func (c *choice) UnmarshalText(text []byte) (err error) {
	*c, err = parseChoice(string(text))
	return err
}

// parseChoice reads only=: all, none, or rules joined by +, each
//
//	KEYS[@SERVER[/MASK]][#PRIORITY][:leave]
//
// where KEYS is N, N-N or any. If there are rules, and no all among them, keys for which no rule holds are
// not steered.
func parseChoice(v string) (c choice, err error) {
	for x := range arg.Items(v, "+") {
		switch x {
		case "all", "none":
			c.rest = x == "all"
			continue
		}
		r, err := parseRule(x)
		if err != nil {
			return c, fmt.Errorf("%q: %w", x, err)
		}
		c.rules = append(c.rules, r)
	}
	if len(c.rules) > maxRules {
		return c, fmt.Errorf("at most %d rules", maxRules)
	}
	slices.SortStableFunc(c.rules, func(a, b rule) int { return cmp.Compare(b.priority, a.priority) })
	c.compile()
	return c, nil
}

func parseRule(x string) (r rule, err error) {
	r.priority = 1
	x, r.leave = strings.CutSuffix(x, ":leave")
	x, number, ok := strings.Cut(x, "#")
	if ok {
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil || n < 1 {
			return r, fmt.Errorf("the priority is a number from 1")
		}
		r.priority = int32(n)
	}
	keys, server, ok := strings.Cut(x, "@")
	if ok {
		s, mask, hasMask := strings.Cut(server, "/")
		if r.server, err = netip.ParseAddr(s); err != nil || r.server.Zone() != "" {
			return r, fmt.Errorf("%q is not an IP address", s)
		}
		r.server = r.server.Unmap()
		bits := r.server.BitLen()
		v, under := table.Addr(r.server), table.Ones(bits)
		if hasMask {
			n, err := strconv.Atoi(mask)
			if m, e := netip.ParseAddr(mask); e == nil && m.BitLen() == bits {
				under = table.Addr(m)
			} else if err == nil && n >= 0 && n <= bits {
				under = table.Prefix(n, bits)
			} else {
				return r, fmt.Errorf("%q is no mask for %v", mask, r.server)
			}
		}
		switch {
		case under == table.Value{}:
			return r, fmt.Errorf("a mask of nothing: leave the server out")
		case v.AndNot(under) != table.Value{}:
			return r, fmt.Errorf("%v has bits that its mask has not", r.server)
		}
		r.mask = under.Addr(bits)
		r.of, r.under = addrOf(r.server), maskOf(r.mask)
	}
	if keys == "any" {
		r.hi = ^uint64(0)
		return r, nil
	}
	lo, hi, isRange := strings.Cut(keys, "-")
	r.lo, err = strconv.ParseUint(lo, 0, 64)
	r.hi = r.lo
	if err == nil && isRange {
		r.hi, err = strconv.ParseUint(hi, 0, 64)
	}
	if err != nil || r.hi < r.lo {
		return r, fmt.Errorf("want keys and ranges such as 1+2+10-20")
	}
	return r, nil
}

// String returns the choice in the form that parseChoice reads.
func (c *choice) String() string {
	var b strings.Builder
	for i := range c.rules {
		r := &c.rules[i]
		switch {
		case r.lo == 0 && r.hi == ^uint64(0):
			b.WriteString("any")
		case r.lo == r.hi:
			fmt.Fprint(&b, r.lo)
		default:
			fmt.Fprintf(&b, "%d-%d", r.lo, r.hi)
		}
		if r.named() {
			fmt.Fprintf(&b, "@%v", r.server)
			switch n := table.Addr(r.mask).PrefixLen(r.mask.BitLen()); n {
			case r.mask.BitLen():
			case -1:
				fmt.Fprintf(&b, "/%v", r.mask)
			default:
				fmt.Fprintf(&b, "/%d", n)
			}
		}
		if r.priority != 1 {
			fmt.Fprintf(&b, "#%d", r.priority)
		}
		if r.leave {
			b.WriteString(":leave")
		}
		b.WriteByte('+')
	}
	if c.rest {
		return b.String() + "all"
	}
	return b.String() + "none"
}

// equal reports whether both choices have the same rules. Choices with different rules may choose alike, too.
func (c *choice) equal(o *choice) bool { return c.rest == o.rest && slices.Equal(c.rules, o.rules) }

// compile divides the keys at the ends of the rules, and gives each piece to the first rule that holds for
// it.
func (c *choice) compile() {
	c.from = append(c.from[:0], 0)
	for i := range c.rules {
		r := &c.rules[i]
		c.named = c.named || r.named()
		c.from = append(c.from, r.lo)
		if r.hi != ^uint64(0) {
			c.from = append(c.from, r.hi+1)
		}
	}
	slices.Sort(c.from)
	c.from = slices.Compact(c.from)
	c.steer = make([]bool, len(c.from))
	// free[i] leads to the first piece, from i on, that no rule has yet.
	free := make([]int, len(c.from)+1)
	for i := range free {
		free[i] = i
	}
	first := func(i int) int {
		for free[i] != i {
			free[i] = free[free[i]]
			i = free[i]
		}
		return i
	}
	for i := range c.rules {
		r := &c.rules[i]
		at, _ := slices.BinarySearch(c.from, r.lo)
		for at = first(at); at < len(c.from) && c.from[at] <= r.hi; at = first(at) {
			c.steer[at] = !r.leave
			free[at] = at + 1
		}
	}
	for at := first(0); at < len(c.from); at = first(at + 1) {
		c.steer[at] = c.rest
	}
}

// has reports whether requests for a key of a server are steered.
func (c *choice) has(server addr, key uint64) bool {
	switch {
	case len(c.rules) == 0:
		return c.rest
	case c.named:
		for i := range c.rules {
			if c.rules[i].holds(server, key) {
				return !c.rules[i].leave
			}
		}
		return c.rest
	}
	at, ok := slices.BinarySearch(c.from, key)
	if !ok {
		at--
	}
	return c.steer[at]
}
