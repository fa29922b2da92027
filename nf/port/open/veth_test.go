package open

import (
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// chained has a pair at va, the other end of which is vb.
const chained = "ports: {x: {kind: afxdp, args: {dev: va, pair: y}}, y: {kind: afxdp, args: {dev: wa, pair: x}}}\nlinks: [x.out -> y.in, y.out -> x.in]\n"

// inTwoVeths is inVeth, with a veth between wa and wb, too.
func inTwoVeths(t *testing.T) {
	t.Helper()
	inVeth(t)
	netnstest.Veth(t, "wa", "wb")
}

// Packet sockets are opened at one end of a veth while another process opens a pair at the other end, whose program is not attached yet.
// They wait for the program and are refused: they would lose the frames that it redirects.
func TestPacketsWhilePairOpens(t *testing.T) {
	inTwoVeths(t)
	spec, err := graph.ParseSpec([]byte(chained))
	if err != nil {
		t.Fatal(err)
	}
	ports, err := Prepare(spec, Config{Filter: port.Filter{All: true}, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ports.Close(); err != nil {
			t.Error(err)
		}
	}()
	o := begin(t, onePort) // at vb
	says := ""
	select {
	case says = <-o.says:
	case <-time.After(time.Second):
		if err := ports.Attach(); err != nil {
			t.Fatal(err)
		}
		says = <-o.says
	}
	if !strings.Contains(says, "the other end of vb, va, has AF_XDP ports of another instance") {
		t.Errorf("packet sockets: %q", says)
	}
}

// Packet sockets are opened at one end of a veth after a pair at the other end has looked for them, and before it has claimed its end.
// The pair is refused.
func TestPairWhilePacketsOpen(t *testing.T) {
	inTwoVeths(t)
	var o *other
	var q *afpacket.Port
	if err := afxdp.Beside("va", false, func() (err error) { // claims va
		o = begin(t, chained)
		time.Sleep(time.Second) // for its look
		q, err = afpacket.Open(afpacket.Config{Name: "p", Interface: "vb", Clock: clock.NewWall(), Alone: true})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if says := <-o.says; !strings.Contains(says, "the other end of va would lose frames") || !strings.HasSuffix(says, refusal) {
		t.Errorf("the pair: %q", says)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// An interface with a second name (ip link property add altname) is the same one by either: a pair of it and of the other end of its veth, or of itself, is refused.
func TestNoLoopAltname(t *testing.T) {
	inVeth(t)
	l, err := netlink.LinkByName("vb")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"second", "a-name-that-is-longer-than-fifteen"} {
		if err := netlink.LinkAddAltName(l, name); err != nil {
			t.Skip("no second names: ", err)
		}
		for _, x := range [][2]string{{"va", "vb"}, {"va", name}, {name, "va"}} {
			if err := NoLoop(x[0], x[1]); err == nil || !strings.Contains(err.Error(), "the two ends of one veth") {
				t.Errorf("%v: %v", x, err)
			}
		}
		for _, x := range [][2]string{{"vb", name}, {name, "vb"}} {
			if err := NoLoop(x[0], x[1]); err == nil || !strings.Contains(err.Error(), "one interface") {
				t.Errorf("%v: %v", x, err)
			}
		}
	}
	if err := NoLoop("va", "lo"); err != nil {
		t.Error(err)
	}
}
