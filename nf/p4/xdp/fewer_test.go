package xdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/port/afxdp"
	"github.com/quillon/quillon/nf/port/open"
)

// Ports of a child beside those of siteSpec: a third one, or the third one alone.
const (
	threePorts = "3"
	thirdPort  = "the third"
	thirdName  = "c1"
	thirdFar   = "c0"
)

// dropRights leaves the process the capabilities that quillon run keeps when it has started.
func dropRights() error {
	const kept = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	const keptHigh = 1<<(unix.CAP_BPF-32) | 1<<(unix.CAP_PERFMON-32)
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: kept, Permitted: kept}, {Effective: keptHigh, Permitted: keptHigh}}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data)), 0); e != 0 {
		return e
	}
	return nil
}

func withPorts(spec *graph.Spec, ports string) {
	switch ports {
	case thirdPort:
		spec.Ports, spec.Links = map[string]graph.PortSpec{}, nil
	case threePorts:
	default:
		return
	}
	spec.Ports["pc"] = graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": thirdName}}
	spec.Links = append(spec.Links, "pc.out -> sw.3", "sw.3 -> pc.in")
}

// third is a third interface of a house.
type third struct {
	*house
	out int // socket at its far end
	to  unix.SockaddrLinklayer
}

func newThird(h *house) *third {
	h.Helper()
	x := &third{house: h}
	var far *os.File
	err := h.far[0].Do(func() (err error) { far, err = os.Open("/proc/thread-self/ns/net"); return err })
	if err == nil {
		err = h.near.Do(func() error {
			la := netlink.NewLinkAttrs()
			la.Name = thirdName
			return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: thirdFar, PeerNamespace: netlink.NsFd(far.Fd())}), topo.LinkUp(thirdName))
		})
	}
	if err == nil {
		err = h.far[0].Do(func() (err error) {
			if err := topo.LinkUp(thirdFar); err != nil {
				return err
			}
			x.to = unix.SockaddrLinklayer{Protocol: 0x0003 << 8, Ifindex: indexOf(h, thirdFar)}
			x.out, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			return err
		})
	}
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _, _ = unix.Close(x.out), far.Close() })
	return x
}

// thirdEntries are what the bridge knows of a station at the third port.
const thirdEntries = ";add smac meta.vid:1 hdr.ethernet.src:0x020000000003 known(port:3)"

func (b *box) threeEntries() {
	b.say("entries " + strings.ReplaceAll(bridgeEntries, "\n", ";") + thirdEntries)
}

// send sends a numbered frame from the third port to the second.
func (x *third) send() {
	x.Helper()
	f := frameOf(x, bridgeFrame)
	f[11] = 3
	binary.BigEndian.PutUint64(f[52:], x.sent.Add(1))
	if err := unix.Sendto(x.out, f, 0, &x.to); err != nil {
		x.Error(err)
	}
}

// program is the name of the program at the third interface; empty: there is none.
func (x *third) program() (name string) {
	x.Helper()
	err := x.near.Do(func() error {
		a, err := xsk.AttachedTo(indexOf(x, thirdName))
		if a != nil {
			name = a.Name
		}
		return errors.Join(err, a.Close())
	})
	if err != nil {
		x.Fatal(err)
	}
	return name
}

// killed starts a process with three ports, has it forward from two of them, and kills it.
func (x *third) killed() {
	x.Helper()
	first := x.run(graph.Args{"exec": "xdp", "fail": "headless", "ports": threePorts})
	first.threeEntries()
	first.forwards()
	x.send()
	x.all("from the third port")
	first.kill()
	x.send()
	x.all("from the third port without the process")
}

const twiceKilled = "twice killed"

