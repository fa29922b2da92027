// Package arg is the arguments of apps: strings by name. An app declares them once, as the fields of
// its settings (Declare); what documents them and what reads them comes from there:
//
//	type settings struct {
//		mtu        int        `arg:"mtu" range:"576..65535" help:"bytes of the longest datagram"`
//		vni        int32      `arg:"vni" range:"0..2^24-1" keep:"none" help:"network identifier"`
//		dropOthers bool       `arg:"others" words:"pass drop" help:"frames that are none of the tunnel's"`
//		remote     netip.Addr `arg:"remote" need:"the other end's address" help:"the other end"`
//	}
//
//	var arguments = arg.Declare("vxlan", settings{mtu: 1500, vni: -1})
//
//	s, r := arguments.Read(args)
//	if s.mtu%2 != 0 {
//		r.Failf("mtu=%d: want an even number", s.mtu)
//	}
//	return s, r.Err()
//
// An argument that is not given keeps the default of its declaration. The first error stays, and names the
// argument: "vxlan: mtu=9: want a number from 576 to 65535".
package arg

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Reader has the arguments of one app, and the first error in them. Set.Read makes a Reader.
type Reader struct {
	kind string
	args map[string]string
	read []string // the names that were read
	err  error
}

// Given reports whether the argument was given.
func (r *Reader) Given(name string) bool { _, ok := r.args[name]; return ok }

// Need records an error if the argument is missing or empty. The error ends with hint, which describes the argument.
func (r *Reader) Need(name, hint string) {
	if r.args[name] == "" {
		r.Failf("%s= is missing: %s", name, hint)
	}
}

// Failf records an error, unless the Reader has one already. It is for checks of several arguments together.
func (r *Reader) Failf(format string, args ...any) {
	if r.err == nil {
		if r.err = fmt.Errorf(format, args...); r.kind != "" {
			r.err = fmt.Errorf("%s: %w", r.kind, r.err)
		}
	}
}

// Err returns the first error. An argument that was not declared is an error.
func (r *Reader) Err() error {
	for name := range r.args {
		if !slices.Contains(r.read, name) {
			r.Failf("no argument %q", name)
		}
	}
	return r.err
}

// Func has read read an argument that is declared with own, if it is given and is none of words.
func (r *Reader) Func(name string, read func(v string) error, words ...string) {
	r.read = append(r.read, name)
	v, ok := r.args[name]
	if !ok || r.err != nil || slices.Contains(words, v) {
		return
	}
	if err := read(v); err != nil {
		if len(words) > 0 {
			err = fmt.Errorf("%w, or %s", err, strings.Join(words, " or "))
		}
		r.Failf("%s=%s: %w", name, clip(v), err)
	}
}

// clip returns the first line of s, cut to 80 bytes, with "..." if a part is missing.
func clip(s string) string {
	s, _, more := strings.Cut(s, "\n")
	if more || len(s) > 80 {
		return s[:min(len(s), 80)] + "..."
	}
	return s
}

// Items are those of a list. On the command line sep is between them, such as +; of a list in YAML each has a line.
func Items(v, sep string) iter.Seq[string] {
	return strings.SplitSeq(strings.ReplaceAll(v, "\n", sep), sep)
}

// parse reads a decimal number, or a hexadecimal one behind 0x.
func parse(v string) (int64, error) {
	if x, ok := strings.CutPrefix(v, "0x"); ok {
		n, err := strconv.ParseUint(x, 16, 63)
		return int64(n), err
	}
	return strconv.ParseInt(v, 10, 64)
}

// number reads a number from least to most.
func number(v string, least, most int64) (int64, error) {
	n, err := parse(v)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("want a number from %d to %d", least, most)
	}
	return n, nil
}

const units = "kMG"

