package table_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/table"
)

func decl() *table.Decl {
	return &table.Decl{
		Name: "t",
		Keys: []table.Field{
			{Name: "ip", Bits: 32, Form: table.IP},
			{Name: "six", Bits: 128, Form: table.IP, Match: table.LPM},
			{Name: "mac", Bits: 48, Form: table.MAC, Match: table.Ternary},
			{Name: "key", Bits: 64, Match: table.Range},
			{Name: "qp", Bits: 24, Form: table.Hex, Match: table.Optional},
		},
		Actions: []table.Action{
			{Name: "go", Params: []table.Field{{Name: "port", Bits: 9}, {Name: "to", Bits: 48, Form: table.MAC}}},
			{Name: "rest", Scope: table.DefaultOnly},
			{Name: "only", Scope: table.EntryOnly},
		},
		Default: &table.Call{Action: 1},
		Size:    8,
		May:     table.Insert | table.Modify | table.Delete | table.Default,
	}
}

func value(bits int) *rapid.Generator[table.Value] {
	return rapid.Custom(func(t *rapid.T) table.Value {
		v := table.Value{Hi: rapid.Uint64().Draw(t, "hi"), Lo: rapid.Uint64().Draw(t, "lo")}
		return v.And(table.Ones(rapid.IntRange(0, bits).Draw(t, "bits")))
	})
}

func entry(d *table.Decl) *rapid.Generator[table.Entry] {
	return rapid.Custom(func(t *rapid.T) table.Entry {
		e := table.Entry{Priority: 1 + int32(rapid.Uint16().Draw(t, "priority"))}
		for _, k := range d.Keys {
			c := table.Cond{V: value(k.Bits).Draw(t, k.Name)}
			switch k.Match {
			case table.LPM:
				c.M = table.Prefix(rapid.IntRange(0, k.Bits).Draw(t, "prefix"), k.Bits)
				c.V = c.V.And(c.M)
			case table.Ternary:
				c.M = value(k.Bits).Draw(t, "mask")
				c.V = c.V.And(c.M)
			case table.Range:
				if c.M = value(k.Bits).Draw(t, "high"); c.M.Less(c.V) {
					c.V, c.M = c.M, c.V
				}
			}
			// What every value meets is Any, and is not written otherwise.
			all := (k.Match == table.LPM || k.Match == table.Ternary) && c.M == table.Value{} || k.Match == table.Range && c.V == table.Value{} && c.M == table.Ones(k.Bits)
			if all || k.Match != table.Exact && rapid.Bool().Draw(t, "any") {
				c = table.Cond{Any: true}
			}
			e.Key = append(e.Key, c)
		}
		e.Action = rapid.SampledFrom([]int{0, 2}).Draw(t, "action")
		for _, p := range d.Actions[e.Action].Params {
			e.Params = append(e.Params, value(p.Bits).Draw(t, p.Name))
		}
		return e
	})
}

func TestValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, o := value(128).Draw(t, "v"), value(128).Draw(t, "o")
		a, b := new(big.Int).SetBytes(v.Bytes()), new(big.Int).SetBytes(o.Bytes())
		if len(v.Bytes()) > 1 && v.Bytes()[0] == 0 {
			t.Fatalf("%v begins with a zero: %x", v, v.Bytes())
		}
		if back, ok := table.FromBytes(append(make([]byte, 20), v.Bytes()...)); !ok || back != v {
			t.Fatalf("%v came back as %v", v, back)
		}
		if v.Compare(o) != a.Cmp(b) || v.Less(o) != (a.Cmp(b) < 0) {
			t.Fatalf("%v and %v", v, o)
		}
		n := rapid.IntRange(0, 128).Draw(t, "n")
		if v.Fits(n) != (a.BitLen() <= n) {
			t.Fatalf("%v in %d bits", v, n)
		}
		w := rapid.IntRange(n, 128).Draw(t, "w")
		if p := table.Prefix(n, w); p.PrefixLen(w) != n || !p.Fits(w) {
			t.Fatalf("prefix %d of %d is %v", n, w, p)
		}
		if n := v.PrefixLen(w); n >= 0 && v != table.Prefix(n, w) {
			t.Fatalf("%v is no prefix of %d", v, n)
		}
	})
	for _, s := range []string{"10.1.2.3", "fd00::9:1"} {
		a := netip.MustParseAddr(s)
		if v := table.Addr(a); v.Addr(a.BitLen()) != a {
			t.Errorf("%v is %v", a, v.Addr(a.BitLen()))
		}
	}
	if _, ok := table.FromBytes(nil); ok {
		t.Error("no bytes are a number")
	}
	if _, ok := table.FromBytes(append([]byte{1}, make([]byte, 16)...)); ok {
		t.Error("129 bits fit")
	}
}

