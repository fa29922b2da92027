package main

import (
	"context"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// TestLookout: that frames went past the apps, or that a worker got no processor, is told when it begins and
// when it has ended, and not at the looks between. Events before the first look, and frames that no app
// wants, are not told.
func TestLookout(t *testing.T) {
	var w strings.Builder
	l := &lookout{log: forPeople(&w), up: map[string]bool{}, names: map[int]string{7: "eth1"}, bare: map[string]*bare{}}
	var waited time.Duration
	now := clock.Time(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).UnixNano())
	at := func(after time.Duration, q ...port.Stats) string {
		w.Reset()
		now = now.Add(after)
		l.look(now, []graph.PortInfo{{Name: "a", Args: graph.Args{"dev": "eth1"}, Queues: q}})
		return w.String()
	}
	for i, c := range []struct {
		after time.Duration
		q     []port.Stats
		want  string
	}{
		{0, []port.Stats{{Missed: 7}, {}}, ""},
		{lookEvery, []port.Stats{{Missed: 7, Bypassed: 9}, {}}, ""},
		{lookEvery, []port.Stats{{Missed: 9}, {}}, "quillon: 2026-11-22T12:00:00.500Z a (eth1): frames go past the apps: no worker takes them in time, or they are longer than the MTU was; they cross unseen\n"},
		{lookEvery, []port.Stats{{Missed: 9}, {Missed: 2}}, ""},
		{lookQuiet - 1, []port.Stats{{Missed: 9}, {Missed: 2}}, ""},
		{1, []port.Stats{{Missed: 9}, {Missed: 2}}, "quillon: 2026-11-22T12:00:02.750Z a (eth1): frames are taken again; from 2026-11-22T12:00:00.250Z to 2026-11-22T12:00:00.750Z 4 crossed unseen, 0 were dropped\n"},
		{lookQuiet, []port.Stats{{Missed: 9}, {Missed: 2}}, ""},
		{0, []port.Stats{{Missed: 9}, {Missed: 2, ShutOut: 3}}, "quillon: 2026-11-22T12:00:04.750Z a (eth1): frames go past the apps: no worker takes them in time, or they are longer than the MTU was; they are dropped\n"},
		{lookQuiet, []port.Stats{{Missed: 9}, {Missed: 2, ShutOut: 3}}, "quillon: 2026-11-22T12:00:06.750Z a (eth1): frames are taken again; from 2026-11-22T12:00:04.750Z to 2026-11-22T12:00:04.750Z 0 crossed unseen, 3 were dropped\n"},
		{lookEvery, []port.Stats{{Missed: 1}}, ""}, // the port was opened anew
	} {
		if d := cmp.Diff(c.want, at(c.after, c.q...)); d != "" {
			t.Errorf("%d: -want +got:\n%s", i, d)
		}
	}
	linked := now
	for i, c := range []struct {
		after, waited time.Duration // waited: since the last look
		want          string
	}{
		{0, time.Hour, ""}, {lookEvery, lookWaits - 1, ""},
		{lookEvery, 92 * time.Millisecond, "quillon: 2026-11-22T12:00:07.500Z worker 0 is not scheduled: it was ready to run and waited 92ms for a processor; others run there (quillon help run: --priority, --cpu)\n"},
		{lookEvery, lookWaits, ""}, {lookEvery, 3 * time.Millisecond, ""}, {lookQuiet - lookEvery - 1, 0, ""},
		{1, 0, "quillon: 2026-11-22T12:00:09.750Z worker 0 is scheduled again; from 2026-11-22T12:00:07.250Z to 2026-11-22T12:00:07.750Z it waited 155ms for a processor\n"},
		{lookQuiet, 0, ""}, {lookEvery, 0, ""}, {0, -time.Hour, ""},
	} {
		w.Reset()
		now = now.Add(c.after)
		waited += c.waited
		l.times(now, []graph.WorkerTimes{{Thread: 7, Waited: waited}})
		if d := cmp.Diff(c.want, w.String()); d != "" {
			t.Errorf("times %d: -want +got:\n%s", i, d)
		}
	}
	f := &graph.PanicError{App: "nic/fw", Kind: "firewall", Value: "bang", At: "fw.go:7", Frames: 3}
	for i, want := range []string{"quillon: 2026-11-22T12:00:00.000Z app nic/fw (firewall) panicked: bang (fw.go:7); it has ended alone, and 3 frames that it held are dropped: to start it again quillon snic restart fw\n", ""} {
		w.Reset()
		l.panics(clock.Time(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).UnixNano()), []*graph.PanicError{f})
		if w.String() != want {
			t.Errorf("panics %d: %q", i, w.String())
		}
	}
	now = linked
	for i, c := range []struct {
		after time.Duration
		index int
		dev   string
		up    bool
		want  string
	}{
		{0, 7, "eth1", true, ""}, {0, 7, "eth1", true, ""}, {0, 7, "eth1", false, "quillon: 2026-11-22T12:00:07.000Z a (eth1): the link is down\n"}, {0, 7, "eth1", false, ""},
		{lookQuiet, 7, "lan0", true, "quillon: 2026-11-22T12:00:09.000Z a (eth1): the link is up\n"}, {0, 8, "eth2", true, ""}, {0, 8, "eth2", false, ""},
		// More changes than one in lookQuiet: one line, with the state that was reached.
		{1, 7, "lan0", false, ""}, {1, 7, "lan0", true, ""}, {time.Second, 7, "lan0", false, ""},
		{time.Second, 7, "lan0", false, "quillon: 2026-11-22T12:00:10.000Z a (eth1): the link is down (3 changes since 2026-11-22T12:00:09.000Z)\n"},
		// It goes on: the time between two lines has doubled.
		{time.Second, 7, "lan0", true, ""}, {lookQuiet, 7, "lan0", true, ""},
		{time.Second, 7, "lan0", true, "quillon: 2026-11-22T12:00:12.000Z a (eth1): the link is up\n"},
		{lookLoud, 7, "lan0", true, ""}, {0, 7, "lan0", false, "quillon: 2026-11-22T12:00:45.000Z a (eth1): the link is down\n"},
		{lookQuiet, 7, "lan0", true, "quillon: 2026-11-22T12:00:47.000Z a (eth1): the link is up\n"},
	} {
		w.Reset()
		now = now.Add(c.after)
		l.later(now)
		a := &netlink.LinkAttrs{Index: c.index, Name: c.dev}
		if c.up {
			a.Flags = net.FlagUp | net.FlagRunning
		}
		l.link(now, []graph.PortInfo{{Name: "a", Args: graph.Args{"dev": "eth1"}}}, a)
		if w.String() != c.want {
			t.Errorf("link %d: %q", i, w.String())
		}
	}
}

