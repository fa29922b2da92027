package xdp

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
)

// TestAttack14TunnelOrder: frames out of a tunnel that come up are not overtaken by those behind them: frames whose outer header says that there was congestion
// (RFC 6040), with options inside, and first fragments.
func TestAttack14TunnelOrder(t *testing.T) {
	for name, change := range map[string]func(d *datagram) (outer uint8){
		"congestion": func(d *datagram) uint8 { d.tos = 2; return 3 },
		"options":    func(d *datagram) uint8 { d.options = 8; return 0 },
		"fragment":   func(d *datagram) uint8 { d.frag = 0x2000; return 0 },
		"six":        func(d *datagram) uint8 { d.six, d.tos = true, 2; return 3 },
	} {
		t.Run(name, func(t *testing.T) {
			w := tunnel12(t)
			c := w.conversation(0)
			c.proto, c.vlan, c.six = hdr.ProtoUDP, -1, name == "six"
			for n := range 24 {
				w.at = w.at.Add(20 * time.Millisecond)
				w.send(c, n%2, nil)
			}
			w.at = w.at.Add(20 * time.Millisecond)
			ran := w.fast.ran
			if w.send(c, 1, nil); w.fast.ran != ran+1 {
				t.Fatal("the flow is not run in front")
			}
			d := datagram{src: c.smac, dst: c.gmac, vlan: -1, from: c.server, to: c.public, sport: c.sport, dport: c.pport, proto: c.proto, payload: 8, six: c.six}
			tos := change(&d)
			b := append(make([]byte, w.tunnel.Len()+hdr.VXLANLen), d.bytes(w.r)...)
			hdr.VXLAN(b[w.tunnel.Len():]).Encode(w.vni)
			w.tunnel.Put(b, tos, w.r.Uint32())
			if w.push(1, b); w.fast.ran != ran+1 {
				t.Fatal("the frame does not come up")
			}
			w.at = w.at.Add(time.Millisecond)
			if w.send(c, 1, nil); w.fast.ran != ran+1 {
				t.Error("the frame behind it is run in front, and overtakes it")
			}
		})
	}
}

// TestAttack14LastCounts: when an instance ends, colours are counted of all frames, also of those that the kernel has run last.
func TestAttack14LastCounts(t *testing.T) {
	w, c := policed(t, []string{"police"}, graph.Args{"cir": "1Mbit"})
	w.began(c)
	for range 50 {
		w.send(c, 0, nil)
	}
	counts := func(x *box) (green, frames uint64) {
		for _, n := range x.inst.Counters() {
			switch {
			case n.Node == "police" && n.Name == "green":
				green = n.Value
			case n.Node == "police" && n.Group == "frames" && n.Name == "in":
				frames = n.Value
			}
		}
		return green, frames
	}
	if err := w.fast.inst.Close(); err != nil {
		t.Fatal(err)
	}
	if green, frames := counts(w.fast); green != uint64(w.frames) || frames != green {
		t.Errorf("%d frames were sent, %d counted, and %d are green", w.frames, frames, green)
	}
}

// TestAttack14CountsAgain: with offload=on, after a while of offload=off, colours are counted as soon as before.
func TestAttack14CountsAgain(t *testing.T) {
	w, c := policed(t, []string{"police"}, graph.Args{"cir": "1Mbit"})
	w.began(c)
	w.setBoth("police", graph.Args{"offload": "off"})
	for range 10 {
		w.at = w.at.Add(100 * time.Millisecond)
		w.send(c, 0, nil)
		w.send(c, 1, nil)
	}
	w.setBoth("police", graph.Args{"offload": "on"})
	w.began(c)
	w.send(c, 0, nil)
	w.at = w.at.Add(20 * time.Millisecond)
	w.compare()
}

// TestAttack14Sum: a frame out of a tunnel whose ECN fields both say congestion keeps the checksum of its IP header, whatever that is.
func TestAttack14Sum(t *testing.T) {
	w := tunnel12(t)
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	for n := range 8 {
		w.send(c, n%2, nil)
	}
	d := datagram{src: c.smac, dst: c.gmac, vlan: -1, from: c.server, to: c.public, sport: c.sport, dport: c.pport, proto: c.proto, payload: 8, tos: 3}
	f := d.bytes(w.r)
	hdr.IPv4(f[14:]).SetChecksum(0xFFFF)
	b := append(make([]byte, w.tunnel.Len()+hdr.VXLANLen), f...)
	hdr.VXLAN(b[w.tunnel.Len():]).Encode(w.vni)
	w.tunnel.Put(b, 3, w.r.Uint32())
	ran := w.fast.ran
	if w.push(1, b); w.fast.ran != ran+1 {
		t.Error("the frame is not run in front")
	}
}

