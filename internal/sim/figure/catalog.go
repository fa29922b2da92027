package figure

import (
	"slices"
	"strconv"
	"strings"
)

// Names of the three ways to run Clover.
const (
	nameDefault   = "Clover (default)"
	nameWrite     = "Write steering"
	nameReadWrite = "Write + read steering"
)

// What may be said of a figure's run.
var (
	takesNIC   = []string{"nic"}
	takesStore = []string{"keys", "zipf", "object-size", "steered-keys", "search", "hosts", "threads", "nic"}
)

// All are the figures that can be rerun, in the order of the papers.
func All() []*Figure {
	return slices.Concat(verbs(), throughputs(), perOperation(), words(), chapter(slices.Concat(supernic(), boards(), clios())))
}

// verbs are figures of operations of RDMA alone.
func verbs() []*Figure {
	return []*Figure{
		{
			ID: "1.1", data: "1.1", Calibration: true, takes: takesNIC, jobs: inFlight,
			ratios: []ratio{
				{"READ over CAS, 360 in flight", ref{0, "Read", 360}, ref{0, "CAS", 360}},
				{"WRITE over CAS, 360 in flight", ref{0, "Write", 360}, ref{0, "CAS", 360}},
			},
		},
		{
			ID: "1.2", data: "1.2", Calibration: true, takes: takesNIC, jobs: contended,
			ratios: []ratio{
				{"device over host memory, one address", ref{0, "Device memory", "Single address"}, ref{0, "Main memory", "Single address"}},
				{"device over host memory, independent addresses", ref{0, "Device memory", "Independent addresses"}, ref{0, "Main memory", "Independent addresses"}},
			},
		},
		{
			ID: "2.1", data: "2.1", Calibration: true, takes: takesNIC, jobs: queuePairs,
			ratios: []ratio{{"7 queue pairs over 1", ref{0, "WRITE", 7}, ref{0, "WRITE", 1}}},
		},
		{
			ID: "2.2", data: "2.2", Calibration: true, takes: takesNIC, jobs: order,
			ratios: []ratio{{"share of responses in order", ref{0, "responses", 1}, ref{x: 1.0}}},
			reasons: []reason{
				{to: 0.5, text: reasonRetransmitted},
				{from: 7, text: reasonRareGaps},
			},
		},
		{
			ID: "2.3", data: "2.3", Calibration: true, takes: takesNIC, jobs: serialized,
			ratios: []ratio{
				{"WRITE over CAS, host memory", ref{0, "Main memory", "Write"}, ref{0, "Main memory", "CAS"}},
				{"WRITE over CAS, device memory", ref{0, "Device memory", "Write"}, ref{0, "Device memory", "CAS"}},
			},
		},
	}
}

