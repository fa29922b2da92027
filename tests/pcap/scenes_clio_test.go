package pcap_test

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/snic/hop"
	"github.com/quillon/quillon/snic/hop/wire"
)

// session is a client's session with a device.
type session struct {
	talk
	port uint16
}

// between is a session of host n's with device m.
func between(n, m string) session {
	return session{talk{from: at("192.168.1." + n), to: at("192.168.1." + m), df: true}, 8000}
}

// ask is a request of the key/value store; copies asks for them.
func (c session) ask(id uint16, op clio.Opcode, key uint64, value string, copies bool) []byte {
	return c.udp(c.port, clio.Port, asked(id, op, key, value, copies))
}

func asked(id uint16, op clio.Opcode, key uint64, value string, copies bool) []byte {
	p := make([]byte, clio.LegoLen+clio.RequestLen, clio.LegoLen+clio.RequestLen+len(value))
	clio.Lego(p).Encode(&clio.Fields{PID: 7, ID: id, Opcode: op, Replicate: copies, Size: uint16(cap(p))})
	clio.Request(p[clio.LegoLen:]).Encode(key, 8, uint16(len(value)))
	return append(p, value...)
}

// told is the device's answer; value is a read's.
func (c session) told(id uint16, op clio.Opcode, s clio.Status, value string, copies bool) []byte {
	return c.back().udp(clio.Port, c.port, told(id, op, s, value, copies))
}

func told(id uint16, op clio.Opcode, s clio.Status, value string, copies bool) []byte {
	p := make([]byte, clio.LegoLen+clio.AnswerLen, clio.LegoLen+clio.AnswerLen+len(value))
	clio.Lego(p).Encode(&clio.Fields{PID: 7, ID: id, Opcode: op.Answer(), Status: s, Replicate: copies, Size: uint16(cap(p))})
	clio.Answer(p[clio.LegoLen:]).Encode(8, uint16(len(value)))
	return append(p, value...)
}

// bare is a frame without UDP checksum, as Clio's own are.
func bare(f []byte) []byte {
	f = bytes.Clone(f)
	f[40], f[41] = 0, 0
	return f
}

// cacheScene: devices on side a, clients on side b.
func cacheScene(s *scene) {
	one, two := between("1", "99"), between("2", "99")
	tagged := one
	tagged.vlans = []uint16{100}
	for _, c := range []session{one, two, tagged} {
		s.b(c.ask(1, clio.Read, 12345, "", false)) // nothing is learnt yet
	}
	s.wait(2 * time.Millisecond)
	id := uint16(100)
	read := func(c session, key uint64, value string) { // with its answer, where one is expected
		id++
		s.b(c.ask(id, clio.Read, key, "", false))
		if value != "" {
			s.a(c.told(id, clio.Read, clio.OK, value, false))
		}
	}
	read(one, 7, "first")
	read(two, 7, "") // a hit
	id++
	s.b(bare(two.ask(id, clio.Read, 7, "", false)))
	read(tagged, 7, "other") // in a VLAN it is another device's key
	read(tagged, 7, "")
	// A write: nothing is known while it is under way, its value is behind it.
	id++
	w := id
	s.b(two.ask(w, clio.Update, 7, "second", false))
	read(one, 7, "first")
	s.a(two.told(w, clio.Update, clio.OK, "", false))
	read(one, 7, "")
	s.b(two.ask(w, clio.Update, 7, "second", false)) // repeated: the device executes it no more
	s.a(two.told(w, clio.Update, clio.OK, "", false))
	read(one, 7, "second")
	read(one, 7, "")
	// Two writes of a key at once: nobody knows which was last.
	s.b(one.ask(id+1, clio.Update, 7, "third", false), two.ask(id+2, clio.Update, 7, "fourth", false))
	s.a(two.told(id+2, clio.Update, clio.OK, "", false), one.told(id+1, clio.Update, clio.OK, "", false))
	id += 2
	read(two, 7, "third")
	// A read that a write overtakes.
	s.b(one.ask(id+1, clio.Read, 8, "", false), two.ask(id+2, clio.Create, 8, "new", false))
	s.a(one.told(id+1, clio.Read, clio.Invalid, "", false), two.told(id+2, clio.Create, clio.OK, "", false))
	id += 2
	read(one, 8, "")
	// More pairs than there is room for, and one that is too long.
	read(one, 9, "ninth")
	read(one, 10, strings.Repeat("x", 40))
	read(one, 9, "")
	read(one, 7, "third")
	// Deleted; refused; not answered at all.
	s.b(one.ask(id+1, clio.Delete, 9, "", false))
	s.a(one.told(id+1, clio.Delete, clio.OK, "", false))
	id++
	s.b(one.ask(id+1, clio.Read, 9, "", false))
	s.a(one.told(id+1, clio.Read, clio.Invalid, "", false))
	s.b(one.ask(id+2, clio.Update, 7, "busy", false))
	s.a(one.told(id+2, clio.Update, clio.Busy, "", false))
	id += 2
	read(two, 7, "third")
	s.wait(2 * time.Millisecond)
	read(two, 7, "third")
	read(two, 7, "")
	s.b(one.ask(id+1, clio.Update, 7, "lost", false))
	s.wait(2 * time.Millisecond)
	id++
	read(two, 7, "lost")
	read(two, 7, "")
	// Damaged, contradicting lengths, a fragment, and what is not of the store.
	good := one.ask(id+1, clio.Read, 7, "", false)
	s.b(changed(good, -1, 1), one.udp(8000, clio.Port, asked(id+1, clio.Update, 7, "value", false)[:30]), fragments(good, 24)[0],
		one.udp(8000, clio.Port, append([]byte{7, 0, 0, 0x40}, make([]byte, 30)...)), one.udp(8000, 80, nil))
	s.wait(time.Millisecond)
}

