package clover

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/clover"
)

// Each test plays one scenario on a bare wire, which shows that it is no fault of
// the scenario's, and through clover-steer.

// ofSteer is a clover-steer with its defaults, but for args.
func ofSteer(args graph.Args) *bed.Box { return &bed.Box{Kind: *tor.Kind(), Args: args} }

// sound fails the test when the store's clients saw an error, or something wrong.
func sound(t *testing.T, r *bed.StoreRun, limit time.Duration) {
	t.Helper()
	done := r.Wait(limit)
	err := r.Check()
	if !done || err != nil || r.Result.Store.Errors > 0 {
		t.Errorf("through: %v, %d queue pairs failed, %v; %+v", done, r.Result.Store.Errors, err, r.Result.Store)
	}
}

// chains are keys' chains in a region of the server's, and clients that append to
// them as Clover's do: a WRITE of the new entry, and a CAS that links it behind what
// the client takes for the tail.
type chains struct {
	t     *testing.T
	pd    *rnic.PD
	m     *rnic.MR
	next  uint32 // handle of the next entry
	acked map[uint32]uint64
}

const (
	base  = 0x100000
	slab  = wire.MinSlab
	keys  = 2
	rooms = 4096
)

func entryAt(lh uint32) uint64 { return base + uint64(lh)*slab }

// head is an entry's first word.
func (c *chains) head(lh uint32) wire.Pointer {
	return wire.Pointer(bed.WordAt(c.m, entryAt(lh)))
}

// entry is what a new entry of a key holds.
func entry(key uint64) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, slab), uint64(wire.Fresh(1)))
	return binary.LittleEndian.AppendUint64(b, key)[:slab]
}

func newChains(t *testing.T, s *bed.Scene, pd *rnic.PD) *chains {
	c := &chains{t: t, pd: pd, m: s.MR(pd, base, rooms*slab, rnic.RemoteRead|rnic.RemoteWrite|rnic.RemoteAtomic), next: 1 + keys, acked: map[uint32]uint64{}}
	for k := range uint64(keys) {
		copy(c.m.Mem[entryAt(uint32(1+k))-base:], entry(k))
	}
	return c
}

// appender is a client with its idea of the tails.
type appender struct {
	*bed.Peer
	tail [keys]uint32
	// under way
	key   uint64
	lh    uint32
	found []byte
	cas   int
}

func (c *chains) appender(p *bed.Peer) *appender {
	a := &appender{Peer: p}
	for k := range uint32(keys) {
		a.tail[k] = 1 + k
	}
	return a
}

// begin sends the WRITE of an append, and its CAS when that is done.
func (c *chains) begin(key uint64, all ...*appender) {
	for i, a := range all {
		a.key, a.lh = (key+uint64(i))%keys, c.next
		c.next++
		a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{entry(a.key)}, RemoteAddr: entryAt(a.lh), RKey: c.m.RKey})
	}
	for _, a := range all {
		a.Await()
	}
	for _, a := range all {
		c.link(a)
	}
}

// link sends the CAS that links a's entry behind its idea of the tail.
func (c *chains) link(a *appender) {
	a.found = make([]byte, 8)
	swap := wire.Pointer(a.lh)<<28 | 1<<19 | wire.Fresh(1)
	a.cas = a.Post(rnic.SendWR{Op: rnic.OpCompareSwap, SGL: [][]byte{a.found}, RemoteAddr: entryAt(a.tail[a.key]), RKey: c.m.RKey, Compare: uint64(wire.Fresh(1)), Swap: uint64(swap)})
}

// walk has a know the tail of a key, as one who has just READ the chain does.
func (c *chains) walk(key uint64, a *appender) {
	for n := 0; c.head(a.tail[key]).LH() != 0 && n < rooms; n++ {
		a.tail[key] = c.head(a.tail[key]).LH()
	}
}

// end waits for appends, and links again what was not linked.
func (c *chains) end(all ...*appender) {
	c.t.Helper()
	for open := all; len(open) > 0; {
		for _, a := range open {
			a.Await()
		}
		var again []*appender
		for _, a := range open {
			switch found := wire.Pointer(binary.LittleEndian.Uint64(a.found)); {
			case a.Status(a.cas) != rnic.Success:
				c.t.Errorf("a CAS ended with status %v", a.Status(a.cas))
			case found == wire.Fresh(1):
				c.acked[a.lh], a.tail[a.key] = a.key, a.lh
			default:
				c.walk(a.key, a)
				if a.tail[a.key] == a.lh { // linked, and not told so
					c.acked[a.lh] = a.key
					continue
				}
				c.link(a)
				again = append(again, a)
			}
		}
		open = again
	}
}