// ParseScaled reads a number from least to most, perhaps with k, M or G behind it for powers
// of step, which is 1000 or 1024.
func ParseScaled(v string, step, least, most int64) (int64, error) {
	digits, unit := v, int64(1)
	for i, u := range units {
		if d, ok := strings.CutSuffix(v, string(u)); ok {
			digits = d
			for range i + 1 {
				unit *= step
			}
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > most/unit || n*unit < least {
		return 0, fmt.Errorf("want a number from %s to %s, with k, M or G for powers of %d", scale(least, step), scale(most, step), step)
	}
	return n * unit, nil
}

// scale returns n with the largest unit of which it is a multiple.
func scale(n, step int64) string {
	i := 0
	for ; i < len(units) && n != 0 && n%step == 0; i++ {
		n /= step
	}
	return strconv.FormatInt(n, 10) + units[max(i-1, 0):i]
}

// choice returns the index of v in names.
func choice(v string, names []string) (int, error) {
	i, last := slices.Index(names, v), len(names)-1
	if i < 0 {
		return 0, fmt.Errorf("want %s or %s", strings.Join(names[:last], ", "), names[last])
	}
	return i, nil
}

// Longest is the limit of durations without a limit of their own, so that the sum of a time and
// a duration does not overflow.
const Longest = 10 * 365 * 24 * time.Hour

// duration reads a duration from least to most; 0 needs no unit.
func duration(v string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	switch {
	case err == nil && d >= least && d <= most:
		return d, nil
	case most < Longest:
		return 0, fmt.Errorf("want a duration from %s to %s", short(least), short(most))
	case least > 1:
		return 0, fmt.Errorf("want a duration of %s or more", short(least))
	case least == 1:
		return 0, errors.New("want a duration such as 100ms or 5m")
	}
	return 0, errors.New("want a duration such as 100ms or 5m, or 0")
}

// short returns d in ASCII, without units that are 0.
func short(d time.Duration) string {
	s := strings.Replace(d.String(), "µ", "u", 1)
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Fastest is a rate far beyond any port.
const Fastest = 10_000_000_000_000

// ParseRate reads bits a second, such as 10Mbit and 1.5Gbit, from least to most.
func ParseRate(v string, least, most uint64) (uint64, error) {
	n, ok := parseUnits(v, "bit")
	if !ok || n < least || n > most {
		return 0, fmt.Errorf("want a rate from %s to %s, such as 10Mbit or 1.5Gbit", formatUnits(least, "bit"), formatUnits(most, "bit"))
	}
	return n, nil
}

// ParsePackets reads packets a second, such as 100kpps, from least to most.
func ParsePackets(v string, least, most uint64) (uint64, error) {
	n, ok := parseUnits(v, "pps")
	if !ok || n < least || n > most {
		return 0, fmt.Errorf("want a rate from %s to %s, such as 100kpps", formatUnits(least, "pps"), formatUnits(most, "pps"))
	}
	return n, nil
}

// rateUnits stand before a rate's unit, for powers of 1000.
const rateUnits = "kMGT"

// parseUnits reads a number of some digits, to the next whole one, of 1 or more.
func parseUnits(v, unit string) (uint64, bool) {
	v, ok := strings.CutSuffix(v, unit)
	factor := 1.0
	for i, u := range rateUnits {
		if d, found := strings.CutSuffix(v, string(u)); found {
			v, factor = d, math.Pow10(3*(i+1))
			break
		}
	}
	f, err := strconv.ParseFloat(v, 64)
	f = math.Round(f * factor)
	if !ok || err != nil || !(f >= 1 && f <= 1<<62) {
		return 0, false
	}
	return uint64(f), true
}

// formatUnits returns n in the form that parseUnits reads.
func formatUnits(n uint64, unit string) string {
	i := 0
	for ; i < len(rateUnits) && n != 0 && n%1000 == 0; i++ {
		n /= 1000
	}
	return strconv.FormatUint(n, 10) + rateUnits[max(i-1, 0):i] + unit
}

// ParseMAC reads the MAC address of a host, which is no group address and not zero.
func ParseMAC(v string) (mac [6]byte, err error) {
	m, err := net.ParseMAC(v)
	if err != nil || len(m) != 6 || m[0]&1 != 0 || [6]byte(m) == mac {
		return mac, errors.New("want the MAC address of a host, such as 02:00:00:00:00:01")
	}
	return [6]byte(m), nil
}

// ParseAddr reads the IP address of a host, which is no multicast address and not zero. It returns
// an IPv4-mapped IPv6 address as an IPv4 address.
func ParseAddr(v string) (netip.Addr, error) {
	a, err := netip.ParseAddr(v)
	if a = a.Unmap(); err != nil || a.Zone() != "" || a.IsMulticast() || a.IsUnspecified() {
		return netip.Addr{}, errors.New("want the IP address of a host")
	}
	return a, nil
}
