package swordbox

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// With order=word operations of one client on one word stay in order, also when the first may go over another's connection and the next may
// not: its sort of access was not seen at that place of the region yet.
func TestWordsOrder(t *testing.T) {
	for _, first := range []string{"WRITE", "FETCH-ADD"} {
		for _, then := range []string{"CAS", "READ", "WRITE"} {
			for _, mode := range []string{"mux", "replace"} {
				t.Run(first+", "+then+"/"+mode, func(t *testing.T) {
					for seed := range uint64(4) { // what is lost comes late
						lost := losses(fault.Random(seed, fault.Mix{Links: []string{"s0"}, Frames: 40, Within: 400}))
						bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "order": "word", "shared": "2", "track": "10000+10000"}), Schedule: lost, Seed: seed}, func(t *testing.T, s *bed.Scene) {
							wordsOrder(t, s, first, then)
						})
					}
				})
			}
		}
	}
}

func wordsOrder(t *testing.T, s *bed.Scene, first, then string) {
	pd := s.PD()
	m := s.MR(pd, va, 1<<16, all)
	a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
	known(t, s, m, a, b)
	request := func(what string, at, v uint64, found []byte) rnic.SendWR {
		w := rnic.SendWR{SGL: [][]byte{found}, RemoteAddr: at, RKey: m.RKey}
		switch what {
		case "WRITE":
			w.Op = rnic.OpWrite
			binary.LittleEndian.PutUint64(found, v)
		case "FETCH-ADD":
			w.Op, w.Swap = rnic.OpFetchAdd, v
		case "CAS":
			w.Op, w.Compare, w.Swap = rnic.OpCompareSwap, v, v
		case "READ":
			w.Op = rnic.OpRead
		}
		return w
	}
	// Both ends of the region are reached in the first way.
	for _, p := range []*bed.Peer{a, b} {
		for _, at := range []uint64{va, va + 1<<16 - 8} {
			if st := p.Do(request(first, at, 1, make([]byte, 8))); st != rnic.Success {
				t.Fatal(st)
			}
		}
	}
	for k := range uint64(40) {
		for i, p := range []*bed.Peer{a, b} {
			// Further on each time: nobody has reached that word in the second way.
			at, v := va+0x400+16*(2*k+uint64(i)), 1000+k
			found := make([]byte, 8)
			p.Post(request(first, at, v, make([]byte, 8)))
			p.Post(request(then, at, v+1, found))
			last := make([]byte, 8)
			p.Post(request("READ", at, 0, last))
			p.Await()
			want := v
			if then == "WRITE" {
				want = v + 1
			}
			if got := binary.LittleEndian.Uint64(found); got != want {
				t.Fatalf("round %d: %s found %d behind a %s, want %d", k, then, got, first, want)
			}
			if got := binary.LittleEndian.Uint64(last); got != want {
				t.Fatalf("round %d: READ found %d behind %s and %s, want %d", k, got, first, then, want)
			}
		}
		s.Pause(100 * time.Microsecond)
	}
	healthy(t, a, b)
}

// Neither do they pass each other on a word that others' operations are under way to, over another connection.
func TestWordsOrderAmongOthers(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for seed := range uint64(20) {
			lost := losses(fault.Random(seed, fault.Mix{Links: []string{"s0"}, Frames: 40, Within: 600}))
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "shared": "2", "order": "word", "track": "10000+10000"}), Schedule: lost, Seed: seed}, wordsOrderAmong)
		}
	}
}

func wordsOrderAmong(t *testing.T, s *bed.Scene) {
	pd := s.PD()
	m := s.MR(pd, va, 1<<16, all)
	a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
	known(t, s, m, a, b)
	for _, p := range []*bed.Peer{a, b} { // both ends of the region are reached by atomics and READs, and not by WRITEs
		for _, at := range []uint64{va, va + 1<<16 - 8} {
			_, st := p.Add(m, at, 1)
			if _, again := p.ReadWord(m, at); st != rnic.Success || again != rnic.Success {
				t.Fatal(st, again)
			}
		}
	}
	for k := range uint64(40) {
		at, v := va+0x400+64*k, (k+1)<<20 // nobody has written there
		p, q := a, b                      // one of them has the connection that the other's operations go over
		if k&1 != 0 {
			p, q = b, a
		}
		post(p, m, at, 3)
		s.Pause(time.Duration(k%8) * time.Microsecond)
		found, data := make([]byte, 8), binary.LittleEndian.AppendUint64(nil, v)
		q.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{data}, RemoteAddr: at, RKey: m.RKey})
		q.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{found}, RemoteAddr: at, RKey: m.RKey})
		a.Await(b)
		if got := binary.LittleEndian.Uint64(found); got < v || got > v+3 {
			t.Fatalf("round %d: READ found %#x behind a WRITE of %#x", k, got, v)
		}
	}
	healthy(t, a, b)
}
