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

// Parameters and causes that several figures take.
var (
	takesNIC     = []string{"nic"}
	cloverCauses = []string{causeKeys, causeMix, causeRounds, causeAlone, causeAnswers}
	takesStore   = []string{"keys", "zipf", "object-size", "steered-keys", "search", "hosts", "threads", "nic"}
)

// All returns the figures that can be rerun, in the order of the papers, and then this project's own.
func All() []*Figure {
	return slices.Concat(verbs(), throughputs(), perOperation(), words(), withShermans(rcuckoos()), []*Figure{shermanBox()}, herds(), chapter(slices.Concat(supernic(), boards(), clios())), []*Figure{cores()})
}

// verbs returns the figures about single RDMA operations.
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

// overFUSEE is what SwordBox's authors claim about SwordBox and FUSEE.
var overFUSEE = ratio{"read+write steering with 392 threads over FUSEE with 128 clients", ref{0, nameReadWrite, 392}, ref{0, nameFUSEE, 128}}

// fuseeLacks says which parameters of FUSEE's runs are not known.
var fuseeLacks = []string{"FUSEE's keys are not published with the figures: the public workloads' 100,000 are taken"}

// throughputs returns the figures of Clover by number of threads, and the figures that stand between them in
// the papers.
func throughputs() []*Figure {
	return []*Figure{
		{
			ID: "2.4", data: "2.4", usual: sixHosts.usual(), takes: takesStore, causes: cloverCauses, overThreads: true, jobs: successRate(),
			ratios: []ratio{
				{"packets per operation, default, 240 threads over 6", ref{1, nameDefault, 240}, ref{1, nameDefault, 6}},
				{"packets per operation, 240 threads, default over read+write steering", ref{1, nameDefault, 240}, ref{1, nameReadWrite, 240}},
				{"packets per operation, 240 threads, write steering over read+write steering", ref{1, nameWrite, 240}, ref{1, nameReadWrite, 240}},
			},
			reasons: []reason{
				{panel: 1, series: nameWrite, text: reasonSteps},
				{ratio: true, series: "packets per operation, 240 threads, write steering over read+write steering", text: reasonSteps},
			},
		},
		{
			ID: "2.9", data: "2.9", takes: takesNIC, jobs: replaced,
			ratios: []ratio{
				{"9 queue pairs, WRITE over CAS", ref{0, "CAS → WRITE", 9}, ref{0, "CAS", 9}},
				{"23 queue pairs, WRITE over CAS", ref{0, "CAS → WRITE", 23}, ref{0, "CAS", 23}},
			},
			inputs: []reason{
				{series: "CAS → WRITE", from: 13, text: "CAS → WRITE from 13 queue pairs on: the middlebox's rate of 2.8 million a core"},
				{series: "CAS", to: 12, text: "CAS up to 12 queue pairs: that threads begin their rounds together was read from this curve"},
			},
			reasons: []reason{
				{series: "CAS → WRITE", from: 1, to: 3, text: reasonSoftware},
			},
		},
		{
			ID: "2.10", data: "2.10", usual: sevenHosts.usual(), takes: takesStore, causes: slices.Concat(cloverCauses, fuseeCauses), overThreads: true, jobs: withFUSEE(throughput(0), fuseeOf(0)), lacks: fuseeLacks,
			ratios: []ratio{
				{"392 threads, read+write steering over default", ref{0, nameReadWrite, 392}, ref{0, nameDefault, 392}},
				overFUSEE,
			},
		},
		{
			ID: "2.11", data: "2.11", usual: sevenHosts.usual(), takes: takesStore, causes: slices.Concat(cloverCauses, fuseeCauses), overThreads: true, jobs: withFUSEE(throughput(0.05), fuseeOf(0.05)), lacks: fuseeLacks,
			ratios: []ratio{
				{"392 threads, read+write steering over default", ref{0, nameReadWrite, 392}, ref{0, nameDefault, 392}},
				{"392 threads, write steering over default", ref{0, nameWrite, 392}, ref{0, nameDefault, 392}},
				overFUSEE,
			},
			reasons: []reason{
				{series: nameDefault, text: reasonSteps},
				{series: nameWrite, text: reasonSteps},
			},
		},
		{
			ID: "2.12", data: "2.12", usual: sevenHosts.usual(), takes: takesStore, causes: slices.Concat(cloverCauses, fuseeCauses), overThreads: true, jobs: withFUSEE(throughput(0.5), fuseeOf(0.5)), lacks: fuseeLacks,
			ratios: []ratio{
				{"280 threads, read+write steering over default", ref{0, nameReadWrite, 280}, ref{0, nameDefault, 280}},
				{"336 threads, read+write steering over default", ref{0, nameReadWrite, 336}, ref{0, nameDefault, 336}},
				{"392 threads, read+write steering over default", ref{0, nameReadWrite, 392}, ref{0, nameDefault, 392}},
				{"56 threads, write steering over default", ref{0, nameWrite, 56}, ref{0, nameDefault, 56}},
				{"280 threads, write steering over default", ref{0, nameWrite, 280}, ref{0, nameDefault, 280}},
				overFUSEE,
			},
			reasons: []reason{
				{series: nameDefault, from: 280, to: 280, text: reasonDip},
				{series: nameWrite, from: 280, to: 280, text: reasonDip},
				{series: nameWrite, from: 224, to: 224, text: reasonRounds, cause: causeRounds},
				{series: nameWrite, from: 336, text: reasonRounds, cause: causeRounds},
				{series: nameDefault, text: reasonSteps},
				{series: nameWrite, text: reasonSteps},
				{ratio: true, series: "280 threads, read+write steering over default", text: reasonDip},
				{ratio: true, series: "280 threads, write steering over default", text: reasonDip},
			},
		},
		{
			ID: "2.13", data: "2.13", usual: sevenHosts.usual(), takes: takesStore, inputs: fuseeInputs(), causes: slices.Concat(cloverCauses, fuseeCauses), overThreads: true, jobs: withFUSEE(throughput(1), fuseeOf(1)), lacks: fuseeLacks,
			ratios: []ratio{
				{"280 threads, write steering over default", ref{0, nameWrite, 280}, ref{0, nameDefault, 280}},
				{"392 threads, write steering over default", ref{0, nameWrite, 392}, ref{0, nameDefault, 392}},
				{"392 threads, read+write steering over write steering", ref{0, nameReadWrite, 392}, ref{0, nameWrite, 392}},
				overFUSEE,
			},
			reasons: []reason{
				{series: nameDefault, from: 280, to: 280, text: reasonDip},
				{series: nameDefault, text: reasonSteps},
				{ratio: true, series: "280 threads, write steering over default", text: reasonDip},
				{ratio: true, series: "392 threads, write steering over default", text: reasonRounds, cause: causeRounds},
			},
		},
	}
}

