package store

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/rack/rnic"
)

// lab is a memory node and clients on a bridge, in virtual time.
type lab struct {
	t      testing.TB
	clk    *clock.Manual
	pool   *packet.Pool
	sim    host.Sim
	server *Server
	ports  []port.Port
}

func addr(n byte) (netip.Addr, [6]byte) {
	return netip.AddrFrom4([4]byte{10, 0, 0, n}), [6]byte{2, 0, 10, 0, 0, n}
}

func (l *lab) nic(n byte) *rnic.NIC {
	ip, mac := addr(n)
	nic, err := rnic.New(rnic.Config{IP: ip, MAC: mac, Profile: rnic.ConnectX, Pool: l.pool, Seed: uint64(n)})
	if err != nil {
		l.t.Fatal(err)
	}
	return nic
}

// plug gives a machine a cable to the bridge. The bridge's end of it is added to ports.
func (l *lab) plug(n byte, nic *rnic.NIC, app host.App) {
	a, b := mem.NewWire(fmt.Sprint("n", n), fmt.Sprint("b", n), l.pool, 1024, l.clk)
	l.ports = append(l.ports, b)
	l.sim.Workers = append(l.sim.Workers, host.NewNode(a, nic, app))
}

const memoryNode = 9

func newLab(t testing.TB, k *Kind, s Spec, epoch uint64) *lab {
	t.Helper()
	if err := k.Check(&s); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, clk: clock.NewManual(1000)}
	var err error
	if l.pool, err = packet.NewPool(1<<15, 2048, nil); err != nil {
		t.Fatal(err)
	}
	l.sim.Clock = l.clk
	nic := l.nic(memoryNode)
	if l.server, err = NewServer(k, s, nic, epoch); err != nil {
		t.Fatal(err)
	}
	l.plug(memoryNode, nic, l.server)
	return l
}

// fleet adds clients, each with so many sessions.
func (l *lab) fleet(k *Kind, w Work, clients, sessions int) *Fleet {
	l.t.Helper()
	f := NewFleet(k, w)
	ip, mac := addr(memoryNode)
	for i := range clients {
		nic := l.nic(byte(20 + i))
		c, err := f.Add(nic, ip, mac, sessions, uint64(i)+1)
		if err != nil {
			l.t.Fatal(err)
		}
		l.plug(byte(20+i), nic, c)
	}
	l.sim.Workers = append(l.sim.Workers, host.NewBridge(l.ports...))
	return f
}

func (l *lab) until(f *Fleet, so func() bool) error {
	err := l.sim.Run(func() bool { return so() || f.Err() != nil }, time.Minute)
	if f.Err() != nil {
		return f.Err()
	}
	return err
}

// specs are the memory nodes of each kind of store.
var specs = map[string]Spec{
	"locks":          {Keys: 4},
	"locks table":    {Keys: 2, Work: "table"},
	"locks open":     {Keys: 3, Work: "open"},
	"sherman":        {Keys: 500},
	"sherman ranges": {Keys: 500},
	"rcuckoo":        {Keys: 500},
	"rcuckoo values": {Keys: 100, Value: 100},
	"fusee":          {Keys: 500},
	"fusee values":   {Keys: 100, Value: 1000},
}

func kindOf(t testing.TB, name string) *Kind {
	name, _, _ = strings.Cut(name, " ")
	k, err := Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestStores: clients of each store find its memory node, work, and the memory agrees with the results that
// they got.
func TestStores(t *testing.T) {
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			k := kindOf(t, name)
			l := newLab(t, k, spec, 7)
			w := Work{Mix: ycsb.A, Theta: 0.99, Seed: 1, Keep: true}
			if name == "sherman ranges" {
				w.Deletes, w.Ranges = 0.4, 0.3
			}
			f := l.fleet(k, w, 3, 4)
			f.Allow(4000)
			if err := l.until(f, f.Connected); err != nil {
				t.Fatal(err)
			}
			f.Start()
			f.Begin()
			if err := l.until(f, func() bool { return f.Spent() && f.Idle() }); err != nil {
				t.Fatal(err)
			}
			m := f.Measured()
			if m.Ops == 0 || m.Errors+m.Unknown != 0 || m.Write.TotalCount() == 0 {
				t.Errorf("%+v", m)
			}
			f.Stop()
			f.End()
			if err := l.until(f, f.Ended); err != nil {
				t.Fatal(err)
			}
			if s := l.server.Stats(); s.Clients != 3 || s.Connections != 0 || s.Accepted != 12 {
				t.Errorf("%+v", s)
			}
			v := f.Judge(l.server.Store())
			if !v.OK() || v.Keys != spec.Keys && (w.Deletes == 0 || v.Keys > spec.Keys) || v.Written == 0 || v.Checked < 2000 {
				t.Errorf("%+v", v)
			}
			t.Logf("%+v, %+v", v, f.Facts())
		})
	}
}

