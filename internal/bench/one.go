package bench

import (
	"fmt"
	"net/netip"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// The load of one server: twice as many clients as one worker has elsewhere, so
// that batches stay as long, and so many frames that the start of threads does not
// count.
const (
	oneNodes  = 2 * mixNodes
	oneFrames = 4 * mixFrames
)

// oneBenchmarks play the load of one server through one app, each client on one of
// two workers; beside it, one worker has all of them. What the machine itself gains
// by two processors, and what the load costs, is that of the app that does nothing.
func oneBenchmarks() []Benchmark {
	about := func(kind, load string) string {
		return fmt.Sprintf("%s in memory, two workers with half of one server's clients each: %s; in the place of pass-through: one worker with all", kind, load)
	}
	// A quarter of the rows is for connections that are half known: all are at first.
	steer, swordbox := steerArgs(), swordboxArgs()
	steer["conns"], swordbox["conns"] = "1024", "512"
	recorded := func(name, kind string, args graph.Args) Benchmark {
		return Benchmark{name, about(kind, "a recorded Clover mix"), func(clk clock.Clock) (*contest, error) {
			m, err := recordClover(0, oneNodes, oneFrames, steer)
			if err != nil {
				return nil, fmt.Errorf("record the load: %w", err)
			}
			halves := m.byClient()
			return divided(clk, kind, args, halves, interleave(halves[0], halves[1]), true)
		}}
	}
	played := func(name, kind string, args graph.Args) Benchmark {
		return Benchmark{name, about(kind, "counters of two protection domains, answered at once"), func(clk clock.Clock) (*contest, error) {
			r := &race{clk: clk}
			of := func(workers int) Run {
				return func() (func() (int, error), error) {
					return (&rivals{kind: kind, args: args, workers: workers, race: r}).prepare()
				}
			}
			return &contest{bytes: tenantBytes, work: of(2), pass: of(1), race: r, close: func() {}}, nil
		}}
	}
	return []Benchmark{
		recorded("one-server-wire", "wire", nil),
		recorded("one-server-steer", "clover-steer", steer),
		played("one-server-counters", "wire", nil),
		played("one-server-swordbox", "swordbox", swordbox),
	}
}

// byClient is the mix in two halves, each with both directions of every second
// client, as a NIC divides frames by their addresses.
func (m *mix) byClient() (halves [2]*mix) {
	halves = [2]*mix{{}, {}}
	from := 0
	for _, x := range m.batches {
		parts := [2]mixBatch{{port: x.port, at: x.at}, {port: x.port, at: x.at}}
		for _, end := range x.ends {
			b := m.bytes[from:end]
			from = end
			i := clientOf(x.port, b).As4()[3] & 1
			halves[i].bytes = append(halves[i].bytes, b...)
			parts[i].ends = append(parts[i].ends, len(halves[i].bytes))
		}
		for i, h := range halves {
			if n := len(parts[i].ends); n > 0 {
				h.batches = append(h.batches, parts[i])
				h.frames += n
			}
		}
	}
	return halves
}

// clientOf is the address on the clients' side of a frame that a port received.
func clientOf(port string, b []byte) netip.Addr {
	ip := hdr.IPv4(b[hdr.EthernetLen:])
	if port == "pa" {
		return ip.Src()
	}
	return ip.Dst()
}