// replicateScene: devices 10 (the primary) and 11 on side a, clients on side b.
func replicateScene(s *scene) {
	one, two := between("1", "10"), between("2", "10")
	primary := func(c session, id uint16, st clio.Status) { s.a(c.told(id, clio.Update, st, "", true)) }
	second := func(c session, id uint16, st clio.Status) {
		c.to = at("192.168.1.11")
		s.a(c.told(id, clio.Update, st, "", true))
	}
	s.b(one.ask(1, clio.Update, 7, "value", true))
	second(one, 1, clio.OK)
	primary(one, 1, clio.OK)
	primary(one, 1, clio.OK) // late
	tagged := one
	tagged.vlans = []uint16{100, 200}
	s.b(tagged.ask(2, clio.Update, 7, "in a VLAN", true))
	primary(tagged, 2, clio.OK)
	second(tagged, 2, clio.OK)
	s.b(bare(one.ask(3, clio.Update, 7, "no checksum", true)))
	primary(one, 3, clio.OK)
	second(one, 3, clio.OK)
	// Three writes of a key: one at a time. A repetition is none of its own.
	s.b(one.ask(4, clio.Update, 7, "4", true), two.ask(5, clio.Update, 7, "5", true), one.ask(6, clio.Update, 7, "6", true), one.ask(4, clio.Update, 7, "4", true))
	primary(one, 4, clio.OK)
	second(one, 4, clio.OK)
	second(two, 5, clio.OK)
	primary(two, 5, clio.OK)
	primary(one, 6, clio.OK)
	second(one, 6, clio.OK)
	// Copies that differ; one that none has.
	s.b(one.ask(7, clio.Update, 7, "7", true))
	primary(one, 7, clio.OK)
	second(one, 7, clio.Invalid)
	s.b(one.ask(8, clio.Update, 8, "8", true))
	primary(one, 8, clio.Invalid)
	second(one, 8, clio.Invalid)
	// What passes: reads, writes without copies; what is damaged.
	s.b(one.ask(9, clio.Read, 7, "", false), one.ask(10, clio.Update, 9, "alone", false), changed(one.ask(11, clio.Update, 7, "damaged", true), -1, 1))
	s.a(one.told(9, clio.Read, clio.OK, "7", false), one.told(10, clio.Update, clio.OK, "", false))
	// The first copy is lost once; then device 11 is silent for good: its copy is sent again, and then it is down.
	s.b(one.ask(12, clio.Update, 7, "once more", true))
	primary(one, 12, clio.OK)
	s.wait(1200 * time.Microsecond)
	second(one, 12, clio.OK)
	s.b(one.ask(13, clio.Update, 7, "silence", true), two.ask(14, clio.Update, 7, "behind it", true))
	primary(one, 13, clio.OK)
	s.wait(4 * time.Millisecond)
	primary(two, 14, clio.OK)
	second(one, 13, clio.OK) // late
	// The primary is silent, too: nobody knows, and then it is busy.
	s.b(one.ask(15, clio.Update, 7, "nobody", true), two.ask(16, clio.Update, 7, "waits", true))
	s.wait(4 * time.Millisecond)
	s.b(one.ask(17, clio.Update, 8, "refused", true), one.ask(18, clio.Read, 7, "", false))
	s.wait(time.Millisecond)
}