func TestTextRoundTrip(t *testing.T) {
	d := decl()
	rapid.Check(t, func(t *rapid.T) {
		e := entry(d).Draw(t, "entry")
		if err := d.Check(&table.Change{Op: table.Insert, Entry: e}); err != nil {
			t.Fatal(err)
		}
		text := d.Text(&e)
		back, err := d.Parse(text)
		if err != nil {
			t.Fatalf("%v: %v", text, err)
		}
		if diff := cmp.Diff(e, back); diff != "" {
			t.Fatalf("%v: %s", text, diff)
		}
	})
	c := table.Call{Action: 0, Params: []table.Value{table.Uint(7), table.Uint(0x0200_0000_0001)}}
	text := d.DefaultText(c)
	want := table.Text{Default: true, Action: "go", Params: map[string]string{"port": "7", "to": "02:00:00:00:00:01"}}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Error(diff)
	}
	if e, err := d.Parse(text); err != nil || !e.Call.Equal(c) {
		t.Errorf("%v: %v, %v", text, e, err)
	}
}

// Texts are taken as they are, whatever is in them.
func TestWords(t *testing.T) {
	d := &table.Decl{
		Name: "t", May: table.Insert,
		Keys:    []table.Field{{Name: "name", Form: table.Words}, {Name: "also", Form: table.Words, Match: table.Optional}},
		Actions: []table.Action{{Name: "go", Params: []table.Field{{Name: "to", Form: table.Words}, {Name: "n", Bits: 8}}}},
	}
	rapid.Check(t, func(t *rapid.T) {
		e := table.Entry{Key: []table.Cond{{V: table.String(rapid.String().Draw(t, "name"))}, {Any: true}}, Priority: 1}
		if s := rapid.SampledFrom([]string{"", "a..b", "1/2", "a&&&b", "0x10", "\x00"}).Draw(t, "also"); rapid.Bool().Draw(t, "is") {
			e.Key[1] = table.Cond{V: table.String(s)}
		}
		e.Params = []table.Value{table.String(rapid.String().Draw(t, "to")), table.Uint(7)}
		if err := d.Check(&table.Change{Op: table.Insert, Entry: e}); err != nil {
			t.Fatal(err)
		}
		back, err := d.Parse(d.Text(&e))
		if err != nil || cmp.Diff(e, back) != "" || !back.Same(&e) || !back.Call.Equal(e.Call) {
			t.Fatalf("%v: %s", err, cmp.Diff(e, back))
		}
		f := &d.Keys[0]
		if v, ok := f.FromBytes(f.Bytes(e.Key[0].V)); !ok || v != e.Key[0].V {
			t.Fatalf("%q came back as %q", e.Key[0].V.Str(), v.Str())
		}
	})
	e, err := d.Parse(table.Text{Match: map[string]string{"name": "x"}, Priority: 1, Action: "go", Params: map[string]string{"n": "1"}})
	if err != nil || e.Params[0] != table.String("") || table.String("") != (table.Value{}) {
		t.Errorf("a text that is left out: %v, %v", e, err)
	}
	long := table.String(strings.Repeat("x", table.MaxWords+1))
	name := []table.Cond{{V: table.String("x")}, {Any: true}}
	for want, e := range map[string]table.Entry{
		"name is longer than 1048576 bytes": {Key: []table.Cond{{V: long}, {Any: true}}},
		"name is no text":                   {Key: []table.Cond{{V: table.Uint(1)}, {Any: true}}},
		"to is longer than 1048576 bytes":   {Key: name, Call: table.Call{Params: []table.Value{long, {}}}},
		"n does not fit in 8 bits":          {Key: name, Call: table.Call{Params: []table.Value{{}, table.String("1")}}},
	} {
		e.Priority = 1
		if err := d.Check(&table.Change{Op: table.Insert, Entry: e}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := d.Keys[0].Parse(long.Str()); err == nil {
		t.Error("a long text was read")
	}
}

func TestParse(t *testing.T) {
	d := decl()
	full := func(m map[string]string) table.Text {
		x := map[string]string{"ip": "10.0.0.1"}
		for k, v := range m {
			x[k] = v
		}
		return table.Text{Match: x, Priority: 1, Action: "only"}
	}
	for text, want := range map[*table.Text]string{
		{Match: map[string]string{"ip": "10.0.0.1", "six": "fd00::/16", "mac": "02:00:00:00:00:00&&&0xff0000000000", "key": "0x10..20", "qp": "*"}, Priority: 2}: "entry ip=10.0.0.1 six=fd00::/16 mac=02:00:00:00:00:00&&&ff:00:00:00:00:00 key=16..20 priority=2",
		{Match: map[string]string{"ip": "0x0a000001", "six": "::/0", "key": "5", "mac": "02:00:00:00:00:00/8", "qp": "17"}}:                                      "entry ip=10.0.0.1 mac=02:00:00:00:00:00&&&ff:00:00:00:00:00 key=5..5 qp=0x11",
	} {
		e, err := d.Parse(*text)
		if err != nil || d.KeyText(&e) != want {
			t.Errorf("%v: %q, %v; want %q", *text, d.KeyText(&e), err, want)
		}
	}
	for want, text := range map[string]table.Text{
		"no key field ipp; it has ip, six, mac, key and qp": {Match: map[string]string{"ipp": "1"}},
		"ip=10.0.0: want an IPv4 address or a number of 32": {Match: map[string]string{"ip": "10.0.0"}},
		"ip=fd00::1: want an IPv4":                          {Match: map[string]string{"ip": "fd00::1"}},
		"ip=0x100000000: want an IPv4":                      full(map[string]string{"ip": "0x100000000"}),
		"six=1.2.3.4: want an IPv6":                         full(map[string]string{"six": "1.2.3.4"}),
		"want a prefix length from 0 to 128":                full(map[string]string{"six": "fd00::/129"}),
		"compared for range, without /":                     full(map[string]string{"key": "1/2"}),
		"mac=zz: want a MAC address":                        full(map[string]string{"mac": "zz"}),
		"key=-1: want a number of 64 bits":                  full(map[string]string{"key": "-1"}),
		"no action fly; it has go, rest and only":           {Action: "fly"},
		"action go: port is missing":                        {Action: "go", Params: map[string]string{"to": "1"}},
		"port=512: want a number of 9 bits":                 {Action: "go", Params: map[string]string{"port": "512", "to": "1"}},
		"action only has no parameter x; it has nothing":    {Action: "only", Params: map[string]string{"x": "1"}},
		"parameters without an action":                      {Params: map[string]string{"x": "1"}},
		"neither key nor priority":                          {Default: true, Priority: 1, Action: "rest"},
	} {
		if text.Match == nil && !text.Default {
			text.Match = map[string]string{"ip": "10.0.0.1"}
		}
		_, err := d.Parse(text)
		var e *table.Error
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &e) || e.Code != table.Invalid {
			t.Errorf("%v: %v, want %q", text, err, want)
		}
	}
}

// TestNamedValues: a value with a name is written by it, and read by it or as a number.
func TestNamedValues(t *testing.T) {
	f := table.Field{Name: "side", Bits: 1, Names: map[string]uint64{"a": 0, "b": 1}}
	for in, want := range map[string]string{"a": "a", "0": "a", "b": "b", "1": "b"} {
		if v, err := f.Parse(in); err != nil || f.Value(v) != want {
			t.Errorf("%s is %s, %v", in, f.Value(v), err)
		}
	}
	if _, err := f.Parse("c"); err == nil || err.Error() != "side=c: want a, b, or a number of 1 bit" {
		t.Error(err)
	}
}

func TestShortNames(t *testing.T) {
	d := &table.Decl{Name: "t", Keys: []table.Field{{Name: "hdr.ip.src", Bits: 8}, {Name: "hdr.ip.dst", Bits: 8}, {Name: "meta.src", Bits: 8, Match: table.Range}}}
	e, err := d.Parse(table.Text{Match: map[string]string{"ip.src": "1", "dst": "2", "meta.src": "3"}})
	if got := d.KeyText(&e); err != nil || got != "entry hdr.ip.src=1 hdr.ip.dst=2 meta.src=3..3" {
		t.Errorf("%s, %v", got, err)
	}
	d.Keys = append(d.Keys, table.Field{Name: "src", Bits: 8}) // the full name of one is an end of others
	e, err = d.Parse(table.Text{Match: map[string]string{"src": "4"}})
	if got := d.KeyText(&e); err != nil || got != "entry src=4" {
		t.Errorf("%s, %v", got, err)
	}
	d.Keys = d.Keys[:3]
	for _, m := range []map[string]string{{"src": "1"}, {"rc": "1"}, {"dst": "1", "ip.dst": "2"}} {
		if _, err := d.Parse(table.Text{Match: m}); err == nil {
			t.Errorf("%v: it is not clear which field is meant", m)
		}
	}
}

func TestJSON(t *testing.T) {
	d := decl()
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var back table.Decl
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, &back); diff != "" {
		t.Error(diff)
	}
	for _, s := range []string{`{"may":["fly"]}`, `{"keys":[{"match":"nearly"}]}`} {
		if err := json.Unmarshal([]byte(s), &back); err == nil || !strings.Contains(err.Error(), "is none of") {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// Changes against a map.
func TestChanges(t *testing.T) {
	d := decl()
	rapid.Check(t, func(t *rapid.T) {
		pool := rapid.SliceOfN(entry(d), 1, 12).Draw(t, "pool")
		model := map[string]table.Entry{}
		rows := table.Rows{Default: *d.Default}
		for range rapid.IntRange(0, 40).Draw(t, "changes") {
			e := rapid.SampledFrom(pool).Draw(t, "entry")
			e.Call = entry(d).Draw(t, "other").Call
			c := table.Change{Op: rapid.SampledFrom([]table.Ops{table.Insert, table.Modify, table.Delete}).Draw(t, "op"), Entry: e}
			if c.Op == table.Modify {
				c.Keep = rapid.Bool().Draw(t, "keep")
			}
			if err := d.Check(&c); err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprint(e.Key, e.Priority)
			_, there := model[key]
			want := table.Code(0)
			switch {
			case c.Op == table.Insert && there:
				want = table.Exists
			case c.Op == table.Insert && len(model) == d.Size:
				want = table.Full
			case c.Op != table.Insert && !there:
				want = table.Missing
			case c.Op == table.Delete:
				delete(model, key)
			case !c.Keep:
				model[key] = e
			}
			err := d.Do(&rows, &c)
			var got *table.Error
			if errors.As(err, &got) != (want != 0) || got != nil && got.Code != want {
				t.Fatalf("%v: %v, want code %d", c, err, want)
			}
		}
		found := map[string]table.Entry{}
		for _, e := range rows.Entries {
			found[fmt.Sprint(e.Key, e.Priority)] = e
		}
		if diff := cmp.Diff(model, found); diff != "" || len(rows.Entries) != len(model) {
			t.Fatal(diff)
		}
	})
}

func TestDefault(t *testing.T) {
	d := decl()
	rows := table.Rows{Default: *d.Default}
	c := table.Change{Op: table.Default, Entry: table.Entry{Call: table.Call{Action: 0, Params: []table.Value{table.Uint(1), table.Uint(2)}}}}
	if err := d.Check(&c); err != nil {
		t.Fatal(err)
	}
	if err := d.Do(&rows, &c); err != nil || !rows.Default.Equal(c.Call) {
		t.Errorf("%v, %v", rows.Default, err)
	}
	if err := d.Do(&rows, &table.Change{Op: table.Default, Reset: true}); err != nil || !rows.Default.Equal(*d.Default) {
		t.Errorf("%v, %v", rows.Default, err)
	}
}

func TestRefusals(t *testing.T) {
	any := table.Cond{Any: true}
	ok := table.Entry{Priority: 1, Key: []table.Cond{{}, any, any, any, any}, Call: table.Call{Action: 2}}
	change := func(op table.Ops, f func(e *table.Entry)) *table.Change {
		e := ok.Clone()
		f(e)
		return &table.Change{Op: op, Entry: *e}
	}
	for want, c := range map[string]*table.Change{
		"ip is missing":                   change(table.Insert, func(e *table.Entry) { e.Key[0] = any }),
		"six has bits that its mask":      change(table.Insert, func(e *table.Entry) { e.Key[1] = table.Cond{V: table.Uint(1), M: table.Prefix(8, 128)} }),
		"six is no prefix":                change(table.Insert, func(e *table.Entry) { e.Key[1] = table.Cond{M: table.Uint(5)} }),
		"mac has bits that its mask":      change(table.Insert, func(e *table.Entry) { e.Key[2] = table.Cond{V: table.Uint(1), M: table.Uint(2)} }),
		"key ends before it begins":       change(table.Insert, func(e *table.Entry) { e.Key[3] = table.Cond{V: table.Uint(2), M: table.Uint(1)} }),
		"qp does not fit in 24 bits":      change(table.Insert, func(e *table.Entry) { e.Key[4] = table.Cond{V: table.Uint(1 << 24)} }),
		"qp is given, and is not":         change(table.Insert, func(e *table.Entry) { e.Key[4] = table.Cond{V: table.Uint(1), Any: true} }),
		"a key of 5 fields, not 1":        change(table.Delete, func(e *table.Entry) { e.Key = e.Key[:1] }),
		"need a priority above 0":         change(table.Delete, func(e *table.Entry) { e.Priority = 0 }),
		"has no action 9":                 change(table.Insert, func(e *table.Entry) { e.Action = 9 }),
		"action rest is for the default":  change(table.Insert, func(e *table.Entry) { e.Action = 1 }),
		"action only is for entries only": change(table.Default, func(*table.Entry) {}),
		"action go takes 2 parameters":    change(table.Insert, func(e *table.Entry) { e.Action = 0 }),
		"action go: port does not fit in 9": change(table.Modify, func(e *table.Entry) {
			e.Call = table.Call{Action: 0, Params: []table.Value{table.Uint(512), {}}}
		}),
	} {
		err := decl().Check(c)
		var e *table.Error
		if !errors.As(err, &e) || e.Code != table.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for want, d := range map[string]*table.Decl{
		"table r can be read only":               {Name: "r", Keys: []table.Field{{Name: "k", Bits: 8}}},
		"no insert: it takes delete":             {Name: "r", Keys: []table.Field{{Name: "k", Bits: 8}}, May: table.Delete},
		"no insert: it takes modify and default": {Name: "r", May: table.Default | table.Modify},
	} {
		err := d.Check(&table.Change{Op: table.Insert, Entry: ok})
		var e *table.Error
		if !errors.As(err, &e) || e.Code != table.Denied || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	plain := &table.Decl{Name: "p", Keys: []table.Field{{Name: "k", Bits: 8}}, May: table.Delete}
	if err := plain.Check(&table.Change{Op: table.Delete, Entry: table.Entry{Key: []table.Cond{{}}, Priority: 1}}); err == nil || !strings.Contains(err.Error(), "have no priority") {
		t.Errorf("%v", err)
	}
}
