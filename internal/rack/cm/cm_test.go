package cm

import (
	"bytes"
	"errors"
	"io"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/nf/port/pcap"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tor/conn"
)

// side is a machine: its NIC, its communication manager, and the events that it got.
type side struct {
	nic    *rnic.NIC
	agent  *Agent
	pd     *rnic.PD
	cq     *rnic.CQ
	mem    []byte
	mr     *rnic.MR
	events []Event
	accept func(Event) // called for Requested
	now    clock.Time
}

func (s *side) Step(now clock.Time) bool {
	s.now = now
	worked := s.agent.Step(now)
	for {
		e, ok := s.agent.Poll()
		if !ok {
			return worked
		}
		worked = true
		s.events = append(s.events, e)
		if e.Kind == Requested && s.accept != nil {
			s.accept(e)
		}
	}
}

func (s *side) Deadline() clock.Time { return s.agent.Deadline() }

func (s *side) qp(t testing.TB) *rnic.QP {
	q, err := s.nic.CreateQP(rnic.QPInit{PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq, Access: rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func (s *side) kinds() (k []Kind) {
	for _, e := range s.events {
		k = append(k, e.Kind)
	}
	return k
}

// box forwards frames between two wires. It can look at them, drop them and double them.
type box struct {
	ports [2]port.Port
	rand  *rand.Rand
	loss  int                                // in per cent of the frames
	see   func(now clock.Time, frame []byte) // called for each frame that is forwarded
	stop  func(frame []byte) bool            // true: the frame is dropped, in addition to loss
	batch packet.Batch
}

func (x *box) Breath(now clock.Time) (int, error) {
	moved := 0
	for i, p := range x.ports {
		x.batch.Reset()
		n, err := p.Rx(&x.batch)
		if err != nil {
			return moved, err
		}
		moved += n
		var out packet.Batch
		for _, b := range x.batch.Bufs() {
			if x.loss > 0 && x.rand.IntN(100) < x.loss || x.stop != nil && x.stop(b.Bytes()) {
				b.Put()
				continue
			}
			if x.see != nil {
				x.see(now, b.Bytes())
			}
			if x.loss > 0 && x.rand.IntN(100) < x.loss/4 && !out.Full() {
				if c := b.Pool().Get(); c != nil {
					c.SetBytes(b.Bytes())
					out.Add(c)
				}
			}
			if !out.Add(b) {
				b.Put()
			}
		}
		if _, err := x.ports[1-i].Tx(&out); err != nil {
			return moved, err
		}
		out.PutAll()
	}
	return moved, nil
}

func (x *box) Deadline() clock.Time { return clock.Never }

type rig struct {
	t    testing.TB
	sim  host.Sim
	pool *packet.Pool
	side [2]*side
	box  *box
}

var addrs = [2]netip.Addr{netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.1")}

// newRig joins two machines by a box. Side 0 is g1 of the captures, a client; side 1 is g0, the server.
func newRig(t testing.TB, profile rnic.Profile, v6 bool, c Config, seed uint64) *rig {
	clk := clock.NewManual(1)
	pool, err := packet.NewPool(512, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, pool: pool, box: &box{rand: rand.New(rand.NewPCG(seed, 7))}, sim: host.Sim{Clock: clk, Hop: time.Microsecond}}
	for i := range r.side {
		near, far := mem.NewWire("near", "far", pool, 64, clk)
		ip := addrs[i]
		if v6 {
			ip = [2]netip.Addr{netip.MustParseAddr("fd77::2"), netip.MustParseAddr("fd77::1")}[i]
		}
		n, err := rnic.New(rnic.Config{MAC: [6]byte{0x52, 0x54, 0, 0x77, 0, byte(2 - i)}, IP: ip, Pool: pool, Seed: seed + uint64(i), Profile: profile,
			FirstQPN: [2]uint32{0x44, 0x133}[i]})
		if err != nil {
			t.Fatal(err)
		}
		c.Seed = seed*2 + uint64(i)
		a, err := New(n, c)
		if err != nil {
			t.Fatal(err)
		}
		s := &side{nic: n, agent: a, pd: n.AllocPD(), cq: n.CreateCQ(256), mem: make([]byte, 4096)}
		if s.mr, err = s.pd.RegMR(s.mem, 0x1000, rnic.LocalWrite|rnic.RemoteWrite|rnic.RemoteRead|rnic.RemoteAtomic); err != nil {
			t.Fatal(err)
		}
		r.side[i], r.box.ports[i] = s, far
		r.sim.Workers = append(r.sim.Workers, host.NewNode(near, n, s))
	}
	r.sim.Workers = append(r.sim.Workers, r.box)
	s := r.side[1]
	s.agent.Listen(18515)
	s.accept = func(e Event) {
		if err := e.ID.Accept(s.now, Params{QP: s.qp(t), PrivateData: []byte("welcome")}); err != nil {
			t.Error(err)
		}
	}
	return r
}

func (r *rig) run(what string, done func() bool) {
	r.t.Helper()
	if err := r.sim.Run(done, 10*time.Minute); err != nil {
		r.t.Fatalf("%s: %v; client %v, server %v", what, err, r.side[0].kinds(), r.side[1].kinds())
	}
}

// quiet runs until nothing is left to do.
func (r *rig) quiet() {
	r.t.Helper()
	// A peer can ask for 16 tries of 2.4 hours each (codes 31 and 15).
	if err := r.sim.Run(func() bool { return false }, 48*time.Hour); !errors.Is(err, host.ErrStuck) {
		r.t.Fatal(err)
	}
	if r.pool.InUse() != 0 {
		r.t.Errorf("%d frames are held", r.pool.InUse())
	}
}

func (r *rig) peer() Peer {
	c := r.side[1].nic.Config()
	return Peer{IP: c.IP, MAC: c.MAC, Port: 18515}
}

func (r *rig) dial(p Params) *ID {
	r.t.Helper()
	c := r.side[0]
	if p.QP == nil {
		p.QP = c.qp(r.t)
	}
	id, err := c.agent.Dial(r.sim.Clock.Now(), r.peer(), p)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

func (r *rig) both(k Kind) func() bool {
	return func() bool { return slices.Contains(r.side[0].kinds(), k) && slices.Contains(r.side[1].kinds(), k) }
}

func is(t testing.TB, what string, got []Kind, want ...Kind) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s was told %v, want %v", what, got, want)
	}
}

// write makes a side write to the other side's memory and waits for the completion.
func (r *rig) write(from int, q *rnic.QP, text string) rnic.WC {
	r.t.Helper()
	s := r.side[from]
	if err := q.PostSend(&rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{[]byte(text)}, RemoteAddr: 0x1000, RKey: r.side[1-from].mr.RKey, Signaled: true}); err != nil {
		r.t.Fatal(err)
	}
	r.run("write", func() bool { return s.cq.Len() > 0 })
	var w [1]rnic.WC
	s.cq.Poll(w[:])
	return w[0]
}

func TestConnection(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newRig(t, rnic.RXE, v6, Config{}, 1)
		c, s := r.side[0], r.side[1]
		ports, psn := map[uint16]bool{}, map[hdr.CMAttr]uint32{}
		r.box.see = func(_ clock.Time, b []byte) {
			var f hdr.Frame
			if hdr.Parse(b, &f) == hdr.IsRoCE && f.Op.Transport() == hdr.RC {
				ports[f.UDPOf(b).SrcPort()] = true
			} else if m, ok := f.CMOf(b); ok {
				psn[m.AttributeID()] = m.StartingPSN()
			}
		}
		id := r.dial(Params{PrivateData: []byte("hello"), LocalPort: 4000, Resources: 4, Depth: 2})
		r.run("connect", r.both(Established))
		is(t, "client", c.kinds(), Established)
		is(t, "server", s.kinds(), Requested, Established)
		if p := s.events[0]; !bytes.HasPrefix(p.PrivateData, []byte("hello\x00")) || len(p.PrivateData) != 56 || p.ID.Peer().Port != 4000 || p.ID.Port() != 18515 {
			t.Errorf("%q from port %d to %d", p.PrivateData, p.ID.Peer().Port, p.ID.Port())
		}
		if p := c.events[0]; !bytes.HasPrefix(p.PrivateData, []byte("welcome\x00")) {
			t.Errorf("%q", p.PrivateData)
		}
		peer := s.events[0].ID
		a, b := id.QP().Conn(), peer.QP().Conn()
		if a.SQPSN != psn[hdr.ConnectReply] || a.RQPSN != psn[hdr.ConnectRequest] || a.SQPSN != b.RQPSN || a.RQPSN != b.SQPSN || a.PathMTU != 1024 || b.PathMTU != 1024 || a.MaxRdAtomic != 2 || b.MaxRdAtomic != 4 || a.Timeout != 19 || b.Timeout != 19 {
			t.Errorf("client %+v, server %+v", a, b)
		}
		if w := r.write(0, id.QP(), "from the client"); w.Status != rnic.Success || !bytes.HasPrefix(s.mem, []byte("from the client")) {
			t.Errorf("%+v %q", w, s.mem[:16])
		}
		if w := r.write(1, peer.QP(), "from the server"); w.Status != rnic.Success || !bytes.HasPrefix(c.mem, []byte("from the server")) {
			t.Errorf("%+v %q", w, c.mem[:16])
		}
		if len(ports) != 1 { // the flow label's, in both directions
			t.Errorf("%d source ports", len(ports))
		}
		if err := peer.Disconnect(r.sim.Clock.Now()); err != nil {
			t.Fatal(err)
		}
		r.run("disconnect", r.both(Disconnected))
		is(t, "client", c.kinds(), Established, Disconnected)
		is(t, "server", s.kinds(), Requested, Established, Disconnected)
		if id.QP().State() != rnic.StateError || peer.QP().State() != rnic.StateError || len(c.agent.local)+len(s.agent.local)+len(c.agent.remote)+len(s.agent.remote) != 0 {
			t.Errorf("%v %v", id.QP().State(), peer.QP().State())
		}
		r.quiet()
	}
}

// TestAsCaptured: the two sides send the same bytes as the two sides of perftest -R, except for values that
// are drawn at random.
func TestAsCaptured(t *testing.T) {
	f, err := os.Open("../../../tests/pcap/rxe/perftest-write-rdmacm-128B.pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := pcap.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var captured [][]byte
	for {
		var p pcap.Packet
		if err := d.Next(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var f hdr.Frame
		hdr.Parse(p.Data, &f)
		if _, ok := f.CMOf(p.Data); ok {
			captured = append(captured, slices.Clone(p.Data))
		}
	}
	if len(captured) != 13 {
		t.Fatal(len(captured))
	}
	r := newRig(t, rnic.RXE, false, Config{}, 1)
	c, s := r.side[0], r.side[1]
	c.agent.next, s.agent.next = bits.ReverseBytes32(0xb267b967)-1, bits.ReverseBytes32(0x13d890a2)-1
	var sent [][]byte
	r.box.see = func(_ clock.Time, b []byte) {
		var f hdr.Frame
		hdr.Parse(b, &f)
		if _, ok := f.CMOf(b); ok {
			sent = append(sent, slices.Clone(b))
		}
	}
	// perftest announces no READs; a reply carries no data.
	s.accept = func(e Event) {
		if err := e.ID.Accept(s.now, Params{QP: s.qp(t)}); err != nil {
			t.Error(err)
		}
	}
	id := r.dial(Params{LocalPort: 0xab65})
	r.run("connect", r.both(Established))
	now := r.sim.Clock.Now()
	// Both ends ask for the disconnect at once, the client first, as perftest does.
	if err := errors.Join(id.Disconnect(now), s.events[0].ID.Disconnect(now)); err != nil {
		t.Fatal(err)
	}
	r.run("disconnect", r.both(Disconnected))
	r.quiet()
	// The first connection's messages in the capture: frames 1 to 3, then the messages of its end, which have
	// the same ids.
	want := captured[:3]
	for _, b := range captured[6:] {
		var f hdr.Frame
		hdr.Parse(b, &f)
		if m, _ := f.CMOf(b); m.LocalCommID() == 0xb267b967 || m.RemoteCommID() == 0xb267b967 {
			want = append(want, b)
		}
	}
	find := func(b []byte) []byte {
		var f hdr.Frame
		hdr.Parse(b, &f)
		m, _ := f.CMOf(b)
		for _, x := range sent {
			var g hdr.Frame
			hdr.Parse(x, &g)
			if n, _ := g.CMOf(x); n.AttributeID() == m.AttributeID() && g.IPv4Of(x).Src() == f.IPv4Of(b).Src() {
				return x
			}
		}
		t.Fatalf("no %v was sent", m.AttributeID())
		return nil
	}
	for _, b := range want {
		x := find(b)
		var f hdr.Frame
		hdr.Parse(b, &f)
		m, _ := f.CMOf(b)
		n := hdr.CM(x[len(x)-len(b)+int(f.Payload):])
		// These are drawn at random, or counted from another start.
		copy(b[f.L3+4:], x[f.L3+4:f.L3+6])     // IP identification
		copy(b[f.BTH+8:], x[f.BTH+8:f.BTH+12]) // PSN
		switch m.AttributeID() {
		case hdr.ConnectRequest:
			copy(m[24+44:24+47], n[24+44:24+47]) // starting PSN
			copy(m[24+88:24+91], n[24+88:24+91]) // flow label
			m[24+35], m[24+39] = 16, 16          // perftest wants no READs
		case hdr.ConnectReply:
			copy(m[24+20:24+23], n[24+20:24+23])
			m[24+24], m[24+25] = 16, 16
		case hdr.DisconnectReply:
			if f.IPv4Of(b).Src() == addrs[0] {
				// The server in the capture asked for the second time here.
				copy(m[8:16], n[8:16])
			}
		}
		f.IPv4Of(b).UpdateChecksum()
		hdr.SetICRC(b, &f)
		if !bytes.Equal(b, x) {
			t.Errorf("%v:\nsent     %x\ncaptured %x", m.AttributeID(), x, b)
		}
	}
	if len(want) != 7 {
		t.Errorf("%d messages compared", len(want))
	}
}

// TestLoss: whatever is lost and doubled, both ends agree in the end, the connection works, and a tracker
// between them knows it.
func TestLoss(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64Range(1, 1<<20).Draw(rt, "seed")
		loss := rapid.IntRange(0, 45).Draw(rt, "loss")
		n := rapid.IntRange(1, 4).Draw(rt, "connections")
		profile := rapid.SampledFrom([]rnic.Profile{rnic.RXE, rnic.ConnectX}).Draw(rt, "profile")
		r := newRig(t, profile, rapid.Bool().Draw(rt, "v6"), Config{ResponseTimeout: 8}, seed)
		both := rapid.Bool().Draw(rt, "both") // both ends disconnect at once
		c, s := r.side[0], r.side[1]
		r.box.loss = loss
		x, err := conn.New(conn.Config{Rows: 16})
		if err != nil {
			rt.Fatal(err)
		}
		removed := 0
		events := map[conn.Event]int{}
		r.box.see = func(now clock.Time, b []byte) {
			var f hdr.Frame
			if hdr.Parse(b, &f) != hdr.IsRoCE {
				rt.Fatalf("%v: %x", f.Why, b)
			}
			ends, ok := conn.EndsOf(b, &f)
			e := conn.Foreign
			switch {
			case !ok:
			case f.Op.Transport() == hdr.UD:
				_, e = x.CM(now, &ends, b, &f)
			case f.Op.Has(hdr.IsRequest):
				_, e = x.Request(now, &ends, b, &f)
			default:
				_, e = x.Response(now, &ends, b, &f)
			}
			events[e]++
			if e == conn.Removed {
				removed++
			}
			if e == conn.Spoofed || e == conn.Forged || e == conn.Full || e == conn.Foreign && f.Op.Transport() != hdr.RC {
				m, _ := f.CMOf(b)
				rt.Fatal(e, m.AttributeID())
			}
		}
		var ids []*ID
		for range n {
			ids = append(ids, r.dial(Params{LocalACKTimeout: 8}))
		}
		count := func(s *side, k Kind) (n int) {
			for _, e := range s.events {
				if e.Kind == k {
					n++
				}
			}
			return n
		}
		ended := func(s *side) int { return count(s, Unreachable) + count(s, Rejected) + count(s, Disconnected) }
		if err := r.sim.Run(func() bool { return count(c, Established)+ended(c) >= n && len(c.agent.timed)+len(s.agent.timed) == 0 }, time.Hour); err != nil {
			rt.Fatalf("%v: %v %v", err, c.kinds(), s.kinds())
		}
		for _, id := range ids {
			if id.state != established {
				continue
			}
			k, _ := x.Find(conn.AddrFrom(s.nic.Config().IP), id.theirQPN)
			if k == conn.NoSlot {
				if loss == 0 {
					rt.Fatalf("the tracker does not know %v: %v", id, events)
				}
			} else if w := x.Row(k); w.State == conn.Paired && (w.Client.QPN != id.qp.QPN || w.Client.StartPSN != id.theirPSN || w.Server.StartPSN != id.psn || w.MTU != 1024) {
				rt.Fatalf("the tracker has %+v of %v", w, id)
			}
			peer := s.nic.QP(id.theirQPN)
			if peer.State() == rnic.StateReady {
				if w := r.write(0, id.qp, "text"); w.Status != rnic.Success && loss == 0 {
					rt.Fatalf("%+v", w)
				}
			}
			if id.state != established {
				continue // the server gave up waiting for ReadyToUse
			}
			if err := id.Disconnect(r.sim.Clock.Now()); err != nil {
				rt.Fatal(err)
			}
			if i := slices.IndexFunc(s.events, func(e Event) bool { return e.ID.qp != nil && e.ID.qp.QPN == id.theirQPN }); both && i >= 0 {
				_ = s.events[i].ID.Disconnect(r.sim.Clock.Now()) // the connection may have ended
			}
		}
		if err := r.sim.Run(func() bool { return len(c.agent.local)+len(c.agent.timed)+len(s.agent.timed) == 0 }, time.Hour); err != nil {
			rt.Fatalf("%v: %v %v", err, c.kinds(), s.kinds())
		}
		if ended(c) != n {
			rt.Fatalf("client: %v", c.kinds())
		}
		if loss == 0 && (removed != n || x.Len() != 0 || ended(s) != n || events[conn.Stray] != 0) {
			rt.Fatalf("server %v, tracker: %d removed, %d left, %v", s.kinds(), removed, x.Len(), events)
		}
		if err := r.sim.Run(func() bool { return false }, time.Hour); !errors.Is(err, host.ErrStuck) || r.pool.InUse() != 0 {
			rt.Fatalf("%v, %d frames held", err, r.pool.InUse())
		}
	})
}

// attr is the message that a frame carries; 0 for none.
func attr(b []byte) hdr.CMAttr {
	var f hdr.Frame
	hdr.Parse(b, &f)
	m, ok := f.CMOf(b)
	if !ok {
		return 0
	}
	return m.AttributeID()
}

// Each message is lost once, and then always.
func TestEachLost(t *testing.T) {
	for _, a := range []hdr.CMAttr{hdr.ConnectRequest, hdr.ConnectReply, hdr.ReadyToUse, hdr.DisconnectRequest, hdr.DisconnectReply} {
		r := newRig(t, rnic.RXE, false, Config{ResponseTimeout: 10}, 1)
		once := true
		r.box.stop = func(b []byte) bool { lost := once && attr(b) == a; once = once && !lost; return lost }
		id := r.dial(Params{})
		r.run(a.String(), r.both(Established))
		if err := id.Disconnect(r.sim.Clock.Now()); err != nil {
			t.Fatal(err)
		}
		r.run(a.String(), r.both(Disconnected))
		r.quiet()
		is(t, a.String()+": client", r.side[0].kinds(), Established, Disconnected)
		is(t, a.String()+": server", r.side[1].kinds(), Requested, Established, Disconnected)
		want := uint64(1)
		if a == hdr.ConnectReply {
			want = 2 // the client asks again at the time when the server repeats the answer
		}
		if n := r.side[0].agent.Stats().Retries + r.side[1].agent.Stats().Retries; n != want || once {
			t.Errorf("%v: %d retries", a, n)
		}
	}
	for a, want := range map[hdr.CMAttr][2][]Kind{
		hdr.ConnectRequest: {{Unreachable}, nil},
		hdr.ConnectReply:   {{Unreachable}, {Requested, Rejected}}, // the client tells that it gives up
		hdr.ReadyToUse:     {{Established}, {Requested, Unreachable}},
	} {
		r := newRig(t, rnic.RXE, false, Config{ResponseTimeout: 10, Retries: 3}, 1)
		sent := 0
		r.box.stop = func(b []byte) bool {
			if attr(b) == a {
				sent++
			}
			return attr(b) == a
		}
		start := r.sim.Clock.Now()
		r.dial(Params{})
		r.quiet()
		is(t, a.String()+": client", r.side[0].kinds(), want[0]...)
		is(t, a.String()+": server", r.side[1].kinds(), want[1]...)
		if e := r.side[1].events; len(e) > 1 && e[0].ID.QP().State() != rnic.StateError {
			t.Errorf("%v: the server's queue pair is %v", a, e[0].ID.QP().State())
		}
		if took := r.sim.Clock.Now().Sub(start); sent != 4 || took < 4*code(10) || took > 5*code(10) {
			t.Errorf("%v: sent %d times in %v", a, sent, took)
		}
	}
	// The answer to a disconnect never comes.
	r := newRig(t, rnic.RXE, false, Config{ResponseTimeout: 10, Retries: 3}, 1)
	id := r.dial(Params{})
	r.run("connect", r.both(Established))
	r.box.stop = func([]byte) bool { return true }
	if err := id.Disconnect(r.sim.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	r.quiet()
	is(t, "client", r.side[0].kinds(), Established, Disconnected)
}

func TestRejected(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *rig)
		want   uint16
	}{
		"nobody listens": {func(r *rig) { r.side[1].agent.Unlisten(18515) }, ReasonInvalidServiceID},
		"the consumer's no": {func(r *rig) {
			r.side[1].accept = func(e Event) {
				if err := e.ID.Reject(ReasonConsumer, []byte("busy")); err != nil {
					r.t.Error(err)
				}
				if err := e.ID.Accept(1, Params{}); !errors.Is(err, ErrState) {
					r.t.Error(err)
				}
			}
		}, ReasonConsumer},
		"addresses of others":     {func(r *rig) { r.change(24 + 71) }, ReasonInvalidGID},
		"unreliable":              {func(r *rig) { r.change(24 + 43) }, ReasonInvalidTransport},
		"path MTU without a code": {func(r *rig) { r.change(24 + 50) }, ReasonInvalidMTU},
	} {
		r := newRig(t, rnic.ConnectX, false, Config{}, 3)
		c.change(r)
		r.dial(Params{})
		r.quiet()
		is(t, name, r.side[0].kinds(), Rejected)
		if e := r.side[0].events; len(e) == 1 && e[0].Reason != c.want {
			t.Errorf("%s: reason %d, want %d", name, e[0].Reason, c.want)
		}
		if n := len(r.side[1].agent.local) + len(r.side[1].agent.remote); n != 0 {
			t.Errorf("%s: %d connections left", name, n)
		}
	}
}