// numbered is a frame with a go-back-N header in front of what p has.
func (c session) numbered(typ uint8, seq uint32, from, to uint16, p []byte) []byte {
	h := make([]byte, clio.GBNLen)
	clio.GBN(h).Encode(typ, seq, from, to)
	return c.udp(c.port, clio.Port, append(h, p...))
}

// managed is a request to open or to close a session, in no session.
func (c session) managed(op clio.Opcode, id uint16, number uint32) []byte {
	p := make([]byte, clio.LegoLen+clio.SessionLen)
	clio.Lego(p).Encode(&clio.Fields{PID: 7, ID: id, Opcode: op, Size: uint16(len(p))})
	clio.SetSession(p[clio.LegoLen:], number)
	return c.numbered(clio.DATA, 0, 0, 0, p)
}

// gobacknScene: a plain device on side a, the network on side b.
func gobacknScene(s *scene) {
	c := between("1", "99")
	// The client calls its session 3; the first that is given out here is 1.
	const theirs, ours = 3, 1
	data := func(seq uint32) []byte {
		return c.numbered(clio.DATA, seq, theirs, ours, asked(uint16(seq), clio.Update, 7, "value", false))
	}
	ack := func(typ uint8, seq uint32) { s.b(c.numbered(typ, seq, theirs, ours, nil)) }
	s.b(data(1)) // of no session yet
	s.b(c.managed(clio.OpenSession, 1, theirs), c.managed(clio.OpenSession, 1, theirs))
	other := c
	other.port = 8001
	s.b(other.managed(clio.OpenSession, 1, 4)) // its address has one
	s.b(data(1), data(2))
	s.b(data(4), data(5), data(3), data(4), data(5), data(2)) // 3 was late, 2 comes twice
	s.wait(200 * time.Microsecond)                            // an ACK for what came
	s.b(changed(data(6), -1, 1), c.numbered(9, 6, theirs, ours, nil), c.numbered(clio.DATA, 6, theirs, 5, asked(6, clio.Read, 7, "", false)), data(6))
	// Answers: four are on their way at most; two of them are lost.
	for id := range uint16(6) {
		s.a(c.told(id+1, clio.Update, clio.OK, "", false))
	}
	ack(clio.ACK, 1)
	ack(clio.NACK, 2)
	ack(clio.NACK, 2) // the network's double
	ack(clio.ACK, 6)
	ack(clio.ACK, 9) // of what was never sent
	// One without an ACK is sent again after the timeout.
	s.a(c.told(7, clio.Read, clio.OK, "a value", false))
	s.wait(1200 * time.Microsecond)
	ack(clio.ACK, 7)
	// More than may wait; longer than fits.
	for id := range uint16(7) {
		s.a(c.told(id+8, clio.Read, clio.OK, "x", false))
	}
	s.a(c.told(20, clio.Read, clio.OK, strings.Repeat("x", 1500-20-8-16-4-7), false))
	ack(clio.ACK, 11)
	ack(clio.ACK, 13)
	// In VLANs and without checksum; unreliable; what is not Clio's.
	tagged := between("2", "99")
	tagged.vlans = []uint16{100, 200}
	s.b(bare(between("3", "99").numbered(clio.DATA, 0, 0, 0, asked(1, clio.Read, 7, "", false))), tagged.managed(clio.OpenSession, 2, 9))
	s.b(tagged.numbered(clio.DATA, 1, 9, 2, asked(2, clio.Read, 7, "", false)))
	s.a(tagged.told(2, clio.Read, clio.OK, "tagged", false), between("5", "99").told(1, clio.Read, clio.OK, "nobody's", false))
	s.b(c.udp(8000, 80, nil), fragments(data(7), 24)[1])
	// Closed; the other one is given up when nobody answers.
	s.b(c.managed(clio.CloseSession, 3, ours), data(8))
	s.wait(10 * time.Millisecond)
	s.b(tagged.numbered(clio.DATA, 2, 9, 2, asked(3, clio.Read, 7, "", false)))
}

// cable is a link's end, for the function that the capture is for, which runs meanwhile
// so that the end answers to what it really sends.
type cable struct {
	*scene
	x    *graphtest.Test
	peer *hop.Link
	lose func([]byte) bool // of what the function sends
	took int               // frames that the peer was given
}

