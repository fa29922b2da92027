package xdp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/open"
)

// site is a graph of an app sw of kind p4 between two interfaces on veth, its ports 1 and 2, and a generator that sends into the first.
type site struct {
	*testing.T
	r    *blast.Range
	x    *open.Running
	spec *graph.Spec
}

const bridge = "../../../p4src/l2_bridge.json"

func siteSpec(exec string) *graph.Spec {
	return &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.A}}, "pb": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.B}}},
		Apps:  map[string]graph.AppSpec{"sw": {Kind: "p4", Args: graph.Args{"program": bridge, "exec": exec}}},
		Links: []string{"pa.out -> sw.1", "sw.2 -> pb.in", "pb.out -> sw.2", "sw.1 -> pa.in"},
	}
}

func startOn(r *blast.Range, spec *graph.Spec) (x *open.Running, err error) {
	err = r.Near.Do(func() (err error) {
		x, err = open.Start(graph.Config{Spec: spec, Kinds: []graph.Kind{*Kind()}}, open.Config{Clock: clock.NewWall()})
		return err
	})
	return x, err
}

func newSite(t *testing.T, frame []byte) *site {
	requireKernel(t)
	r, err := blast.New([]blast.Frame{{Bytes: frame}, {Bytes: frame}}, 256)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &site{T: t, r: r, spec: siteSpec("xdp")}
	t.Cleanup(r.Close)
	if s.x, err = startOn(r, s.spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.x != nil {
			_ = r.Near.Do(s.x.Stop)
		}
	})
	return s
}

// app does something with the app, between two breaths.
func (s *site) app(f func(a *p4.App)) {
	s.Helper()
	if err := s.x.Graph.Visit("sw", 0, func(a graph.App) { f(a.(*p4.App)) }); err != nil {
		s.Fatal(err)
	}
}

// running is what the app shows of the kernel.
func (s *site) running() (r Running) {
	s.Helper()
	s.app(func(a *p4.App) { r = a.Report().(p4.Report).Kernel.(Running) })
	return r
}

func (s *site) wait(what string, ok func() bool) {
	s.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.Fatalf("10 s later: %s; %+v", what, s.running())
}

// finishes waits until so many more frames have come to their end in the kernel.
func (s *site) finishes(what string) {
	s.Helper()
	s.wait(what+": the program does not run", func() bool { return s.running().Runs })
	from, arrived := s.running().Finished, s.r.Arrived()
	s.wait(what+": no frame is finished in the kernel, or none arrives", func() bool {
		return s.running().Finished > from+2000 && s.r.Arrived() > arrived+2000
	})
}

// attached is the program of the first interface; "": none.
func (s *site) attached() (name string) {
	s.Helper()
	if err := s.r.Near.Do(func() error {
		a, err := xsk.AttachedTo(indexOf(s, blast.A))
		if err == nil && a != nil {
			name = a.Name
		}
		return errors.Join(err, a.Close())
	}); err != nil {
		s.Fatal(err)
	}
	return name
}

func (s *site) configure(entries string) {
	s.Helper()
	all, err := stf.Parse(strings.NewReader(entries))
	if err != nil {
		s.Fatal(err)
	}
	s.app(func(a *p4.App) { err = stf.Configure(a.Switch(), all) })
	if err != nil {
		s.Fatal(err)
	}
}

// TestAppCounts: the counts of frames that the kernel has finished are whole when the engine takes over.
func TestAppCounts(t *testing.T) {
	s := newSite(t, frameOf(t, bridgeFrame))
	s.configure(bridgeEntries)
	s.wait("the program does not run", func() bool { return s.running().Runs })
	counted := func() uint64 {
		for _, c := range s.x.Graph.Counters() {
			if c.Name == "kernel-finished" {
				return c.Value
			}
		}
		return 0
	}
	s.r.Burst = 500
	var want uint64
	s.app(func(a *p4.App) { // between two breaths, so that the app does not count meanwhile
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.r.Run(ctx) }()
		finished := func() uint64 { return a.Report().(p4.Report).Kernel.(Running).Finished }
		for n := 0; n < 1000 && finished() < 500; n++ {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for n := 0; n < 1000 && finished() != s.r.Sent(); n++ { // what is under way arrives
			time.Sleep(10 * time.Millisecond)
		}
		want = finished()
		if err := a.Reconfigure(graph.Args{"program": bridge, "exec": "engine"}); err != nil {
			t.Error(err)
		}
	})
	s.wait(fmt.Sprintf("the count is not %d", want), func() bool { return counted() == want })
	if want < 500 {
		t.Errorf("%d frames were finished in the kernel", want)
	}
}

