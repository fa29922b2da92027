package xdp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
)

// newWorld is one conversation through functions.
func newWorld(t testing.TB, proto uint8, apps []string, args map[string]graph.Args) (*world, *conversation) {
	t.Helper()
	s := spec(apps, args)
	w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBox(t, s, 0), fast: newBox(t, s, 64)}
	c := w.conversation(0)
	c.proto, c.vlan = proto, -1
	for n := range 20 { // both directions, soon behind each other
		if c.step++; proto == hdr.ProtoTCP && n < 3 {
			c.step--
			w.goOn(c)
			continue
		}
		w.send(c, n%2, nil)
	}
	if w.fast.ran == 0 {
		r, _ := w.fast.inst.Ahead()
		t.Fatalf("no frame was run in front: %v", r)
	}
	return w, c
}

// finished is how many frames the kernel has run.
func (x *box) finished() uint64 {
	all, err := x.e.Outcomes()
	if err != nil {
		x.t.Fatal(err)
	}
	return all[outcomeNames[finished]]
}

// TestForbidden: once a change of the rules has returned, no frame that they forbid is run, however many are under way.
func TestForbidden(t *testing.T) {
	w, c := newWorld(t, hdr.ProtoUDP, []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}})
	d := datagram{src: c.cmac, dst: c.gmac, vlan: -1, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto, payload: 10}
	f := d.bytes(w.r)
	w.fast.e.Turn(0, loopback, true)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				if _, _, err := w.fast.e.prog.Benchmark(f, 1000, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for round := range 5 {
		before := w.fast.finished()
		for range 100 { // while it is allowed
			if time.Sleep(10 * time.Millisecond); w.fast.finished() > before {
				break
			}
		}
		if w.fast.finished() == before {
			r, _ := w.fast.inst.Ahead()
			t.Errorf("round %d: nothing is run while it is allowed: %+v", round, r)
		}
		if _, err := w.fast.inst.Set("firewall", graph.Args{"rules": "deny"}); err != nil {
			t.Fatal(err)
		}
		n := w.fast.finished()
		time.Sleep(30 * time.Millisecond)
		if m := w.fast.finished(); m != n {
			t.Errorf("round %d: %d frames are run behind the change", round, m-n)
		}
		if _, err := w.fast.inst.Set("firewall", graph.Args{"rules": "allow+in:a"}); err != nil {
			t.Fatal(err)
		}
		w.plain.frame(now(), 0, f) // so that both have had it
		for range 4 {
			w.send(c, 0, nil)
			w.send(c, 1, nil)
		}
		w.fast.e.Turn(0, loopback, true)
	}
	stop.Store(true)
	wg.Wait()
	if _, err := w.plain.inst.Set("firewall", graph.Args{"rules": "deny"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.fast.inst.Set("firewall", graph.Args{"rules": "deny"}); err != nil {
		t.Fatal(err)
	}
	for n := range 4 {
		if out := w.push(0, f); len(out[1]) > 0 {
			t.Errorf("frame %d passes rules that deny it", n)
		}
	}
}

// TestSilence: what a function forgets after a time it forgets then, no sooner and no later, also when it has not seen the frames that came meanwhile.
func TestSilence(t *testing.T) {
	const idle = 800 * time.Millisecond
	for _, c := range []struct {
		name   string
		proto  uint8
		args   map[string]graph.Args
		inward bool // frames from outside do not count
	}{
		{"firewall", hdr.ProtoUDP, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "udp-idle": idle.String()}}, false},
		{"firewall", hdr.ProtoTCP, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "tcp-idle": idle.String()}}, false},
		{"napt", hdr.ProtoUDP, map[string]graph.Args{"napt": {"public": public, "udp-idle": idle.String()}}, true},
		{"napt", hdr.ProtoUDP, map[string]graph.Args{"napt": {"public": public, "udp-idle": idle.String(), "filter": "endpoint"}}, true},
		{"napt", hdr.ProtoTCP, map[string]graph.Args{"napt": {"public": public, "tcp-idle": idle.String(), "tcp-trans": idle.String()}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, x := newWorld(t, c.proto, []string{c.name}, c.args)
			ran := w.fast.ran
			for range 8 { // for longer than it may be silent
				time.Sleep(idle / 4)
				w.send(x, 0, nil)
			}
			if w.fast.ran == ran {
				t.Error("the frames were not run in front")
			}
			w.compare()
			last := time.Now()
			for c.inward {
				time.Sleep(idle / 8)
				since := time.Since(last)
				if since > 2*idle {
					break
				}
				if since > idle*3/4 && since < idle*5/4 {
					continue // not to be known here
				}
				w.send(x, 1, nil)
			}
			time.Sleep(idle * 3 / 2)
			w.send(x, 1, nil) // is dropped, in both
			n := w.fast.ran
			if w.send(x, 0, nil); w.fast.ran != n {
				t.Error("a frame was run for a flow that is over")
			}
		})
	}
}

