package xdp

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// TestWorkersAtOnce: several workers begin, hold and end entries at the same time, while the graph changes and flows come to their end by silence. Each frame of a flow
// that may pass leaves as its flow has it, and none as another one has it. Time goes on by frames.
func TestWorkersAtOnce(t *testing.T) {
	const workers, idle = 4, 400 * time.Millisecond
	x := newBoxOf(t, spec([]string{"firewall", "napt"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "udp-idle": idle.String()},
		"napt": {"public": public, "mac": mac, "udp-idle": idle.String()}}), workers, 48, true)
	var virtual atomic.Int64
	virtual.Store(int64(time.Hour))
	later := func() clock.Time {
		at := clock.Time(virtual.Add(10_000))
		x.tell(at)
		return at
	}
	var pushing [workers]sync.Mutex
	var ran, given, lost atomic.Int64
	send := func(port int, f []byte) (out [2][][]byte) {
		if y, is := x.e.run(port, f); is {
			ran.Add(1)
			out[1-port] = [][]byte{y}
			return out
		}
		given.Add(1)
		n := x.steer(f)
		pushing[n].Lock()
		defer pushing[n].Unlock()
		return x.give(n, clock.Time(virtual.Load()), port, f)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for line := range workers {
		wg.Go(func() {
			w := &world{TB: t, r: rand.New(rand.NewPCG(uint64(line), 5))}
			var all [10]*conversation
			var last [len(all)]clock.Time
			for n := 0; !stop.Load() && !t.Failed(); n++ {
				at := later()
				i := w.r.IntN(len(all))
				if all[i] == nil || w.r.IntN(200) == 0 {
					all[i] = w.conversation(n % 50000)
					all[i].client = [4]byte{10, 0, byte(line), byte(i)}
				}
				c := all[i]
				from, tcp := w.r.IntN(2), c.proto == hdr.ProtoTCP
				d := datagram{src: c.cmac, dst: c.gmac, vlan: c.vlan, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto, flags: 0x10, win: 60000, payload: 20}
				if c.step++; tcp && c.step < 4 {
					from, d.payload = []int{0, 1, 0}[c.step-1], 0
					d.flags = []uint8{2, 0x12, 0x10}[c.step-1]
				}
				if from == 1 {
					if c.public == [4]byte{} {
						c.step--
						continue
					}
					d.src, d.from, d.to, d.sport, d.dport = c.smac, c.server, c.public, c.sport, c.pport
				}
				if !tcp && at.Sub(last[i]) > clock.Duration(idle/2) {
					all[i] = nil // both may have forgotten it
					if c.step > 1 {
						continue
					}
					all[i] = c
				}
				d.seq, d.ack = c.next[from], c.next[1-from]
				if c.next[from] += uint32(d.payload); d.flags&2 != 0 {
					c.next[from]++
				}
				f := d.bytes(w.r)
				out := send(from, f)[1-from]
				if len(out) != 1 {
					t.Errorf("line %d, frame %d: a frame of a flow in step %d is lost %v after the client's last one: %+v", line, n, c.step, clock.Time(virtual.Load()).Sub(last[i]), d)
					lost.Add(1)
					return
				}
				if from == 0 {
					last[i] = at
				}
				var l hdr.Layers
				if !hdr.Walk(out[0], &l) || !bytes.Equal(out[0][len(out[0])-d.payload:], f[len(f)-d.payload:]) {
					t.Errorf("line %d, frame %d: %x leaves as %x", line, n, f, out[0])
					return
				}
				src, dst := [4]byte(out[0][l.L3+12:]), [4]byte(out[0][l.L3+16:])
				sport, dport := be.Uint16(out[0][l.L4:]), be.Uint16(out[0][l.L4+2:])
				switch {
				case from == 1:
					if dst != c.client || dport != c.cport || src != c.server || sport != c.sport {
						t.Errorf("line %d, frame %d: an answer to %v:%d goes to %v:%d", line, n, c.client, c.cport, dst, dport)
					}
				case c.public != [4]byte{} && (src != c.public || sport != c.pport):
					t.Errorf("line %d, frame %d: a flow of %v:%d goes on as %v:%d", line, n, c.public, c.pport, src, sport)
				default:
					c.public, c.pport = src, sport
				}
			}
		})
	}
	wg.Go(func() { // time goes on for all workers
		for !stop.Load() {
			for n := range workers {
				pushing[n].Lock()
				x.breatheAt(n, clock.Time(virtual.Load()))
				pushing[n].Unlock()
			}
			time.Sleep(time.Millisecond)
		}
	})
	began := uint64(0)
	for n := range 20 {
		time.Sleep(150 * time.Millisecond)
		r, err := x.inst.Ahead()
		if err != nil {
			t.Fatal(err)
		}
		began = r.Decisions["began"]
		rules := []string{"allow+in:a", "deny+dst:203.0.113.200;allow+in:a"}[n%2]
		if _, err := x.inst.Set("firewall", graph.Args{"rules": rules}); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	r, err := x.inst.Ahead()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range x.inst.Counters() {
		if t.Failed() && c.Value > 0 {
			t.Log(c)
		}
	}
	t.Logf("%d frames run in front, %d by the graph, %d entries began, %d ended: %v, %v", ran.Load(), given.Load(), began, r.Ended, r.Outcomes, r.Decisions)
	if began < 100 || ran.Load() < given.Load()/20 {
		t.Errorf("%d entries began, %d frames of %d were run in front", began, ran.Load(), ran.Load()+given.Load())
	}
	if int(began) > 0 && uint64(r.Entries)+r.Ended < began {
		t.Errorf("%d entries began, %d are there, and %d have ended", began, r.Entries, r.Ended)
	}
}