// throughputs are figures of Clover by the number of threads, and what lies between them in the order.
func throughputs() []*Figure {
	return []*Figure{
		{
			ID: "2.4", data: "2.4", takes: takesStore, overThreads: true, jobs: successRate(),
			ratios: []ratio{
				{"packets per operation, default, 240 threads over 6", ref{1, nameDefault, 240}, ref{1, nameDefault, 6}},
				{"packets per operation, 240 threads, default over read+write steering", ref{1, nameDefault, 240}, ref{1, nameReadWrite, 240}},
				{"packets per operation, 240 threads, write steering over read+write steering", ref{1, nameWrite, 240}, ref{1, nameReadWrite, 240}},
			},
			reasons: []reason{
				{from: 24, text: reasonSearch},
				{panel: 1, series: nameDefault, from: 24, text: reasonSearch},
				{panel: 1, series: nameWrite, from: 24, text: reasonSearch},
				{ratio: true, series: "packets per operation, default, 240 threads over 6", text: reasonSearch},
				{ratio: true, series: "packets per operation, 240 threads, default over read+write steering", text: reasonSearch},
				{ratio: true, series: "packets per operation, 240 threads, write steering over read+write steering", text: reasonSearch},
			},
		},
		{
			ID: "2.9", data: "2.9", takes: takesNIC, jobs: replaced,
			ratios: []ratio{{"23 queue pairs, WRITE over CAS", ref{0, "CAS → WRITE", 23}, ref{0, "CAS", 23}}},
			reasons: []reason{
				{series: "CAS → WRITE", from: 1, to: 3, text: reasonSoftware},
			},
		},
		{
			ID: "2.10", data: "2.10", takes: takesStore, overThreads: true, jobs: throughput(0),
			ratios: []ratio{{"392 threads, read+write steering over default", ref{0, nameReadWrite, 392}, ref{0, nameDefault, 392}}},
		},
		{
			ID: "2.11", data: "2.11", takes: takesStore, overThreads: true, jobs: throughput(0.05),
			ratios: []ratio{
				{"392 threads, read+write steering over default", ref{0, nameReadWrite, 392}, ref{0, nameDefault, 392}},
				{"392 threads, write steering over default", ref{0, nameWrite, 392}, ref{0, nameDefault, 392}},
			},
			reasons: []reason{
				{series: nameDefault, from: 28, text: reasonSearch},
				{series: nameWrite, from: 28, text: reasonSearch},
				{series: nameReadWrite, from: 112, to: 168, text: reasonHosts},
				{ratio: true, series: "392 threads, read+write steering over default", text: reasonSearch},
			},
		},
		{
			ID: "2.12", data: "2.12", takes: takesStore, overThreads: true, jobs: throughput(0.5),
			ratios: []ratio{
				{"280 threads, read+write steering over default", ref{0, nameReadWrite, 280}, ref{0, nameDefault, 280}},
				{"336 threads, read+write steering over default", ref{0, nameReadWrite, 336}, ref{0, nameDefault, 336}},
				{"392 threads, read+write steering over default", ref{0, nameReadWrite, 392}, ref{0, nameDefault, 392}},
				{"56 threads, write steering over default", ref{0, nameWrite, 56}, ref{0, nameDefault, 56}},
				{"280 threads, write steering over default", ref{0, nameWrite, 280}, ref{0, nameDefault, 280}},
			},
			reasons: []reason{
				{series: nameDefault, from: 28, text: reasonSearch},
				{series: nameDefault, from: 280, to: 280, text: reasonDip},
				{series: nameWrite, from: 7, text: reasonSearch},
				{series: nameReadWrite, from: 56, text: reasonHosts},
				{ratio: true, series: "280 threads, read+write steering over default", text: reasonDip},
				{ratio: true, series: "280 threads, write steering over default", text: reasonDip},
			},
		},
		{
			ID: "2.13", data: "2.13", takes: takesStore, overThreads: true, jobs: throughput(1),
			ratios: []ratio{
				{"280 threads, write steering over default", ref{0, nameWrite, 280}, ref{0, nameDefault, 280}},
				{"392 threads, write steering over default", ref{0, nameWrite, 392}, ref{0, nameDefault, 392}},
				{"392 threads, read+write steering over write steering", ref{0, nameReadWrite, 392}, ref{0, nameWrite, 392}},
			},
			reasons: []reason{
				{series: nameDefault, to: 7, text: reasonFirstRace},
				{series: nameDefault, from: 28, text: reasonSearch},
				{series: nameDefault, from: 280, to: 280, text: reasonDip},
				{series: nameWrite, from: 28, text: reasonHosts},
				{series: nameReadWrite, from: 28, text: reasonHosts},
				{ratio: true, series: "280 threads, write steering over default", text: reasonDip},
			},
		},
	}
}

