package p4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// matchProgram has one table over metadata fields; an entry's action sends to
// the port that it is given. A miss drops.
func matchProgram(kind string, keys []KeyInfo) *source {
	s := newSource()
	var fields, key arr
	for i, k := range keys {
		name := fmt.Sprintf("k%d", i)
		fields = append(fields, arr{name, k.Bits})
		key = append(key, keyOf(k.Match.String(), "m", name))
	}
	s.header("m", true, fields...)
	s.action("send", arr{arr{"port", 32}}, prim("assign", fld("r", "x"), param_(0)))
	s.header("r", true, arr{"x", 32})
	s.table(s.ingress, "t", kind, key, arr{"send"}, nil, obj{"max_size": 1 << 20})
	return s
}

// naiveEntry is an entry of the model.
type naiveEntry struct {
	entry  Entry
	handle Handle
	key    []*big.Int
	mask   []*big.Int
}

func ones(n int) *big.Int {
	return new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(n)), big.NewInt(1))
}

// TestMatching compares every kind of table with a list that is searched in the
// order in which entries win.
func TestMatching(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"exact", "lpm", "ternary", "range"}).Draw(t, "kind")
		var keys []KeyInfo
		width := rapid.OneOf(rapid.IntRange(1, 12), rapid.SampledFrom([]int{16, 32, 33, 48, 64, 65, 96, 128, 129, 160}))
		n := rapid.IntRange(1, 3).Draw(t, "keys")
		for i := range n {
			k := KeyInfo{Match: Exact, Bits: width.Draw(t, "bits")}
			switch {
			case kind == "lpm" && i == n-1:
				k.Match = LPM
			case kind == "ternary":
				kinds := []MatchKind{Ternary, Ternary, Exact, LPM}
				if slices.ContainsFunc(keys, func(k KeyInfo) bool { return k.Match == LPM }) {
					kinds = kinds[:3]
				}
				k.Match = rapid.SampledFrom(kinds).Draw(t, "match")
			case kind == "range":
				k.Match = rapid.SampledFrom([]MatchKind{Range, Range, Ternary, Exact}).Draw(t, "match")
			}
			keys = append(keys, k)
		}
		p, err := Load(matchProgram(kind, keys).json())
		if err != nil {
			t.Fatal(err)
		}
		sw, _ := NewSwitch(p, Config{})
		h, out := headerOf(p, "m"), headerOf(p, "r")
		// Few values, so that entries overlap.
		var pool [][]*big.Int
		for _, k := range keys {
			pool = append(pool, []*big.Int{genNumber(t, k.Bits), genNumber(t, k.Bits), genNumber(t, k.Bits)})
		}
		var model []naiveEntry
		next := uint32(0)
		lookup := func(t *rapid.T) {
			k := sw.take()
			var key []*big.Int
			for i, f := range h.typ.fields {
				v := rapid.SampledFrom(pool[i]).Draw(t, "probe")
				if rapid.Bool().Draw(t, "near") {
					v = new(big.Int).Xor(v, new(big.Int).Lsh(big.NewInt(1), uint(rapid.IntRange(0, f.bits-1).Draw(t, "bit"))))
				}
				key = append(key, v)
				copy(k.v[h.base+f.off:], bigWords(v, words(f.bits)))
			}
			k.v[out.base+1] = 0xffffffff
			sw.apply(k, p.ingress)
			want := naive(keys, model, key, kind)
			if got := uint32(k.v[out.base+1]); got != want {
				t.Fatalf("%s table: key %v finds %d, want %d", kind, key, got, want)
			}
			sw.give(k)
		}
		insert := func(t *rapid.T) {
			x := naiveEntry{}
			for i, k := range keys {
				v, mask := rapid.SampledFrom(pool[i]).Draw(t, "value"), ones(k.Bits)
				m := Match{}
				switch k.Match {
				case LPM:
					m.Prefix = rapid.IntRange(0, k.Bits).Draw(t, "prefix")
					mask = new(big.Int).AndNot(mask, ones(k.Bits-m.Prefix))
				case Ternary:
					mask = new(big.Int).And(mask, rapid.SampledFrom([]*big.Int{ones(k.Bits), ones(k.Bits / 2), big.NewInt(0), pool[i][0]}).Draw(t, "mask"))
					m.Mask = mask.Bytes()
					if m.Mask == nil {
						m.Mask = []byte{}
					}
				case Range:
					hi := rapid.SampledFrom(pool[i]).Draw(t, "high")
					if hi.Cmp(v) < 0 {
						v, hi = hi, v
					}
					mask = hi
					m.Mask = hi.Bytes()
					if m.Mask == nil {
						m.Mask = []byte{}
					}
				}
				m.Value = v.Bytes()
				if k.Match != Range {
					v = new(big.Int).And(v, mask)
				}
				x.entry.Key = append(x.entry.Key, m)
				x.key, x.mask = append(x.key, v), append(x.mask, mask)
			}
			if kind == "ternary" || kind == "range" {
				x.entry.Priority = int32(rapid.IntRange(1, 4).Draw(t, "priority"))
			}
			next++
			x.entry.Action = Action{"send", [][]byte{binary.BigEndian.AppendUint32(nil, next)}}
			dup := slices.ContainsFunc(model, func(y naiveEntry) bool {
				return y.entry.Priority == x.entry.Priority && slices.EqualFunc(x.key, y.key, same) && slices.EqualFunc(x.mask, y.mask, same)
			})
			hd, err := sw.Insert("t", x.entry)
			if dup != errors.Is(err, ErrExists) || !dup && err != nil {
				t.Fatalf("duplicate %v: %v", dup, err)
			}
			if dup {
				return
			}
			x.handle = hd
			if f, err := sw.Find("t", x.entry.Key, x.entry.Priority); err != nil || f != hd {
				t.Fatalf("found %d, %v", f, err)
			}
			model = append(model, x)
		}
		remove := func(t *rapid.T) {
			if len(model) == 0 {
				return
			}
			i := rapid.IntRange(0, len(model)-1).Draw(t, "entry")
			if err := sw.Delete("t", model[i].handle); err != nil {
				t.Fatal(err)
			}
			model = slices.Delete(model, i, i+1)
			if n, _ := sw.Len("t"); n != len(model) {
				t.Fatalf("%d entries, want %d", n, len(model))
			}
		}
		t.Repeat(map[string]func(*rapid.T){"insert": insert, "insert more": insert, "remove": remove, "lookup": lookup, "lookup more": lookup})
	})
}

