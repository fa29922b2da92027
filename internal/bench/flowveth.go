package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/outer"
	"github.com/quillon/quillon/nf/port/open"
)

// Flows that cross in the kernel once functions have decided them.
const (
	flowCount  = 10_000
	flowPort   = 20_000 // the first host's port
	flowPublic = "198.51.100.1"
)

// flowBenchmarks run decided flows between two veth pairs.
func flowBenchmarks() []Benchmark {
	const about = ": 10,000 UDP flows, frames of 64 bytes, in the kernel once they are decided; in the place of pass-through: all by the functions, over AF_XDP"
	return []Benchmark{
		{"veth-nat", "napt on veth" + about, func(clk clock.Clock) (*contest, error) { return flowsOnVeth(clk, false) }},
		{"veth-chain", "firewall, napt and vxlan behind each other on veth" + about, func(clk clock.Clock) (*contest, error) { return flowsOnVeth(clk, true) }},
	}
}

// flowSpec is the graph; offload is "on" or "off".
func flowSpec(chain bool, offload string) *graph.Spec {
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.A}}, "pb": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.B}}},
		Apps:  map[string]graph.AppSpec{"napt": {Kind: "napt", Args: graph.Args{"public": flowPublic, "mac": "02:00:00:00:00:01", "offload": offload}}},
	}
	if !chain {
		s.Links = []string{"pa.out -> napt.a", "napt.b -> pb.in", "pb.out -> napt.b", "napt.a -> pa.in"}
		return s
	}
	s.Apps["firewall"] = graph.AppSpec{Kind: "firewall", Args: graph.Args{"rules": "allow+in:a", "half-per-source": "65536", "offload": offload}}
	s.Apps["vxlan"] = graph.AppSpec{Kind: "vxlan", Args: graph.Args{"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:03", "remote-mac": "02:00:00:00:00:04", "offload": offload}}
	s.Links = []string{
		"pa.out -> firewall.a", "firewall.b -> napt.a", "napt.b -> vxlan.a", "vxlan.b -> pb.in",
		"pb.out -> vxlan.b", "vxlan.a -> napt.b", "napt.a -> firewall.b", "firewall.a -> pa.in",
	}
	return s
}

// flowFrames are a frame of each flow, and one that answers it.
func flowFrames(chain bool) (frames []blast.Frame, answers [][]byte) {
	server, public := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr(flowPublic)
	tunnel := outer.New(outer.Config{LocalMAC: [6]byte{2, 0, 0, 0, 0, 4}, RemoteMAC: [6]byte{2, 0, 0, 0, 0, 3}, Local: netip.MustParseAddr("192.0.2.2"),
		Remote: netip.MustParseAddr("192.0.2.1"), TTL: 64, Proto: hdr.ProtoUDP, Port: hdr.PortVXLAN})
	for n := range flowCount {
		host := netip.AddrFrom4([4]byte{10, 0, byte(n % 50), byte(1 + n/50%200)})
		port := uint16(flowPort + n)
		frames = append(frames, blast.Frame{Bytes: flowFrame([6]byte{2, 0, 0, 0, 1, byte(n % 50)}, [6]byte{2, 0, 0, 0, 0, 2}, host, server, port, 53)})
		a := flowFrame([6]byte{2, 0, 0, 0, 0, 5}, [6]byte{2, 0, 0, 0, 0, 1}, server, public, 53, port)
		if chain {
			a = append(make([]byte, tunnel.Len()+hdr.VXLANLen), a...)
			hdr.VXLAN(a[tunnel.Len():]).Encode(5000)
			tunnel.Put(a, 0, uint32(n))
		}
		answers = append(answers, a)
	}
	return frames, answers
}

// flowFrame is a frame of 64 bytes.
func flowFrame(src, dst [6]byte, from, to netip.Addr, sport, dport uint16) []byte {
	b := make([]byte, 64)
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: dst, Src: src, EtherType: hdr.EtherIPv4})
	ip := hdr.IPv4(b[hdr.EthernetLen:])
	ip.Encode(&hdr.IPv4Fields{TTL: 64, Protocol: hdr.ProtoUDP, Src: from, Dst: to})
	ip.SetTotalLen(uint16(len(ip)))
	ip.UpdateChecksum()
	u := ip[hdr.IPv4Len:]
	hdr.UDP(u).Encode(&hdr.UDPFields{SrcPort: sport, DstPort: dport})
	hdr.UDP(u).SetLen(uint16(len(u)))
	binary.BigEndian.PutUint16(u[6:], hdr.Checksum(u, hdr.PseudoSum(from, to, hdr.ProtoUDP, len(u))))
	return b
}

// vethFlows is a range on which instances take turns, with flows decided or not.
type vethFlows struct {
	*vethRange
	chain   bool
	answers [][]byte
}

func flowsOnVeth(clk clock.Clock, chain bool) (*contest, error) {
	frames, answers := flowFrames(chain)
	r, err := newVethRange(clk, frames, 0)
	if err != nil {
		return nil, err
	}
	v := &vethFlows{r, chain, answers}
	of := func(offload string) Run {
		return func() (func() (int, error), error) { return v.turn(offload) }
	}
	return v.contest(of("on"), of("off")), nil
}

// turn begins an instance, and has it timed when all flows are there, and decided.
func (v *vethFlows) turn(offload string) (func() (int, error), error) {
	if err := v.begin(graph.Config{Spec: flowSpec(v.chain, offload), Nice: -20}, open.Config{}); err != nil {
		return nil, err
	}
	if !v.r.Settle(v.ctx, 2*flowCount, 20*time.Second) {
		return nil, errors.New("too few frames arrive")
	}
	if err := v.answer(offload == "on"); err != nil {
		return nil, err
	}
	if offload == "on" {
		if err := v.share(func() (finished, given uint64, err error) {
			r, err := v.x.Graph.Ahead()
			return r.Finished, r.Given, err
		}); err != nil {
			return nil, err
		}
	}
	return v.timed, nil
}

// answer answers all flows, until they are decided.
func (v *vethFlows) answer(decided bool) error {
	// So many that a breath has drafts for them, and so seldom that a busy worker keeps up.
	const atOnce, every = 32, 500 * time.Microsecond
	for range 50 {
		for some := range slices.Chunk(v.answers, atOnce) {
			if err := v.r.Answer(some); err != nil {
				return err
			}
			time.Sleep(every)
		}
		r, err := v.x.Graph.Ahead()
		if err != nil || !decided || r.Entries >= flowCount {
			return err
		}
		if !r.Runs {
			return fmt.Errorf("the kernel runs nothing: %s", r.Why)
		}
	}
	r, _ := v.x.Graph.Ahead()
	return fmt.Errorf("%d of %d flows are decided: %v", r.Entries, flowCount, r.Decisions)
}
