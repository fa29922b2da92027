package xdp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// TestHeadlessChain: each of many processes is killed at another moment of its start, its writes and its taking over, and the last one has
// all counts; no frame is lost or comes twice.
func TestHeadlessChain(t *testing.T) {
	h := newHouse(t)
	args := func() graph.Args { return graph.Args{"exec": "xdp", "fail": "headless"} }
	first := h.run(args())
	first.entries()
	first.forwards()
	end := make(chan struct{})
	flowing := make(chan struct{})
	go func() {
		defer close(flowing)
		for {
			select {
			case <-end:
				return
			default:
				<-h.flow(100)
			}
		}
	}()
	first.kill()
	for round := range 8 {
		b, failed := h.start(args(), nil)
		if failed != "" {
			t.Fatalf("round %d: %s", round, failed)
		}
		b.entries()
		wait := time.Duration(rand.IntN(900)) * time.Millisecond
		if round%3 == 0 {
			h.until("it does not take over", func() bool { return b.say("report").Running.Runs })
			wait = 10 * time.Millisecond
		}
		time.Sleep(wait)
		b.kill()
	}
	last := h.run(args())
	last.entries()
	h.until("it does not take over", func() bool { return last.say("report").Running.Runs })
	close(end)
	<-flowing
	h.all("after the last")
	n, twice := h.arrived()
	s := last.say("report")
	t.Logf("%d frames arrived, %d twice; counter %d, entry %d", n, twice, s.Rx, s.Hits)
	if uint64(n) != h.sent.Load() || twice > 0 || s.Rx != uint64(n) || s.Hits != uint64(n) {
		t.Errorf("of %d frames %d arrived, %d twice; the counter has %d, the entry %d", h.sent.Load(), n, twice, s.Rx, s.Hits)
	}
	last.stop()
	h.clean("after a stop")
}