// When the kernel had more news of links than the socket holds, the lookout subscribes anew, and hears of links again.
func TestListensAgain(t *testing.T) {
	netnstest.Enter(t)
	var w strings.Builder
	l := &lookout{log: forPeople(&w), up: map[string]bool{}, names: map[int]string{}, bare: map[string]*bare{}}
	l.listen(t.Context(), 0, nil)
	first := l.updates
	if first == nil {
		t.Fatal("no news: ", w.String())
	}
	l.news(0, nil, netlink.LinkUpdate{}, false, nil)
	l.listen(t.Context(), 0, nil)
	if l.updates == nil || l.updates == first {
		t.Fatal("it has not subscribed anew")
	}
	a := netlink.NewLinkAttrs()
	a.Name = "x"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "y"}); err != nil {
		t.Fatal(err)
	}
	select {
	case _, ok := <-l.updates:
		if !ok {
			t.Error("the news ended")
		}
	case <-time.After(10 * time.Second):
		t.Error("no news of a new link")
	}
}

// When an instance ends while news of links waits, the goroutines that read the news end, too.
func TestListenEnds(t *testing.T) {
	netnstest.Enter(t)
	reading := func() int {
		b := make([]byte, 1<<20)
		return strings.Count(string(b[:runtime.Stack(b, true)]), "linkSubscribeAt")
	}
	before := reading()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := &lookout{}
	links, err := l.subscribe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a := netlink.NewLinkAttrs()
	a.Name = "x"
	for range 2 * (cap(links) + 16) { // more than the channels hold
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "y"}); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: a}); err != nil {
			t.Fatal(err)
		}
	}
	if reading() == before {
		t.Fatal("nobody reads")
	}
	cancel()
	for range 500 {
		if reading() <= before { // those of other tests end meanwhile
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("5 s later %d goroutines still read news of links", reading()-before)
}

// The kernel tells when a veth has other receive queues, on which it runs no program yet. The settings of its port are looked at then, not
// some looks later, and not more often than news may be made up.
func TestLooksAtNewQueues(t *testing.T) {
	netnstest.Enter(t)
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%v: %v %s", args, err, out)
		}
	}
	run("ip", "link", "add", "x", "numtxqueues", "4", "numrxqueues", "4", "type", "veth", "peer", "name", "y", "numtxqueues", "4", "numrxqueues", "4")
	run("ip", "link", "set", "x", "up")
	run("ip", "link", "set", "y", "up")
	run("ethtool", "-L", "x", "rx", "1", "tx", "1")
	var w strings.Builder
	l := &lookout{log: forPeople(&w), up: map[string]bool{}, names: map[int]string{}, bare: map[string]*bare{}, unkept: map[string]string{}, tries: map[string]*tries{},
		replaced: func(string, uint32) bool { return false }}
	ports := []graph.PortInfo{{Name: "a", Args: graph.Args{"dev": "x"}}, {Name: "b", Args: graph.Args{"dev": "z"}}}
	l.listen(t.Context(), 0, nil)
	asked := map[string]int{}
	keep := func(port string) ([]string, error) { asked[port]++; return nil, nil }
	hear := func(now clock.Time) bool {
		select {
		case u, ok := <-l.updates:
			l.news(now, ports, u, ok, keep)
			return true
		case <-time.After(2 * time.Second):
			return false
		}
	}
	for hear(0) { // of what was done so far
	}
	clear(asked)
	l.tries = map[string]*tries{}
	run("ethtool", "-L", "x", "rx", "3", "tx", "3")
	now := clock.Time(time.Second)
	for asked["a"] == 0 && hear(now) {
	}
	if asked["a"] != 1 || asked["b"] != 0 {
		t.Fatalf("looks at settings: %v, want one at a's", asked)
	}
	l.news(now.Add(newsEvery/2), ports, netlink.LinkUpdate{Link: link(t, "x")}, true, keep)
	l.news(now.Add(newsEvery), ports, netlink.LinkUpdate{Link: link(t, "x")}, true, keep)
	if asked["a"] != 2 {
		t.Errorf("%d looks, want 2", asked["a"])
	}
}

