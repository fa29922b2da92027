package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tor/swordbox"
)

// CASConfig describes threads that all compare-and-swap one word in host memory
// through a middlebox in software: figure 2.9.
type CASConfig struct {
	QPs         int // 0 = 1
	Outstanding int // of each; 0 = 16
	// Free lets every thread begin its next round when its last has ended.
	// Otherwise all begin together: so does, by its figures, the papers' load
	// generator, for which a round takes 8 us and 6.3 us a queue pair, however
	// many there are, as it would not if some worked while others wait.
	Free bool
	// Replace lets the middlebox move them onto one connection and replace
	// them by WRITEs; otherwise it forwards.
	Replace bool
	// Middlebox is the machine; zero: DPDK. Its Kind and Args do not matter.
	Middlebox Middlebox

	NIC             NIC     // zero: ConnectX5
	Network         Network // zero: Rack100G
	Seed            uint64
	Warmup, Measure time.Duration // 0 = 1 ms and 2 ms
	Progress        func(done float64)
}

// DPDK is a middlebox in software as the papers': 24 cores, of which each
// passes 2.8 million operations a second (Grant's dissertation, section 2.4.2),
// each a request and an answer. A frame reaches and leaves it like any host:
// over the switch and a cable, and through its NIC.
func DPDK(n NIC, net Network) Middlebox {
	return Middlebox{
		Cores: 24, PerPacket: 178 * time.Nanosecond,
		Latency: net.Switch + 2*net.Propagation + n.Receive + n.Complete + n.Send,
	}
}

// CAS measures threads that contend for one word.
func CAS(ctx context.Context, c CASConfig) (VerbsMeasured, error) {
	c.Outstanding = cmp.Or(c.Outstanding, 16)
	c.NIC = cmp.Or(c.NIC, ConnectX5())
	c.Network = cmp.Or(c.Network, Rack100G())
	c.Warmup = cmp.Or(c.Warmup, time.Millisecond)
	c.Measure = cmp.Or(c.Measure, 2*time.Millisecond)
	b := c.Middlebox
	if b.Cores == 0 && b.PerPacket == 0 && b.Latency == 0 {
		b = DPDK(c.NIC, c.Network)
	}
	v := VerbsConfig{
		Op: rnic.OpCompareSwap, QPs: c.QPs, Outstanding: c.Outstanding, Addresses: 1, Together: !c.Free, Middlebox: &b,
		NIC: c.NIC, Network: c.Network, Seed: c.Seed, Warmup: c.Warmup, Measure: c.Measure, Progress: c.Progress,
		apart: 20 * time.Microsecond,
	}
	if c.Replace {
		// Nothing was under way before the clients began, so a short time to settle
		// will do. One connection carries everything, so one core does.
		b.Cores = min(b.Cores, 1)
		b.Kind = *swordbox.Kind()
		v.connected = func(conns []string) {
			b.Args = graph.Args{
				"mode": "replace", "replace": "learnt", "writable": "assume", "settle": "200us", "pair": "200us", "conns": fmt.Sprint(len(conns)), "window": fmt.Sprint(max(16, 2*c.QPs*c.Outstanding)),
				"hold": fmt.Sprint(max(1024, 4*c.QPs*c.Outstanding)), "rdatomic": fmt.Sprint(max(c.NIC.Outstanding, 1)),
				"static": strings.Join(conns, ";"),
			}
		}
	}
	m, err := Verbs(ctx, v)
	if err == nil && m.Ops == 0 {
		err = errors.New("sim: no CAS was answered")
	}
	return m, err
}