// change damages a byte of ConnectRequests on their way.
func (r *rig) change(at int) {
	r.box.see = func(_ clock.Time, b []byte) {
		if attr(b) == hdr.ConnectRequest {
			var f hdr.Frame
			hdr.Parse(b, &f)
			b[int(f.Payload)+at] ^= 0x32
			hdr.SetICRC(b, &f)
		}
	}
}

// A server that needs more time sends this to the client, and the client waits.
func TestDelay(t *testing.T) {
	r := newRig(t, rnic.RXE, false, Config{ResponseTimeout: 10, Retries: 2}, 1)
	s := r.side[1]
	var asked *ID
	s.accept = func(e Event) {
		asked = e.ID
		if err := asked.Delay(20); err != nil {
			t.Error(err)
		}
	}
	once := true // the first receipt is lost, so the client asks again
	r.box.stop = func(b []byte) bool {
		lost := once && attr(b) == hdr.MsgRcptAck
		once = once && !lost
		return lost
	}
	r.dial(Params{})
	r.run("request", func() bool { return asked != nil })
	// Longer than the client would have waited otherwise.
	for range 20 {
		r.sim.Clock.Advance(code(10))
		for range 5 { // the frames that were sent arrive
			r.sim.Clock.Advance(1000)
			for _, w := range r.sim.Workers {
				if _, err := w.Breath(r.sim.Clock.Now()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(r.side[0].events) != 0 {
		t.Fatal(r.side[0].kinds())
	}
	if err := asked.Accept(r.sim.Clock.Now(), Params{QP: s.qp(t)}); err != nil {
		t.Fatal(err)
	}
	r.run("connect", r.both(Established))
}

// A client that was started anew uses a queue pair number again.
func TestStale(t *testing.T) {
	r := newRig(t, rnic.RXE, false, Config{ResponseTimeout: 10}, 1)
	c, s := r.side[0], r.side[1]
	id := r.dial(Params{})
	r.run("connect", r.both(Established))
	q := id.QP()
	id.forget()
	q.Reset()
	r.dial(Params{QP: q})
	r.quiet()
	is(t, "client", c.kinds(), Established, Rejected)
	is(t, "server", s.kinds(), Requested, Established, Disconnected)
	if e := c.events[1]; e.Reason != ReasonStale {
		t.Error(e.Reason)
	}
	q.Reset()
	r.dial(Params{QP: q})
	r.quiet()
	is(t, "client", c.kinds(), Established, Rejected, Established)
}

// Messages that name no connection, that come from other machines or in a wrong order change nothing.
func TestStrays(t *testing.T) {
	r := newRig(t, rnic.RXE, false, Config{ResponseTimeout: 10}, 1)
	c, s := r.side[0], r.side[1]
	id := r.dial(Params{})
	r.run("connect", r.both(Established))
	peer := s.events[0].ID
	deliver := func(from netip.Addr, f hdr.CMFields) Stats {
		before := s.agent.Stats()
		var b [grhLen + hdr.MADLen]byte
		a := from.As4()
		copy(b[32:], a[:])
		hdr.CM(b[grhLen:]).Encode(&f)
		s.agent.receive(s.now, &rnic.WC{SrcQP: 1, ByteLen: uint32(len(b))}, b[:])
		after := s.agent.Stats()
		return Stats{Stray: after.Stray - before.Stray, Duplicates: after.Duplicates - before.Duplicates, Sent: after.Sent - before.Sent, Malformed: after.Malformed - before.Malformed}
	}
	evil, own := netip.MustParseAddr("10.77.0.66"), addrs[0]
	for name, k := range map[string]struct {
		from netip.Addr
		f    hdr.CMFields
		want Stats
	}{
		"reply to nothing":                 {own, hdr.CMFields{AttributeID: hdr.ConnectReply, LocalCommID: 1, RemoteCommID: 2}, Stats{Stray: 1}},
		"disconnect of nothing":            {own, hdr.CMFields{AttributeID: hdr.DisconnectRequest, LocalCommID: 1, RemoteCommID: 2}, Stats{Stray: 1, Sent: 1}},
		"disconnect by a stranger":         {evil, hdr.CMFields{AttributeID: hdr.DisconnectRequest, LocalCommID: id.ours, RemoteCommID: peer.ours, RemoteQPN: peer.qp.QPN}, Stats{Stray: 1, Sent: 1}},
		"disconnect by another connection": {own, hdr.CMFields{AttributeID: hdr.DisconnectRequest, LocalCommID: 5, RemoteCommID: peer.ours, RemoteQPN: peer.qp.QPN}, Stats{Stray: 1, Sent: 1}},
		"disconnect of another queue pair": {own, hdr.CMFields{AttributeID: hdr.DisconnectRequest, LocalCommID: id.ours, RemoteCommID: peer.ours, RemoteQPN: 5}, Stats{Stray: 1}},
		"reply to the server":              {own, hdr.CMFields{AttributeID: hdr.ConnectReply, LocalCommID: id.ours, RemoteCommID: peer.ours}, Stats{Stray: 1}},
		"ready again":                      {own, hdr.CMFields{AttributeID: hdr.ReadyToUse, LocalCommID: id.ours, RemoteCommID: peer.ours}, Stats{Duplicates: 1}},
		"rejection too late":               {own, hdr.CMFields{AttributeID: hdr.ConnectReject, LocalCommID: id.ours, RemoteCommID: peer.ours}, Stats{Stray: 1}},
		"receipt too late":                 {own, hdr.CMFields{AttributeID: hdr.MsgRcptAck, LocalCommID: id.ours, RemoteCommID: peer.ours}, Stats{Stray: 1}},
		"confirmation of no disconnect":    {own, hdr.CMFields{AttributeID: hdr.DisconnectReply, LocalCommID: id.ours, RemoteCommID: peer.ours}, Stats{Stray: 1}},
		"path migration":                   {own, hdr.CMFields{AttributeID: hdr.LoadAlternatePath, LocalCommID: id.ours, RemoteCommID: peer.ours}, Stats{Stray: 1}},
		"request again":                    {own, hdr.CMFields{AttributeID: hdr.ConnectRequest, LocalCommID: id.ours}, Stats{Duplicates: 1}},
		"another class":                    {own, hdr.CMFields{AttributeID: 0x99}, Stats{Malformed: 1}},
	} {
		if got := deliver(k.from, k.f); got != k.want {
			t.Errorf("%s: %+v, want %+v", name, got, k.want)
		}
	}
	var b [grhLen + hdr.MADLen]byte
	ip := own.As4()
	copy(b[32:], ip[:])
	hdr.CM(b[grhLen:]).Encode(&hdr.CMFields{AttributeID: hdr.DisconnectRequest, LocalCommID: id.ours, RemoteCommID: peer.ours, RemoteQPN: peer.qp.QPN})
	if s.agent.receive(s.now, &rnic.WC{SrcQP: 5}, b[:]); s.agent.Stats().Malformed != 2 {
		t.Error("a datagram from a queue pair of an application was taken")
	}
	r.quiet()
	is(t, "client", c.kinds(), Established)
	is(t, "server", s.kinds(), Requested, Established)
	if w := r.write(0, id.QP(), "still there"); w.Status != rnic.Success {
		t.Error(w)
	}
	if err := peer.Reject(0, nil); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	if err := peer.Delay(1); !errors.Is(err, ErrState) {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	r := newRig(t, rnic.RXE, false, Config{}, 1)
	c := r.side[0]
	used := c.qp(t)
	if err := used.Connect(rnic.Conn{RemoteIP: addrs[1], PathMTU: 256}); err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]struct {
		to Peer
		p  Params
	}{
		"no queue pair":        {r.peer(), Params{}},
		"another's queue pair": {r.peer(), Params{QP: r.side[1].qp(t)}},
		"a used queue pair":    {r.peer(), Params{QP: used}},
		"path MTU":             {r.peer(), Params{QP: c.qp(t), PathMTU: 1500}},
		"too large an MTU":     {r.peer(), Params{QP: c.qp(t), PathMTU: 4096}},
		"a code":               {r.peer(), Params{QP: c.qp(t), LocalACKTimeout: 32}},
		"another family":       {Peer{IP: netip.MustParseAddr("fd00::1")}, Params{QP: c.qp(t)}},
		"no address":           {Peer{}, Params{QP: c.qp(t)}},
	} {
		if id, err := c.agent.Dial(1, k.to, k.p); err == nil {
			t.Errorf("%s: %v", name, id)
		}
	}
	if _, err := New(c.nic, Config{}); err == nil {
		t.Error("two agents on one NIC")
	}
	if _, err := New(c.nic, Config{ResponseTimeout: 32}); err == nil {
		t.Error("a response timeout of 32")
	}
	c.agent.Close()
	if a, err := New(c.nic, Config{}); err != nil || a == nil {
		t.Error("after Close:", err)
	}
}

// TestVanished: a peer that asks and never answers is given up in bounded time, however long a time it asks
// for.
func TestVanished(t *testing.T) {
	r := newRig(t, rnic.RXE, false, Config{}, 1)
	s := r.side[1]
	var b [grhLen + hdr.MADLen]byte
	a := addrs[0].As4()
	copy(b[32:], a[:])
	hdr.CM(b[grhLen:]).Encode(&hdr.CMFields{AttributeID: hdr.ConnectRequest, ServiceID: hdr.ServiceIDOfPort(r.peer().Port), LocalCommID: 99, LocalQPN: 0x77,
		LocalResponseTimeout: 31, MaxCMRetries: 15, PathMTU: 1024, LocalGID: addrs[0], RemoteGID: addrs[1]})
	s.agent.receive(r.sim.Clock.Now(), &rnic.WC{SrcQP: 1}, b[:])
	if err := r.sim.Run(func() bool { return slices.Contains(s.kinds(), Unreachable) }, 2*time.Minute); err != nil || len(s.agent.remote) != 0 {
		t.Errorf("%v: %v", s.kinds(), err)
	}
}

// FuzzReceive: any bytes on queue pair 1, in every state of a connection.
func FuzzReceive(f *testing.F) {
	r := newRig(f, rnic.RXE, false, Config{ResponseTimeout: 10}, 1)
	var seeds [][]byte
	r.box.see = func(_ clock.Time, b []byte) {
		var fr hdr.Frame
		hdr.Parse(b, &fr)
		if m, ok := fr.CMOf(b); ok {
			seeds = append(seeds, slices.Clone(m))
		}
	}
	id := r.dial(Params{})
	r.run("connect", r.both(Established))
	if err := id.Disconnect(r.sim.Clock.Now()); err != nil {
		f.Fatal(err)
	}
	r.quiet()
	if len(seeds) != 5 {
		f.Fatal(len(seeds))
	}
	for _, s := range seeds {
		f.Add(s, uint8(0))
		f.Add(s, uint8(1))
		f.Add(s, uint8(2))
	}
	f.Fuzz(func(t *testing.T, mad []byte, when uint8) {
		r := newRig(t, rnic.RXE, false, Config{ResponseTimeout: 4, Retries: 1}, 1)
		// The names are those of the seeds: equal seeds give equal runs.
		id := r.dial(Params{})
		switch when % 3 {
		case 1:
			r.run("request", func() bool { return len(r.side[1].events) > 0 })
		case 2:
			r.run("connect", r.both(Established))
		}
		for i, s := range r.side {
			var b [grhLen + hdr.MADLen]byte
			a := addrs[1-i].As4()
			copy(b[32:], a[:])
			copy(b[grhLen:], mad)
			s.agent.receive(r.sim.Clock.Now(), &rnic.WC{SrcQP: 1}, b[:])
		}
		r.quiet()
		for _, s := range r.side {
			if len(s.agent.timed) != 0 {
				t.Fatal("still waits")
			}
		}
		_ = id.String()
	})
}

// TestTshark lets Wireshark decode the messages of a connection from its beginning to its end, and the
// message types that a connection does not have.
func TestTshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed: apt-get install tshark")
	}
	name := filepath.Join(t.TempDir(), "cm.pcap")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pcap.NewWriter(file, pcap.NewHeader(pcap.Classic))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, v6 := range []bool{false, true} {
		for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
			r := newRig(t, profile, v6, Config{}, 9)
			r.box.see = func(now clock.Time, b []byte) {
				if a := attr(b); a != 0 {
					want = append(want, a.String())
					if err := w.Write(&pcap.Packet{Time: now, Data: b, OrigLen: uint32(len(b))}); err != nil {
						t.Error(err)
					}
				}
			}
			accept := r.side[1].accept
			r.side[1].accept = func(e Event) {
				if err := e.ID.Delay(10); err != nil {
					t.Error(err)
				}
				accept(e)
			}
			id := r.dial(Params{PrivateData: []byte("hello")})
			r.run("connect", r.both(Established))
			if err := id.Disconnect(r.sim.Clock.Now()); err != nil {
				t.Fatal(err)
			}
			r.run("disconnect", r.both(Disconnected))
			r.side[1].agent.Unlisten(18515)
			r.dial(Params{})
			r.quiet()
		}
	}
	if err := errors.Join(w.Flush(), file.Close()); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tshark", "-r", name, "-T", "fields", "-e", "_ws.col.Info", "-e", "_ws.malformed", "-e", "infiniband.cm.req.serviceid.dport",
		"-e", "infiniband.cm.req.ip_cm.dip4", "-e", "infiniband.cm.req.ip_cm.sport").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) != len(want) || len(want) != 4*8 {
		t.Fatalf("tshark saw %d frames of %d:\n%s", len(lines), len(want), out)
	}
	for i, s := range lines {
		f := strings.Split(s, "\t")
		if f[0] != "CM: "+want[i] || f[1] != "" {
			t.Errorf("frame %d (%s): %q", i+1, want[i], s)
		}
	}
	t.Log(lines[0])
}

// An agent without work does not allocate and has no deadline.
func TestIdleAllocatesNothing(t *testing.T) {
	r := newRig(t, rnic.RXE, false, Config{}, 1)
	r.dial(Params{})
	r.run("connect", r.both(Established))
	a := r.side[0].agent
	if n := testing.AllocsPerRun(100, func() {
		if a.Step(r.sim.Clock.Now()) || a.Deadline() != clock.Never {
			t.Fatal("something to do")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Unlisten ends what Listen began.
func (a *Agent) Unlisten(port uint16) { delete(a.listen, hdr.ServiceIDOfPort(port)) }