// News that comes too soon behind a look is not forgotten: the settings are looked at when the time is over. So are those of all ports when
// the kernel had more news than the socket holds.
func TestLooksAtMissedNews(t *testing.T) {
	var w strings.Builder
	l := &lookout{log: forPeople(&w), up: map[string]bool{}, names: map[int]string{}, bare: map[string]*bare{}, unkept: map[string]string{}, tries: map[string]*tries{},
		replaced: func(string, uint32) bool { return false }}
	ports := []graph.PortInfo{{Name: "a", Args: graph.Args{"dev": "lo"}}, {Name: "b", Args: graph.Args{"dev": "z"}}}
	asked := map[string]int{}
	keep := func(port string) ([]string, error) { asked[port]++; return nil, nil }
	now := clock.Time(time.Second)
	for range 3 {
		l.news(now, ports, netlink.LinkUpdate{Link: link(t, "lo")}, true, keep)
		now = now.Add(newsEvery / 4)
	}
	if asked["a"] != 1 {
		t.Errorf("%d looks at once, want 1", asked["a"])
	}
	if l.again == nil {
		t.Fatal("nobody looks again")
	}
	<-l.again
	l.fresh(now.Add(newsEvery), ports, keep)
	l.fresh(now.Add(2*newsEvery), ports, keep)
	if asked["a"] != 2 || asked["b"] != 0 || l.again != nil {
		t.Errorf("looks: %v, want 2 at a's", asked)
	}
	l.news(now.Add(3*newsEvery), ports, netlink.LinkUpdate{}, false, keep)
	if asked["a"] != 3 || asked["b"] != 1 {
		t.Errorf("looks: %v, want 3 at a's and 1 at b's", asked)
	}
}

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
