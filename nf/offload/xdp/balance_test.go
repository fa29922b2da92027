package xdp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// balanced is a world of connections to a balancer. Time goes on by w.at alone.
func balanced(t testing.TB, workers int, args graph.Args) *world {
	t.Helper()
	all := graph.Args{"vip": vip, "port": "80", "backends": backends}
	for k, v := range args {
		all[k] = v
	}
	s := spec([]string{"balance"}, map[string]graph.Args{"balance": all})
	return &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBoxOf(t, s, workers, 0, false), fast: newBoxOf(t, s, workers, 64, true), exact: true, at: clock.Time(time.Hour), vip: [4]byte{203, 0, 113, 80}}
}

// service is a conversation with the service.
func (w *world) service(n int) *conversation {
	c := w.conversation(n)
	c.proto, c.vlan, c.sport = hdr.ProtoUDP, -1, 80
	return c
}

// TestIdlePlace: a connection whose frames the kernel runs keeps its place while it has frames, and no longer: who takes the place over takes the frames back.
func TestIdlePlace(t *testing.T) {
	w := balanced(t, 1, graph.Args{"conns": "1", "idle": "1s"})
	c := w.service(0)
	others := 1
	crowd := func() { // for all places that there are
		for range 200 {
			w.send(w.service(others), 0, nil)
			others++
		}
		w.compare()
	}
	for n := range 40 { // 4 s
		w.at = w.at.Add(100 * time.Millisecond)
		w.send(c, n%2, nil)
	}
	if w.fast.ran < 20 {
		t.Fatalf("%d frames were run in front", w.fast.ran)
	}
	crowd()
	ran := w.fast.ran
	w.at = w.at.Add(500 * time.Millisecond)
	if w.send(c, 0, nil); w.fast.ran != ran+1 {
		t.Error("a connection with frames has lost its place")
	}
	w.at = w.at.Add(1100 * time.Millisecond)
	crowd()
	ran = w.fast.ran
	if w.send(c, 0, nil); w.fast.ran != ran {
		t.Error("frames are run for a connection whose place is another's")
	}
}

// TestIdleAsked: whoever looks for a place asks the kernel, also when that has told nothing for a while.
func TestIdleAsked(t *testing.T) {
	w := balanced(t, 1, graph.Args{"conns": "1", "idle": "8ms"})
	c := w.service(0)
	for n := range 40 {
		w.at = w.at.Add(time.Millisecond)
		w.send(c, n%2, nil)
	}
	w.send(w.service(1), 0, nil) // has the worker tell
	w.at = w.at.Add(5 * time.Millisecond)
	ran := w.fast.ran
	if w.send(c, 0, nil); w.fast.ran != ran+1 {
		t.Fatal("the connection is not run in front")
	}
	w.at = w.at.Add(9*time.Millisecond/2 - 1)
	for n := range 200 {
		w.send(w.service(2+n), 0, nil)
	}
	w.compare()
	if w.send(c, 0, nil); w.fast.ran != ran+2 {
		t.Error("a connection with frames has lost its place")
	}
}

// TestRemoved: connections of a backend that goes are begun anew, in their former places, while the table still has what it ran for them.
func TestRemoved(t *testing.T) {
	w := balanced(t, 1, nil)
	s := w.fast.inst.Spec()
	w.fast = newBoxOf(t, s, 1, 512, true)
	w.fast.tell(w.at)
	var all []*conversation
	for n := range 300 {
		all = append(all, w.service(n))
	}
	send := func() {
		for _, c := range all {
			w.send(c, 0, nil)
			w.send(c, 1, nil)
		}
	}
	send()
	send()
	w.at = w.at.Add(time.Second / 2)
	send()
	if r, err := w.fast.inst.Ahead(); err != nil || r.Entries < 200 {
		t.Fatal(r, err)
	}
	for _, x := range []*box{w.plain, w.fast} {
		if _, err := x.inst.Set("balance", graph.Args{"backends": "10.9.0.3@02:00:00:00:09:03"}); err != nil {
			t.Fatal(err)
		}
	}
	send()
	w.at = w.at.Add(time.Second / 2)
	send()
	send()
	w.compare()
}

