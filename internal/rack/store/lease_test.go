package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/cm"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
)

// passes runs the lab for a time.
func (l *lab) passes(d time.Duration) {
	l.t.Helper()
	end := l.clk.Now().Add(d)
	if err := l.sim.Run(func() bool { return l.clk.Now() >= end }, 2*d); errors.Is(err, host.ErrStuck) {
		l.clk.Set(end) // nothing has a deadline
	} else if err != nil {
		l.t.Fatal(err)
	}
}

// leased is a memory node with room for two clients, and three clients.
type leased struct {
	*lab
	*Fleet
	all      []host.Worker
	machines []*Client
	stranger *stranger
}

// only lets only the given clients live, and makes them the lab's clients.
func (l *leased) only(clients ...int) {
	l.clients = nil
	l.sim.Workers = append([]host.Worker{}, l.all[0], l.all[1], l.all[5])
	for _, i := range clients {
		l.clients = append(l.clients, l.machines[i])
		l.sim.Workers = append(l.sim.Workers, l.all[2+i])
	}
}

// wait lets the clients work until so is true.
func (l *leased) wait(so func() bool) {
	l.t.Helper()
	if err := l.until(l.Fleet, so); err != nil {
		l.t.Fatal(err)
	}
}

// work lets the clients do n operations, and then stops them.
func (l *leased) work(n uint64) {
	l.t.Helper()
	l.wait(l.Connected)
	n += l.Live().Ops
	l.Start()
	l.wait(func() bool { return l.Live().Ops >= n })
	l.Stop()
	l.wait(l.Idle)
}

// asks makes the stranger ask for a place of four sessions.
func (l *leased) asks(client uint64) cm.Event {
	l.t.Helper()
	return l.stranger.asks(helloOf(l.kind, client, 0, 4))
}

func newLeased(t *testing.T, name string, spec Spec) *leased {
	k := kindOf(t, name)
	spec.Clients, spec.Sessions = 2, 8
	l := &leased{lab: newLab(t, k, spec, 7)}
	l.stranger = newStranger(t, l.lab, 66)
	l.Fleet = l.fleet(k, Work{Mix: ycsb.A, Seed: 1, Keep: true}, 3, 4)
	l.all, l.machines = l.sim.Workers, l.clients
	return l
}

// TestLease: a client that dies keeps its place, with its connections, for a Lease and not for longer. A
// client that lives keeps its place, even without operations. A client that comes then gets a place that no
// other client has, and the memory is sound, with all written values. A client that counted as dead and comes
// back has no place.
func TestLease(t *testing.T) {
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			l := newLeased(t, name, spec)
			l.only(0, 1)
			l.work(200)
			l.only(0) // client 1 dies
			for _, at := range []time.Duration{0, Lease - 2*beat} {
				l.passes(at)
				if e := l.asks(500); e.Kind != cm.Rejected {
					t.Fatalf("after %v: %v", at, e.Kind)
				}
			}
			l.passes(2 * Lease)
			if n := l.server.Stats(); n.Connections != 4 || n.Aged != 0 {
				t.Fatalf("%+v", n)
			}
			for range 3 { // the same place again and again
				l.passes(Lease + 2*beat)
				e := l.asks(600 + uint64(l.server.Stats().Aged))
				if e.Kind != cm.Established {
					t.Fatalf("%v: %q", e.Kind, e.PrivateData)
				}
				l.passes(beat) // the stranger asks for nothing
				l.stranger.parts(e)
			}
			l.only(0, 2)
			l.work(400)
			if v := l.log.Judge(l.server.Store(), true, l.Keys()); !v.OK() {
				t.Errorf("%+v", v)
			}
			l.only(1)
			l.Start()
			if err := l.until(l.Fleet, func() bool { return false }); err == nil || !strings.Contains(err.Error(), "refuses: ") {
				t.Errorf("who comes back: %v", err)
			}
			if n := l.server.Stats(); n.Connections != 8 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// TestAllPlaces: a client that takes all places, and uses each, keeps them only for a Lease.
func TestAllPlaces(t *testing.T) {
	l := newLeased(t, "rcuckoo values", specs["rcuckoo values"])
	l.only()
	for i := range uint64(2) {
		e := l.asks(500 + i)
		if e.Kind != cm.Established {
			t.Fatalf("%v: %q", e.Kind, e.PrivateData)
		}
		l.server.members[500+i].used = true
		l.stranger.parts(e)
	}
	if e := l.asks(502); e.Kind != cm.Rejected || !strings.Contains(string(e.PrivateData), "wait 30s") {
		t.Fatalf("%v: %q", e.Kind, e.PrivateData)
	}
	l.passes(Lease + beat)
	l.only(0, 1)
	l.work(400)
	if v := l.log.Judge(l.server.Store(), false, l.Keys()); !v.OK() || l.server.Stats().Aged != 2 {
		t.Errorf("%+v, %+v", v, l.server.Stats())
	}
}

// TestGoodbye: a memory node that ends tells its clients. They stop at once, with this reason, and it accepts
// no other clients.
func TestGoodbye(t *testing.T) {
	for _, name := range []string{"locks", "sherman", "rcuckoo", "fusee"} {
		l := newLeased(t, name, specs[name])
		l.only(0, 1)
		l.work(100)
		l.Start()
		start := l.clk.Now()
		l.server.End(start)
		err := l.until(l.Fleet, func() bool { return false })
		if err == nil || !strings.Contains(err.Error(), "10.0.0.9 says goodbye: it ends") || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%s: %v", name, err)
		}
		if took := l.clk.Now().Sub(start); took > time.Millisecond {
			t.Errorf("%s: after %v", name, took)
		}
		if err := l.sim.Run(l.server.Ended, time.Second); err != nil {
			t.Fatal(err)
		}
		if e := l.asks(500); e.Kind != cm.Rejected || !strings.Contains(string(e.PrivateData), "the memory node ends") {
			t.Errorf("%v: %q", e.Kind, e.PrivateData)
		}
	}
}

// TestGeometry: a store that does not fit is refused before it is made, in one line that says what does fit.
func TestGeometry(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Spec
		most int64
		want string
	}{
		{"rcuckoo", Spec{Keys: 1 << 24}, 100 << 20, "keys 16777216, value 8: they take 460 MB of memory, of 100 that a memory node may have here: at most 4194304 keys fit"},
		{"rcuckoo", Spec{Keys: 10_000, Value: 1 << 20}, 1 << 33, "they take 151072 MB of memory, of 8192 that a memory node may have here: ask for fewer"},
		{"fusee", Spec{Keys: 1 << 22, Value: 4000}, 1 << 33, "keys fit"},
		{"sherman", Spec{Keys: 1 << 24}, 1 << 20, "keys fit"},
		{"locks", Spec{Keys: 1 << 16, Sessions: 1 << 14}, 1 << 20, "keys fit"},
	} {
		k := kindOf(t, c.name)
		spec := c.spec
		_ = k.Check(&spec)
		err := k.fits(spec, c.most)
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