// TestHeritageNumbers: an entry that is deleted while both programs are there and added again counts from 0, whatever the program
// before counts, and numbers are used again.
func TestHeritageNumbers(t *testing.T) {
	requireKernel(t)
	source := read(t, "../../../p4src/l2_bridge.json")
	configure := func(s *survivor, entries string) {
		t.Helper()
		all, err := stf.Parse(strings.NewReader(entries))
		if err == nil {
			err = stf.Configure(s.sw, all)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const table = "bridge_ingress.dmac"
	_, entry, _ := strings.Cut(bridgeEntries, "\n")
	key := []p4.Match{{Value: []byte{1}}, {Value: []byte{2, 0, 0, 0, 0, 2}}}
	find := func(s *survivor) p4.Handle {
		t.Helper()
		h, err := s.sw.Find(table, key, 0)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	count := func(s *survivor, want uint64, when string) {
		t.Helper()
		if c, err := s.sw.EntryCount(table, find(s)); err != nil || c.Packets != want {
			t.Errorf("%s: the entry has %d packets, want %d: %v", when, c.Packets, want, err)
		}
	}
	run := func(s *survivor, frames int) {
		t.Helper()
		if _, err := s.x.prog.Run(&ebpf.RunOptions{Data: frameOf(t, bridgeFrame), Repeat: uint32(frames)}); err != nil {
			t.Fatal(err)
		}
	}
	a := newSurvivor(t, source, nil)
	configure(a, bridgeEntries)
	run(a, 5)
	count(a, 5, "at first")
	b := newSurvivor(t, source, a)
	configure(b, bridgeEntries)
	run(b, 2)
	count(b, 7, "with a successor")
	old := find(b)
	if err := b.sw.Delete(table, old); err != nil {
		t.Fatal(err)
	}
	configure(b, entry)
	run(a, 4)
	count(b, 0, "added again")
	run(b, 3)
	count(b, 3, "added again")
	c := newSurvivor(t, source, b)
	configure(c, bridgeEntries)
	count(c, 3, "with a second successor")
	c.x.settle()
	for range 5000 {
		if err := c.sw.Delete(table, find(c)); err != nil {
			t.Fatal(err)
		}
		configure(c, entry)
	}
	if s := c.x.Stopped(); len(s) > 0 {
		t.Error(s)
	}
	run(c, 6)
	count(c, 6, "after 5000 others")
}

// TestHeritageChurn: a table stays in the kernel however often its entries are changed while both programs are there.
func TestHeritageChurn(t *testing.T) {
	requireKernel(t)
	source := entryMetering(t)
	insert := func(s *survivor, cell byte) p4.Handle {
		t.Helper()
		h, err := s.sw.Insert("t", p4.Entry{Key: []p4.Match{{Value: []byte{0, cell}}}, Action: p4.Action{Name: "measure"}})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	a := newSurvivor(t, source, nil)
	for cell := range byte(4) { // as many as there is room for
		insert(a, cell)
	}
	b := newSurvivor(t, source, a)
	if !b.x.Inherits() {
		t.Fatal("it does not inherit")
	}
	for n := range 200 {
		var all []p4.Handle
		for i := range 4 { // some that were there before, and others
			all = append(all, insert(b, byte(n+i)))
		}
		for _, h := range all {
			if err := b.sw.Delete("t", h); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s := b.x.Stopped(); len(s) > 0 {
		t.Error(s)
	}
}

// TestHeritageDefault: a default entry that runs a member or a group of an action profile is the same one when the members have other
// numbers in the kernel, and another one when a member has another action.
func TestHeritageDefault(t *testing.T) {
	requireKernel(t)
	source := read(t, "../../../p4src/ipv4_router.json")
	const profile, table = "router_ingress.ecmp_selector", "router_ingress.ecmp"
	a := newSurvivor(t, source, nil)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	member := func(s *survivor, id uint32, hop byte) {
		t.Helper()
		must(s.sw.SetMember(profile, id, p4.Action{Name: "router_ingress.choose", Args: [][]byte{{hop}}}))
	}
	for _, e := range []p4.Entry{{Member: 2}, {Group: 9}} {
		members := func(s *survivor) {
			member(s, 1, 1)
			member(s, 2, 2)
			must(s.sw.SetGroup(profile, 9, []p4.GroupMember{{ID: 1}, {ID: 2, Weight: 2}}))
			must(s.sw.SetDefault(table, e))
		}
		members(a)
		b := newSurvivor(t, source, a)
		if !b.x.Inherits() || !b.x.old.lacks(b.x) {
			t.Fatal("without a default entry it lacks nothing")
		}
		member(b, 7, 7)
		members(b)
		if b.x.old.lacks(b.x) {
			t.Errorf("%+v: it lacks something", e)
		}
		member(b, 2, 3)
		if !b.x.old.lacks(b.x) {
			t.Errorf("%+v: with another action it lacks nothing", e)
		}
	}
}

// TestHeritageReasons: reasons have the same numbers with and without copies, because both kinds of a program share their counts; and the mark tells programs
// apart whose entries lie otherwise.
func TestHeritageReasons(t *testing.T) {
	_, tree, err := p4.LoadTree(read(t, "../../../p4src/l2_bridge.json"))
	if err != nil {
		t.Fatal(err)
	}
	s := &settings{DropPort: 511, Queues: 8, Indices: 2, Processors: 2, Outlives: true}
	with, err := compile(tree, s, dryMaps(tree, s))
	if err != nil {
		t.Fatal(err)
	}
	s.NoCopies, s.Reasons = true, with.reasons
	without, err := compile(tree, s, dryMaps(tree, s))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(with.reasons); len(without.reasons) != n+1 || !slices.Equal(without.reasons[:n], with.reasons) {
		t.Errorf("with copies %v\nwithout %v", with.reasons, without.reasons)
	}
	before := markOf(tree, s, &with, nil)
	tree.Tables[0].DataWords++
	if markOf(tree, s, &with, nil) == before {
		t.Error("another form of entries has the same mark")
	}
}

// TestHeadlessReturn: one of the two interfaces is taken away and comes back while there is no process. The next process takes over, with the counts.
func TestHeadlessReturn(t *testing.T) {
	h := newHouse(t)
	args := func() graph.Args { return graph.Args{"exec": "xdp", "fail": "headless"} }
	first := h.run(args())
	first.entries()
	first.forwards()
	first.kill()
	h.send(false)
	h.all("without the process")
	var far *os.File
	if err := h.far[0].Do(func() (err error) { far, err = os.Open("/proc/thread-self/ns/net"); return err }); err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if err := h.near.Do(func() error {
		l, err := netlink.LinkByName(blast.A)
		if err != nil {
			return err
		}
		la := netlink.NewLinkAttrs()
		la.Name = blast.A
		return errors.Join(netlink.LinkDel(l), netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: "a0", PeerNamespace: netlink.NsFd(far.Fd())}), topo.LinkUp(blast.A))
	}); err != nil {
		t.Fatal(err)
	}
	if err := h.far[0].Do(func() error {
		h.to.Ifindex = indexOf(t, "a0")
		return topo.LinkUp("a0")
	}); err != nil {
		t.Fatal(err)
	}
	_, _ = unix.GetsockoptInt(h.out, unix.SOL_SOCKET, unix.SO_ERROR) // the interface went
	second := h.run(args())
	second.entries()
	h.until("it does not take over", func() bool { return second.say("report").Running.Runs })
	for range 5 {
		h.send(false)
	}
	h.all("with the next process")
	if s := second.say("report"); s.Rx != h.sent.Load() || s.Hits != s.Rx {
		t.Errorf("the counter has %d frames, the entry %d, want %d", s.Rx, s.Hits, h.sent.Load())
	}
	second.kill()
	h.send(false)
	h.all("without the second process")
	if err := h.detach(); err != nil {
		t.Error(err)
	}
	h.clean("after detach")
}

// TestHeadlessTwo: of successors that start at the same time one runs, and the others change nothing.
func TestHeadlessTwo(t *testing.T) {
	h := newHouse(t)
	args := func() graph.Args { return graph.Args{"exec": "xdp", "fail": "headless"} }
	first := h.run(args())
	first.entries()
	first.forwards()
	first.kill()
	var boxes [3]*box
	var failed [3]string
	var all sync.WaitGroup
	for i := range boxes {
		all.Go(func() { boxes[i], failed[i] = h.start(args(), nil) })
	}
	all.Wait()
	var runs *box
	for i, why := range failed {
		if why == "" {
			if runs != nil {
				t.Error("two run")
			}
			runs = boxes[i]
		}
	}
	if runs == nil {
		t.Fatalf("none runs: %q", failed)
	}
	for range 50 {
		h.send(false)
	}
	h.all("before it takes over")
	runs.entries()
	h.until("it does not take over", func() bool { return runs.say("report").Running.Runs })
	h.send(false)
	h.all("with the one that runs")
	if s := runs.say("report"); s.Rx != h.sent.Load() || s.Hits != s.Rx {
		t.Errorf("the counter has %d frames, the entry %d, want %d", s.Rx, s.Hits, h.sent.Load())
	}
	runs.stop()
	h.clean("after a stop")
}

// TestHeadlessReplaced: no frame goes to the kernel's stack while an app takes the place of another one, or gets another program, and when
// the process is killed at any moment of that.
func TestHeadlessReplaced(t *testing.T) {
	h := newHouse(t)
	up, err := h.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(up)
	programs := []string{"../../../p4src/ipv4_router.json", bridge}
	for round := range 16 {
		b := h.run(graph.Args{"exec": "xdp", "fail": []string{"closed", "headless"}[round%2]})
		h.until("it does not run", func() bool { return b.say("report").Running.Runs })
		drain(up) // frames of the round before, when no program was there
		flowing := h.flow(400)
		if round < 4 {
			for _, p := range programs {
				b.say(fmt.Sprintf("set {%q: %q}", "program", p))
				b.say("load " + p)
			}
			<-flowing
			b.kill()
		} else {
			change := fmt.Sprintf("set {%q: %q}", "program", programs[0])
			if round%4 > 1 {
				change = "load " + programs[0]
			}
			if _, err := fmt.Fprintln(b.in, change); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
			b.kill()
			<-flowing
		}
		if n := drain(up); n > 0 {
			t.Errorf("round %d: the kernel's stack has %d frames", round, n)
		}
		if names := h.programs(); len(names) != 2 {
			t.Errorf("round %d: programs %v", round, names)
		}
	}
	last := h.run(graph.Args{"exec": "xdp", "fail": "headless"})
	for _, x := range []struct{ fail, program, is string }{{"open", programs[0], ProgramName}, {"headless", programs[1], afxdp.StayProgram}, {"open", programs[0], ProgramName}} {
		last.say(fmt.Sprintf("set {%q: %q, %q: %q}", "program", x.program, "fail", x.fail))
		h.until("it does not run", func() bool { return last.say("report").Running.Runs })
		if names := h.programs(); !slices.Equal(names, []string{x.is, x.is}) {
			t.Errorf("fail=%s: programs %v", x.fail, names)
		}
	}
	last.kill()
	h.until("programs stay", func() bool { return len(h.programs()) == 0 })
	if err := h.detach(); err != nil {
		t.Error(err)
	}
	h.clean("after detach")
}