// step has frames come in, and the peer take what is sent for it.
func (c *cable) step(side int, frames ...[]byte) {
	for _, f := range frames {
		if d := c.now.Add(1000).Sub(c.x.Clock.Now()); len(c.in[0])+len(c.in[1]) > 0 {
			c.take(c.x.Advance(d))
		} else {
			c.x.Clock.Set(c.now.Add(1000))
		}
		c.come(side, [][]byte{f})
		c.take(c.x.Push([]string{"a", "b"}[side], f))
	}
}

func (c *cable) take(r graphtest.Result) {
	for _, f := range r.Out["b"] {
		if c.lose == nil || !c.lose(f.Bytes) {
			if p, ev := c.peer.Input(c.now, slices.Clone(f.Bytes)); ev == hop.Deliver {
				c.peer.Consumed(len(p))
				c.took++
			}
		}
	}
}

// poll has the peer send what it has to; change, if not nil, is what the cable does to each: nil is lost.
func (c *cable) poll(change func(n int, f []byte) []byte) {
	for n := 0; c.peer.Pending(c.now) != hop.Nothing; n++ {
		f := make([]byte, 2048)
		f = f[:c.peer.Poll(c.now, f)]
		if change != nil {
			if f = change(n, f); f == nil {
				continue
			}
		}
		c.step(1, f)
	}
}

// hopScene: what is behind the link on side a, the cable on side b.
func hopScene(s *scene) {
	start := func(epoch uint64) *hop.Link {
		l, err := hop.New(hop.Config{Epoch: epoch, MAC: [6]byte{2, 0, 0, 0, 0, 0xEE}, Rate: 1e9, Delay: time.Microsecond, Frame: 1518, Timeout: time.Millisecond, Class: 3})
		if err != nil {
			s.Fatal(err)
		}
		return l
	}
	c := &cable{scene: s, peer: start(1000), x: graphtest.New(s, *wire.Kind(), graph.Args{"rate": "1Gbit", "queue": "8"})}
	k := talk{from: at("10.0.0.2"), to: at("192.0.2.9")}
	near := func(n int) []byte { return k.udp(1, 2, filling(n)) }
	far := func(n int) { c.peer.Send(k.back().udp(2, 1, filling(n))) }
	// Greetings; data both ways.
	c.poll(nil)
	s.wait(10 * time.Microsecond)
	c.poll(nil)
	c.step(0, near(10), near(1000))
	far(20)
	far(1400)
	c.poll(nil)
	// The cable loses one that goes out, and one that comes in, damages one and doubles one.
	lost := false
	c.lose = func(f []byte) bool { was := lost; lost = true; return !was }
	c.step(0, near(31), near(32))
	c.lose = nil
	c.poll(nil)
	for n := range 4 {
		far(40 + n)
	}
	c.poll(func(n int, f []byte) []byte {
		if n == 0 {
			return nil
		}
		return f
	})
	for n := range 5 {
		far(44 + n)
	}
	c.poll(func(n int, f []byte) []byte {
		switch n {
		case 1:
			return changed(f, 50, 1)
		case 3:
			c.step(1, f)
		}
		return f
	})
	s.wait(5 * time.Microsecond)
	c.poll(nil)
	// The other end asks for a pause: frames wait until it ends.
	pause := make([]byte, hop.MinFrame)
	hop.EncodePause(pause, c.peer.MAC, 3, 1000)
	c.step(1, slices.Clone(pause))
	for n := range 6 {
		c.step(0, near(50+n))
	}
	hop.EncodePause(pause, c.peer.MAC, 3, 0)
	c.step(1, slices.Clone(pause))
	c.poll(nil)
	// The neighbour asks for a pause: what came waits, and above the threshold the other end is asked.
	hop.EncodePause(pause, k.from.mac6(), 3, 2000)
	c.step(0, slices.Clone(pause))
	for range 24 { // XOFF is behind the 21st
		far(1400)
	}
	c.poll(nil)
	s.wait(2 * time.Millisecond)
	c.poll(nil)
	// A frame that is too long, one that is none of the link's, and a restart of the other end.
	c.step(0, near(1600))
	c.step(1, k.back().udp(2, 1, filling(9)))
	c.peer = start(2000)
	far(60)
	c.poll(nil)
	s.wait(10 * time.Microsecond)
	c.poll(nil)
	c.step(0, near(61))
	s.wait(3 * time.Millisecond) // not acknowledged: sent again
	c.poll(nil)
	c.poll(nil)
	if c.took != 11 {
		s.Fatalf("the other end took %d frames", c.took)
	}
}

func (h host) mac6() [6]byte { return [6]byte(h.mac) }