// TestJudgeFails: Judge finds memory that does not agree with the clients' results.
func TestJudgeFails(t *testing.T) {
	for name, spoil := range map[string]func(Store){
		"sherman": func(s Store) { s.(*shermanStore).tree.Spoil(1, 999) },
		"rcuckoo": func(s Store) { s.(*rcuckooStore).table.Tear(0) },
		"fusee":   func(s Store) { s.(*fuseeStore).cluster[0].Spoil() },
		"locks":   func(s Store) { s.(*locksStore).memory.Spoil(0) },
	} {
		k := kindOf(t, name)
		l := newLab(t, k, specs[name], 7)
		f := l.fleet(k, Work{Mix: ycsb.A, Seed: 1, Keep: true}, 1, 2)
		if err := l.until(f, f.Connected); err != nil {
			t.Fatal(err)
		}
		f.Allow(500)
		f.Start()
		if err := l.until(f, func() bool { return f.Spent() && f.Idle() }); err != nil {
			t.Fatal(err)
		}
		spoil(l.server.Store())
		if v := f.Judge(l.server.Store()); v.OK() || v.Wrong == "" {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestRefused: a client that cannot get what it wants is refused in one line, and does not wait on.
func TestRefused(t *testing.T) {
	rc, sh := kindOf(t, "rcuckoo"), kindOf(t, "sherman")
	for _, c := range []struct {
		kind     *Kind
		work     Work
		clients  int
		sessions int
		want     string
	}{
		{sh, Work{}, 1, 2, "10.0.0.9 refuses: this server's store is rcuckoo, not sherman"},
		{rc, Work{}, 3, 2, "10.0.0.9 refuses: there is room for 2 clients"},
		{rc, Work{Keys: 101}, 1, 2, "the memory node holds 100 keys, not 101"},
		{rc, Work{Value: 16}, 1, 2, "the memory node's values have 8 bytes, not 16"},
	} {
		l := newLab(t, rc, Spec{Keys: 100, Clients: 2}, 7)
		f := l.fleet(c.kind, c.work, c.clients, c.sessions)
		if err := l.until(f, f.Connected); err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %s", err, c.want)
		}
		// A client that is refused leaves nothing behind.
		f.End()
		_ = l.sim.Run(f.Ended, time.Minute)
		if s := l.server.Stats(); s.Connections != 0 {
			t.Errorf("%s: %+v", c.want, s)
		}
	}
	k := kindOf(t, "locks")
	l := newLab(t, k, Spec{Keys: 1, Sessions: 3}, 7)
	if err := l.until(l.fleet(k, Work{}, 2, 2), func() bool { return false }); err == nil || !strings.Contains(err.Error(), "no room for 2 sessions: 2 of 3 are given") {
		t.Error(err)
	}
}

// TestVanishes: clients notice in bounded time that a memory node is gone or was started anew.
func TestVanishes(t *testing.T) {
	for name, want := range map[string]string{"gone": "has vanished", "anew": "was started anew"} {
		k := kindOf(t, "rcuckoo")
		l := newLab(t, k, Spec{Keys: 100}, 7)
		f := l.fleet(k, Work{Mix: ycsb.A, Seed: 1, Keep: true}, 2, 2)
		if err := l.until(f, f.Connected); err != nil {
			t.Fatal(err)
		}
		f.Start()
		if err := l.until(f, func() bool { return f.Live().Ops > 50 }); err != nil {
			t.Fatal(err)
		}
		nic := l.nic(memoryNode)
		var app host.App
		if name == "anew" {
			s := Spec{Keys: 100}
			if err := k.Check(&s); err != nil {
				t.Fatal(err)
			}
			s2, err := NewServer(k, s, nic, 8)
			if err != nil {
				t.Fatal(err)
			}
			app = s2
		}
		node := l.sim.Workers[0].(*host.Node)
		l.sim.Workers[0] = host.NewNode(node.Port(), nic, app)
		begun := l.clk.Now()
		err := l.until(f, func() bool { return false })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Duration(l.clk.Now().Sub(begun)); d > 5*time.Second {
			t.Errorf("%s: noticed after %v", name, d)
		}
	}
}