func same(a, b *big.Int) bool { return a.Cmp(b) == 0 }

// naive is the port of the entry that wins; all ones when none matches.
func naive(keys []KeyInfo, model []naiveEntry, key []*big.Int, kind string) uint32 {
	best, port, prefix := -1, uint32(0xffffffff), -1
	for i, e := range model {
		hit := true
		long := 0
		for j, k := range keys {
			if k.Match == Range {
				hit = hit && key[j].Cmp(e.key[j]) >= 0 && key[j].Cmp(e.mask[j]) <= 0
			} else {
				hit = hit && new(big.Int).And(key[j], e.mask[j]).Cmp(e.key[j]) == 0
			}
			if k.Match == LPM {
				long = e.entry.Key[j].Prefix
			}
		}
		if !hit {
			continue
		}
		better := best < 0
		if !better {
			b := model[best]
			switch {
			case kind == "lpm":
				better = long > prefix
			case e.entry.Priority != b.entry.Priority:
				better = e.entry.Priority < b.entry.Priority
			default:
				better = e.handle < b.handle
			}
		}
		if better {
			best, prefix = i, long
			port = binary.BigEndian.Uint32(e.entry.Action.Args[0])
		}
	}
	return port
}

// TestEntriesComeBack: an entry is read as it was written.
func TestEntriesComeBack(t *testing.T) {
	sw := matchProgram("ternary", []KeyInfo{{Match: Ternary, Bits: 12}, {Match: LPM, Bits: 128}, {Match: Exact, Bits: 1}}).load(t, Config{})
	e := Entry{Key: []Match{{Value: []byte{0x0a, 0xbc}, Mask: []byte{0x0f, 0xf0}}, {Value: append([]byte{0x20}, make([]byte, 15)...), Prefix: 7}, {Value: []byte{1}}},
		Priority: 3, Action: Action{"send", [][]byte{{0, 0, 0, 9}}}}
	h, err := sw.Insert("t", e)
	if err != nil {
		t.Fatal(err)
	}
	got, err := sw.Get("t", h)
	if err != nil {
		t.Fatal(err)
	}
	e.Key[0].Value = []byte{0x0a, 0xb0}
	want := fmt.Sprintf("%+v", e)
	if s := fmt.Sprintf("%+v", got); s != want {
		t.Errorf("%s, want %s", s, want)
	}
}

