package bed

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// mutant breaks, in every nth frame that it can, one promise that a network
// function makes to the clients. What it sends is well-formed.
type mutant struct {
	name string
	n    int
	seen int
	// Of WRITEs that were turned into READs: whose answers become ACKs.
	eaten map[[2]uint32]bool
	last  []byte // of the READs of a word
	rkey  uint32 // of an atomic
	mute  map[uint32]bool
}

func mutantBox(name string, n int) *Box {
	return &Box{Kind: graph.Kind{
		Name: "mutant", In: []string{"a", "b"}, Out: []string{"a", "b"},
		New: func(graph.Env, graph.Args) (graph.App, error) {
			return &mutant{name: name, n: n, eaten: map[[2]uint32]bool{}, mute: map[uint32]bool{}}, nil
		},
	}}
}

func (m *mutant) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		var f hdr.Frame
		if hdr.Parse(x.Bytes(), &f) == hdr.IsRoCE {
			m.spoil(x, &f)
			if m.mute[f.BTHOf(x.Bytes()).DestQP()] {
				c.Drop(x, 0)
				continue
			}
		}
		c.Emit(1-in, x)
	}
}

// due reports whether it is time to break something.
func (m *mutant) due() bool {
	m.seen++
	return m.seen%m.n == 0
}

func (m *mutant) spoil(x *packet.Buf, f *hdr.Frame) {
	p := x.Bytes()
	bth := f.BTHOf(p)
	cas := f.Op == hdr.CompareSwap
	switch m.name {
	case "wrong original":
		if f.Op == hdr.AtomicAck && m.due() {
			h := f.AtomicAckETHOf(p)
			h.SetOriginal(h.Original() ^ 1<<40)
		}
	case "failed CAS succeeds":
		if f.Op == hdr.AtomicAck && f.AtomicAckETHOf(p).Original() != 0 && m.due() {
			f.AtomicAckETHOf(p).SetOriginal(0)
		}
	case "wrong byte order":
		if cas && m.due() {
			h := f.AtomicETHOf(p)
			h.SetSwap(bits.ReverseBytes64(h.Swap()))
		}
	case "added twice":
		if f.Op == hdr.FetchAdd && m.due() {
			h := f.AtomicETHOf(p)
			h.SetSwap(2 * h.Swap())
		}
	case "mask ignored":
		if f.Op == hdr.MaskedCompSwap && m.due() {
			f.MaskedAtomicETHOf(p).SetSwapMask(^uint64(0))
		}
	case "compare ignored":
		if f.Op == hdr.MaskedCompSwap && m.due() {
			f.MaskedAtomicETHOf(p).SetCompareMask(0)
		}
	case "stale read":
		if f.Op == hdr.ReadRespOnly && len(f.PayloadOf(p)) == 8 {
			if m.last != nil && m.due() {
				copy(f.PayloadOf(p), m.last)
			} else {
				m.last = append(m.last[:0], f.PayloadOf(p)...)
			}
		}
	case "damaged data":
		if f.Op == hdr.WriteMiddle && m.due() {
			f.PayloadOf(p)[3] ^= 4
		}
	case "lost write":
		key := [2]uint32{bth.DestQP(), bth.PSN()}
		switch {
		case f.Op == hdr.WriteOnly && len(f.PayloadOf(p)) == 8 && m.due():
			// It reads instead. Its answer goes to the queue pair that only the
			// answer names, so that the PSN must do.
			m.eaten[[2]uint32{0, key[1]}] = true
			bth.SetOpCode(hdr.ReadRequest)
			m.cut(x, f, 8)
			return
		case f.Op == hdr.ReadRespOnly && m.eaten[[2]uint32{0, key[1]}]:
			bth.SetOpCode(hdr.Acknowledge)
			m.cut(x, f, 8)
			return
		}
	default:
		m.breach(p, f)
	}
	hdr.SetICRC(p, f)
}