// perOperation returns the figures of what an operation of Clover costs.
func perOperation() []*Figure {
	return []*Figure{
		{
			ID: "2.14", data: "2.14", usual: sevenHosts.usual(), takes: takesStore, causes: slices.Concat(cloverCauses, []string{causeHalf}), jobs: wireBytes(),
			ratios: []ratio{
				{"5 % writes, default over read+write steering", ref{0, nameDefault, "5"}, ref{0, nameReadWrite, "5"}},
				{"50 % writes, default over read+write steering", ref{0, nameDefault, "50"}, ref{0, nameReadWrite, "50"}},
				{"only writes, default over read+write steering", ref{0, nameDefault, "100"}, ref{0, nameReadWrite, "100"}},
			},
			reasons: []reason{
				{series: nameDefault, names: []string{"100"}, text: reasonBytes, cause: causeHalf},
				{series: nameWrite, names: []string{"50"}, text: reasonSteps},
				{ratio: true, series: "only writes, default over read+write steering", text: reasonBytes, cause: causeHalf},
			},
		},
		{
			ID: "2.15", data: "2.15", usual: sevenHosts.usual(), takes: takesStore, causes: slices.Concat(cloverCauses, []string{causeTiming}), jobs: tails(),
			ratios: []ratio{
				{"reads at 5 % writes, default over read+write steering", ref{0, nameDefault + " read", "5"}, ref{0, nameReadWrite + " read", "5"}},
				{"reads at 50 % writes, default over read+write steering", ref{0, nameDefault + " read", "50"}, ref{0, nameReadWrite + " read", "50"}},
				{"writes at 5 % writes, default over read+write steering", ref{0, nameDefault + " write", "5"}, ref{0, nameReadWrite + " write", "5"}},
				{"writes at 50 % writes, default over read+write steering", ref{0, nameDefault + " write", "50"}, ref{0, nameReadWrite + " write", "50"}},
				{"only writes, default over read+write steering", ref{0, nameDefault + " write", "100"}, ref{0, nameReadWrite + " write", "100"}},
			},
			reasons: []reason{
				{series: nameReadWrite + " read", names: []string{"50"}, text: reasonFull, cause: causeAnswers},
				{series: nameDefault + " read", text: reasonLong},
				{series: nameWrite + " read", text: reasonLong},
				{series: nameDefault + " write", text: reasonLong},
				{series: nameWrite + " write", text: reasonTimed},
				{series: nameReadWrite + " write", text: reasonTimed},
			},
		},
	}
}

