package xdp

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// batch gives a box frames that come in one breath.
func (x *box) batch(at clock.Time, port int, frames ...[]byte) (out [2][][]byte) {
	x.t.Helper()
	x.ports[0].sent, x.ports[1].sent = nil, nil
	var b packet.Batch
	for _, f := range frames {
		y := x.ports[port].pool.Get()
		if y == nil || !y.SetBytes(f) || !b.Add(y) {
			x.t.Fatal("no room for a frame")
		}
	}
	if err := x.inst.Push(x.ports[port].name, at, &b); err != nil {
		x.t.Fatal(err)
	}
	return [2][][]byte{x.ports[0].sent, x.ports[1].sent}
}

// attackWorld is two boxes that have seen nothing.
func attackWorld(t *testing.T, apps []string, args map[string]graph.Args) *world {
	s := spec(apps, args)
	return &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBox(t, s, 0), fast: newBox(t, s, 64)}
}

// attackFrame is a frame of a conversation, which is not sent yet.
func (w *world) attackFrame(c *conversation, from int, change func(d *datagram)) []byte {
	d := datagram{src: c.cmac, dst: c.gmac, vlan: c.vlan, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto,
		flags: 0x10, win: 60000, payload: 10, seq: c.next[from], ack: c.next[1-from]}
	if from == 1 {
		d.src, d.dst, d.from, d.to, d.sport, d.dport = c.smac, c.gmac, c.server, c.public, c.sport, c.pport
	}
	if change != nil {
		change(&d)
	}
	c.next[from] += uint32(d.payload)
	if d.flags&3 != 0 {
		c.next[from]++
	}
	return d.bytes(w.r)
}

// both gives frames of one breath to both boxes.
func (w *world) both(port int, frames ...[]byte) {
	w.Helper()
	at := now()
	a, b := w.plain.batch(at, port, frames...), w.fast.batch(at, port, frames...)
	if fmt.Sprintf("%x", a) != fmt.Sprintf("%x", b) {
		w.Fatalf("without: %x\nwith:    %x", a, b)
	}
}

// TestAttackOffloadFINInBreath: a FIN in the breath of the frame by which an entry begins. The connection comes to its end as without the kernel.
func TestAttackOffloadFINInBreath(t *testing.T) {
	w := attackWorld(t, []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "tcp-close": "1s"}})
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoTCP, -1
	for range 2 {
		w.goOn(c)
	}
	// The client's ACK opens the connection; the server's data waits for the other direction.
	w.both(0, w.attackFrame(c, 0, func(d *datagram) { d.payload = 0; d.flags = 0x10 }))
	time.Sleep(1100 * time.Millisecond) // the ACK waits no more
	w.both(1, w.attackFrame(c, 1, nil))
	// Data and FIN of the client.
	w.both(0, w.attackFrame(c, 0, nil), w.attackFrame(c, 0, func(d *datagram) { d.flags, d.payload = 0x11, 0 }))
	if r, _ := w.fast.inst.Ahead(); r.Entries != 0 {
		t.Errorf("%d entries of a connection that ends: %v", r.Entries, r.Decisions)
	}
	for range 15 { // for longer than tcp-close=
		time.Sleep(100 * time.Millisecond)
		w.plain.state(now())
		w.fast.state(now())
	}
	w.push(1, w.attackFrame(c, 1, nil)) // is dropped, in both
	w.compare()
}

// TestAttackOffloadRSTInBreath: a made-up RST in the breath of the frame by which an entry begins. The private end goes on, and so does the session.
func TestAttackOffloadRSTInBreath(t *testing.T) {
	w := attackWorld(t, []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "mac": mac, "tcp-trans": "2s"}})
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoTCP, -1
	for range 3 {
		w.goOn(c)
	}
	w.both(1, w.attackFrame(c, 1, nil), w.attackFrame(c, 1, func(d *datagram) { d.flags, d.payload = 0x14, 0 }), w.attackFrame(c, 1, func(d *datagram) { d.flags, d.payload = 0x14, 0 }))
	if r, _ := w.fast.inst.Ahead(); r.Entries != 0 {
		t.Errorf("%d entries of a session that may have ended: %v", r.Entries, r.Decisions)
	}
	for range 30 {
		time.Sleep(100 * time.Millisecond)
		w.push(0, w.attackFrame(c, 0, nil))
		w.plain.state(now()) // as time goes on
		w.fast.state(now())
	}
	w.push(1, w.attackFrame(c, 1, nil))
	w.compare()
}