// TestFoundDown: once a backend is found down whose connections go to others, the kernel runs no frame to it, and the others' go on.
func TestFoundDown(t *testing.T) {
	w := balanced(t, 1, graph.Args{"check": "icmp", "check-down": "move", "check-from": "10.9.0.99@02:00:00:00:00:99", "check-interval": "100ms", "check-timeout": "50ms", "check-fall": "2"})
	dead := [4]byte{}
	// step has time go on, and backends answer checks.
	step := func() {
		w.at = w.at.Add(20 * time.Millisecond)
		w.fast.tell(w.at)
		for _, x := range []*box{w.plain, w.fast} {
			x.breathe(w.at)
			for _, f := range x.ports[1].sent {
				if ip := hdr.IPv4(f[14:]); ip.Protocol() == hdr.ProtoICMP && [4]byte(f[30:]) != dead {
					x.give(0, w.at, 1, echoed(f))
				}
			}
		}
	}
	var all []*conversation
	for n := range 12 {
		all = append(all, w.service(n))
	}
	send := func() {
		for _, c := range all {
			step()
			w.send(c, 0, nil)
			w.send(c, 1, nil)
		}
	}
	for range 4 {
		send()
	}
	if w.fast.ran < 24 {
		t.Fatalf("%d frames were run in front", w.fast.ran)
	}
	dead = all[0].behind
	there := slices.IndexFunc(all, func(c *conversation) bool { return c.behind != dead })
	for range 20 { // 400 ms without frames
		step()
	}
	ran := w.fast.ran
	if w.send(all[0], 0, nil); w.fast.ran != ran || all[0].behind == dead {
		t.Errorf("a frame goes to a backend that is down; run in front: %v", w.fast.ran != ran)
	}
	if w.send(all[there], 0, nil); w.fast.ran != ran+1 {
		t.Error("a connection of another backend is not run in front any more")
	}
	for range 3 {
		send()
	}
	w.compare()
	ran = w.fast.ran
	if w.send(all[0], 0, nil); w.fast.ran != ran+1 {
		t.Error("a connection that has moved is not run in front")
	}
}

// TestMadeUpSYN: a backend that drains says by any segment that it has a connection, also by one that the kernel would run. SYNs that somebody makes up
// move no such connection. When both ends have closed it, the client's port begins another one elsewhere at once.
func TestMadeUpSYN(t *testing.T) {
	w := balanced(t, 1, graph.Args{"backends": "10.9.0.1@02:00:00:00:09:01"})
	c := w.service(0)
	c.proto = hdr.ProtoTCP
	for c.step < 3 {
		w.goOn(c)
	}
	w.began(c)
	was := c.behind
	for _, x := range []*box{w.plain, w.fast} {
		if _, err := x.inst.Set("balance", graph.Args{"backends": "10.9.0.1@02:00:00:00:09:01/drain+10.9.0.2@02:00:00:00:09:02"}); err != nil {
			t.Fatal(err)
		}
	}
	send := func(from int, flags uint8, seq, ack uint32) {
		t.Helper()
		w.at = w.at.Add(time.Second)
		w.send(c, from, func(d *datagram) { d.flags, d.payload, d.seq, d.ack = flags, 0, seq, ack })
	}
	const syn, fin, ack = 2, 1, 0x10
	for range 3 {
		w.began(c)
		send(0, syn, 77, 0)
		if c.behind != was {
			t.Fatal("a made-up SYN has moved the connection")
		}
		send(1, ack, c.next[1], c.next[0]) // a challenge
		send(0, syn, 77, 0)
		if c.behind != was {
			t.Fatal("a made-up SYN has moved the connection")
		}
		send(1, ack, c.next[1], c.next[0]) // a challenge
	}
	w.began(c) // again
	send(1, fin|ack, c.next[1], c.next[0])
	for range 10 { // the client goes on for a while
		send(0, ack, c.next[0], c.next[1])
		send(1, ack, c.next[1], c.next[0])
	}
	send(0, fin|ack, c.next[0], c.next[1])
	send(1, ack, c.next[1], c.next[0])
	send(0, syn, 77, 0)
	if c.behind == was {
		t.Error("the client's port is used again, and goes to the backend that drains")
	}
	w.compare()
}

// echoed is the answer to an ICMP echo.
func echoed(f []byte) []byte {
	b := slices.Concat(f[6:12], f[:6], f[12:26], f[30:34], f[26:30], f[34:])
	b[34] = 0
	be.PutUint16(b[36:], 0)
	be.PutUint16(b[36:], hdr.Checksum(b[34:], 0))
	return b
}

// TestPlacesOfWorkers: workers have places of their own, so that the kernel runs nothing for several.
func TestPlacesOfWorkers(t *testing.T) {
	w := balanced(t, 2, nil)
	c := w.service(0)
	for n := range 20 {
		w.at = w.at.Add(20 * time.Millisecond)
		w.send(c, n%2, nil)
	}
	r, err := w.fast.inst.Ahead()
	if err != nil || r.Entries > 0 || r.Decisions["refused"] == 0 {
		t.Error(fmt.Sprint(r), err)
	}
}