// words returns the figures that have no picture: their values are in texts.
func words() []*Figure {
	return []*Figure{
		{
			ID: "six-host-run", data: "six-host-run", usual: sixHosts.usual(), takes: takesStore, causes: cloverCauses, overThreads: true, jobs: sixHostRun, reasons: sixHostReasons(),
			inputs: crowdedInputs(),
		},
		{
			ID: "single-key-verbs", data: "single-key-verbs", takes: takesNIC, jobs: oneAddress,
			inputs: []reason{
				{series: "CAS", text: plateaus}, {series: "FAA", text: plateaus}, {series: "READ", from: 72, text: plateaus},
				{panel: 1, series: "CAS", text: plateaus}, {panel: 1, series: "FAA", text: plateaus}, {panel: 1, series: "WRITE", from: 72, text: plateaus},
			},
		},
		{
			ID: "words21-2", data: "words21-2", usual: twoHosts.usual(), takes: takesStore, causes: slices.Concat(cloverCauses, []string{causeOneCore}), overThreads: true, jobs: writeRedirection(),
			ratios:  []ratio{{"64 threads, write steering over default", ref{0, nameWrite, 64}, ref{0, nameDefault, 64}}},
			reasons: []reason{{text: reasonPrototype}},
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

const plateaus = "plateaus of CAS and FAA, of READs of host memory and of WRITEs of device memory: constants come from them, or from figures 1.2 and 2.3, which are of the same measurements"

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

// sixHostReasons are the reasons of figures 2.4 and 2.11 to 2.14, whose quantities six-host-run has for every
// workload.
func sixHostReasons() (rs []reason) {
	rs = append(rs,
		reason{series: "W / " + nameWrite, to: 6, text: reasonTrial},
		reason{series: "W / " + nameDefault, to: 6, text: reasonTrial},
	)
	rs = append(rs, reason{series: "A / " + nameWrite, from: 192, text: reasonRounds, cause: causeRounds})
	for _, name := range []string{"B / " + nameDefault, "B / " + nameWrite, "A / " + nameDefault, "A / " + nameWrite, "W / " + nameDefault} {
		for panel := range 3 {
			rs = append(rs, reason{panel: panel, series: name, text: reasonSteps})
		}
	}
	return rs
}

// crowdedInputs are the curves of six-host-run from which the costs come that threads of a host cause each
// other, and the curves that differ from these only by a steering that has nothing to do there.
func crowdedInputs() (rs []reason) {
	for _, name := range []string{crowdedReads, "C / " + nameWrite, "C / " + nameReadWrite, "W / " + nameWrite, crowdedWrites} {
		rs = append(rs, reason{series: name, text: name + ": what threads of a host cost each other"})
	}
	return rs
}

// Why points are outside the tolerance.
const (
	reasonRetransmitted = "A distance of 0 is a retransmission; nothing is lost here."
	reasonRareGaps      = "At most 0.02 % of the responses each, by delays inside the NIC of 7 µs and more, of which the model has three."
	reasonSteps         = "Published requests take longer under conflict with 40 threads on a host and more: 5.2 µs each with 240, and 4.4 here. What they take is from reads " +
		"without conflicts, which say nothing from 32 threads on, where the memory node's link is full; the line of those before goes on here."
	reasonRounds = "What threads of a host cost each other is taken for each request here. The curves that it comes from, reads of two requests side by side, do not say whether it is a request's or a round trip's."
	reasonTimed  = "Every 16th write waits for entries of the metadata server: that is the slowest percent. With one thread on a host it takes 13.6 µs in the lab's own runs (presentation 029), and 12.1 here; with 40 it takes twice as long there."
	reasonTrial  = "The published run of six hosts takes 12.5 µs here, and its 17.9 packets need 20, as it takes with seven hosts."
	reasonBytes  = "Published default Clover has 0.90 Mop/s in this run, 0.93 with half writes beside it, and 0.37 to 0.55 with only writes in figure 2.13; in the authors' script a run with 0.93 stands at the place of only reads, too. " +
		"With half writes the bytes are as published."
	reasonLong     = "The slowest percent follow chains for milliseconds in the published run, and some hundred microseconds here; or the reverse, with few writes, of which few lose."
	reasonDip      = "Published default Clover dips at 280 threads, between points that are 1.4 times as high, and 2.14's run has it, too (0.93 Mop/s): 40 threads on each of seven hosts. With 40 on each of six (six-host-run) it is 1.15."
	reasonSoftware = "A pass through the software middlebox is 1.65 µs here, from the NIC's own constants; bursts and rings between the cores of the papers' are not modelled, " +
		"and matter while few requests are under way."
	reasonFull = "One steered read in twenty finds an entry that is no tail any more here, and reads again; published are fewer than one in a hundred. While the NIC holds a READ up, " +
		"by a stall or to fetch its queue pair's context, appends by other queue pairs overtake it here. If it held up the answer, one in forty would."
	reasonPrototype = "What operations wait for in the published run is not known: one with write steering takes 16 µs with two threads, 48 with 32, and no more with 64; here 13, 16 and 19. " +
		"The middlebox has seven cores and entries are of 1,024 bytes, as in the authors' scripts of that hour; memory and metadata, on one machine there, have one each here."
)

const reasonAddresses = "The paper counts 16 bytes: a key and its tail. Here these take 64, with the memory node, what is believed of the tail, and an index " +
	"that is at most half full; and a request for an old entry is only steered when the entry's key is known, so 16 to 64 entry addresses a key " +
	"are remembered, 16 bytes each."