// perOperation are figures of what an operation of Clover costs.
func perOperation() []*Figure {
	return []*Figure{
		{
			ID: "2.14", data: "2.14", takes: takesStore, jobs: wireBytes(),
			ratios: []ratio{
				{"5 % writes, default over read+write steering", ref{0, nameDefault, "5"}, ref{0, nameReadWrite, "5"}},
				{"50 % writes, default over read+write steering", ref{0, nameDefault, "50"}, ref{0, nameReadWrite, "50"}},
				{"only writes, default over read+write steering", ref{0, nameDefault, "100"}, ref{0, nameReadWrite, "100"}},
			},
			reasons: []reason{
				{series: nameDefault, names: []string{"5", "50"}, text: reasonSearch},
				{series: nameWrite, names: []string{"5", "50"}, text: reasonSearch},
				{ratio: true, series: "5 % writes, default over read+write steering", text: reasonSearch},
				{ratio: true, series: "50 % writes, default over read+write steering", text: reasonSearch},
				{ratio: true, series: "only writes, default over read+write steering", text: reasonSearch},
			},
		},
		{
			ID: "2.15", data: "2.15", takes: takesStore, jobs: tails(),
			ratios: []ratio{
				{"reads at 5 % writes, default over read+write steering", ref{0, nameDefault + " read", "5"}, ref{0, nameReadWrite + " read", "5"}},
				{"reads at 50 % writes, default over read+write steering", ref{0, nameDefault + " read", "50"}, ref{0, nameReadWrite + " read", "50"}},
				{"writes at 5 % writes, default over read+write steering", ref{0, nameDefault + " write", "5"}, ref{0, nameReadWrite + " write", "5"}},
				{"writes at 50 % writes, default over read+write steering", ref{0, nameDefault + " write", "50"}, ref{0, nameReadWrite + " write", "50"}},
				{"only writes, default over read+write steering", ref{0, nameDefault + " write", "100"}, ref{0, nameReadWrite + " write", "100"}},
			},
			reasons: []reason{
				{series: nameDefault + " read", names: []string{"0"}, text: reasonFull},
				{series: nameWrite + " read", names: []string{"0"}, text: reasonFull},
				{series: nameReadWrite + " read", names: []string{"0"}, text: reasonFull},
				{series: nameReadWrite + " read", names: []string{"5"}, text: reasonFull},
				{series: nameDefault + " read", names: []string{"5", "50"}, text: reasonSearch},
				{series: nameWrite + " read", names: []string{"5", "50"}, text: reasonSearch},
				{series: nameDefault + " write", names: []string{"5"}, text: reasonWalk},
				{series: nameDefault + " write", names: []string{"50", "100"}, text: reasonSearch},
				{series: nameWrite + " write", names: []string{"5", "50", "100"}, text: reasonHosts},
				{series: nameReadWrite + " write", names: []string{"5", "50", "100"}, text: reasonHosts},
				{ratio: true, series: "reads at 5 % writes, default over read+write steering", text: reasonSearch},
				{ratio: true, series: "reads at 50 % writes, default over read+write steering", text: reasonSearch},
				{ratio: true, series: "writes at 5 % writes, default over read+write steering", text: reasonWalk},
				{ratio: true, series: "writes at 50 % writes, default over read+write steering", text: reasonHosts},
				{ratio: true, series: "only writes, default over read+write steering", text: reasonHosts},
			},
		},
	}
}

// words are figures that the text tells, without a picture.
func words() []*Figure {
	return []*Figure{
		{
			ID: "six-host-run", data: "six-host-run", takes: takesStore, overThreads: true, jobs: sixHostRun, reasons: sixHostReasons(),
		},
		{
			ID: "single-key-verbs", data: "single-key-verbs", takes: takesNIC, jobs: oneAddress,
		},
		{
			ID: "words21-2", data: "words21-2", takes: takesStore, overThreads: true, jobs: writeRedirection(),
			ratios: []ratio{{"64 threads, write steering over default", ref{0, nameWrite, 64}, ref{0, nameDefault, 64}}},
			reasons: []reason{
				{series: nameDefault, from: 4, to: 32, text: reasonPrototype},
				{series: nameWrite, from: 2, to: 32, text: reasonPrototype},
				{from: 56, text: reasonPrototype},
			},
		},
		{
			ID: "words21-3", data: "words21-3", jobs: memoryJobs,
			ratios: []ratio{{
				claim: "share of 64 MB that 262,144 keys take",
				of:    ref{0, nameMetadata, 262144}, to: ref{x: float64(64 << 20)},
			}},
			reasons: []reason{
				{series: nameMetadata, text: reasonAddresses},
				{ratio: true, series: "share of 64 MB that 262,144 keys take", text: reasonAddresses},
			},
		},
	}
}

