package clover

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// together lets everything happen that can: the requests of all clients, and the answers to the requests that
// reached the server, go through the workers at once. of is the worker that takes the frames from, or to, a
// client.
func (m *model) together(x *graphtest.Gang, workers int, of func(client, port int) int, stop bool) {
	x.Now += 200_000 // ns; the app repeats a CAS before its client does
	in := make([][2][][]byte, workers)
	give := func(n, port int, b []byte) {
		if p := &in[of(n, port)][port]; m.rng.Float64() >= m.loss && len(*p) < packet.MaxBatch {
			*p = append(*p, b)
		}
	}
	for _, i := range m.rng.Perm(len(m.clients)) {
		c := m.clients[i]
		if c.state == idle && !stop {
			m.begin(c, m.rng.IntN(2) == 0)
		}
		if c.wait++; c.request != nil && len(c.toBox) == 0 && c.wait > 80 { // time-out: go back
			c.toBox, c.wait = append(c.toBox, c.request), 0
		}
		for _, b := range c.toBox {
			give(c.n, 0, b)
		}
		c.toBox = nil
	}
	m.rng.Shuffle(len(m.toSrv), func(i, j int) { m.toSrv[i], m.toSrv[j] = m.toSrv[j], m.toSrv[i] })
	for _, b := range m.toSrv {
		if m.rng.Float64() < m.loss {
			continue
		}
		if r := m.serve(b); r != nil {
			var f hdr.Frame
			hdr.Parse(r, &f)
			give(int(f.BTHOf(r).DestQP()-0x500), 1, r)
		}
	}
	m.toSrv = nil
	var wg sync.WaitGroup
	for w := range in {
		first := m.rng.IntN(2)
		wg.Go(func() {
			for i := range 2 {
				port := (first + i) % 2
				x.Push(w, port, in[w][port])
			}
		})
	}
	wg.Wait()
	m.toSrv = x.Took(1)
	for _, b := range x.Took(0) {
		var f hdr.Frame
		hdr.Parse(b, &f)
		m.answer(m.clients[f.BTHOf(b).DestQP()-0x500], b)
	}
	if m.rng.IntN(8) == 0 {
		m.recycle(uint64(m.rng.IntN(len(m.first))))
	}
}

// TestOneServerOfWorkers: whichever worker gets a frame, and whatever the others do
// at that moment, no acknowledged write is lost, no chain mixes keys, and all
// clients come to their end.
func TestOneServerOfWorkers(t *testing.T) {
	rounds := 4000
	if testing.Short() {
		rounds = 1500
	}
	for name, of := range map[string]func(client, port int) int{
		"by client":    func(client, _ int) int { return client % 2 },
		"by direction": func(_, port int) int { return port },
		"by both":      func(client, port int) int { return (client + port) % 3 },
	} {
		t.Run(name, func(t *testing.T) {
			for seed, loss := range []float64{0, 0.02, 0.1} {
				workers := 2
				if name == "by both" {
					workers = 3
				}
				x := graphtest.NewGang(t, *Kind(), workers, graph.Args{"settle": "0", "keys": "16", "repair": "1ms", "hold": "64", "recycled": []string{"adjust", "pass"}[seed%2]})
				m := newModel(t, uint64(seed), 24, 6, loss, false, nil)
				for range rounds {
					m.together(x, workers, of, false)
				}
				for n := 0; slices.ContainsFunc(m.clients, func(c *client) bool { return c.state != idle }); n++ {
					if n > 100*rounds {
						t.Fatal("clients do not come to an end")
					}
					m.together(x, workers, of, true)
				}
				m.check()
				count := x.Close()
				t.Logf("loss %v: %d steered, %d READs, %d waited, %d repaired", loss, count["steered-cas"], count["steered-read"], count["waited"], count["repaired"])
				if count["steered-cas"] == 0 || count["steered-read"] == 0 || loss > 0 && (count["waited"] == 0 || count["repaired"] == 0) {
					t.Error("nothing happened")
				}
				if got := count["conns"]; got != uint64(len(m.clients)) {
					t.Errorf("%d connections are counted, there are %d", got, len(m.clients))
				}
			}
		})
	}
}

// TestOnceEach: what two workers do to frames that come one batch after the other, and of which a batch may begin with those of one's
// own connections and go on with another's, is what one worker does to them: each frame is counted, and steered, once.
func TestOnceEach(t *testing.T) {
	in, frames := recorded(t, 8, 20000)
	onceEach(t, in, frames, func(batch int) int {
		if batch > 400 { // connections are one worker's by then
			return batch % 3
		}
		return 0
	})
}

// TestOnceEachEarly is TestOnceEach where one in 50 requests is lost in front of the app, with its answer, so that
// the client's next request is ahead of its turn: it goes through a worker's own turn at connections first, and
// then through all turns.
func TestOnceEachEarly(t *testing.T) {
	in, frames := recorded(t, 8, 20000)
	n, lost := 0, map[uint32]bool{}
	for i, b := range frames {
		var f hdr.Frame
		hdr.Parse(b, &f)
		client := f.BTHOf(b).DestQP() & 0xFF
		if in[i] == "a" {
			if lost[client] && f.Op.Has(hdr.IsRead) { // of a length that makes no connection worth a row
				binary.BigEndian.PutUint32(b[f.BTH+hdr.BTHLen+12:], 8)
				hdr.SetICRC(b, &f)
			}
			lost[client] = i > 5000 && i%50 == 0
		}
		if !lost[client] {
			in[n], frames[n] = in[i], b
			n++
		}
	}
	if count := onceEach(t, in[:n], frames[:n], func(int) int { return 0 }); count["psn-gap"] < 100 {
		t.Errorf("only %d requests were ahead of their turn", count["psn-gap"])
	}
}

// onceEach plays frames, which come in by in, to one worker and to two, of which worker of(batch), modulo their
// number, takes a batch. It compares what both do, and returns how often each reason was given.
func onceEach(t *testing.T, in []string, frames [][]byte, of func(batch int) int) map[string]uint64 {
	play := func(workers int) (count map[string]uint64, out [2][][]byte) {
		x := graphtest.NewGang(t, *Kind(), workers, graph.Args{"settle": "0"})
		for at, batch := 0, 0; at < len(in); batch++ {
			end := at
			for end < len(in) && in[end] == in[at] && end-at < 2+batch%7 {
				end++
			}
			port := map[string]int{"a": 0, "b": 1}[in[at]]
			w := of(batch) % workers
			x.Now += 1000
			x.Push(w, port, frames[at:end])
			at = end
			for p := range out {
				out[p] = append(out[p], x.Took(p)...)
			}
		}
		count = map[string]uint64{}
		for _, c := range x.Inst.Counters() {
			if c.Group == "reason" && c.Value > 0 {
				count[c.Name] = c.Value
			}
		}
		x.Close()
		return count, out
	}
	one, want := play(1)
	var two map[string]uint64
	var got [2][][]byte
	done := make(chan bool)
	go func() {
		defer close(done)
		two, got = play(2)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second): // it takes a tenth of a second
		t.Fatal("a worker goes round for ever")
	}
	if !maps.Equal(one, two) {
		t.Errorf("one worker %v\ntwo       %v", one, two)
	}
	for p := range want {
		if !slices.EqualFunc(want[p], got[p], bytes.Equal) {
			t.Errorf("frames that leave by port %d differ", p)
		}
	}
	return one
}