// TestApp: frames of an app are run in the kernel while its entries, its program and the graph change, but while somebody watches; and what was attached goes.
func TestApp(t *testing.T) {
	s := newSite(t, frameOf(t, bridgeFrame))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	s.configure(bridgeEntries)
	s.finishes("at first")
	if name := s.attached(); name != ProgramName {
		t.Errorf("%s has program %q", blast.A, name)
	}
	if _, err := startOn(s.r, s.spec); err == nil || !strings.Contains(err.Error(), "has another XDP program") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a second instance at the same interfaces: %v", err)
	}

	// Frames to a port without a link are the engine's, which counts them.
	s.app(func(a *p4.App) { a.SetLinks(map[uint32]bool{2: true}) })
	given := s.running().Given
	s.wait("frames to a port without a link are finished in the kernel", func() bool { return s.running().Given > given+100 })
	finished := s.running().Finished
	s.wait("nothing goes on", func() bool { return s.running().Given > given+200 })
	if now := s.running().Finished; now != finished {
		t.Errorf("%d frames to a port without a link were finished in the kernel", now-finished)
	}
	s.app(func(a *p4.App) { a.SetLinks(nil) })
	s.finishes("with the link again")

	// Frames that an interface would not take are the engine's, as long as that is so.
	for _, mtu := range []int{1000, 1500} {
		err := s.r.Near.Do(func() error {
			l, err := netlink.LinkByName(blast.B)
			return errors.Join(err, netlink.LinkSetMTU(l, mtu))
		})
		if err != nil {
			t.Fatal(err)
		}
		s.wait("it is not noticed whether frames arrive", func() bool { return len(s.running().LeftOut) > 0 == (mtu < 1500) })
		given := s.running().Given
		if mtu < 1500 {
			s.wait("frames that do not arrive are finished in the kernel", func() bool { return s.running().Given > given+100 })
		}
	}
	s.finishes("when frames arrive again")

	// A trace sees frames, and then the kernel goes on.
	if err := s.x.Graph.AddTrace("pa", 5, ""); err != nil {
		t.Fatal(err)
	}
	s.wait("nothing is traced", func() bool { return len(s.x.Graph.Trace()) >= 5 })
	s.finishes("after a trace")

	// Another program takes its place, with other entries.
	s.app(func(a *p4.App) {
		sw, err := a.NewSwitch(a.Switch().Program())
		if err != nil {
			t.Error(err)
			return
		}
		a.Use(sw)
	})
	s.configure(bridgeEntries)
	s.finishes("with another program")

	// The engine takes over, and gives back.
	for _, exec := range []string{"engine", "auto"} {
		if _, err := s.x.Graph.Set("sw", graph.Args{"exec": exec}); err != nil { // its entries stay
			t.Fatal(err)
		}
		from := s.r.Arrived()
		s.wait("nothing arrives with exec="+exec, func() bool { return s.r.Arrived() > from+2000 })
		if name := s.attached(); exec == "engine" && name != xsk.PortProgram {
			t.Errorf("with exec=engine %s has program %q", blast.A, name)
		}
	}
	s.finishes("with exec=auto")
	if err := s.r.Near.Do(s.x.Stop); err != nil {
		t.Error(err)
	}
	s.x = nil
	if name := s.attached(); name != "" {
		t.Errorf("at the end %s has program %q", blast.A, name)
	}
}