// breach is spoil for what breaks the law of the bare wire.
func (m *mutant) breach(p []byte, f *hdr.Frame) {
	bth := f.BTHOf(p)
	switch m.name {
	case "another class of error":
		if f.Op == hdr.Acknowledge && f.AETHOf(p).Syndrome() == hdr.SynNAKInvalidRequest {
			f.AETHOf(p).SetSyndrome(hdr.SynNAKRemoteAccess)
		}
	case "an error for an answer":
		if f.Op == hdr.Acknowledge && f.AETHOf(p).Syndrome().ACK() && m.due() {
			f.AETHOf(p).SetSyndrome(hdr.SynNAKRemoteOperation)
		}
	case "RNR is an error":
		if f.Op == hdr.Acknowledge && f.AETHOf(p).Syndrome().RNR() {
			f.AETHOf(p).SetSyndrome(hdr.SynNAKRemoteOperation)
		}
	case "a key that fits":
		if f.Op == hdr.FetchAdd || f.Op == hdr.CompareSwap {
			h := f.AtomicETHOf(p)
			if m.rkey == 0 {
				m.rkey = h.RKey()
			}
			h.SetRKey(m.rkey)
		}
	case "no rights needed":
		if f.Op == hdr.WriteOnly && len(f.PayloadOf(p)) == 8 && m.due() {
			// What is written is never looked at.
			bth.SetOpCode(hdr.SendOnly)
		}
	case "marks for all":
		SetECN(p, 3)
	case "silence":
		if m.due() {
			m.mute[bth.DestQP()] = true
		}
	case "lost send":
		if f.Op == hdr.SendOnly && len(f.PayloadOf(p)) == 16 && m.due() {
			bth.SetOpCode(hdr.WriteOnly) // of nothing: its 16 bytes are a RETH
			clear(f.PayloadOf(p))
		}
	case "a lost message is acknowledged":
		if f.Op == hdr.WriteLast && m.due() {
			clear(f.PayloadOf(p))
		}
	}
}

// cut takes n bytes off the packet's end.
func (m *mutant) cut(x *packet.Buf, f *hdr.Frame, n int) {
	x.TrimBack(n)
	p := x.Bytes()
	ip, udp := f.IPv4Of(p), f.UDPOf(p)
	ip.SetTotalLen(ip.TotalLen() - uint16(n))
	ip.UpdateChecksum()
	udp.SetLen(udp.Len() - uint16(n))
	if hdr.Parse(p, f) != hdr.IsRoCE {
		panic("mutant: the packet is none any more")
	}
	hdr.SetICRC(p, f)
}

// The proof that the proof can fail: every broken promise is found, and by what
// should find it.
func TestMutants(t *testing.T) {
	for _, c := range []struct {
		name string
		work locks.Work
		by   string
	}{
		{"wrong original", locks.Open, "word"},
		{"wrong original", locks.Count, "word"},
		{"wrong original", locks.CASCount, "word"},
		{"failed CAS succeeds", locks.Spin, "lock"},
		{"failed CAS succeeds", locks.Table, "lock"},
		{"wrong byte order", locks.Spin, "word"},
		{"wrong byte order", locks.Open, "word"},
		{"added twice", locks.Count, "word"},
		{"mask ignored", locks.Table, "word"},
		{"compare ignored", locks.Open, "word"},
		{"stale read", locks.Open, "word"},
		{"damaged data", locks.Open, "private memory"},
		{"lost write", locks.Open, "word"},
		{"lost write", locks.Spin, "lock"},
	} {
		t.Run(c.name+"/"+c.work.String(), func(t *testing.T) {
			found := 0
			for seed := range uint64(10) {
				_, err := Trial{Work: c.work, Box: mutantBox(c.name, 5), Clients: 2, Words: 2, Ops: 40}.Run(seed, nil)
				if err == nil {
					continue
				}
				found++
				if !strings.Contains(err.Error(), c.by) {
					t.Errorf("seed %d: found by %v", seed, err)
				}
			}
			if found < 5 {
				t.Errorf("found with %d of 10 seeds", found)
			}
		})
	}
}