// TestOnePrefix: a key has one LPM field, as p4c has it, in a ternary table too:
// an entry keeps one length.
func TestOnePrefix(t *testing.T) {
	for _, kind := range []MatchKind{LPM, Ternary, Range} {
		_, err := Load(matchProgram(kind.String(), []KeyInfo{{Match: LPM, Bits: 32}, {Match: LPM, Bits: 32}}).json())
		if want := "p4: table t: two LPM fields"; err == nil || err.Error() != want {
			t.Errorf("%v: %v, want %q", kind, err, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	sw := matchProgram("lpm", []KeyInfo{{Match: Exact, Bits: 9}, {Match: LPM, Bits: 32}}).load(t, Config{})
	ok := func() Entry {
		return Entry{Key: []Match{{Value: []byte{1}}, {Value: []byte{10, 0, 0, 0}, Prefix: 8}}, Action: Action{"send", [][]byte{{1}}}}
	}
	for _, c := range []struct {
		name string
		edit func(e *Entry)
		want error
		text string
	}{
		{"wide value", func(e *Entry) { e.Key[0].Value = []byte{2, 0} }, ErrInvalid, "invalid: table t, field m.k0: value 0200 is wider than 9 bits"},
		{"long prefix", func(e *Entry) { e.Key[1].Prefix = 33 }, ErrInvalid, "invalid: table t, field m.k1: prefix length 33, the field has 32 bits"},
		{"mask", func(e *Entry) { e.Key[0].Mask = []byte{1} }, ErrInvalid, "invalid: table t, field m.k0: an exact match takes a value only"},
		{"missing field", func(e *Entry) { e.Key = e.Key[:1] }, ErrInvalid, "invalid: table t: 1 match fields, its key has 2"},
		{"priority", func(e *Entry) { e.Priority = 1 }, ErrInvalid, "invalid: table t: priority 1, its entries have none"},
		{"action", func(e *Entry) { e.Action.Name = "sned" }, ErrNotFound, "table t: action sned: not found; there are: send"},
		{"arguments", func(e *Entry) { e.Action.Args = nil }, ErrInvalid, "invalid: table t: action send takes 1 arguments, not 0"},
		{"wide argument", func(e *Entry) { e.Action.Args[0] = []byte{1, 2, 3, 4, 5} }, ErrInvalid, "invalid: table t: action send, argument port: 0102030405 is wider than 32 bits"},
		{"timeout", func(e *Entry) { e.Timeout = 1 }, ErrInvalid, "invalid: table t: its entries have no timeout"},
		{"member", func(e *Entry) { e.Member = 1 }, ErrInvalid, "invalid: table t has no action profile"},
	} {
		e := ok()
		c.edit(&e)
		_, err := sw.Insert("t", e)
		if !errors.Is(err, c.want) || err.Error() != c.text {
			t.Errorf("%s: %v, want %s", c.name, err, c.text)
		}
	}
	if _, err := sw.Insert("t", ok()); err != nil {
		t.Error(err)
	}
	if _, err := sw.Insert("t", ok()); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
	if _, err := sw.Insert("x", ok()); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := sw.Delete("t", 7); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	e := ok()
	e.Timeout = -1
	if err := sw.Modify("t", 0, e); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	sw = bridge(t)
	aging := smac(1)
	h, err := sw.Insert("bridge_ingress.smac", aging)
	if err != nil {
		t.Fatal(err)
	}
	aging.Timeout = -1
	_, again := sw.Insert("bridge_ingress.smac", aging)
	for _, err := range []error{sw.Modify("bridge_ingress.smac", h, aging), again} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("timeout -1: %v", err)
		}
	}
}

// TestMaskedKey: of a key with a mask, which p4c writes for a part of a field, an entry keeps the bits of the mask.
func TestMaskedKey(t *testing.T) {
	for _, kind := range []MatchKind{Exact, LPM, Ternary} {
		s := newSource()
		s.header("h", false, arr{"x", 16})
		s.state("start", arr{extract("h")}, arr{}, to(nil))
		s.action("send", arr{arr{"port", 9}}, assign(std("egress_spec"), param_(0)))
		key := keyOf(kind.String(), "h", "x")
		key["mask"] = "0x00ff"
		s.table(s.ingress, "t", kind.String(), arr{key}, arr{"send"}, nil, nil)
		sw := s.load(t, Config{})
		e := Entry{Key: []Match{{Value: []byte{0x12, 0x34}}}, Action: Action{"send", [][]byte{{5}}}}
		if kind == LPM {
			e.Key[0].Prefix = 16
		}
		if _, err := sw.Insert("t", e); err != nil {
			t.Fatal(err)
		}
		got, _ := run(sw, 1, "\x56\x34")
		expect(t, got, sent{5, "\x56\x34"})
		e.Key[0].Value = []byte{0x34}
		if _, err := sw.Insert("t", e); !errors.Is(err, ErrExists) {
			t.Errorf("%v: the same entry again: %v", kind, err)
		}
	}
}