// TestAttack14Eleven: frames that come up often do not keep a flow out of the kernel. None of them is overtaken by what comes within the time that the
// process keeps a frame.
func TestAttack14Eleven(t *testing.T) {
	for name, odd := range map[string]struct {
		every int
		at    []int // ms of these
		share int   // percent of the others that are run in front, at least
	}{"eleven a second": {90, []int{0}, 80}, "two in turns": {20, []int{0, 4}, 45}, "each second one": {2, []int{0}, 0}} {
		for _, apps := range [][]string{{"firewall"}, {"police"}} {
			t.Run(name+" "+apps[0], func(t *testing.T) {
				w, c := policed(t, apps, graph.Args{"cir": "1Gbit"})
				w.began(c)
				w.at = w.at.Add(time.Second)
				ran, sent, last := 0, 0, 0
				for n := range 2000 {
					w.at = w.at.Add(time.Millisecond)
					if slices.Contains(odd.at, n%odd.every) {
						w.send(c, 0, func(d *datagram) { d.options = 4 })
						last = n
						continue
					}
					before := w.fast.ran
					sent++
					w.send(c, 0, nil)
					if ran += w.fast.ran - before; w.fast.ran > before && n-last < offload.BehindGap {
						t.Fatalf("a frame %d ms behind one that came up is run in front", n-last)
					}
				}
				if ran*100 < sent*odd.share {
					t.Errorf("of %d frames %d are run in front", sent, ran)
				}
				t.Logf("of %d frames %d are run in front", sent, ran)
			})
		}
	}
}

// TestAttack14Recall: when a backend with many connections is found down, a breath takes few of them back from the kernel, and some breaths take all.
func TestAttack14Recall(t *testing.T) {
	const most = 2 * 256 // by Tick, and by Push
	w := balanced(t, 1, graph.Args{"conns": "2048", "check": "icmp", "check-down": "move", "check-from": "10.9.0.99@02:00:00:00:00:99", "check-interval": "40ms", "check-timeout": "20ms", "check-fall": "1", "check-rise": "1"})
	w.fast = newBoxOf(t, w.fast.inst.Spec(), 1, 4096, true)
	w.answers(0)
	dead := 0
	for n := range 1500 {
		c := w.service(n)
		w.send(c, 0, nil)
		w.send(c, 1, nil)
		if c.behind[3] == 2 {
			dead++
		}
	}
	look := func() graph.AheadReport {
		r, err := w.fast.inst.Ahead()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := look(); r.Entries != 1500 || dead <= most {
		t.Fatal(r, dead)
	}
	ended := uint64(0)
	breath := func(do func()) {
		t.Helper()
		do()
		r := look()
		if n := r.Ended - ended; n > most {
			t.Fatalf("%d connections are taken back at a time", n)
		}
		ended = r.Ended
	}
	for range 100 {
		w.at = w.at.Add(5 * time.Millisecond)
		w.fast.tell(w.at)
		w.fast.ports[1].sent = nil
		breath(func() { w.fast.breathe(w.at) })
		for _, f := range w.fast.ports[1].sent {
			if ip := hdr.IPv4(f[14:]); ip.Protocol() == hdr.ProtoICMP && f[33] != 2 {
				breath(func() { w.fast.give(0, w.at, 1, echoed(f)) })
			}
		}
	}
	if ended != uint64(dead) {
		t.Errorf("of %d connections %d are taken back", dead, ended)
	}
}

// TestAttack14SlotAgain: how often frames of a flow came up does not concern the next one in its slot.
func TestAttack14SlotAgain(t *testing.T) {
	s := spec([]string{"police"}, map[string]graph.Args{"police": {"cir": "1Gbit"}})
	w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBoxOf(t, s, 1, 0, false), fast: newBoxOf(t, s, 1, 1, true), exact: true, at: clock.Time(time.Hour)}
	first, next := w.conversation(0), w.conversation(1)
	first.proto, next.proto = hdr.ProtoUDP, hdr.ProtoUDP
	w.began(first)
	w.send(first, 0, func(d *datagram) { d.options = 4 })
	w.setBoth("police", graph.Args{"cir": "2Gbit"})
	w.began(next)
	w.at = w.at.Add(8 * time.Millisecond)
	w.send(next, 0, func(d *datagram) { d.options = 4 })
	ran := w.fast.ran
	for n := range 60 {
		w.at = w.at.Add(time.Millisecond)
		if w.send(next, 0, nil); w.fast.ran > ran {
			t.Fatalf("a frame %d ms behind one that came up is run in front", n+1)
		}
	}
}

// TestAttack14ManyMeters: meters of many flows that nobody answers come back within a second of the time for which they wait, however many there are.
func TestAttack14ManyMeters(t *testing.T) {
	s := spec([]string{"police"}, map[string]graph.Args{"police": {"cir": "1Mbit", "per": "flow"}})
	w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBoxOf(t, s, 1, 0, false), fast: newBoxOf(t, s, 1, 16384, true), exact: true, at: clock.Time(time.Hour)}
	for n := range 33000 {
		w.at = w.at.Add(time.Microsecond)
		c := w.conversation(0)
		c.client, c.cport, c.vlan, c.proto = [4]byte{10, 1, byte(n >> 8), byte(n)}, 7, -1, hdr.ProtoUDP
		w.send(c, 0, nil)
	}
	for range 3200 / 10 {
		w.at = w.at.Add(10 * time.Millisecond)
		w.fast.tell(w.at)
		w.fast.breathe(w.at)
	}
	const answered = 8000 // with two meters each
	for n := range answered {
		w.at = w.at.Add(time.Microsecond)
		c := w.conversation(0)
		c.client, c.cport, c.vlan, c.proto = [4]byte{10, 2, byte(n >> 8), byte(n)}, 7, -1, hdr.ProtoUDP
		w.send(c, 0, nil)
		w.send(c, 1, nil)
	}
	if r, err := w.fast.inst.Ahead(); err != nil || r.Entries < answered {
		t.Errorf("of %d flows %d are in the kernel: %v", answered, r.Entries, err)
	}
}
