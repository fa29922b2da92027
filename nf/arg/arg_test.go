package arg

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// all has an argument of every sort.
type all struct {
	vni    int32         `arg:"vni" range:"0..2^24-1" keep:"none"`
	octet  uint8         `arg:"octet" range:"1.."`
	count  int           `arg:"count" range:"-5..5" keep:"few many"`
	size   uint64        `arg:"size" unit:"1024" range:"1..2^30"`
	rate   int64         `arg:"rate" unit:"1000" range:"1000..1500"`
	bits   uint64        `arg:"bits" unit:"bit" range:"1e6..2000000000"`
	role   uint8         `arg:"role" words:"edge task forwarder"`
	drop   bool          `arg:"others" words:"pass drop"`
	on     bool          `arg:"on" words:"off on"`
	mac    [6]byte       `arg:"mac" keep:"none"`
	addr   netip.Addr    `arg:"addr"`
	list   []letter      `arg:"list" keep:"any"`
	wait   time.Duration `arg:"wait" range:"1us..5m"`
	idle   time.Duration `arg:"idle" range:"1ns.."`
	settle time.Duration `arg:"settle" range:".."`
	tick   time.Duration `arg:"tick" range:"1h.."`
	need   struct{}      `arg:"need" own:"true"`
}

type letter string

func (l *letter) UnmarshalText(b []byte) error {
	if *l = letter(b); *l == "x" {
		return errors.New("want no x")
	}
	return nil
}

var declaredAll = Declare("x", all{vni: -1, count: 7, on: true, wait: time.Second})

func read(args map[string]string) (all, error) {
	s, r := declaredAll.Read(args)
	if r.Given("need") {
		r.Need("need", "a hint")
	}
	if s.octet == 9 {
		r.Failf("octet=%d is one too many", s.octet)
	}
	return s, r.Err()
}

func TestDefaults(t *testing.T) {
	for _, args := range []map[string]string{nil, {"vni": "none", "count": "many", "mac": "none", "list": "any"}} {
		s, err := read(args)
		if err != nil || s.vni != -1 || s.octet != 0 || s.count != 7 || s.drop || !s.on || s.addr.IsValid() || s.wait != time.Second || s.list != nil {
			t.Errorf("%v: %+v, %v", args, s, err)
		}
	}
}