// TestEnd: a segment that ends a connection ends its entry.
func TestEnd(t *testing.T) {
	w, c := newWorld(t, hdr.ProtoTCP, []string{"firewall", "napt"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}, "napt": {"public": public, "mac": mac}})
	r, err := w.fast.inst.Ahead()
	if err != nil || r.Entries != 1 {
		t.Fatal(r, err)
	}
	w.send(c, 0, func(d *datagram) { d.flags = 0x11 })
	if r, err = w.fast.inst.Ahead(); err != nil || r.Entries != 0 {
		t.Errorf("a FIN leaves %d entries: %v", r.Entries, err)
	}
	w.send(c, 1, nil)
	w.send(c, 1, func(d *datagram) { d.flags = 0x11 })
	w.send(c, 0, nil)
	w.compare()
}

// TestOddSix: an IPv6 frame of a flow is not run when it contradicts itself, or has extension headers.
func TestOddSix(t *testing.T) {
	s := spec([]string{"firewall"}, map[string]graph.Args{"firewall": {"rules6": "allow+in:a"}})
	for _, proto := range []uint8{hdr.ProtoUDP, hdr.ProtoTCP} {
		w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBox(t, s, 0), fast: newBox(t, s, 64), sixth: 1}
		c := w.conversation(0)
		c.proto = proto
		for range 20 {
			w.goOn(c)
		}
		d := datagram{src: c.cmac, dst: c.gmac, vlan: -1, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto, flags: 0x10, win: 1000, payload: 10,
			seq: c.next[0], ack: c.next[1], six: true}
		f := d.bytes(w.r)
		ran := w.fast.ran
		if w.push(0, f); w.fast.ran != ran+1 {
			t.Fatal("the frame as it is was not run in front")
		}
		for name, change := range map[string]func(b []byte) []byte{
			"longer than the frame": func(b []byte) []byte { be.PutUint16(b[18:], be.Uint16(b[18:])+1); return b },
			"shorter than a header": func(b []byte) []byte { be.PutUint16(b[18:], 7); return b },
			"of no length":          func(b []byte) []byte { be.PutUint16(b[18:], 0); return b },
			"another version":       func(b []byte) []byte { b[14] = 0x45; return b },
			"hop by hop":            func(b []byte) []byte { b[20] = hdr.ProtoHopByHop; return b },
			"a fragment":            func(b []byte) []byte { b[20] = hdr.ProtoFragment; return b },
			"cut short":             func(b []byte) []byte { return b[:14+40+7] },
		} {
			ran = w.fast.ran
			if w.push(0, change(slices.Clone(f))); w.fast.ran != ran {
				t.Errorf("protocol %d, %s: it was run in front", proto, name)
			}
		}
	}
}

// TestBehind: frames behind one that is not run come up, too, until the flow has paused, or for 100 ms; then they are run again.
func TestBehind(t *testing.T) {
	for name, odd := range map[string]func(d *datagram){
		"a fragment":    func(d *datagram) { d.frag = 0x2000 },
		"options":       func(d *datagram) { d.options = 8 },
		"out of window": func(d *datagram) { d.seq += 1 << 30 },
	} {
		for _, proto := range []uint8{hdr.ProtoUDP, hdr.ProtoTCP} {
			if proto == hdr.ProtoUDP && name == "out of window" {
				continue
			}
			t.Run(fmt.Sprint(name, " ", proto), func(t *testing.T) {
				s := spec([]string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "mode": "loose"}})
				if proto == hdr.ProtoTCP {
					s = spec([]string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}})
				}
				w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBox(t, s, 0), fast: newBoxOf(t, s, 1, 64, true)}
				w.exact, w.at = true, clock.Time(time.Hour)
				c := w.conversation(0)
				c.proto, c.vlan = proto, -1
				// sent reports whether a frame that comes some time later is run.
				sent := func(later time.Duration, from int, change func(d *datagram)) bool {
					w.at = w.at.Add(later)
					n := w.fast.ran
					w.send(c, from, change)
					return w.fast.ran > n
				}
				for n := range 24 {
					w.at = w.at.Add(20 * time.Millisecond)
					if w.goOn(c); n > 3 {
						w.send(c, n%2, nil)
					}
				}
				if !sent(20*time.Millisecond, 0, nil) {
					t.Fatal("the flow is not run in front")
				}
				if sent(time.Millisecond, 0, odd) {
					t.Fatal("it is run in front")
				}
				for n := range 3 {
					if sent(time.Millisecond, n%2, nil) {
						t.Fatalf("frame %d behind it is run in front", n)
					}
				}
				if !sent(12*time.Millisecond, 0, nil) || !sent(0, 0, nil) {
					t.Error("behind a pause the flow is not run in front")
				}
				if !sent(time.Second, 0, nil) { // it was not long ago that frames came up
					t.Error("behind a second the flow is not run in front")
				}
				sent(time.Millisecond, 0, odd)
				for n := range 95 {
					if sent(time.Millisecond, 0, nil) {
						t.Fatalf("%d ms later: it is run in front", n+1)
					}
				}
				for range 15 { // the clock goes in steps
					sent(time.Millisecond, 0, nil)
				}
				if !sent(time.Millisecond, 0, nil) {
					t.Error("a flow without pauses is not run in front any more")
				}
			})
		}
	}
}

