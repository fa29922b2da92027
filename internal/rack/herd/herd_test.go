package herd

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
)

// lab is a server and clients. Their frames cross in virtual time, or are lost.
type lab struct {
	now     clock.Time
	rng     *rand.Rand
	nics    []*rnic.NIC // the server's first
	server  *Server
	clients []*Client
	lose    float64
	lost    int
}

func mac(i int) [6]byte      { return [6]byte{2, 0, 0, 0, 0, byte(i)} }
func ip(i int) netip.Addr    { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
func value(n uint64) []byte  { return binary.LittleEndian.AppendUint64(make([]byte, 1000), n) }
func number(v []byte) uint64 { return binary.LittleEndian.Uint64(v[len(v)-8:]) }

func newLab(t *testing.T, l Layout, clients, keys int, request time.Duration, work func(client int) Config) *lab {
	t.Helper()
	b := &lab{now: 1000, rng: rand.New(rand.NewPCG(1, 2))}
	for i := range clients + 1 {
		n, err := rnic.New(rnic.Config{MAC: mac(i + 1), IP: ip(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		b.nics = append(b.nics, n)
	}
	var err error
	if b.server, err = NewServer(b.nics[0], ServerConfig{Layout: l, Keys: keys, Request: request}); err != nil {
		t.Fatal(err)
	}
	for i, n := range b.nics[1:] {
		c := work(i)
		pd, cq := n.AllocPD(), n.CreateCQ(256)
		c.Layout, c.Region, c.CQ, c.N = l, b.server.Region(), cq, l.Sessions/clients
		c.First = i * c.N
		x, err := NewClient(c)
		if err != nil {
			t.Fatal(err)
		}
		for k := range c.N {
			q, err1 := Requests(pd, n, cq)
			p, err2 := b.server.Listen()
			ud, err3 := Datagrams(pd, n, cq)
			if err := errors.Join(err1, err2, err3); err != nil {
				t.Fatal(err)
			}
			there, here := rnic.DefaultConn(), rnic.DefaultConn()
			there.RemoteMAC, there.RemoteIP, there.DestQPN = mac(1), ip(1), p.QPN
			here.RemoteMAC, here.RemoteIP, here.DestQPN = mac(i+2), ip(i+2), q.QPN
			if err := errors.Join(q.Connect(there), p.Connect(here), x.Connect(k, q, ud), b.server.Admit(c.First+k, rnic.AH{MAC: mac(i + 2), IP: ip(i + 2), QPN: ud.QPN})); err != nil {
				t.Fatal(err)
			}
		}
		b.clients = append(b.clients, x)
	}
	return b
}

// breathe runs the lab until a condition holds or for 0.2 s of its time. Each NIC sends a frame each 100 ns.
func (b *lab) breathe(until func() bool) bool {
	var out packet.Batch
	for range 2_000_000 {
		if until() {
			return true
		}
		b.now += 100
		b.server.Step(b.now)
		for _, c := range b.clients {
			c.Step(b.now)
		}
		for _, n := range b.nics {
			n.Output(b.now, &out)
			for _, x := range out.Bufs() {
				i := int(x.Bytes()[5]) - 1
				if b.rng.Float64() < b.lose {
					b.lost++
					x.Put()
					continue
				}
				b.nics[i].Input(b.now, x)
			}
			out.Reset()
		}
	}
	return false
}

// With losses every key is a register: no write is done twice, and none is forgotten.
func TestLinearizable(t *testing.T) {
	for name, lose := range map[string]float64{"calm": 0, "loss": 0.1} {
		t.Run(name, func(t *testing.T) {
			again := 20 * time.Microsecond
			if lose > 0 {
				again = 700 // requests that were not lost are written again, too
			}
			const clients, sessions, ops, keys = 3, 4, 150, 5
			var log history.Log[history.Register, uint64]
			left, kinds := clients*sessions*ops, map[Kind]int{}
			b := newLab(t, Layout{Cores: 2, Sessions: clients * sessions, Value: MostValue}, clients, keys, 150, func(client int) Config {
				rng := rand.New(rand.NewPCG(uint64(client), 7))
				ids, n := make([]int, sessions), make([]int, sessions)
				return Config{Again: again, Most: 10_000, Done: func(r *Result) {
					left--
					v := uint64(0)
					if r.Kind == Get && r.Found {
						v = number(r.Got)
					}
					if r.Err != nil {
						t.Fatalf("%v: %v", r.Op.Kind, r.Err)
					}
					log.Return(ids[r.Session], r.End, v)
				}}.with(func(now clock.Time, s int) (Op, bool) {
					if n[s] == ops {
						return Op{}, false
					}
					n[s]++
					op := Op{Kind: Kind(rng.IntN(3)), Key: uint64(rng.IntN(keys))}
					in := history.Register{Key: op.Key, Write: op.Kind != Get}
					if op.Kind == Put {
						in.Value = uint64(client+1)<<32 | uint64(s)<<16 | uint64(n[s])
						op.Value = value(in.Value)
					}
					kinds[op.Kind]++
					ids[s] = log.Call(client*sessions+s, now, in)
					return op, true
				})
			})
			b.lose = lose
			if !b.breathe(func() bool { return left == 0 }) {
				t.Fatalf("%d operations have not ended", left)
			}
			if err := history.Check(history.Registers(func(uint64) uint64 { return 0 }), &log, 0); err != nil {
				t.Fatal(err)
			}
			var sum Stats
			for _, c := range b.clients {
				sum.Again += c.Stats().Again
				sum.Late += c.Stats().Late
			}
			s := b.server.Stats()
			t.Logf("%d frames lost, %d requests written again, %+v, %v", b.lost, sum.Again, s, kinds)
			if len(kinds) != 3 || s.Bad != 0 || (lose > 0) != (sum.Again > 0) || (lose > 0) != (sum.Late > 0) || (lose > 0) != (s.Repeated > 0) {
				t.Errorf("%+v", sum)
			}
		})
	}
}

func (c Config) with(next func(clock.Time, int) (Op, bool)) Config {
	c.Next = next
	return c
}

// Wrong operations are refused, and an operation without an answer ends.
func TestRefuses(t *testing.T) {
	ops := []Op{{Kind: Put, Key: 1, Value: value(1)[1000:]}, {Kind: Put, Key: 2, Value: value(2)[1000:]}, {Kind: Get, Key: 2}, {Kind: Delete, Key: 1}, {Kind: Delete, Key: 1},
		{Kind: Put, Key: 3}, {Kind: Put, Key: 3, Value: value(3)}, {Kind: Get, Key: 3, Value: value(3)[1000:]}, {Kind: Delete + 1}}
	var got []string
	b := newLab(t, Layout{Cores: 1, Sessions: 1, Value: 64}, 1, 1, 0, func(int) Config {
		return Config{Again: time.Microsecond, Most: 3, Done: func(r *Result) {
			s := "absent"
			if r.Err != nil {
				s = strings.Fields(r.Err.Error())[1]
			} else if r.Found {
				s = "found"
			}
			got = append(got, s)
		}}.with(func(clock.Time, int) (op Op, ok bool) {
			if len(ops) == 0 {
				return op, false
			}
			op, ops = ops[0], ops[1:]
			return op, true
		})
	})
	if !b.breathe(func() bool { return len(ops) == 0 && b.clients[0].Idle() }) {
		t.Fatal("no end")
	}
	if want := []string{"found", "the", "absent", "found", "absent", "the", "the", "the", "the"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	b.lose, ops = 1, []Op{{Key: 1}, {Key: 1}}
	if !b.breathe(func() bool { return len(got) == 10 }) || got[9] != "no" {
		t.Errorf("%v", got)
	}
	for range 100 {
		b.breathe(func() bool { b.now += 1000; return true })
	}
	if len(ops) != 1 {
		t.Error("a session goes on whose slot may be in use")
	}
	n := b.nics[0]
	for _, c := range []ServerConfig{{}, {Layout: Layout{1, 1, 2000}, Keys: 1}, {Layout: Layout{300, 1, 8}, Keys: 1}, {Layout: Layout{1, 1 << 15, 8}, Keys: 1}, {Layout: Layout{1, 1, 8}}} {
		if _, err := NewServer(n, c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := b.server.Admit(1, rnic.AH{}); err == nil {
		t.Error("a session that there is not")
	}
	if _, err := NewClient(Config{Layout: Layout{1, 1, 8}, N: 2}); err == nil {
		t.Error("a client without anything")
	}
}

// Random bytes in the slots, which can be requests of other clients, do not stop the server.
func TestGarbage(t *testing.T) {
	b := newLab(t, Layout{Cores: 2, Sessions: 2, Value: 64}, 1, 10, 0, func(int) Config {
		return Config{Done: func(*Result) {}}.with(func(clock.Time, int) (Op, bool) { return Op{}, false })
	})
	rng := rand.New(rand.NewPCG(3, 4))
	for range 10_000 {
		for i := range b.server.slots {
			if rng.IntN(4) == 0 {
				b.server.slots[i] = byte(rng.Uint32())
			}
		}
		b.now += 100
		b.server.Step(b.now)
	}
	if s := b.server.Stats(); s.Requests == 0 || s.Bad == 0 {
		t.Errorf("%+v", s)
	}
}