// TestAttackOffloadGhost: a connection ends by a RST in the breath of the frame by which an entry begins, and a SYN follows. If the rules let the server open
// connections, another one takes the place of the first; if not, the first is closed until its time is over. In both cases no entry is left of it, all goes
// as without the kernel, and in the end nothing passes.
func TestAttackOffloadGhost(t *testing.T) {
	for _, rules := range []string{"allow+in:a", "allow+in:a;allow+in:b"} {
		w := attackWorld(t, []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": rules, "tcp-close": "1s", "tcp-half": "1s"}})
		c := w.conversation(0)
		c.proto, c.vlan = hdr.ProtoTCP, -1
		for range 3 {
			w.goOn(c)
		}
		// The server's data, its RST, and a SYN.
		at := c.next
		w.both(1, w.attackFrame(c, 1, nil), w.attackFrame(c, 1, func(d *datagram) { d.flags, d.payload = 0x14, 0 }),
			w.attackFrame(c, 1, func(d *datagram) { d.flags, d.payload, d.ack = 2, 0, 0 }))
		entries := func() {
			t.Helper()
			if r, _ := w.fast.inst.Ahead(); r.Entries != 0 {
				t.Errorf("%s: %d entries", rules, r.Entries)
			}
		}
		entries()
		c.next = [2]uint32{at[0], at[1] + 10}
		w.push(1, w.attackFrame(c, 1, nil))
		w.push(0, w.attackFrame(c, 0, func(d *datagram) { d.flags, d.payload = 0x14, 0 }))
		w.push(1, w.attackFrame(c, 1, nil))
		entries()
		for range 15 { // for longer than tcp-close= and tcp-half=
			time.Sleep(100 * time.Millisecond)
			w.plain.state(now())
			w.fast.state(now())
		}
		if out := w.push(1, w.attackFrame(c, 1, nil)); len(out[0]) > 0 {
			t.Errorf("%s: a stranger's segment of no connection passes", rules)
		}
		if conns, _ := w.fast.state(now()); len(conns) != 0 {
			t.Errorf("%s: %d connections", rules, len(conns))
		}
		entries()
		w.compare()
	}
}

// TestAttackOffloadReport: whoever asks for the flows while the program is taken off gets an answer, or an error.
func TestAttackOffloadReport(t *testing.T) {
	s := spec([]string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}})
	for n := 0; n < 100 && !t.Failed(); n++ {
		x := newBox(t, s, 64)
		begun, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				if v := recover(); v != nil {
					t.Errorf("try %d: panic: %v", n, v)
				}
			}()
			for n := 0; ; n++ {
				r, _ := x.inst.Ahead()
				if n == 0 {
					close(begun)
				}
				if !r.Runs {
					return
				}
			}
		}()
		<-begun
		if err := x.inst.Close(); err != nil {
			t.Error(err)
		}
		<-done
	}
}

// TestAttackOffloadHostMoves: a private host gets another MAC address, and says so to one of two peers. What the other one sends goes there, too.
func TestAttackOffloadHostMoves(t *testing.T) {
	for _, filter := range []string{"endpoint", "address", "port"} {
		t.Run(filter, func(t *testing.T) {
			w := attackWorld(t, []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "mac": mac, "filter": filter}})
			c := w.conversation(0)
			c.proto, c.vlan, c.server = hdr.ProtoUDP, -1, [4]byte{203, 0, 113, 1}
			d := *c
			d.server = [4]byte{203, 0, 113, 2}
			for range 4 {
				for _, x := range []*conversation{c, &d} {
					w.send(x, 0, nil)
					w.send(x, 1, nil)
				}
			}
			if r, _ := w.fast.inst.Ahead(); r.Entries != 2 {
				t.Fatalf("%d entries", r.Entries)
			}
			c.cmac[5] ^= 0x80
			w.send(c, 0, nil)
			w.send(&d, 1, nil)
		})
	}
}

// TestAttackOffloadPermission: with filter=address a TCP connection that goes on after a pause lets its peer open another one, as without the kernel.
func TestAttackOffloadPermission(t *testing.T) {
	w := attackWorld(t, []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "mac": mac, "filter": "address", "tcp-trans": "2s"}})
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoTCP, -1
	for n := range 12 {
		if n < 3 {
			w.goOn(c)
			continue
		}
		w.send(c, n%2, nil)
	}
	ran := w.fast.ran
	for from := now(); now().Sub(from) < 19*time.Second; { // the permission ends and is forgotten (flow.Steps), the connection is not
		time.Sleep(8 * time.Millisecond)
		for _, x := range []*box{w.plain, w.fast} {
			if err := x.inst.Push("pa", now(), new(packet.Batch)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 4 {
		w.send(c, 0, nil)
		w.send(c, 1, nil)
	}
	if w.fast.ran == ran {
		t.Fatal("the frames were not run in front")
	}
	time.Sleep(1200 * time.Millisecond)
	w.plain.state(now())
	w.fast.state(now())
	w.push(1, w.attackFrame(c, 1, func(d *datagram) { d.sport, d.flags, d.ack, d.payload = 999, 2, 0, 0 }))
	w.compare()
}

// TestAttackOffloadTaggedFull: full frames with a VLAN tag take the way of the flow's short ones: else they come behind these, always.
func TestAttackOffloadTaggedFull(t *testing.T) {
	w := attackWorld(t, []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}})
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, 7
	for n := range 8 {
		w.send(c, n%2, nil)
	}
	ran := w.fast.ran
	f := w.attackFrame(c, 0, func(d *datagram) { d.payload = 1472 })
	if len(f) != 1518 {
		t.Fatal(len(f))
	}
	w.push(0, f)
	w.send(c, 0, nil)
	if w.fast.ran != ran+2 {
		t.Errorf("of a full frame and a short one %d were run in front", w.fast.ran-ran)
	}
}

// TestAttackOffloadFirstLook: a batch whose first frame is not plain has others that are looked at.
func TestAttackOffloadFirstLook(t *testing.T) {
	w := attackWorld(t, []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}})
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	w.send(c, 0, nil)
	w.send(c, 1, nil)
	w.both(1, w.attackFrame(c, 1, func(d *datagram) { d.options = 4 }), w.attackFrame(c, 1, nil)) // both look-ups begin at the first one
	w.both(0, w.attackFrame(c, 0, func(d *datagram) { d.options = 4 }), w.attackFrame(c, 0, nil))
	if r, _ := w.fast.inst.Ahead(); r.Entries != 1 {
		t.Errorf("%d entries: %v", r.Entries, r.Decisions)
	}
}