func TestValues(t *testing.T) {
	s, err := read(map[string]string{
		"vni": "0x10", "octet": "255", "count": "-5", "size": "1G", "rate": "1k", "role": "forwarder", "others": "drop", "on": "off",
		"mac": "02:00:00:00:00:01", "addr": "::ffff:10.0.0.1", "list": "a+b", "wait": "5m", "idle": "1ns", "settle": "0",
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.vni != 16 || s.octet != 255 || s.count != -5 || s.size != 1<<30 || s.rate != 1000 || s.role != 2 || !s.drop || s.on {
		t.Errorf("%+v", s)
	}
	if s.mac != [6]byte{2, 0, 0, 0, 0, 1} || s.addr.String() != "10.0.0.1" || !slices.Equal(s.list, []letter{"a", "b"}) || s.wait != 5*time.Minute || s.idle != 1 || s.settle != 0 {
		t.Errorf("%+v", s)
	}
	if s, err := read(map[string]string{"others": "pass", "on": "on", "octet": "010"}); s.drop || !s.on || s.octet != 10 || err != nil {
		t.Errorf("%+v, %v", s, err) // 010 is no octal number
	}
}

func TestErrors(t *testing.T) {
	long := strings.Repeat("y", 200)
	for text, want := range map[string]string{
		"vni=16777216":                "x: vni=16777216: want a number from 0 to 16777215, or none",
		"vni=4294967296":              "want a number", // is 0 in 32 bits
		"octet=0":                     "x: octet=0: want a number from 1 to 255",
		"octet=256":                   "want a number from 1 to 255",
		"octet=0x1ff":                 "want a number from 1 to 255",
		"octet=0x":                    "want a number",
		"octet=0x-1":                  "want a number",
		"octet=":                      "x: octet=: want a number",
		"octet=9":                     "x: octet=9 is one too many",
		"count=6":                     "want a number from -5 to 5, or few or many",
		"count=1.5":                   "want a number",
		"size=0":                      "x: size=0: want a number from 1 to 1G, with k, M or G for powers of 1024",
		"size=1025M":                  "want a number from 1 to 1G",
		"size=9999999999999999":       "want a number",
		"size=-1k":                    "want a number",
		"size=k":                      "want a number",
		"size=1kM":                    "want a number",
		"rate=999":                    "want a number from 1k to 1500, with k, M or G for powers of 1000",
		"rate=2k":                     "want a number",
		"role=boss":                   "x: role=boss: want edge, task or forwarder",
		"others=eat":                  "x: others=eat: want pass or drop",
		"on=yes":                      "x: on=yes: want on or off",
		"mac=01:00:5e:00:00:01":       "want the MAC address of a host, such as 02:00:00:00:00:01, or none",
		"mac=00:00:00:00:00:00":       "want the MAC address",
		"mac=02:00:00:00:00:00:00:01": "want the MAC address",
		"addr=224.0.0.1":              "x: addr=224.0.0.1: want the IP address of a host",
		"addr=::":                     "want the IP address",
		"addr=fe80::1%eth0":           "want the IP address",
		"addr=host":                   "want the IP address",
		"list=a+x+b":                  `x: list=a+x+b: "x": want no x, or any`,
		"wait=999ns":                  "x: wait=999ns: want a duration from 1us to 5m",
		"wait=5m1s":                   "want a duration",
		"wait=soon":                   "want a duration",
		"idle=0":                      "want a duration such as 100ms or 5m",
		"settle=-1s":                  "want a duration such as 100ms or 5m, or 0",
		"tick=1m":                     "want a duration of 1h or more",
		"need=":                       "x: need= is missing: a hint",
		"colour=red":                  `x: no argument "colour"`,
		"role=" + long:                "role=" + long[:80] + "...: want",
		"role=one\ntwo":               "role=one...: want",
	} {
		name, v, _ := strings.Cut(text, "=")
		if _, err := read(map[string]string{name: v}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// The first error that is read counts, whatever else is wrong.
func TestFirst(t *testing.T) {
	for range 20 {
		_, err := read(map[string]string{"wait": "x", "octet": "0", "role": "x", "colour": "red", "need": ""})
		if err == nil || !strings.HasPrefix(err.Error(), "x: octet=0") {
			t.Fatal(err)
		}
	}
	if _, r := Declare("", struct{}{}).Read(map[string]string{"x": ""}); r.Err() == nil || r.Err().Error() != `no argument "x"` {
		t.Error(r.Err())
	}
}

func TestRates(t *testing.T) {
	for v, want := range map[string]uint64{"1bit": 1, "7bit": 7, "64kbit": 64_000, "10Mbit": 10_000_000, "1.5Gbit": 1_500_000_000, "0.3kbit": 300, "10Tbit": Fastest, "1.6bit": 2} {
		if got, err := ParseRate(v, 1, Fastest); err != nil || got != want {
			t.Errorf("%s: %d, %v", v, got, err)
		}
	}
	for v, want := range map[string]uint64{"1pps": 1, "100kpps": 100_000, "0.1Mpps": 100_000} {
		if got, err := ParsePackets(v, 1, Fastest); err != nil || got != want {
			t.Errorf("%s: %d, %v", v, got, err)
		}
	}
	for _, v := range []string{"", "10", "10M", "bit", "Mbit", "-1Mbit", "0bit", "0.4bit", "NaNbit", "Infbit", "11Tbit", "10Mbyte", "1e9Gbit", "1e300Tbit", "10kMbit", "10 Mbit", "5Ebit", "10pps"} {
		if got, err := ParseRate(v, 1, Fastest); err == nil || !strings.Contains(err.Error(), "want a rate from 1bit to 10Tbit, such as 10Mbit") {
			t.Errorf("%q is taken for %d: %v", v, got, err)
		}
	}
	for _, v := range []string{"1kpps", "10Mbit", "0.1pps"} {
		if got, err := ParsePackets(v, 1001, 2e6); err == nil || err.Error() != "want a rate from 1001pps to 2Mpps, such as 100kpps" {
			t.Errorf("%q is taken for %d: %v", v, got, err)
		}
	}
	if _, err := read(map[string]string{"bits": "999kbit"}); err == nil || err.Error() != "x: bits=999kbit: want a rate from 1Mbit to 2Gbit, such as 10Mbit or 1.5Gbit" {
		t.Error(err)
	}
	if s, err := read(map[string]string{"bits": "2Gbit"}); err != nil || s.bits != 2e9 {
		t.Error(s.bits, err)
	}
}
