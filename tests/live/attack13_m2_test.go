package live

import (
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// One interface has more receive queues than the other one. What the rules of a firewall allow gets through whichever queue it comes in on, as through a bridge, or the start is refused.
func TestAttack13UnequalQueues(t *testing.T) {
	r := cabled(t)
	hosts := make([]string, 2) // process IDs, for nsenter
	for i := range hosts {
		hosts[i] = r.container()
	}
	host := func(i int, args ...string) error {
		return exec.Command("nsenter", append([]string{"-t", hosts[i], "-n"}, args...)...).Run()
	}
	for i, queues := range []string{"2", "1"} {
		dev, peer, addr := "lone"+strconv.Itoa(i), "host"+strconv.Itoa(i), "192.0.2."+strconv.Itoa(i+1)+"/24"
		r.must("ip", "link", "add", dev, "numtxqueues", queues, "numrxqueues", queues, "type", "veth", "peer", "name", peer, "numtxqueues", queues, "numrxqueues", queues)
		r.must("ip", "link", "set", peer, "netns", hosts[i])
		r.must("ip", "link", "set", dev, "up")
		for _, args := range [][]string{{"ip", "link", "set", peer, "up"}, {"ip", "addr", "add", addr, "dev", peer}} {
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
	r.must("ip", "link", "add", "brq", "type", "bridge")
	r.must("ip", "link", "set", "brq", "up")
	r.must("ip", "link", "set", "lone0", "master", "brq")
	r.must("ip", "link", "set", "lone1", "master", "brq")
	time.Sleep(time.Second)
	if n := through(); n != flows {
		t.Fatalf("%d of %d flows through a bridge", n, flows)
	}
	r.must("ip", "link", "del", "brq")
	r.exec([]string{quillon, "run", "--inline", "lone0,lone1", "--nf", "firewall,rules=allow+in:a"})
	if !r.begins() {
		return // it is refused
	}
	if n := through(); n != flows {
		t.Errorf("%d of %d flows get through; it says: %s", n, flows, r.box.Log())
	}
	if err := r.box.Stop(); err != nil {
		t.Error(err)
	}
}