// chapter sorts the figures of a chapter by their numbers.
func chapter(fs []*Figure) []*Figure {
	place := func(f *Figure) int {
		_, id, _ := strings.Cut(f.ID, ".")
		id, _, _ = strings.Cut(id, "-")
		n, _ := strconv.Atoi(id)
		return n
	}
	slices.SortStableFunc(fs, func(a, b *Figure) int { return place(a) - place(b) })
	return fs
}

// sixHostReasons are those of figures 2.4 and 2.11 to 2.14, whose quantities
// the run has for every workload.
func sixHostReasons() []reason {
	rs := []reason{{series: "W / " + nameDefault, to: 6, text: reasonFirstRace}}
	for _, w := range []string{"B / ", "A / ", "W / "} {
		for _, name := range []string{nameDefault, nameWrite} {
			if w == "W / " && name == nameWrite {
				continue
			}
			rs = append(rs, reason{series: w + name, text: reasonSearch})
			for _, perOp := range []int{1, 2} {
				rs = append(rs, reason{panel: perOp, series: w + name, text: reasonSearch})
			}
		}
		for _, name := range []string{nameWrite, nameReadWrite} {
			rs = append(rs, reason{series: w + name, from: 12, text: reasonHosts})
		}
	}
	return rs
}

// Why points are outside the tolerance.
const (
	reasonRetransmitted = "A distance of 0 is a retransmission; nothing is lost here."
	reasonRareGaps      = "At most 0.02 % of the responses each, by delays inside the NIC of 7 µs and more, of which the model has three."
	reasonSearch        = "Who lost a race needs fewer requests here: rack/clover's readers jump to a shortcut that is at most a round of the background old, and its " +
		"writers search by headers alone, while Clover's library sent about 1.6 times as many packets per operation (figure 2.4). Conflicts, and with them everything " +
		"that is not steered, end sooner."
	reasonHosts = "Clover's threads on one host slow each other down when they write: in the published run a steered write takes 8.1 µs with one thread on a host, 11.9 with " +
		"16 and 16.4 with 40, though neither the memory node nor its link is full. The library's locks, the caches and the two sockets are not modelled: no micro-benchmark measures them."
	reasonDip       = "Published default Clover dips at 280 threads (one trial a point), between points that are 1.4 times as high."
	reasonFirstRace = "With one thread on a host nobody shares a cache of tails, and every lost race costs rack/clover a search."
	reasonSoftware  = "A pass through the software middlebox is 1.65 µs here, from the NIC's own constants; bursts and rings between the cores of the papers' are not modelled, " +
		"and matter while few requests are under way."
	reasonFull = "280 threads fill the memory node's link here, and wait for it. The published latencies are from runs of their own, which " +
		"timing made slower, and of an unknown number of threads."
	reasonWalk = "The hottest chains grow faster than a writer of rack/clover that lost a race can follow by headers: it never jumps by a shortcut, which may be old. " +
		"Few writes lose, and those are the slowest percent."
	reasonPrototype = "The prototype's middlebox is not described; here it is one core, since its tables have no locks, at the rate of the later one's cores. " +
		"The real one was slower with few threads and faster with many; memory and metadata also shared a server there."
)

const reasonAddresses = "The paper counts 16 bytes: a key and its tail. Here these take 64, with the memory node, what is believed of the tail, and an index " +
	"that is at most half full; and a request for an old entry is only steered when the entry's key is known, so 16 to 64 entry addresses a key " +
	"are remembered, 16 bytes each."
