package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/rates"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/open"
)

func TestRates(t *testing.T) {
	a := rates.Sight{
		At: 1e9, Graph: admin.Graph{Name: "box"},
		Counters: []graph.Count{{Node: "x", Group: "reason", Name: "bad", Value: 5}, {Node: "x", Group: "counter", Name: "still", Value: 7}, {Node: "x", Group: "frames", Name: "in", Value: 1}},
		Runtime:  graph.Runtime{Nodes: []graph.NodeRuntime{{Node: "x", Calls: 10, Packets: 100, NsPer: 20, Timed: 2}, {Node: "idle", Packets: 9, NsPer: 7, Timed: 1}, {Node: "p"}}, Links: []graph.LinkRuntime{{Link: "l", Packets: 10, Drops: 1}}},
		Ports:    admin.Ports{Ports: []graph.PortInfo{{Name: "p", Queues: []port.Stats{{RxPackets: 100, RxBytes: 1000}}}}},
	}
	b := rates.Sight{
		At: 3e9, Graph: admin.Graph{Name: "box"},
		Counters: []graph.Count{{Node: "x", Group: "reason", Name: "bad", Value: 25}, {Node: "x", Group: "counter", Name: "still", Value: 7}, {Node: "x", Group: "frames", Name: "in", Value: 9}},
		Runtime:  graph.Runtime{Nodes: []graph.NodeRuntime{{Node: "x", Calls: 20, Packets: 400, NsPer: 12, Timed: 8}, {Node: "idle", Packets: 9, NsPer: 7, Timed: 2}, {Node: "p"}, {Node: "new"}}, Links: []graph.LinkRuntime{{Link: "l", Packets: 30, Drops: 5, Depth: 7}, {Link: "new"}}},
		Ports:    admin.Ports{Ports: []graph.PortInfo{{Name: "p", Queues: []port.Stats{{RxPackets: 300, RxBytes: 5000, RxDropped: 1, Bypassed: 4, Missed: 6, ShutOut: 9}}}, {Name: "q", Queues: make([]port.Stats, 2)}}},
	}
	want := rates.View{
		Name: "box", Seconds: 2,
		Ports:   []rates.Port{{Port: "p", RxPps: 100, RxBps: 16000, DropPps: 5, Bypassed: 2, Missed: 3}},
		Apps:    []rates.App{{App: "x", Pps: 150, Batch: 30, NsPerPacket: (8*12 - 2*20) / 6.}, {App: "idle"}},
		Links:   []rates.Link{{Link: "l", Pps: 10, DropPps: 2, Depth: 7}},
		Growing: []rates.Growth{{App: "x", Group: "reason", Name: "bad", PerSecond: 10, Total: 25}},
	}
	got := rates.Between(a, b)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	var w strings.Builder
	topText(&w, got)
	for _, s := range []string{"box, over 2.0 s", "x.bad\t10\t25", "p\t100\t16k\t"} {
		if !strings.Contains(w.String(), s) {
			t.Errorf("no %q in\n%s", s, w.String())
		}
	}
}

// TestQuitKey: q ends the view, other keys do not, and afterwards the terminal is as it was before.
func TestQuitKey(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer tty.Close()
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	quit := make(chan struct{})
	back, err := quitKey(tty, func() { close(quit) })
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range []string{"x \n1", "q"} {
		select {
		case <-quit:
			t.Errorf("it left before %q", keys)
		default:
		}
		if _, err := master.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	<-quit
	back()
	after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if d := cmp.Diff(before, after); err != nil || d != "" {
		t.Errorf("%v, -before +after:\n%s", err, d)
	}
}

func TestShort(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 999: "999", 1500: "1.5k", 2.5e6: "2.5M", 1e9: "1G"} {
		if got := short(x); got != want {
			t.Errorf("%g: %s, not %s", x, got, want)
		}
	}
}

// TestColumns: a line is cut between characters, by the columns that the characters take.
func TestColumns(t *testing.T) {
	for _, c := range []struct {
		line string
		n    int
		want string
	}{
		{"alice", 9, "alice"}, {"alice", 5, "alice"}, {"alice", 3, "ali"}, {"alice", 0, ""}, {"Zoë Müller", 3, "Zoë"}, {"Zoë Müller", 6, "Zoë Mü"}, {"5 µs", 3, "5 µ"},
		{"東京都", 6, "東京都"}, {"東京都", 5, "東京"}, {"東京都", 1, ""}, {"e\u0301e\u0301", 1, "e\u0301"}, {"Я и ты", 4, "Я и "}, {"…", 1, "…"},
	} {
		if got := columns(c.line, c.n); got != c.want {
			t.Errorf("%q in %d columns: %q, want %q", c.line, c.n, got, c.want)
		}
	}
}

// A fence that stands behind a function which moves its clients' requests onto others' connections does not see whose they are, and says so.
func TestFenceBehind(t *testing.T) {
	for _, c := range []struct {
		nfs  []string
		want int // remarks
	}{
		{[]string{"fence", "swordbox,servers=10.0.0.9"}, 0},
		{[]string{"swordbox,servers=10.0.0.9", "fence"}, 1},
		{[]string{"swordbox,servers=10.0.0.9", "wire", "fence"}, 1},
		{[]string{"fence", "wire", "swordbox,servers=10.0.0.9"}, 0},
		{[]string{"fence"}, 0},
	} {
		s, err := inlineSpec("eth1,eth2", c.nfs, "afpacket", nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range s.Notes(kinds()) {
			if strings.Contains(n, "put it in front of") {
				got = append(got, n)
			}
		}
		if len(got) != c.want {
			t.Errorf("%v: %q, want %d remarks", c.nfs, got, c.want)
		}
	}
}

func TestInlineSpec(t *testing.T) {
	s, err := inlineSpec("eth1.5,eth2", []string{"clover-steer,mode=off"}, open.AFXDP, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(kinds(), open.Kinds()); err != nil {
		t.Error(err)
	}
	want := map[string]graph.PortSpec{
		"a": {Kind: open.AFXDP, Args: graph.Args{"dev": "eth1.5", "pair": "b"}},
		"b": {Kind: open.AFXDP, Args: graph.Args{"dev": "eth2", "pair": "a"}},
	}
	if d := cmp.Diff(want, s.Ports); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestCopyFlag: the value of --copy becomes the ports' argument, or is refused.
func TestCopyFlag(t *testing.T) {
	for word, want := range map[string]string{"auto": "", "always": "always", "never": "never"} {
		f := runFlags{inline: "eth1,eth2", nfs: []string{"wire"}, port: open.AFXDP, xdp: "auto", copying: word}
		spec, err := f.spec("")
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range spec.Ports {
			if p.Args["copy"] != want {
				t.Errorf("--copy %s: port %s has copy=%s", word, name, p.Args["copy"])
			}
		}
	}
	f := runFlags{inline: "eth1,eth2", nfs: []string{"wire"}, port: open.AFPacket, xdp: "auto", copying: "never"}
	if _, err := f.spec(""); err == nil {
		t.Error("packet sockets have no zero-copy")
	}
}
