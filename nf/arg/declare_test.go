package arg

import (
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

// even is an even number, as a type of an app reads itself.
type even int

func (e *even) UnmarshalText(text []byte) error {
	if len(text)%2 != 0 {
		return errors.New("want an even number of digits")
	}
	*e = even(len(text))
	return nil
}

func (e *even) MarshalText() ([]byte, error) { return []byte(strings.Repeat("x", int(*e))), nil }

type part struct {
	port uint16 `arg:"port" range:"1..65535" help:"of the service"`
}

type declared struct {
	vni    int32         `arg:"vni" range:"0..2^24-1" keep:"none" help:"network"`
	count  int8          `arg:"count" range:"-5.." help:"how many"`
	size   uint64        `arg:"size" unit:"1024" range:"1..2^30" help:"bytes"`
	rate   uint64        `arg:"rate" unit:"bit" range:"1e3..1e13" help:"bits a second"`
	role   uint8         `arg:"role" words:"edge task forwarder" help:"what it is"`
	drop   bool          `arg:"others" words:"pass drop" help:"what becomes of them"`
	on     bool          `arg:"on" words:"off on" help:"on or off"`
	mac    [6]byte       `arg:"mac" keep:"none" help:"address"`
	addr   netip.Addr    `arg:"addr" need:"a hint" help:"address"`
	wait   time.Duration `arg:"wait" range:"1us..5m" help:"time"`
	name   string        `arg:"name" file:"true" default:"-" help:"file"`
	colour [3]even       `arg:"green yellow red" help:"of a colour"`
	list   []netip.Addr  `arg:"list" keep:"any" help:"addresses"`
	evens  []even        `arg:"evens" help:"numbers"`
	own    int           `arg:"own" own:"true" default:"of its own" help:"read elsewhere"`
	_      struct{}      `arg:"blank" own:"true" help:"read elsewhere"`
	part
	left int // no argument
}

func declare() *Set[declared] {
	return Declare("x", declared{
		vni: -1, count: 3, size: 64 << 10, rate: 10e6, on: true, wait: time.Second, colour: [3]even{2, 0, 4}, evens: []even{2, 4}, left: 7, part: part{port: 80},
	})
}

func TestDeclared(t *testing.T) {
	want := []Param{
		{Name: "vni", Default: "none", Help: "network"}, {Name: "count", Default: "3", Help: "how many"}, {Name: "size", Default: "64k", Help: "bytes"},
		{Name: "rate", Default: "10Mbit", Help: "bits a second"}, {Name: "role", Default: "edge", Help: "what it is"},
		{Name: "others", Default: "pass", Help: "what becomes of them"}, {Name: "on", Default: "on", Help: "on or off"},
		{Name: "mac", Default: "none", Help: "address"}, {Name: "addr", Help: "address"}, {Name: "wait", Default: "1s", Help: "time"},
		{Name: "name", Help: "file", File: true}, {Name: "green", Default: "xx", Help: "of a colour"}, {Name: "yellow", Help: "of a colour"},
		{Name: "red", Default: "xxxx", Help: "of a colour"}, {Name: "list", Default: "any", Help: "addresses"}, {Name: "evens", Default: "xx+xxxx", Help: "numbers"},
		{Name: "own", Default: "of its own", Help: "read elsewhere"}, {Name: "blank", Help: "read elsewhere"}, {Name: "port", Default: "80", Help: "of the service"},
	}
	if got := declare().Params(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

func TestDeclaredValues(t *testing.T) {
	set := declare()
	args := map[string]string{
		"vni": "0x10", "count": "-5", "size": "1M", "rate": "1.5Gbit", "role": "forwarder", "others": "drop", "on": "off", "mac": "02:00:00:00:00:01",
		"addr": "10.0.0.1", "wait": "5m", "name": "f", "yellow": "12", "list": "10.0.0.1+fd00::1", "evens": "1234", "port": "443",
	}
	got, r := set.Read(args)
	want := declared{
		16, -5, 1 << 20, 1500e6, 2, true, false, [6]byte{2, 0, 0, 0, 0, 1}, netip.MustParseAddr("10.0.0.1"), 5 * time.Minute, "f",
		[3]even{2, 2, 4}, []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}, []even{4}, 0, struct{}{}, part{443}, 7,
	}
	if r.Err() != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, r.Err(), want)
	}
	got, r = set.Read(map[string]string{"addr": "10.0.0.1", "vni": "none", "mac": "none", "list": "any"})
	if want := set.byDef; r.Err() != nil || got.vni != -1 || got.list != nil || got.left != 7 || !reflect.DeepEqual(got.evens, want.evens) || got.colour != want.colour {
		t.Errorf("%+v, %v", got, r.Err())
	}
}

func TestDeclaredErrors(t *testing.T) {
	if _, r := declare().Read(nil); r.Err() == nil || r.Err().Error() != "x: addr= is missing: a hint" {
		t.Error(r.Err())
	}
	for want, args := range map[string]map[string]string{
		"x: vni=16777216: want a number from 0 to 16777215, or none":     {"vni": "16777216"},
		"x: count=-6: want a number from -5 to 127":                      {"count": "-6"},
		"x: size=0: want a number from 1 to 1G, with k, M or G":          {"size": "0"},
		"x: rate=1bit: want a rate from 1kbit":                           {"rate": "1bit"},
		"x: role=none: want edge, task or forwarder":                     {"role": "none"},
		"x: on=yes: want on or off":                                      {"on": "yes"},
		"x: wait=1h: want a duration from 1us to 5m":                     {"wait": "1h"},
		"x: red=123: want an even number of digits":                      {"red": "123"},
		`x: evens=12+1: "1": want an even number of digits`:              {"evens": "12+1"},
		`x: list=10.0.0.1+x: "x": want the IP address of a host, or any`: {"list": "10.0.0.1+x"},
		`x: no argument "left"`:                                          {"left": "1"},
	} {
		all := map[string]string{"addr": "10.0.0.1"}
		maps.Copy(all, args)
		if _, r := declare().Read(all); r.Err() == nil || !strings.HasPrefix(r.Err().Error(), want) {
			t.Errorf("%v: %v, want %s", args, r.Err(), want)
		}
	}
}

// A declaration that makes no sense ends the program at its start.
func TestDeclareNonsense(t *testing.T) {
	for name, f := range map[string]func(){
		"range": func() {
			Declare("x", struct {
				n int `arg:"n" range:"a..b" help:"h"`
			}{})
		},
		"duration": func() {
			Declare("x", struct {
				n time.Duration `arg:"n" help:"h"`
			}{})
		},
		"names": func() {
			Declare("x", struct {
				n [2]int `arg:"a b c" help:"h"`
			}{})
		},
		"type": func() {
			Declare("x", struct {
				n float64 `arg:"n" help:"h"`
			}{})
		},
		"unit": func() {
			Declare("x", struct {
				n int `arg:"n" unit:"7" help:"h"`
			}{})
		},
		"words": func() {
			Declare("x", struct {
				n bool `arg:"n" help:"h"`
			}{})
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: taken", name)
				}
			}()
			f()
		}()
	}
}
