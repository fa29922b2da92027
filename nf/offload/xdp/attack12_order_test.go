package xdp

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
)

// ordered is a flow that the kernel runs, no frame of which has come up for long. The boxes are told the time: how long frames behind one that came up
// follow it is a matter of milliseconds, and a busy machine may take longer between two frames.
func ordered(t *testing.T, proto uint8, apps []string, args map[string]graph.Args) (*world, *conversation) {
	w := told12(t, apps, args)
	c := w.conversation(0)
	c.proto, c.vlan = proto, -1
	for proto == hdr.ProtoTCP && c.step < 3 {
		w.goOn(c)
	}
	w.began(c)
	w.at = w.at.Add(time.Second)
	w.fast.tell(w.at)
	return w, c
}

// TestAttack12FINOrder: a FIN comes up. What its sender sends behind it (acknowledgements of what the other end still sends) does not overtake it.
func TestAttack12FINOrder(t *testing.T) {
	for _, apps := range [][]string{{"firewall"}, {"napt"}} {
		t.Run(apps[0], func(t *testing.T) {
			w, c := ordered(t, hdr.ProtoTCP, apps, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}, "napt": {"public": public, "mac": mac}})
			fin := w.attackFrame(c, 0, func(d *datagram) { d.flags, d.payload = 0x11, 0 })
			ack := w.attackFrame(c, 0, func(d *datagram) { d.payload = 0 })
			if _, ran := w.fast.e.run(0, fin); ran {
				t.Fatal("a FIN is run in front")
			}
			// The process has not looked at it yet.
			if _, ran := w.fast.e.run(0, ack); ran {
				t.Error("the acknowledgement behind the FIN is run in front, and overtakes it")
			}
		})
	}
}

// TestAttack12PausedOrder: frames that come while a function looks at another frame of the flow (a made-up SYN, an ICMP error, a state that is saved) come up.
// Those behind them do not overtake them.
func TestAttack12PausedOrder(t *testing.T) {
	w, c := ordered(t, hdr.ProtoUDP, []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}})
	var s *offload.Slot
	for i := range w.fast.e.Slots() {
		if x := &w.fast.e.Slots()[i]; x.Claim&0xFFFFFFFF == offload.Live {
			s = x
		}
	}
	if s == nil {
		t.Fatal("there is no entry")
	}
	f, g := w.attackFrame(c, 0, nil), w.attackFrame(c, 0, nil)
	live := atomic.LoadUint64(&s.Claim)
	for name, as := range map[string]uint64{"paused": offload.Paused, "busy": offload.Busy} { // as Table.Hold, and as another processor, have it
		w.at = w.at.Add(time.Second) // the frames of the round before are forgotten
		w.fast.tell(w.at)
		atomic.StoreUint64(&s.Claim, live>>32<<32|as)
		if _, ran := w.fast.e.run(0, f); ran {
			t.Fatal("a frame is run while a function looks at another one")
		}
		atomic.StoreUint64(&s.Claim, live) // as Table.Release, and as the processor when it has finished
		if _, ran := w.fast.e.run(0, g); ran {
			t.Errorf("%s: the frame behind it is run in front, and overtakes it", name)
		}
	}
}

// TestBegunAnew: both ends of a connection that the kernel runs have lost it, and the opener uses its port again. A SYN that somebody made up begins nothing
// after the kernel has run another frame of the connection.
func TestBegunAnew(t *testing.T) {
	const client, server = 0x30000000, 0x60000000
	for _, knows := range []int{-1, 0, 1} { // who sends a frame of the connection behind the SYN
		forgot := knows < 0
		w, c := ordered(t, hdr.ProtoTCP, []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}})
		push := func(from int, flags uint8, seq, ack uint32, passes bool) {
			t.Helper()
			w.at = w.at.Add(time.Second)
			w.fast.tell(w.at)
			f := w.attackFrame(c, from, func(d *datagram) { d.flags, d.payload, d.seq, d.ack = flags, 0, seq, ack })
			if out := w.push(from, f); len(out[1-from]) == 1 != passes {
				t.Fatalf("forgot: %v: flags %#x from %d: passes: %v", forgot, flags, from, !passes)
			}
		}
		was := c.next
		push(0, 0x02, client, 0, true)
		if !forgot {
			push(knows, 0x10, was[knows], was[1-knows], true)
		}
		push(1, 0x12, server, client+1, forgot)
		push(0, 0x10, client+1, server+1, forgot)
		push(1, 0x10, server+1, client+1, forgot)
		push(1, 0x10, was[1], was[0], !forgot)
		if c.next = was; forgot {
			c.next = [2]uint32{client + 1, server + 1}
		}
		w.began(c) // again
		w.compare()
	}
}
