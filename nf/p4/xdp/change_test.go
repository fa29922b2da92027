package xdp

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/nf/p4"
)

// mostPairs is how many entries the table of pairs may have.
const mostPairs = 2048

// pairs is a program with a table whose entries have two numbers of 64 bits, which it writes into the frame behind the key, of 16 bits.
func pairs(t testing.TB, kind string) []byte { return widePairs(t, kind, 16) }

func widePairs(t testing.TB, kind string, bits int) []byte {
	word := func(i int) obj { return fieldOf(field{"out", []string{"a", "b"}[i], 64}) }
	simple, profiles, calls, egress := "simple", arr{}, arr{}, any(nil)
	code := arr{prim("assign", word(0), obj{"type": "runtime_data", "value": 0}), prim("assign", word(1), obj{"type": "runtime_data", "value": 1}),
		prim("assign", fieldOf(specField), hexs(2))}
	tables, more := arr{}, arr{}
	if kind == "copies" { // some copies of a group are dropped, by their rid; all others have 1 added
		kind, egress = "exact", "e"
		code = append(code, prim("assign", fieldOf(field{"standard_metadata", "mcast_grp", 16}), hexs(1)))
		more = arr{obj{"name": "add", "id": 3, "runtime_data": arr{}, "primitives": arr{prim("assign", word(0), expr("+", word(0), hexs(1)))}},
			obj{"name": "gone", "id": 4, "runtime_data": arr{}, "primitives": arr{prim("assign", word(0), hexs(5)), prim("mark_to_drop", obj{"type": "header", "value": "standard_metadata"})}}}
		tables = arr{obj{"name": "e", "id": 2, "match_type": "exact", "type": "simple", "max_size": 8, "actions": arr{"add", "gone"}, "action_ids": arr{3, 4},
			"key":         arr{obj{"match_type": "exact", "name": "rid", "target": arr{"standard_metadata", "egress_rid"}, "mask": nil}},
			"next_tables": obj{"add": nil, "gone": nil}, "base_default_next": nil,
			"default_entry": obj{"action_id": 3, "action_const": true, "action_data": arr{}, "action_entry_const": true}}}
	}
	copied := prim("assign", word(0), fieldOf(field{"standard_metadata", "egress_rid", 16}))
	if kind == "multicast" {
		kind, calls, egress = "exact", arr{obj{"name": "copied", "id": 1, "action_id": 2, "next_node": nil}}, "copied"
		code = append(code, prim("assign", fieldOf(field{"standard_metadata", "mcast_grp", 16}), hexs(1)))
	}
	if kind == "selector" {
		kind, simple = "exact", "indirect_ws"
		profiles = arr{obj{"name": "p", "id": 1, "max_size": 8, "selector": obj{"algo": "crc32", "input": arr{fieldOf(field{"out", "key", bits})}}}}
	}
	fields := arr{arr{"key", bits, false}, arr{"a", 64, false}, arr{"b", 64, false}}
	if bits%8 > 0 {
		fields = slices.Insert(fields, 1, any(arr{"rest", 8 - bits%8, false}))
	}
	root := obj{"__meta__": obj{"version": arr{2, 23}},
		"header_types": arr{obj{"name": "std_t", "id": 1, "fields": stdFields},
			obj{"name": "out_t", "id": 2, "fields": fields}},
		"headers": arr{obj{"name": "standard_metadata", "id": 1, "header_type": "std_t", "metadata": true},
			obj{"name": "out", "id": 2, "header_type": "out_t", "metadata": false}},
		"actions": append(more, obj{"name": "set", "id": 1, "runtime_data": arr{obj{"name": "a", "bitwidth": 64}, obj{"name": "b", "bitwidth": 64}},
			"primitives": code}, obj{"name": "copied", "id": 2, "runtime_data": arr{}, "primitives": arr{copied, prim("assign", word(1), word(0))}}),
		"parsers": arr{obj{"name": "parser", "id": 0, "init_state": "s", "parse_states": arr{obj{"name": "s", "id": 0,
			"parser_ops": arr{prim("extract", obj{"type": "regular", "value": "out"})}, "transition_key": arr{},
			"transitions": arr{obj{"type": "default", "value": nil, "mask": nil, "next_state": nil}}}}}},
		"deparsers": arr{obj{"name": "deparser", "id": 0, "order": arr{"out"}}},
		"pipelines": arr{obj{"name": "ingress", "action_profiles": profiles, "init_table": "t", "conditionals": arr{}, "tables": arr{obj{"name": "t", "id": 1, "match_type": kind,
			"type": simple, "action_profile": "p", "max_size": mostPairs, "key": arr{obj{"match_type": kind, "name": "key", "target": arr{"out", "key"}, "mask": nil}},
			"actions": arr{"set"}, "action_ids": arr{1}, "next_tables": obj{"set": nil}, "base_default_next": nil,
			"default_entry": obj{"action_id": 1, "action_const": true, "action_data": arr{"0x0", "0x0"}, "action_entry_const": false}}}},
			obj{"name": "egress", "init_table": egress, "tables": tables, "conditionals": arr{}, "action_calls": calls}},
		"field_aliases": arr{arr{"intrinsic_metadata.mcast_grp", arr{"standard_metadata", "mcast_grp"}}, arr{"intrinsic_metadata.egress_rid", arr{"standard_metadata", "egress_rid"}}}}
	b, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// replaceMember has entry h run an action: by a group, in which a new member takes the place of the only one, which is deleted, or by that member alone.
func (w *twin) replaceMember(h p4.Handle, i uint64, a p4.Action) error {
	is, was := uint32(1+i%2), uint32(2-i%2)
	errs := []error{w.sw.SetMember("p", is, a), w.sw.SetGroup("p", 1, []p4.GroupMember{{ID: is, Weight: int(i % 3)}})}
	if i%5 == 0 {
		errs = append(errs, w.sw.Modify("t", h, p4.Entry{Member: is}))
	} else {
		errs = append(errs, w.sw.Modify("t", h, p4.Entry{Group: 1}))
	}
	return errors.Join(append(errs, w.sw.DeleteMember("p", was))...)
}

// met checks that so many frames were given to the engine, all because entries changed while they looked, and that they are not more than the changes.
func (w *twin) met(given, changes uint64) {
	w.Helper()
	all, err := w.x.Outcomes()
	if err != nil {
		w.Fatal(err)
	}
	counted := uint64(0)
	for _, o := range all {
		switch {
		case !o.Engine || o.Frames == 0:
		case o.Name == "table t: "+whyChanging:
			counted += o.Frames
		default:
			w.Errorf("%s: %d frames", o.Name, o.Frames)
		}
	}
	if counted != given || given > changes {
		w.Errorf("%d frames were given to the engine, %d of them because entries changed, during %d changes", given, counted, changes)
	}
}

// TestNoHalfEntries changes entries and the default entry while another processor runs frames: each frame sees one entry as it was, or as it is.
func TestNoHalfEntries(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("it takes two processors")
	}
	for _, kind := range []string{"exact", "ternary", "lpm", "selector", "multicast"} {
		t.Run(kind, func(t *testing.T) {
			w := newTwin(t, pairs(t, kind))
			w.x.port(1)
			action := func(i uint64) p4.Entry {
				return p4.Entry{Action: p4.Action{Name: "set", Args: [][]byte{bigEndian(i), bigEndian(i)}}}
			}
			keyed := func(key byte, i uint64) p4.Entry {
				e := action(i)
				e.Key = []p4.Match{{Value: []byte{key}}}
				switch {
				case kind == "ternary":
					e.Priority = 1
				case kind == "lpm" && key == 1: // it has eight places of a block
					e.Key[0] = p4.Match{Value: []byte{0}, Prefix: 13}
				case kind == "lpm":
					e.Key[0].Prefix = 16
				}
				return e
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			// modify has the entry run the action with i.
			var h p4.Handle
			modify := func(i uint64) error { return w.sw.Modify("t", h, action(i)) }
			if kind == "selector" {
				keyed = func(key byte, i uint64) p4.Entry {
					return p4.Entry{Key: []p4.Match{{Value: []byte{key}}}, Group: 1}
				}
				modify = func(i uint64) error { return w.replaceMember(h, i, action(i).Action) }
				must(w.sw.SetMember("p", 1, action(0).Action))
				must(w.sw.SetGroup("p", 1, []p4.GroupMember{{ID: 1}}))
			}
			if kind == "multicast" { // the copies for a group are alike, as its replicas have one rid
				modify = func(i uint64) error {
					rid := uint16(min(i, 1<<16-1))
					to := []p4.Replica{{Port: 2, Rid: rid}, {Port: 3, Rid: rid}, {Port: 4, Rid: rid}}
					return w.sw.SetMulticast(1, to[:2+i%2])
				}
				must(modify(0))
			}
			h, err := w.sw.Insert("t", keyed(1, 0))
			must(err)
			var stop atomic.Bool
			var frames, changing atomic.Uint64
			var group sync.WaitGroup
			group.Add(1)
			go func() {
				defer group.Done()
				runtime.LockOSThread()
				pin(t, 1)
				last := [2]uint64{}
				keys := []byte{1, 8} // an entry, and the default entry
				if kind == "lpm" {
					keys = []byte{0, 8, 7, 8} // both ends of the prefix
				}
				for n := 0; !stop.Load(); n++ {
					b := make([]byte, 64)
					b[1] = keys[n%len(keys)]
					out := make([]byte, 64)
					code, err := w.x.prog.Run(&ebpf.RunOptions{Data: b, DataOut: out})
					x, y := binary.BigEndian.Uint64(out[2:]), binary.BigEndian.Uint64(out[10:])
					if err == nil && code == xdpPass { // it met a change: met checks which and how many
						changing.Add(1)
						continue
					}
					if err != nil || code != xdpRedirect || x != y || x < last[n%2] {
						t.Errorf("frame %d: code %d, %v: %d and %d, before it was %d", n, code, err, x, y, last[n%2])
						return
					}
					last[n%2] = x
					frames.Add(1)
				}
			}()
			changes := uint64(20_000)
			if kind == "selector" { // its few numbers wait for grace periods
				changes = 4000
			}
			begun := time.Now()
			made, defaults := uint64(0), uint64(0)
			for i := uint64(1); i <= changes || frames.Load() < 1000 && time.Since(begun) < 30*time.Second; i++ {
				made = i
				must(modify(i))
				if i%1000 == 0 && kind != "selector" && kind != "multicast" {
					must(w.sw.SetDefault("t", action(i)))
					defaults++
				}
				other, err := w.sw.Insert("t", keyed(byte(10+i%40), 1<<63))
				must(err)
				must(w.sw.Delete("t", other))
			}
			took := time.Since(begun)
			stop.Store(true)
			group.Wait()
			if s := w.x.Stopped(); len(s) > 0 || frames.Load() < 1000 {
				t.Errorf("%d frames, stopped: %v", frames.Load(), s)
			}
			// One frame runs at a time, so that a change meets at most one. Only entries under masks change while frames look.
			most := defaults
			if kind == "ternary" {
				most += 3 * made
			}
			w.met(changing.Load(), most)
			t.Logf("%d frames during %.0f changes a second of entries, and %d of the default entry; %d met changes", frames.Load(), 3*float64(made)/took.Seconds(), defaults, changing.Load())
		})
	}
}

// TestManyEntries fills a table, looks for what is there and for what is not, and empties it: no place is lost.
func TestManyEntries(t *testing.T) {
	w := newTwin(t, pairs(t, "exact"))
	for round := range uint64(3) {
		var all []p4.Handle
		for i := range uint64(mostPairs) {
			e := p4.Entry{Key: []p4.Match{{Value: bigEndian(3 * i)}}, Action: p4.Action{Name: "set", Args: [][]byte{bigEndian(i), bigEndian(round)}}}
			w.both(func(sw *p4.Switch) error {
				h, err := sw.Insert("t", e)
				if sw == w.sw {
					all = append(all, h)
				}
				return err
			})
		}
		for i := range uint16(3 * mostPairs) {
			b := make([]byte, 64)
			binary.BigEndian.PutUint16(b, i)
			w.frame(1, b)
		}
		for _, h := range all {
			w.both(func(sw *p4.Switch) error { return sw.Delete("t", h) })
		}
	}
	w.counts()
	if w.x.graces.n > 20 {
		t.Errorf("%d grace periods", w.x.graces.n)
	}
	if s := w.x.Stopped(); len(s) > 0 || w.kernel != 9*mostPairs {
		t.Errorf("stopped: %v, %d frames in the kernel", s, w.kernel)
	}
}

// TestManyPrefixes inserts, changes and deletes prefixes of all lengths, and looks for keys meanwhile. Wide keys lie close to others: some differ in the last bits, some in the first.
func TestManyPrefixes(t *testing.T) {
	for _, bits := range []int{16, 32, 64} {
		t.Run(fmt.Sprint(bits), func(t *testing.T) { manyPrefixes(t, bits) })
	}
}

func manyPrefixes(t *testing.T, bits int) {
	w := newTwin(t, widePairs(t, "lpm", bits))
	r := newRandom(t)
	have := map[prefix]p4.Handle{}
	var list []prefix
	number := func() (k uint64) {
		if k = r.Uint64() >> r.IntN(16) & 0xffff; bits == 16 {
			return k
		}
		if len(list) > 0 && r.IntN(3) > 0 {
			return list[r.IntN(len(list))].Key ^ r.Uint64()>>(64-bits+r.IntN(bits))
		}
		return r.Uint64() >> (64 - bits)
	}
	for n := range uint64(6000) {
		action := p4.Action{Name: "set", Args: [][]byte{bigEndian(n), bigEndian(n)}}
		p := prefix{number(), bits - r.IntN(bits+1)*r.IntN(2)}
		if n%3000 > 2000 && len(list) > 0 { // fewer and fewer
			p = list[len(list)-1]
		}
		p.Key = p.Key >> (bits - p.Len) << (bits - p.Len)
		switch h, there := have[p]; {
		case there && (r.IntN(2) == 0 || n%3000 > 2000):
			w.both(func(sw *p4.Switch) error { return sw.Delete("t", h) })
			delete(have, p)
		case there:
			w.both(func(sw *p4.Switch) error { return sw.Modify("t", h, p4.Entry{Action: action}) })
		case len(have) < mostPairs:
			e := p4.Entry{Key: []p4.Match{{Value: bigEndian(p.Key), Prefix: p.Len}}, Action: action}
			w.both(func(sw *p4.Switch) (err error) {
				h, err = sw.Insert("t", e)
				return err
			})
			have[p] = h
			list = append(list, p)
		}
		if n%3000 > 2000 && len(list) > 0 && have[list[len(list)-1]] == 0 {
			list = list[:len(list)-1]
		}
		for range 2 {
			b := make([]byte, 64)
			copy(b, bigEndian(number()<<(64-bits)))
			w.frame(1, b)
		}
		if t.Failed() {
			t.Fatalf("after change %d of %d entries: %v", n, len(have), p)
		}
	}
	s := w.x.tables[0].strides
	t.Logf("%d entries, %d graces, %d blocks, %d records ever", len(have), w.x.graces.n, s.blocks.used, s.recs.used)
	if st := w.x.Stopped(); len(st) > 0 || w.kernel != 12000 {
		t.Errorf("stopped: %v, %d frames in the kernel", st, w.kernel)
	}
}

// TestMembersRest: the number of a member that was deleted, its record, and the block of a group that was changed, are not given to others before a grace period.
func TestMembersRest(t *testing.T) {
	w := newTwin(t, pairs(t, "selector"))
	m := w.x.profiles.profiles[0]
	left := map[string]int{} // how many grace periods there had been
	is := map[string]uint32{}
	graces := 0
	for i := range uint64(3000) {
		id, was := uint32(1+i%2), uint32(2-i%2)
		err := errors.Join(w.sw.SetMember("p", id, p4.Action{Name: "set", Args: [][]byte{bigEndian(i), bigEndian(i)}}), w.sw.SetGroup("p", 1, []p4.GroupMember{{ID: id}}))
		if i > 0 {
			err = errors.Join(err, w.sw.DeleteMember("p", was))
		}
		if err != nil {
			t.Fatal(err)
		}
		now := map[string]uint32{"block": *m.groups.half(int(m.groupAt[1]))}
		for _, n := range m.memberAt {
			now["number"], now["record"] = n, *m.members.half(int(n))
		}
		for what, n := range now {
			key := fmt.Sprint(what, " ", n)
			if since, there := left[key]; there && since == w.x.graces.n {
				t.Fatalf("%s is another one's in the grace period in which it was left", key)
			}
			delete(left, key)
			if was, there := is[what]; there {
				left[fmt.Sprint(what, " ", was)] = graces
			}
		}
		is, graces = now, w.x.graces.n
	}
	if w.x.graces.n == 0 || w.x.graces.n > 200 || len(w.x.Stopped()) > 0 {
		t.Errorf("%d grace periods, stopped: %v", w.x.graces.n, w.x.Stopped())
	}
}

// TestRecordsRest: a record that a program may still read is not written before a grace period.
func TestRecordsRest(t *testing.T) {
	w := newTwin(t, pairs(t, "exact"))
	c := w.x.tables[0].cuckoo
	var changes, passed atomic.Uint64
	var graces atomic.Int64
	w.x.graces.wait = func() error {
		from := changes.Load()
		err := w.x.pass()
		passed.Store(from)
		graces.Add(1)
		return err
	}
	resting := map[uint32]uint64{} // since which change
	r := newRandom(t)
	where := map[uint64]uint32{} // records of keys
	for n := range uint64(60_000) {
		changes.Store(n)
		key := r.Uint64N(mostPairs)
		h := c.hash([]uint64{key})
		if old, there := where[key]; there {
			if r.IntN(3) == 0 {
				if err := c.delete([]uint64{key}); err != nil {
					t.Fatal(err)
				}
				delete(where, key)
				resting[old] = n + 1
				continue
			}
		}
		old, had := where[key]
		err := c.put([]uint64{key}, []uint64{n, 0, n, n})
		if err != nil {
			t.Fatal(err)
		}
		now, _ := c.record(c.find([]uint64{key}, h))
		if since := resting[now]; since > passed.Load() || had && now == old {
			t.Fatalf("change %d of key %d: record %d is written while a program may read it, since change %d", n, key, now, since)
		}
		if had {
			resting[old] = n + 1
		}
		where[key] = now
	}
	if n := graces.Load(); n == 0 || n > 100 {
		t.Errorf("%d grace periods in 60,000 changes", n)
	}
}

// TestMoves: in a hash that is nearly full entries move, and for a grace period they are in both of their places.
func TestMoves(t *testing.T) {
	w := newTwin(t, pairs(t, "exact"))
	shape := cuckooShape{keyWords: 1, words: 2, buckets: 16, records: 64}
	slots, err := w.x.newShared("slots", 4*slotsOf*shape.buckets)
	if err != nil {
		t.Fatal(err)
	}
	records, err := w.x.newShared("records", 8*shape.words*shape.records)
	if err != nil {
		t.Fatal(err)
	}
	g := &graces{after: func() {}}
	c := &cuckoo{cuckooShape: shape, slots: slots, records: records, seed: 5, recs: g.rest(64)}
	var keys []uint64
	where := func(key uint64) (all []int) {
		for i := range slotsOf * shape.buckets {
			if r, there := c.record(i); there && c.key(r)[0] == key {
				all = append(all, i)
			}
		}
		return all
	}
	moves := 0
	g.wait = func() error {
		moves++
		twice := 0
		for _, k := range keys {
			if len(where(k)) == 2 {
				twice++
			}
		}
		if twice != 1 {
			t.Errorf("%d entries are in two places during a grace period, want 1", twice)
		}
		return nil
	}
	for k := range uint64(64) {
		if err := c.put([]uint64{k}, []uint64{k}); err != nil {
			t.Logf("%d of 64 keys have a place: %v", k, err)
			break
		}
		keys = append(keys, k)
		for _, k := range keys {
			if at := where(k); len(at) != 1 || c.find([]uint64{k}, c.hash([]uint64{k})) != at[0] {
				t.Fatalf("key %d is at %v", k, at)
			}
		}
	}
	if moves == 0 || len(keys) < 48 {
		t.Errorf("%d moves, %d keys", moves, len(keys))
	}
}

// TestGraceOfDefaults: the place of a default entry that was just in use is not written before a grace period.
func TestGraceOfDefaults(t *testing.T) {
	w := newTwin(t, pairs(t, "ternary"))
	e := p4.Entry{Action: p4.Action{Name: "set", Args: [][]byte{{1}, {1}}}}
	w.both(func(sw *p4.Switch) error { return sw.SetDefault("t", e) })
	first := w.x.graces.n
	w.both(func(sw *p4.Switch) error { return sw.SetDefault("t", e) })
	if w.x.graces.n != first+1 {
		t.Errorf("%d grace periods before the second default entry, want 1", w.x.graces.n-first)
	}
	// So it is with the place of a mask.
	for i := range maxMasks + 1 {
		h, err := w.sw.Insert("t", p4.Entry{Key: []p4.Match{{Value: []byte{0}, Mask: []byte{byte(1 + i)}}}, Priority: 1, Action: e.Action})
		if err == nil {
			err = w.sw.Delete("t", h)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if w.x.graces.n != first+2 || len(w.x.Stopped()) > 0 {
		t.Errorf("%d grace periods for %d masks, want 1; stopped: %v", w.x.graces.n-first-1, maxMasks+1, w.x.Stopped())
	}
}

// TestMoveFails: an entry for which others would have to move leaves them where they were if no grace period can be made, and each entry is in one slot.
func TestMoveFails(t *testing.T) {
	fails := false
	g := &graces{after: func() {}, wait: func() error {
		if fails {
			return errors.New("no grace period")
		}
		return nil
	}}
	shape := cuckooShape{keyWords: 1, words: 4, buckets: 16, records: 128}
	c := &cuckoo{cuckooShape: shape, slots: &shared{mem: make([]byte, 4*slotsOf*shape.buckets)}, records: &shared{mem: make([]byte, 8*shape.words*shape.records)}, recs: g.rest(shape.records), seed: 1}
	var there []uint64
	failed := 0
	for key := uint64(1); len(there) < slotsOf*shape.buckets*9/10 && key < 1000; key++ {
		fails = true
		err := c.put([]uint64{key}, []uint64{1, 2, 3})
		if err != nil {
			failed++
			fails = false
			err = c.put([]uint64{key}, []uint64{1, 2, 3})
		}
		if err == nil {
			there = append(there, key)
		}
	}
	if failed == 0 {
		t.Fatal("no entry had to move")
	}
	for _, key := range there {
		if err := c.delete([]uint64{key}); err != nil {
			t.Error(err)
		}
		if c.find([]uint64{key}, c.hash([]uint64{key})) >= 0 {
			t.Errorf("entry %d is in another slot, too", key)
		}
	}
}
