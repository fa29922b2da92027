package xdp

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/graph"
)

// again makes the third interface anew, after it was removed.
func (x *third) again() {
	x.Helper()
	var far *os.File
	err := x.far[0].Do(func() (err error) { far, err = os.Open("/proc/thread-self/ns/net"); return err })
	if err == nil {
		err = x.near.Do(func() error {
			la := netlink.NewLinkAttrs()
			la.Name = thirdName
			return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: thirdFar, PeerNamespace: netlink.NsFd(far.Fd())}), topo.LinkUp(thirdName))
		})
	}
	if err == nil {
		err = x.far[0].Do(func() error {
			x.to.Ifindex = indexOf(x, thirdFar)
			return topo.LinkUp(thirdFar)
		})
	}
	_ = far.Close()
	if err != nil {
		x.Fatal(err)
	}
	_, _ = unix.GetsockoptInt(x.out, unix.SOL_SOCKET, unix.SO_ERROR)
}

// TestInterfaceGone: an interface that is removed costs the others no frame, and the next process has the one that was made anew in its place.
func TestInterfaceGone(t *testing.T) {
	x := newThird(newHouse(t))
	args := func() graph.Args { return graph.Args{"exec": "xdp", "fail": "headless", "ports": threePorts} }
	b := x.run(args())
	b.threeEntries()
	b.say("entries add dmac meta.vid:1 hdr.ethernet.dst:0x020000000003 forward(port:3)")
	b.forwards()
	x.send()
	x.all("from the third port")
	const frames = 4000
	done := x.flow(frames)
	time.Sleep(300 * time.Millisecond)
	if err := x.near.Do(func() error {
		l, err := netlink.LinkByName(thirdName)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}); err != nil {
		t.Fatal(err)
	}
	gone := func() string { return strings.Join(b.say("report").Running.LeftOut, "; ") }
	x.until("it does not say that the interface is gone", func() bool { return gone() == "port 3: interface c1 is gone" })
	given := b.say("report").Running.Given
	to := frameOf(t, bridgeFrame)
	to[5] = 3
	if err := unix.Sendto(x.house.out, to, 0, &x.house.to); err != nil {
		t.Fatal(err)
	}
	x.until("the engine does not get frames for the interface that is gone", func() bool { return b.say("report").Running.Given == given+1 })
	<-done
	x.all("while an interface was removed")
	x.again()
	if name := x.program(); name != "" {
		t.Errorf("program %s is at the new interface", name)
	}
	b.kill()
	c := x.run(args())
	c.threeEntries()
	x.until("it does not take over", func() bool { return c.say("report").Running.Runs })
	x.send()
	x.house.send(false)
	x.all("with the next process")
	n, twice := x.arrived()
	if s := c.say("report"); s.Hits != uint64(n) || twice > 0 {
		t.Errorf("the entry has %d frames, want %d; %d twice", s.Hits, n, twice)
	}
	c.stop()
	x.clean("after a stop")
}
