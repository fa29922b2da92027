package afxdp

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/ethtool"
)

// chain is two pairs with a veth between them, mid0 and mid1: a chain of two boxes.
type chain struct {
	t    *testing.T
	was  [2]map[string]ethtool.Feature // of mid0 and mid1
	box  [2]*Pair
	near [2]string // the interfaces of the veth
}

func newChain(t *testing.T, gro [2]string) *chain {
	newBed(t, 1500, 1)
	la := netlink.NewLinkAttrs()
	la.Name = "mid0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: "mid1"}); err != nil {
		t.Fatal(err)
	}
	c := &chain{t: t, near: [2]string{"mid0", "mid1"}}
	for i, dev := range c.near {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("ethtool", "-K", dev, "gro", gro[i]).CombinedOutput(); err != nil {
			t.Skipf("ethtool -K: %v %s", err, out)
		}
	}
	for i, dev := range c.near {
		c.was[i] = features(t, dev)
	}
	return c
}

func (c *chain) start(i int, looks bool) {
	c.t.Helper()
	cfg := PairConfig{A: "dutA", B: "mid0"}
	if i == 1 {
		cfg = PairConfig{A: "mid1", B: "dutB"}
	}
	if looks {
		cfg.afterStep = func(string) { c.look() } // of the other one
	}
	w, err := OpenPair(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.box[i] = w
}

// look is what a lookout does.
func (c *chain) look() {
	c.t.Helper()
	for range 2 {
		for _, w := range c.box {
			if w == nil {
				continue
			}
			for _, p := range []*Port{w.A[0], w.B[0]} {
				if _, err := p.Keep(); err != nil {
					c.t.Error(err)
				}
			}
		}
	}
}

func (c *chain) stop(i int) {
	c.t.Helper()
	w := c.box[i]
	c.box[i] = nil
	if err := w.Close(); err != nil {
		c.t.Error(err)
	}
}

// arrives checks that what a pair redirects to its end of the veth arrives.
func (c *chain) arrives(i int) {
	c.t.Helper()
	p := c.box[i].B[0]
	if i == 1 {
		p = c.box[i].A[0]
	}
	if err := p.Arrives(1514); err != nil {
		c.t.Error(err)
	}
}

func (c *chain) asBefore() {
	c.t.Helper()
	for i, dev := range c.near {
		now := features(c.t, dev)
		for name, f := range now {
			if f != c.was[i][name] {
				c.t.Errorf("%s: %s was %+v, is %+v", dev, name, c.was[i][name], f)
			}
		}
	}
}

// TestChain: two instances with a veth between them start and stop in any order. In between each end can receive what is redirected into it, and
// after both have stopped the veth's ends are as they were.
func TestChain(t *testing.T) {
	for _, gro := range [][2]string{{"off", "off"}, {"on", "on"}, {"on", "off"}, {"off", "on"}} {
		for _, order := range [][4]int{{0, 1, 0, 1}, {0, 1, 1, 0}, {1, 0, 0, 1}, {1, 0, 1, 0}} {
			for _, looks := range []bool{false, true} {
				t.Run(fmt.Sprintf("gro=%v,order=%v,looks=%v", gro, order, looks), func(t *testing.T) {
					c := newChain(t, gro)
					for k, i := range order {
						if k < 2 {
							c.start(i, looks)
						} else {
							c.stop(i)
						}
						if looks {
							c.look()
						}
						// Who was there first has it at once, as it was; the later one changes it at the next look.
						if k == 2 && (looks || i == order[1]) {
							c.arrives(1 - i)
						}
					}
					c.asBefore()
				})
			}
		}
	}
}
