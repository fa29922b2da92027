package live

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Somebody gives an interface more receive queues while the wire runs (ethtool -L, tuned). Linux' veth runs no XDP program on queues that are new: their frames go to the kernel's stack of the box, past a firewall, and not through the wire.
// They get through, as over a bare cable, or the instance says within a few seconds what is wrong.
func TestAttack14MoreQueues(t *testing.T) {
	r := cabled(t)
	hosts := make([]string, 2) // process IDs, for nsenter
	for i := range hosts {
		hosts[i] = r.container()
	}
	host := func(i int, args ...string) error {
		return exec.Command("nsenter", append([]string{"-t", hosts[i], "-n"}, args...)...).Run()
	}
	for i := range hosts {
		dev, peer, addr := "more"+strconv.Itoa(i), "host"+strconv.Itoa(i), "192.0.2."+strconv.Itoa(i+1)+"/24"
		r.must("ip", "link", "add", dev, "numtxqueues", "4", "numrxqueues", "4", "type", "veth", "peer", "name", peer, "numtxqueues", "4", "numrxqueues", "4")
		r.must("ip", "link", "set", peer, "netns", hosts[i])
		r.must("ethtool", "-L", dev, "rx", "1", "tx", "1")
		r.must("ip", "link", "set", dev, "up")
		for _, args := range [][]string{{"ethtool", "-L", peer, "rx", "1", "tx", "1"}, {"ip", "link", "set", peer, "up"}, {"ip", "addr", "add", addr, "dev", peer}} {
			if err := host(i, args...); err != nil {
				t.Fatal(args, err)
			}
		}
	}
	const flows = 12
	for k := range flows {
		if err := host(0, "ip", "addr", "add", "192.0.2."+strconv.Itoa(101+k)+"/24", "dev", "host0"); err != nil {
			t.Fatal(err)
		}
	}
	through := func() (n int) {
		for k := range flows {
			if host(0, "ping", "-I", "192.0.2."+strconv.Itoa(101+k), "-c", "1", "-W", "5", "192.0.2.2") == nil {
				n++
			}
		}
		return n
	}
	r.exec([]string{quillon, "run", "--inline", "more0,more1", "--nf", "wire"})
	r.running()
	if n := through(); n != flows {
		t.Fatalf("%d of %d flows get through", n, flows)
	}
	before := len(r.box.Log())
	r.must("ethtool", "-L", "more0", "rx", "4", "tx", "4")
	if err := host(0, "ethtool", "-L", "host0", "rx", "4", "tx", "4"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	n, log := through(), r.box.Log()[before:]
	if n != flows && !strings.Contains(log, "queue") {
		t.Errorf("%d of %d flows get through; it says: %q; list: %s", n, flows, log, r.ask("list"))
	}
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}