// TestZeroSum: a UDP checksum that becomes 0 is sent as 0xFFFF, since 0 says that there is none (RFC 768).
func TestZeroSum(t *testing.T) {
	w, c := newWorld(t, hdr.ProtoUDP, []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "mac": mac}})
	d := datagram{src: c.cmac, dst: c.gmac, vlan: -1, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto, payload: 10}
	f := d.bytes(w.r)
	ran := w.fast.ran
	out := w.push(0, f)[1][0]
	word := uint32(be.Uint16(f[42:])) + uint32(be.Uint16(out[40:])) // the sum of all that is summed is 0 then
	word = word&0xFFFF + word>>16
	old := be.Uint16(f[42:])
	be.PutUint16(f[42:], uint16(word))
	be.PutUint16(f[40:], hdr.PatchChecksum(be.Uint16(f[40:]), old, uint16(word)))
	if out = w.push(0, f)[1][0]; be.Uint16(out[40:]) != 0xFFFF {
		t.Errorf("the checksum is %x", out[40:42])
	}
	if w.fast.ran != ran+2 {
		t.Error("it was not run in front")
	}
}

// TestTogether: of many flows that answer together, in batches, all begin of which one direction was decided, whatever their frames' places.
func TestTogether(t *testing.T) {
	const flows, batch = 320, 32
	x := newBox(t, spec([]string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "half-per-source": "65536"}}), flows)
	r, at := rand.New(rand.NewPCG(1, 2)), now()
	push := func(port int, order []int) {
		for part := range slices.Chunk(order, batch) {
			var b packet.Batch
			for _, n := range part {
				d := datagram{src: [6]byte{2}, dst: [6]byte{4}, vlan: -1, from: [4]byte{10, 0, 0, 1}, to: [4]byte{10, 0, 1, 1}, sport: uint16(1000 + n), dport: 53, proto: hdr.ProtoUDP}
				if port == 1 {
					d.from, d.to, d.sport, d.dport = d.to, d.from, d.dport, d.sport
				}
				y := x.ports[port].pool.Get()
				if y == nil || !y.SetBytes(d.bytes(r)) || !b.Add(y) {
					t.Fatal("no room for a frame")
				}
			}
			if at = at.Add(time.Microsecond); x.inst.Push(x.ports[port].name, at, &b) != nil {
				t.Fatal("a batch is refused")
			}
			x.ports[0].sent, x.ports[1].sent = nil, nil
		}
	}
	push(0, r.Perm(flows)) // opens them
	push(1, r.Perm(flows))
	before, err := x.inst.Ahead()
	if err != nil {
		t.Fatal(err)
	}
	push(0, r.Perm(flows))
	waits, _ := x.inst.Ahead()
	push(1, r.Perm(flows))
	after, _ := x.inst.Ahead()
	n := waits.Decisions[offload.OutcomeNames[offload.Waits]] - before.Decisions[offload.OutcomeNames[offload.Waits]]
	if got := after.Entries - waits.Entries; n < flows/16 || got < int(n)-4 { // some wait in the same place
		t.Errorf("%d of %d that waited have begun", got, n)
	}
}

// TestTakenUp: of a connection that the firewall has taken up in the middle it does not compare numbers, and still knows them: behind many frames that the kernel has
// run, an old FIN and an old acknowledgement do not end the connection sooner, nor later, than where the function has seen all of them.
func TestTakenUp(t *testing.T) {
	s := spec([]string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "mode": "loose"}})
	w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBox(t, s, 0), fast: newBox(t, s, 64)}
	c := w.conversation(0)
	c.proto, c.vlan, c.step = hdr.ProtoTCP, -1, 3
	for n := range 80 {
		w.send(c, n%2, func(d *datagram) { d.payload = 100 })
	}
	if w.fast.ran < 60 {
		t.Fatalf("%d frames of 80 were run in front", w.fast.ran)
	}
	fin := c.next[1] - 3000
	w.send(c, 1, func(d *datagram) { d.flags, d.payload, d.seq = 0x11, 0, fin })
	w.send(c, 0, func(d *datagram) { d.flags, d.payload, d.ack = 0x11, 0, fin+1 })
	w.compare()
	w.send(c, 1, func(d *datagram) { d.payload = 0 })
	w.compare() // FIN_WAIT: only one FIN is acknowledged
	w.send(c, 0, func(d *datagram) { d.payload = 0 })
	w.compare()
	if conns, _ := w.fast.state(w.now()); len(conns) != 1 || conns[0].State != "TIME_WAIT" {
		t.Errorf("%v", conns)
	}
}
