package host_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/rack/rnic"
)

// TestProbe finds an address that a machine on the bridge has, with the same MAC address or another one, and
// one for which another machine probes at the same time. It does not find an address that no machine has.
func TestProbe(t *testing.T) {
	ip := netip.MustParseAddr("10.0.0.9")
	for _, c := range []struct {
		name  string
		other string // address that another machine has; "": that machine probes for ip
		mac   [6]byte
		taken bool
	}{
		{"another MAC address", "10.0.0.9", [6]byte{2, 0, 0, 0, 0, 8}, true},
		{"the same MAC address", "10.0.0.9", [6]byte{2, 0, 0, 0, 0, 9}, true},
		{"at the same time", "", [6]byte{2, 0, 0, 0, 0, 8}, true},
		{"another address", "10.0.0.8", [6]byte{2, 0, 0, 0, 0, 8}, false},
	} {
		clk := clock.NewManual(1000)
		pool, err := packet.NewPool(1<<10, 2048, nil)
		if err != nil {
			t.Fatal(err)
		}
		wire := func(name string) (port.Port, port.Port) { return mem.NewWire(name, name+"-br", pool, 64, clk) }
		a, abr := wire("a")
		b, bbr := wire("b")
		p := host.NewProbe(ip, [6]byte{2, 0, 0, 0, 0, 9}, pool, clk.Now(), 1)
		var there host.Endpoint
		if c.other == "" {
			there = host.NewProbe(ip, c.mac, pool, clk.Now(), 2)
		} else if there, err = rnic.New(rnic.Config{IP: netip.MustParseAddr(c.other), MAC: c.mac, Pool: pool}); err != nil {
			t.Fatal(err)
		}
		sim := host.Sim{Clock: clk, Workers: []host.Worker{host.NewNode(a, p, nil), host.NewNode(b, there, nil), host.NewBridge(abr, bbr)}}
		err = sim.Run(func() bool { over, _ := p.Over(clk.Now()); return over }, time.Second)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if _, err := p.Over(clk.Now()); (err != nil) != c.taken || c.taken && !strings.Contains(err.Error(), "10.0.0.9 is another machine's address: 02:00:00:00:00:") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