// TestHeadlessFewer: an interface that is none of the next process's is free when that takes over, and forwards no more with the entries of the killed one.
func TestHeadlessFewer(t *testing.T) {
	for _, of := range []struct {
		name string
		args graph.Args
	}{
		{"same", graph.Args{"exec": "xdp", "fail": "headless", "drop": "yes"}},
		{"other program", graph.Args{"exec": "xdp", "fail": "headless", "program": "../../../p4src/ipv4_router.json"}},
		{"open", graph.Args{"exec": "xdp"}},
		{"engine", graph.Args{"exec": "engine"}},
		{twiceKilled, graph.Args{"exec": "xdp", "fail": "headless", "program": "../../../p4src/ipv4_router.json"}},
	} {
		t.Run(of.name, func(t *testing.T) {
			x := newThird(newHouse(t))
			before := x.settingsOf(0, thirdFar)
			x.killed()
			if of.name == twiceKilled { // before it took over
				x.run(graph.Args{"exec": "xdp", "fail": "headless", "ports": threePorts}).kill()
			}
			second := x.run(of.args)
			if of.name == "same" {
				time.Sleep(300 * time.Millisecond)
				x.send()
				x.house.send(false)
				x.all("before the next process has entries")
				second.entries()
				x.until("it does not take over", func() bool { return second.say("report").Running.Runs })
			}
			x.until("the former program stays at the third interface", func() bool { return x.program() == "" })
			n, _ := x.arrived()
			x.send()
			time.Sleep(100 * time.Millisecond)
			if now, _ := x.arrived(); now != n {
				t.Error("a frame of the third interface is forwarded with the entries of the killed process")
			}
			if of.args["drop"] != "" { // which may not enter the far end's namespace: what was changed there stays on record
				if err := x.near.Do(func() error { return afxdp.Detach(thirdName) }); err != nil {
					t.Error(err)
				}
			}
			x.until("its far end has other settings", func() bool { return maps.Equal(before, x.settingsOf(0, thirdFar)) })
			second.stop()
			x.clean("after a stop")
		})
	}
}

// TestHeadlessDivided: of two processes that have the interfaces of the killed one each keeps its own.
func TestHeadlessDivided(t *testing.T) {
	x := newThird(newHouse(t))
	x.killed()
	third := x.run(graph.Args{"exec": "xdp", "fail": "headless", "ports": thirdPort})
	second := x.run(graph.Args{"exec": "xdp", "fail": "headless"})
	second.entries()
	x.until("it does not take over", func() bool { return second.say("report").Running.Runs })
	time.Sleep(6 * time.Second) // longer than it waits for a process that is dying
	x.send()
	x.all("with a process at the third interface that has no entries")
	third.threeEntries()
	x.until("the third does not take over", func() bool { return third.say("report").Running.Runs })
	second.stop()
	third.stop()
	x.clean("after a stop")
	if name := x.program(); name != "" {
		t.Errorf("program %s stays", name)
	}
}

// TestHeadlessDividedKilled: what a second killed process has left at an interface that the killed one had, too, is not the other successor's to take off.
func TestHeadlessDividedKilled(t *testing.T) {
	x := newThird(newHouse(t))
	x.killed()
	second := x.run(graph.Args{"exec": "xdp", "fail": "headless", "drop": "yes"})
	third := x.run(graph.Args{"exec": "xdp", "fail": "headless", "ports": thirdPort})
	third.kill()
	second.entries()
	x.until("it does not take over", func() bool { return second.say("report").Running.Runs })
	time.Sleep(6 * time.Second) // longer than it waits for a process that is dying
	x.send()
	x.all("with the interface that the third process has left")
	if name := x.program(); name != afxdp.StayProgram {
		t.Errorf("the third interface has program %q", name)
	}
	fourth := x.run(graph.Args{"exec": "xdp", "fail": "headless", "ports": thirdPort})
	fourth.threeEntries()
	x.until("the fourth does not take over", func() bool { return fourth.say("report").Running.Runs })
	second.stop()
	fourth.stop()
	x.clean("after a stop")
	if name := x.program(); name != "" {
		t.Errorf("program %s stays", name)
	}
}

// TestHeadlessFewerFailed: a start that fails leaves the third interface as it was, too.
func TestHeadlessFewerFailed(t *testing.T) {
	x := newThird(newHouse(t))
	x.killed()
	if _, failed := x.start(graph.Args{"exec": "xdp", "fail": "headless", "program": "../../../p4src/ipv4_router.json", "drop-port": "no number"}, nil); failed == "" {
		t.Fatal("it starts")
	}
	time.Sleep(200 * time.Millisecond)
	x.send()
	x.house.send(false)
	x.all("after a start that failed")
	if err := x.detach(); err != nil {
		t.Error(err)
	}
}