// check fails the test when an entry that a client was told to be linked is not in
// its key's chain.
func (c *chains) check() {
	c.t.Helper()
	for k := range uint64(keys) {
		in := map[uint32]bool{}
		for lh := uint32(1 + k); lh != 0 && !in[lh]; lh = c.head(lh).LH() {
			in[lh] = true
		}
		lost := 0
		for lh, key := range c.acked {
			if key == k && !in[lh] {
				lost++
			}
		}
		if lost > 0 {
			c.t.Errorf("key %d: %d acknowledged appends of %d are not in its chain", k, lost, len(c.acked))
		}
	}
}

// Two queue pairs of one host count in lockstep, and the box comes between while
// they talk: answers of one, whose requests passed before, are not the other's. At
// the end one of them dies with its CAS lost behind the box, and what others were
// told to be linked behind it is.
func TestFault03Lockstep(t *testing.T) {
	var lost fault.Schedule // a's first requests, behind the box
	for i := range 6 {
		lost = append(lost, fault.Fault{Where: "s0", Frame: 7 + i})
	}
	conn := rnic.DefaultConn()
	conn.SQPSN, conn.Timeout = 3185, 8 // 1 ms
	var lose func(b []byte) bool
	wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
		return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool { return machine == "s0" && lose != nil && lose(b) }}
	}
	box := ofSteer(graph.Args{"settle": "20ms", "repair": "2ms"})
	bed.Both(t, bed.SceneConfig{Box: box, Schedule: lost, Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
		l := bed.Link{PD: s.PD(), Conn: conn}
		c := newChains(t, s, l.PD)
		a, b := c.appender(s.Peer(0, 0, l)), c.appender(s.Peer(0, 1, l))
		x := c.appender(s.Peer(1, 0, l))
		s.Remove()
		s.Stall()
		c.touch(b, 6)
		s.Pause(100 * time.Microsecond) // they wait at the server
		s.Insert()
		c.touch(a, 6)
		s.Pause(100 * time.Microsecond)
		s.Thaw()
		a.Await(b.Peer)
		for round := range uint64(600) {
			c.begin(round, a, b, x)
			c.end(a, b, x)
			for _, p := range []*appender{a, b} { // they stay in step
				c.touch(p, max(a.Posted(), b.Posted())-p.Posted())
			}
			a.Await(b.Peer)
			s.Pause(50 * time.Microsecond)
		}
		once := true
		lose = func(p []byte) bool {
			var f hdr.Frame
			mine := once && hdr.Parse(p, &f) == hdr.IsRoCE && f.Op == hdr.CompareSwap && f.BTHOf(p).DestQP() == a.Here.ServerQPN
			once = once && !mine
			return mine
		}
		c.begin(0, a, b)
		s.Until(func() bool { return !once }, time.Millisecond)
		a.Fail()
		for range 3 {
			c.begin(0, x)
			c.end(x)
		}
		c.end(b)
		s.Pause(20 * time.Millisecond)
		c.check()
	})
}

// touch does n CASes that concern no chain.
func (c *chains) touch(a *appender, n int) {
	for range n {
		a.Post(rnic.SendWR{Op: rnic.OpCompareSwap, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: base, RKey: c.m.RKey, Compare: uint64(wire.Fresh(1)), Swap: uint64(wire.Fresh(1))})
	}
}

// One frame from another address to the queue pairs of some is nothing to them,
// and to others.
func TestFault06OtherAddress(t *testing.T) {
	play := func(t *testing.T, s *bed.Scene, attack int) time.Duration {
		start := s.Clock.Now()
		r := s.Store(bed.Store{Clients: 3, Sessions: 3, Ops: 200, Keys: 1})
		s.Pause(300 * time.Microsecond)
		mac, own := s.Sender()
		for round := range attack {
			var frames [][]byte
			for i := range 3 {
				_, _, client := s.Guest(1 + i)
				for _, q := range s.Ends(client) {
					frames = append(frames, bed.Packet{
						SrcMAC: mac, DstMAC: s.Server().Config().MAC, Src: own, Dst: s.Addr(),
						Op: hdr.CompareSwap, QPN: q.QPN, PSN: 77 + uint32(round), Ext: bed.AtomicETH(0, 1, 1, 0), AckReq: true,
					}.Bytes())
				}
			}
			s.Send(time.Microsecond, frames...)
		}
		sound(t, r, time.Minute)
		return s.Clock.Now().Sub(start)
	}
	c := bed.SceneConfig{Box: ofSteer(graph.Args{"settle": "0s", "pair": "60us"}), Others: bed.StoreOthers(3)}
	took := map[bool]time.Duration{}
	bed.Both(t, c, func(t *testing.T, s *bed.Scene) { took[s.Instance() != nil] = play(t, s, 0) })
	bed.Both(t, c, func(t *testing.T, s *bed.Scene) {
		if before, d := took[s.Instance() != nil], play(t, s, 20); d > 2*before {
			t.Errorf("it took %v, and %v without a stranger's frames", d, before)
		}
	})
}