// The faults that do not matter are left out of what is reported.
func TestShrinks(t *testing.T) {
	trial := Trial{Work: locks.Count, Box: mutantBox("wrong original", 5), Faults: mixes()["frames"]}.defaults()
	s := fault.Random(3, trial.Faults)
	if len(s) == 0 {
		t.Fatal("no faults")
	}
	if few := fault.Shrink(s, 100, func(s fault.Schedule) bool {
		_, err := trial.Run(3, s)
		return err != nil
	}); len(few) != 0 {
		t.Errorf("%v", few)
	}
}

// Equal seeds give equal runs.
func TestSame(t *testing.T) {
	for _, work := range locks.Works() {
		trial := Trial{Work: work, Box: wire(), Faults: mixes()["frames"]}.defaults()
		var text [2]string
		for i := range text {
			r, err := trial.Run(5, fault.Random(5, trial.Faults))
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range r.Words.Ops() {
				text[i] += fmt.Sprintln(o)
			}
		}
		if text[0] != text[1] {
			t.Errorf("%v: two runs differ", work)
		}
	}
}

// What breaks locks breaks the tree.
func TestTreeMutants(t *testing.T) {
	for _, c := range []struct{ name, by string }{
		{"failed CAS succeeds", "word"},
		{"wrong byte order", "word"},
		{"damaged data", "key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := 0
			for seed := range uint64(6) {
				_, err := Tree{Box: mutantBox(c.name, 2), Mix: ycsb.W, Ops: 20, Keys: 54}.Run(seed, nil)
				if err != nil && strings.Contains(err.Error(), c.by) {
					found++
				}
			}
			if found == 0 {
				t.Error("never found")
			}
		})
	}
}

// What breaks the law in any of its parts is found by that part.
func TestTwinMutants(t *testing.T) {
	for _, c := range []struct{ name, by string }{
		{"wrong original", "word"},
		{"failed CAS succeeds", "word"},
		{"wrong byte order", "word"},
		{"added twice", "word"},
		{"mask ignored", "word"},
		{"stale read", "word"},
		{"another class of error", "does not allow the operation"},
		{"an error for an answer", "no server says so"},
		{"RNR is an error", "no server says so"},
		{"a key that fits", "does not reach there"},
		{"no rights needed", "word"},
		{"marks for all", "marks came"},
		{"silence", "no completion"},
		{"lost send", "never came"},
		{"a lost message is acknowledged", "in place of one of"},
		{"damaged data", "in place of one of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			for seed := uint64(0); seed < 200; seed++ {
				w := RandomWorld(seed, Limits{})
				w.Spoofs = nil
				if _, err = (Twin{World: w, Box: mutantBox(c.name, 3)}).Run(seed, nil); err != nil && strings.Contains(err.Error(), c.by) {
					return
				}
			}
			t.Errorf("not found; at last %v", err)
		})
	}
}

// A world that breaks the law is made small.
func TestShrinksWorlds(t *testing.T) {
	twins := Twins{Box: mutantBox("an error for an answer", 4)}
	for seed := range uint64(20) {
		all := RandomWorld(seed, Limits{})
		if _, _, err := twins.Try(seed); err == nil {
			continue
		}
		w, s, err := twins.Shrink(seed)
		steps := 0
		for _, q := range w.Queues {
			steps += len(q.Steps)
		}
		if err == nil || steps > 12 || len(s) > 3 || len(w.Spoofs) > 3 {
			t.Errorf("seed %d: %d steps, %d faults and %d spoofs of %d are left; %v", seed, steps, len(s), len(w.Spoofs), len(all.Spoofs), err)
		}
		return
	}
	t.Error("nothing to make small")
}