// TestHeadlessVersion: a program that another version of quillon has left goes on until the next process has entries, which then begins with counts of its own. The one
// behind that has them.
func TestHeadlessVersion(t *testing.T) {
	h := newHouse(t)
	args := func(layout string) graph.Args {
		return graph.Args{"exec": "xdp", "fail": "headless", "layout": layout}
	}
	first := h.run(args(""))
	first.entries()
	first.forwards()
	first.kill()
	second := h.run(args("other"))
	if s := second.say("report"); !s.Running.Headless || s.Running.Runs || s.Running.Why != whyVersion {
		t.Errorf("before it has entries: %+v", s.Running)
	}
	const frames = 16000
	done := h.flow(frames - 10)
	time.Sleep(700 * time.Millisecond) // longer than a controller that has said all is waited for
	if s := second.say("report"); s.Running.Runs {
		t.Error("without entries it takes over")
	}
	second.entries()
	h.until("it does not take over", func() bool { return second.say("report").Running.Runs })
	<-done
	h.all("with the next version")
	n, twice := h.arrived()
	s := second.say("report")
	if n != frames || twice != 0 {
		t.Errorf("%d of %d frames arrived, %d twice", n, frames, twice)
	}
	h.send(false)
	h.until("it does not count from 0", func() bool { s = second.say("report"); return s.Rx > 0 })
	if s.Rx >= h.sent.Load() || s.Rx != s.Hits {
		t.Errorf("of %d frames the counter has %d, the entry %d", h.sent.Load(), s.Rx, s.Hits)
	}
	second.kill()
	third := h.run(args("other"))
	third.entries()
	h.until("it does not take over", func() bool { return third.say("report").Running.Runs })
	if now := third.say("report"); now.Rx != s.Rx || now.Hits != s.Hits {
		t.Errorf("the third process has %d frames and %d, want %d", now.Rx, now.Hits, s.Rx)
	}
	third.stop()
	h.clean("after a stop")
}

// TestHeadlessSettings: the next process, with another drop-port, goes on with the counts of the killed one: it is no other version.
func TestHeadlessSettings(t *testing.T) {
	h := newHouse(t)
	first := h.run(graph.Args{"exec": "xdp", "fail": "headless"})
	first.entries()
	first.forwards()
	before := first.say("report")
	first.kill()
	second := h.run(graph.Args{"exec": "xdp", "fail": "headless", "drop-port": "300"})
	if s := second.say("report"); !s.Running.Headless || s.Running.Why != whyHeadless {
		t.Errorf("before it has entries: %+v", s.Running)
	}
	second.entries()
	h.until("it does not take over", func() bool { return second.say("report").Running.Runs })
	h.send(false)
	h.all("with other settings")
	h.until("it does not count on", func() bool { s := second.say("report"); return s.Rx > before.Rx && s.Hits > before.Hits })
	second.stop()
	h.clean("after a stop")
}

// TestHeadlessVersionConst: entries that are the program's own do not say that the next process of another version has its entries.
func TestHeadlessVersionConst(t *testing.T) {
	const presets = `"entries":[{"match_key":[{"match_type":"exact","key":"0x7"}],"action_entry":{"action_id":4,"action_data":[]},"priority":1}],"max_size":8`
	w := newTwin(t, bytes.Replace(pairs(t, "copies"), []byte(`"max_size":8`), []byte(presets), 1))
	if looks(w.x, 0) == looks(w.x, 1) {
		t.Fatal("not only one table has entries")
	}
	w.x.old = &heritage{foreign: true}
	k := &kernel{sw: w.sw}
	k.ready.Store(&built{run: &running{x: w.x, waits: true}, first: true})
	k.Look(0)
	t.Cleanup(func() {
		for k.waits.begun && k.ready.Load() == nil {
			time.Sleep(time.Millisecond)
		}
		if b := k.ready.Load(); b != nil {
			b.run.stop()
		}
	})
	for now := clock.Time(0); now < clock.Time(60e9); now += clock.Time(1e9) {
		if k.Look(now); k.waits.begun {
			t.Fatalf("after %d s it takes over without a controller's entries", now/1e9)
		}
	}
	w.both(func(sw *p4.Switch) error {
		_, err := sw.Insert("t", p4.Entry{Key: []p4.Match{{Value: bigEndian(1)}}, Action: p4.Action{Name: "set", Args: [][]byte{bigEndian(1), bigEndian(2)}}})
		return err
	})
	for now := clock.Time(60e9); now < clock.Time(62e9) && !k.waits.begun; now += clock.Time(1e8) {
		k.Look(now)
	}
	if !k.waits.begun {
		t.Error("it does not take over with a controller's entries")
	}
}