// Frames to made-up addresses leave room for servers that exist.
func TestFault07MadeUpDestinations(t *testing.T) {
	steered := func(t *testing.T, flood bool) uint64 {
		s := bed.NewScene(t, bed.SceneConfig{Box: ofSteer(graph.Args{"settle": "0s", "pair": "60us"}), Others: bed.StoreOthers(2)})
		if flood {
			mac, own := s.Sender()
			var frames [][]byte
			for n := range uint8(128) {
				frames = append(frames, bed.Packet{
					SrcMAC: mac, DstMAC: [6]byte{2, 0, 0, 9, 9, n}, Src: own, Dst: netip.AddrFrom4([4]byte{10, 9, 9, n}),
					Op: hdr.CompareSwap, QPN: 0x99, PSN: uint32(n), Ext: bed.AtomicETH(0, 1, 1, 0), AckReq: true,
				}.Bytes())
			}
			s.Send(time.Microsecond, frames...)
		}
		sound(t, s.Store(bed.Store{Clients: 2, Sessions: 4, Ops: 100, Keys: 2}), time.Minute)
		return s.Count("steered-cas") + s.Count("steered-read")
	}
	without, with := steered(t, false), steered(t, true)
	if without == 0 || with < without/2 {
		t.Errorf("%d requests were steered, and %d after a stranger's frames", without, with)
	}
}

// A client that may use the memory, and is malicious, has its append follow what it knows will not be executed. Others
// append to the same key meanwhile: they are answered as on a bare wire.
func TestFaultMaliciousClient(t *testing.T) {
	for name, trick := range map[string]struct {
		access rnic.Access // of its queue pair
		front  func(c *chains, m *appender)
	}{
		"behind a request that is refused": {rnic.RemoteRead | rnic.RemoteWrite | rnic.RemoteAtomic, func(c *chains, m *appender) {
			m.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: base, RKey: c.m.RKey + 0x100})
		}},
		"without the right to atomics": {rnic.RemoteRead | rnic.RemoteWrite, func(*chains, *appender) {}},
	} {
		t.Run(name, func(t *testing.T) {
			conn := rnic.DefaultConn()
			conn.Timeout = 10 // 4 ms
			bed.Both(t, bed.SceneConfig{Box: ofSteer(graph.Args{"settle": "0s", "pair": "60us"})}, func(t *testing.T, s *bed.Scene) {
				l := bed.Link{PD: s.PD(), Conn: conn}
				c := newChains(t, s, l.PD)
				a, b := c.appender(s.Peer(0, 0, l)), c.appender(s.Peer(1, 0, l))
				l.Access = trick.access
				m := c.appender(s.Peer(2, 0, l))
				all := []*appender{a, b}
				if trick.access&rnic.RemoteAtomic != 0 {
					all = append(all, m)
				}
				for round := range uint64(60) {
					c.begin(round, all...)
					c.end(all...)
					m.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, slab)}, RemoteAddr: entryAt(1), RKey: c.m.RKey})
					s.Pause(100 * time.Microsecond)
				}
				for _, x := range []*appender{m, a, b} {
					x.key, x.lh = 0, c.next
					c.next++
					x.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{entry(0)}, RemoteAddr: entryAt(x.lh), RKey: c.m.RKey})
					x.Await()
				}
				c.walk(0, m) // it knows the tail; others may not
				s.Stall()
				trick.front(c, m)
				c.link(m)
				s.Pause(20 * time.Microsecond)
				c.link(a)
				s.Pause(20 * time.Microsecond)
				c.link(b)
				s.Pause(20 * time.Microsecond)
				s.Thaw()
				c.end(a, b)
				m.Await()
				if st := m.Status(m.cas); st == rnic.Success {
					t.Fatal("the malicious client's append was executed")
				}
				c.check()
				if s.Instance() != nil && s.Count("steered-cas") == 0 {
					t.Error("nothing is steered")
				}
			})
		})
	}
}
