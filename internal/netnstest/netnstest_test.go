package netnstest

import (
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// TestEnter: the thread is in the namespace that was made last, clean-ups of the test run there, and at its end the thread is where it was.
func TestEnter(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	inNamespace := func(want netns.NsHandle) {
		t.Helper()
		now, err := netns.Get()
		if err != nil {
			t.Fatal(err)
		}
		defer now.Close()
		if !now.Equal(want) {
			t.Errorf("the thread is in %v, want %v", now, want)
		}
	}
	c := &cleanups{TB: t}
	one := Enter(c)
	inNamespace(one)
	c.Cleanup(func() { inNamespace(one) })
	two := NewHost(c)
	inNamespace(two.NsHandle)
	Quiet(c)
	Veth(c, "a", "b")
	if _, err := netlink.LinkByName("b"); err != nil {
		t.Error(err)
	}
	c.Cleanup(func() { inNamespace(two.NsHandle) })
	for i := range c.all {
		c.all[len(c.all)-1-i]()
	}
	inNamespace(before)
}

// cleanups is a test whose clean-ups are called by another one.
type cleanups struct {
	testing.TB
	all []func()
}

func (c *cleanups) Cleanup(f func()) { c.all = append(c.all, f) }
