package dpdk

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
)

// TestRate measures how many frames a second a graph passes on between two devices, and DPDK's own testpmd between the same ones. It is for
// a machine that does nothing else.
func TestRate(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("QUILLON_RATES"))
	if rounds == 0 {
		t.Skip("QUILLON_RATES=5 measures, in so many rounds, beside testpmd")
	}
	if _, err := exec.LookPath("dpdk-testpmd"); err != nil {
		t.Skip("missing: apt-get install --no-install-recommends dpdk-dev")
	}
	who := os.Getenv("QUILLON_DPDK_INSIDE")
	if who != "" {
		fmt.Printf("frames/s: %.0f\n", rate(t, who))
		return
	}
	for range rounds {
		for _, who := range []string{"quillon", "testpmd"} {
			cmd := exec.Command("unshare", "-n", os.Args[0], "-test.run", "^TestRate$", "-test.timeout", "60s")
			cmd.Env = append(os.Environ(), "QUILLON_DPDK_INSIDE="+who)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			_, said, _ := strings.Cut(string(out), "frames/s: ")
			t.Logf("%s: %s", who, strings.Fields(said)[0])
		}
	}
}

var eal = []string{"--no-pci", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "256", "--log-level", "4",
	"--vdev", "net_af_packet0,iface=a1", "--vdev", "net_af_packet1,iface=b1"}

// rate floods a0 with frames of 64 bytes, and counts what arrives at b0.
func rate(t *testing.T, who string) float64 {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	for _, name := range []string{"a", "b"} {
		unix.Close(veth(t, name))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if who == "quillon" {
		ours(t, ctx)
	} else {
		cmd := exec.CommandContext(ctx, "dpdk-testpmd", append(append([]string{"-l", "0,1"}, eal...),
			"--", "--forward-mode=io", "--auto-start", "--total-num-mbufs=8192", "--nb-cores=1", "-i")...)
		in, err := cmd.StdinPipe() // open: it goes on
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * time.Second)
	from, err := afpacket.Open(afpacket.Config{Interface: "a0", LeaveOffloads: true})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for ctx.Err() == nil {
			var b packet.Batch
			for !b.Full() {
				x := from.Pool().Get()
				if x == nil {
					break
				}
				x.SetBytes([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, 59: 0})
				b.Add(x)
			}
			_, _ = from.Tx(&b)
			b.PutAll()
		}
	}()
	time.Sleep(time.Second)
	count := func() uint64 {
		l, err := netlink.LinkByName("b0")
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Statistics.RxPackets
	}
	before, began := count(), time.Now()
	time.Sleep(3 * time.Second)
	return float64(count()-before) / time.Since(began).Seconds()
}

// ours passes frames on until ctx ends.
func ours(t *testing.T, ctx context.Context) {
	if err := Init(append([]string{"--lcores", "0"}, eal...)...); err != nil {
		t.Fatal(err)
	}
	ports := map[string][]port.Port{}
	for i, name := range []string{"pa", "pb"} {
		c := Config{Device: fmt.Sprintf("net_af_packet%d", i)}
		if i == 1 {
			c.With = ports["pa"][0].(*Port)
		}
		p, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		ports[name] = []port.Port{p}
	}
	spec, err := graph.ParseSpec([]byte("ports: {pa: {kind: dpdk}, pb: {kind: dpdk}}\napps: {x: {kind: wire}}\nlinks: [pa.out -> x.a, x.b -> pb.in, pb.out -> x.b, x.a -> pa.in]"))
	if err != nil {
		t.Fatal(err)
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{wire}, Clock: clock.NewWall(), Ports: ports, Poll: true, CPUs: []int{1}})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = inst.Run(ctx) }()
}
