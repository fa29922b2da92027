package etcd

import (
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/internal/etcdtest"
	"github.com/quillon/quillon/nf/clock"
)

// slow is an etcd whose leases last 15 s at least, so that it is seen who does not wait for their end.
var slow = []string{"--heartbeat-interval", "100", "--election-timeout", "10000"}

// asDefault is the time for which etcd's members wait for their leader by default.
var asDefault = []string{"--heartbeat-interval", "100", "--election-timeout", "1000"}

// waits has a store's controller stand by, and waits until so many do.
func waits(t *testing.T, s *Store, want int) <-chan *term {
	t.Helper()
	out := make(chan *term, 1)
	go func() {
		if x, err := s.Lead(t.Context()); err == nil {
			out <- x.(*term)
		}
	}()
	ctltest.Eventually(t, "it stands by", func() bool {
		st, err := s.Status(t.Context())
		return err == nil && len(st.Standby) == want
	})
	return out
}

// TestTheSilentAreDeposed: the leader, and the one that would lead next, are silent. The third leads long before their leases' ends. The leader was
// only slow, and knows when it extends its lease the next time.
func TestTheSilentAreDeposed(t *testing.T) {
	url := etcdtest.Start(t, 1, "http", slow...).URL("net1")
	a, b, c := open(t, url, "a"), open(t, url, "b"), open(t, url, "c")
	x := lead(t, a)
	if x.ttl < 15*time.Second {
		t.Fatalf("a lease lasts %v", x.ttl)
	}
	waits(t, b, 1)
	third := waits(t, c, 2)
	now := clock.NewWall()
	start := now.Now()
	x.stop()
	b.Close()
	y := <-third
	took := now.Now().Sub(start)
	t.Logf("two were silent, the third led after %v", took)
	if took > 10*time.Second {
		t.Errorf("it waited %v", took)
	}
	if !id(x).Less(id(y)) {
		t.Errorf("%v, %v", id(x), id(y))
	}
	if x.Held() != nil {
		t.Skip("this machine had no time: the lease is over by the leader's own clock, too")
	}
	x.open <- struct{}{}
	go x.extend(t.Context())
	select {
	case <-x.Over():
	case <-time.After(10 * time.Second):
		t.Error("the former leader does not know")
	}
	if x.Held() == nil {
		t.Error("the former leader holds its lease")
	}
	x.End()
	y.End()
}

// TestWhoMayNotDepose waits for the lease's end.
func TestWhoMayNotDepose(t *testing.T) {
	c, with := users(t)
	a, err := with("ctl")
	if err != nil {
		t.Fatal(err)
	}
	b, err := with("ctl")
	if err != nil {
		t.Fatal(err)
	}
	// A lease that has another's key may only be ended by who may write that, too.
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + c.Members[0].Client}, Username: "root", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x := lead(t, a)
	for range 10 {
		if _, err = root.Put(t.Context(), "/other", "", clientv3.WithLease(x.id)); err == nil {
			break
		}
		x.End() // this machine had no time to keep it
		x = lead(t, a)
	}
	if _, err := b.client.Revoke(t.Context(), x.id); err == nil {
		t.Fatal("it may end that lease")
	}
	next := waits(t, b, 1)
	x.stop()
	y := <-next
	if !id(x).Less(id(y)) {
		t.Errorf("%v, %v", id(x), id(y))
	}
	y.End()
	x.End()
}

// TestEtcdElects: while etcd's members elect another leader, ours stays, and is deposed neither then nor for the time in which etcd was
// away.
func TestEtcdElects(t *testing.T) {
	c := etcdtest.Start(t, 3, "http", asDefault...)
	a, b := open(t, c.URL("net1"), "a"), open(t, c.URL("net1"), "b")
	x := lead(t, a)
	next := waits(t, b, 1)
	stayed := 0
	const times = 3
	for range times {
		m := c.Leader(t)
		m.Kill()
		now := clock.NewWall()
		died := now.Now()
		ctltest.Eventually(t, "the lease is extended again", func() bool {
			asked := clock.Time(x.until.Load()).Add(-x.ttl)
			return asked.Sub(died) > time.Second || x.Held() != nil && isOver(x)
		})
		if !isOver(x) {
			stayed++
			t.Logf("our leader stayed, and knew after %v", now.Now().Sub(died))
		} else { // only a machine without time for anything
			x.End()
			x = <-next
			next = waits(t, a, 1)
			a, b = b, a
		}
		m.Start(t)
		c.Ready(t)
		time.Sleep(time.Second)
	}
	if stayed == 0 {
		t.Errorf("in %d elections of etcd our leader was never the same afterwards", times)
	}
	x.End()
}

// TestEtcdIsAwayForLonger than a lease lasts. Nothing is written then, and when it is back, and has kept the lease, all goes on.
func TestEtcdIsAwayForLonger(t *testing.T) {
	c := etcdtest.Start(t, 1, "http")
	s := open(t, c.URL("net1"), "a")
	for range 3 {
		x := lead(t, s)
		c.Members[0].Kill()
		ctltest.Eventually(t, "nothing is written", func() bool { return x.Held() != nil })
		c.Members[0].Start(t)
		ctltest.Eventually(t, "it leads again, or has given up", func() bool { return x.Held() == nil || isOver(x) })
		stayed := !isOver(x)
		x.End()
		if stayed {
			return
		}
	}
	t.Error("etcd has kept a lease three times, and its holder none")
}

func isOver(x *term) bool {
	select {
	case <-x.Over():
		return true
	default:
		return false
	}
}

// TestCutOff: a leader without etcd, which still reaches its devices. What it writes when the next one leads is refused by them, although its
// lease lasts by its own clock.
func TestCutOff(t *testing.T) {
	url := etcdtest.Start(t, 1, "http", slow...).URL("net1")
	a, b := open(t, url, "a"), open(t, url, "b")
	device := ctltest.New(1)
	at, _ := device.Start(t, "127.0.0.1:0", nil)
	session := func(x *term) *ctl.Session {
		o := ctl.Options{Clock: clock.NewWall(), Patience: time.Minute}
		x.Join(&o)
		s, err := ctl.Open(&ctl.Dialer{}, ctl.Target{Address: at, DeviceID: 1}, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		if err := s.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	x := lead(t, a)
	former := session(x)
	next := waits(t, b, 1)
	if err := former.Write(t.Context(), 0); errors.Is(err, ctl.ErrNotPrimary) { // the device has no program
		t.Errorf("the leader's write: %v", err)
	}
	x.stop()
	y := <-next
	session(y)
	if x.Held() != nil {
		t.Skip("this machine had no time: the lease is over by the leader's own clock, too")
	}
	if err := former.Write(t.Context(), 0); !errors.Is(err, ctl.ErrNotPrimary) {
		t.Errorf("a former leader's write: %v", err)
	}
	x.End()
	y.End()
}
