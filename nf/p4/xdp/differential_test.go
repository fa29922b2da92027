package xdp

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
)

// handles are the entries of both switches; they have the same numbers.
type handles map[string][]p4.Handle

func bigEndian(v uint64) []byte {
	return []byte{byte(v >> 56), byte(v >> 48), byte(v >> 40), byte(v >> 32), byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
}

// value is a number of a width; of a wide one the lowest bits.
func (r random) value(bits int) []byte {
	v := uint64(r.IntN(3))
	if r.IntN(3) == 0 {
		v = r.Uint64() >> r.IntN(64)
	}
	return bigEndian(v & ones(bits))
}

func (r random) actionOf(all []p4.ActionInfo) p4.Action {
	a := all[r.IntN(len(all))]
	x := p4.Action{Name: a.Name}
	for _, p := range a.Params {
		x.Args = append(x.Args, r.value(p.Bits))
	}
	return x
}

// How many members and groups, and ports that they watch, tests have.
const someMembersAre, someGroupsAre, someWatched = 7, 4, 3

// runs returns an entry without its key.
func (r random) runs(t p4.TableInfo) (e p4.Entry) {
	switch {
	case t.Profile == "":
		e.Action = r.actionOf(t.Actions)
	case t.Selector && r.IntN(3) > 0:
		e.Group = uint32(1 + r.IntN(someGroupsAre))
	default:
		e.Member = uint32(1 + r.IntN(someMembersAre))
	}
	return e
}

// changeGroup changes a multicast group of both switches.
func (w *twin) changeGroup(r random) {
	w.Helper()
	var to []p4.Replica
	for range r.IntN(5) {
		x := p4.Replica{Port: uint32(r.IntN(6)), Rid: uint16(r.IntN(2))}
		if r.IntN(4) == 0 {
			x.Backups = []p4.Replica{{Port: uint32(r.IntN(9)), Rid: 7}}
		}
		to = append(to, x)
	}
	group := uint32(1 + r.IntN(3))
	w.both(func(sw *p4.Switch) error { return sw.SetMulticast(group, to) })
	if port, up := uint32(r.IntN(someWatched)), r.IntN(2) == 0; r.IntN(4) == 0 {
		w.both(func(sw *p4.Switch) error { sw.SetLink(port, up); return nil })
	}
}

// changeProfile changes a member, a group or a link of both switches.
func (w *twin) changeProfile(r random, p p4.ProfileInfo) {
	w.Helper()
	if len(p.Actions) == 0 {
		return
	}
	member, group := uint32(1+r.IntN(someMembersAre)), uint32(1+r.IntN(someGroupsAre))
	switch r.IntN(8) {
	case 0:
		w.both(func(sw *p4.Switch) error { return sw.DeleteMember(p.Name, member) })
	case 1:
		w.both(func(sw *p4.Switch) error { return sw.DeleteGroup(p.Name, group) })
	case 2:
		port, up := uint32(r.IntN(someWatched)), r.IntN(2) == 0
		w.both(func(sw *p4.Switch) error { sw.SetLink(port, up); return nil })
	case 3, 4:
		var all []p4.GroupMember
		for id := range someMembersAre {
			if m := (p4.GroupMember{ID: uint32(1 + id), Weight: r.IntN(4), Watch: uint32(r.IntN(someWatched)), HasWatch: r.IntN(2) == 0}); r.IntN(2) == 0 {
				if r.IntN(40) == 0 {
					m.Weight = maxShares
				}
				all = append(all, m)
			}
		}
		w.both(func(sw *p4.Switch) error { return sw.SetGroup(p.Name, group, all) })
	default:
		a := r.actionOf(p.Actions)
		w.both(func(sw *p4.Switch) error { return sw.SetMember(p.Name, member, a) })
	}
}

// changeValues sets the members of a value set of both switches: values with masks and ranges, or none.
func (w *twin) changeValues(r random, set p4.ValueSetInfo) {
	w.Helper()
	wide := func(bits int) []byte { // of two numbers
		b := append(r.value(min(bits, 64)), r.value(min(bits, 64))...)
		b[0] &= byte(ones(bits % 8))
		return b[max(0, len(b)-bits/8):]
	}
	var all []p4.ValueMember
	for range r.IntN(6) {
		m := p4.ValueMember{Value: wide(set.Bits)}
		if r.IntN(2) == 0 {
			m.Mask = wide(set.Bits)
		}
		shift := set.Bits
		for _, bits := range set.Parts {
			if shift -= bits; bits > 64 || r.IntN(3) > 0 {
				continue
			}
			low, high := r.value(bits), r.value(bits)
			if string(low) > string(high) {
				low, high = high, low
			}
			m.Ranges = append(m.Ranges, p4.ValueRange{Shift: shift, Bits: bits, Low: low, High: high})
		}
		all = append(all, m)
	}
	w.both(func(sw *p4.Switch) error { return sw.SetValueSet(set.Name, all) })
}

func (r random) entry(t p4.TableInfo) p4.Entry {
	e := r.runs(t)
	for _, k := range t.Keys {
		m := p4.Match{Value: r.value(k.Bits)}
		switch k.Match {
		case p4.LPM:
			m.Prefix = r.IntN(k.Bits + 1)
		case p4.Ternary:
			if m.Mask = r.value(k.Bits); r.IntN(2) == 0 {
				m.Mask = nil
				m.Any = r.IntN(2) == 0
			}
		case p4.Range:
			if m.Mask = m.Value; r.IntN(3) > 0 {
				m.Mask = r.value(k.Bits)
			}
			if string(m.Mask) < string(m.Value) {
				m.Value, m.Mask = m.Mask, m.Value
			}
			m.Any = r.IntN(5) == 0
		}
		e.Key = append(e.Key, m)
	}
	if t.Priority {
		e.Priority = int32(1 + r.IntN(8))
	}
	return e
}

// changeTable does something to a table of both switches.
func (w *twin) changeTable(r random, t p4.TableInfo, have handles) {
	w.Helper()
	if len(t.Keys) == 0 && t.ConstDefault || t.Const {
		return
	}
	list := have[t.Name]
	switch r.IntN(10) {
	case 0: // these take a grace period
		if r.IntN(4) > 0 {
			return
		}
		e := r.runs(t)
		w.both(func(sw *p4.Switch) error { return sw.SetDefault(t.Name, e) })
	case 1:
		if r.IntN(8) > 0 {
			return
		}
		w.both(func(sw *p4.Switch) error { return sw.ResetDefault(t.Name) })
	case 2:
		if len(list) > 0 {
			i := r.IntN(len(list))
			w.both(func(sw *p4.Switch) error { return sw.Delete(t.Name, list[i]) })
			have[t.Name] = append(list[:i:i], list[i+1:]...)
		}
	case 3:
		if len(list) > 0 {
			h, e := list[r.IntN(len(list))], r.runs(t)
			w.both(func(sw *p4.Switch) error { return sw.Modify(t.Name, h, e) })
		}
	case 4:
		if len(list) > 0 && t.Counters {
			h := list[r.IntN(len(list))]
			w.both(func(sw *p4.Switch) error { return sw.SetEntryCount(t.Name, h, p4.Count{Packets: 3}) })
		}
	default:
		if len(t.Keys) == 0 {
			return
		}
		e := r.entry(t)
		var h p4.Handle
		var last error
		w.both(func(sw *p4.Switch) error { h, last = sw.Insert(t.Name, e); return last })
		if last == nil {
			have[t.Name] = append(list, h)
		}
	}
}

// payload is a frame whose bytes are likely to be what entries and cases ask for.
func (r random) payload() []byte { return r.bytes(14 + r.IntN(120)) }

// bytes are n bytes, small ones, 0 and 0xff more often than others.
func (r random) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		switch r.IntN(4) {
		case 0:
			b[i] = byte(r.IntN(256))
		case 1:
			b[i] = byte(r.IntN(3))
		case 2:
			if r.IntN(3) == 0 {
				b[i] = 0xff
			}
		}
	}
	return b
}

// rounds is how many random programs are tried.
func rounds(t testing.TB, otherwise int) int {
	if s := os.Getenv("QUILLON_PROGRAMS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if testing.Short() {
		return (otherwise + 3) / 4
	}
	return otherwise
}

// TestRandomPrograms: random programs do the same in the kernel as in the engine, with random entries that change between random frames.
func TestRandomPrograms(t *testing.T) { randomPrograms(t, 60, false) }

// TestWildPrograms: so do programs with what few programs have.
func TestWildPrograms(t *testing.T) { randomPrograms(t, 30, true) }

func randomPrograms(t *testing.T, programs int, wild bool) {
	kernel, copies, engine, why := 0, 0, 0, map[string]int{}
	for n := range rounds(t, programs) {
		r := newRandom(t)
		for range n {
			r.Uint64()
		}
		r = random{newRandomOf(r.Uint64())}
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			a := &author{random: r, floods: n%4 == 3, wild: wild}
			src := a.program()
			prog, err := p4.Load(src)
			if err == nil {
				_, err = p4.NewSwitch(prog, p4.Config{})
			}
			if err != nil {
				t.Skip(err) // numbers grow too long, by shifts, or two entries have one key
			}
			w := newTwinOf(t, src, n%2 == 0)
			have := handles{}
			tables, profiles := w.sw.Program().Tables(), w.sw.Program().Profiles()
			for range 150 {
				for range 3 * min(len(profiles), 1) {
					w.changeProfile(r, profiles[r.IntN(len(profiles))])
				}
				for range r.IntN(4) {
					w.changeTable(r, tables[r.IntN(len(tables))], have)
				}
				if r.IntN(8) == 0 {
					w.changeGroup(r)
				}
				if sets := w.sw.Program().ValueSets(); len(sets) > 0 && r.IntN(4) == 0 {
					w.changeValues(r, sets[r.IntN(len(sets))])
				}
				if r.IntN(8) == 0 {
					w.limits(r, have)
				}
				if r.IntN(3) == 0 {
					w.now += clock.Time(r.Uint64() >> (22 + r.IntN(40)))
				}
				f := r.payload()
				if wild {
					if r.IntN(4) == 0 {
						w.write(r)
					}
					f = r.wildPayload(a.headerBytes())
				}
				w.frame(uint32(r.IntN(6)), f)
				if t.Failed() {
					break
				}
			}
			w.counts()
			for range 20 { // what meters and registers had goes on
				f, port := r.payload(), uint32(r.IntN(6))
				w.now += 1000
				got, _ := process(w.sw, w.now, port, f)
				if want, _ := process(w.ref, w.now, port, f); !slices.Equal(got, want) {
					t.Errorf("behind the kernel, port %d, frame %x:\n got %s\nwant %s", port, f, shown(got), shown(want))
				}
			}
			if t.Failed() {
				t.Logf("the program: %s", src)
			}
			kernel, copies = kernel+w.kernel, copies+w.copies
			for k, n := range w.engine {
				engine += n
				_, reason, found := strings.Cut(k, ": ")
				if !found {
					reason = k
				}
				why[reason] += n
			}
		})
	}
	t.Logf("%d frames in the kernel, %d copies, %d in the engine: %v", kernel, copies, engine, why)
	if copies == 0 {
		t.Error("no frame was sent by several ports")
	}
	if kernel < 10*rounds(t, programs) {
		t.Error("too few frames stayed in the kernel: nothing is compared")
	}
}
