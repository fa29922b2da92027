package sim

import "time"

// NIC is the model of a network card and of the host behind it: when a frame
// gets in, when a verb touches memory, when a frame gets out. Verbs themselves are
// not modelled: the state machine of rack/rnic runs.
//
// Durations are JSON numbers of nanoseconds.
type NIC struct {
	// Send is the time from the doorbell until the first bit is on the wire. Receive is the time
	// from a frame's last bit until a request is ready to execute. Respond is the time from the
	// execution until the answer is on the wire, for verbs that do not wait for memory. Complete is
	// the time from an answer's last bit until the host sees the completion.
	Send, Receive, Respond, Complete time.Duration
	// Message is the least time between two messages of the NIC, QPMessage
	// between two of one queue pair, in each direction.
	Message, QPMessage time.Duration
	// HostRead is the time that a READ of host memory waits (a round trip on PCIe),
	// HostAtomic the time that an atomic's answer waits. DeviceAccess is the time for
	// both if the memory is the NIC's own.
	HostRead, HostAtomic, DeviceAccess time.Duration
	// HostOccupancy and DeviceOccupancy are the times for which an atomic blocks other atomics
	// of the same slot of the atomic unit, and READs and WRITEs of the same
	// word. DeviceWrite is the time for which a WRITE of device memory blocks its word.
	HostOccupancy, DeviceOccupancy, DeviceWrite time.Duration
	// HostUpdate and DeviceUpdate are added to the occupancy if the atomic changes the word.
	HostUpdate, DeviceUpdate time.Duration
	// AtomicInterval is the least time between two atomics on host memory,
	// whatever their addresses.
	AtomicInterval time.Duration
	// SameRead is the least time between two READs of one address of host
	// memory.
	SameRead time.Duration
	// SlotBits is the number of low bits of an address that choose the atomic unit's
	// slot.
	SlotBits int
	// Stall[i] is the share of requests that are held up inside the NIC for i to
	// i+1 microseconds, while other queue pairs' go on.
	Stall [16]float64
	// Contexts is the number of queue pairs whose contexts the NIC holds; 0 means all. A request of
	// another queue pair waits for ContextMiss.
	Contexts    int
	ContextMiss time.Duration
	// HoldAnswers has a request execute at once and its answer wait for stalls and contexts. Without
	// it the request waits for them before it executes, and other queue pairs' requests overtake it.
	HoldAnswers bool
	// Outstanding is the largest number of READs and atomics of a queue pair under way.
	Outstanding int
	// Verb is the time that a thread of the host needs to post a verb with a completion and to
	// poll the completion. A thread does this for one verb after the other.
	Verb time.Duration
	// Threads is the number of threads that the host runs at once; 0 means any number. If there are
	// more, they take turns of Quantum.
	Threads int
	Quantum time.Duration
}

// Network is the model of the cables and of the switch.
type Network struct {
	// GbitPerSecond is the rate of every link.
	GbitPerSecond float64
	// Propagation is the delay of each cable.
	Propagation time.Duration
	// Switch is the switch's latency, port to port.
	Switch time.Duration
	// Queue is the number of bytes that may wait for a port; frames beyond it are dropped.
	Queue int
}

// ConnectX5 is the NIC of the papers' rack. Every constant comes from a
// micro-benchmark (figures, where no other source is named, are of Grant's
// dissertation) or from a data sheet; none from a figure that is to be predicted.
func ConnectX5() NIC {
	return NIC{
		// Figure 1.1, one WRITE a thread: 2,177 ns. The switch twice, four
		// cables and Verb take 755 of it; how the rest is shared out is not
		// measured.
		Send: 500, Receive: 200, Respond: 100, Complete: 622,
		// Data sheet: 200 million messages per second.
		Message: 5,
		// Figure 2.1: 18.3 to 18.8 million WRITEs a queue pair.
		QPMessage: 53,
		// Figure 1.1, one READ a thread: 523 ns more than a WRITE; one CAS:
		// 578 ns more.
		HostRead: 523, HostAtomic: 578,
		// Figure 1.2, one address: 2.929 and 8.975 million CAS.
		HostOccupancy: 341, DeviceOccupancy: 111,
		// The measurements behind figures 1.2 and 2.3: 2.539 and 7.723 million FETCH & ADD of
		// one address, which all change it. CAS of many threads hardly ever do.
		HostUpdate: 53, DeviceUpdate: 18,
		// An access of device memory takes as long as the atomic unit does.
		DeviceAccess: 111,
		// Figure 2.3: 22.1 million WRITEs to a word of device memory.
		DeviceWrite: 45,
		// Figure 1.1: CAS on independent addresses end at 50.6 to 51.8 million.
		AtomicInterval: 19,
		// The measurements behind figures 1.2 and 2.3: 23.1 million READs of
		// one address.
		SameRead: 43,
		// Kalia et al., USENIX ATC '16, and Wang et al., SIGMOD '22: atomics
		// are serialised by the 12 low bits of their addresses.
		SlotBits: 12,
		// Figure 2.2, solved for the delays: with a request each microsecond,
		// one that is late by i is overtaken by i, which makes gaps of 2, i
		// and i+1. Delays below one cannot be seen there.
		Stall: [16]float64{1: .0006, 2: .0051, 3: .0011, 4: .0020, 5: .0017, 7: .0001, 9: .0001, 11: .0001},
		// Another micro-benchmark of this NIC (Guo et al., Clio, ASPLOS '22,
		// figure 4): a READ takes 3.25 us with one connection, 3.62 with 200
		// and 3.66 with 400, a WRITE 3.08, 3.61 and 3.68. Random replacement.
		Contexts: 80, ContextMiss: 600,
		// Data sheet: max_rd_atomic 16.
		Outstanding: 16,
		// Figure 1.1: what each further request of a thread adds to a round.
		Verb: 70,
		// Data sheet of two E5-2640 v4 (the papers do not say which; v4 has
		// the clock that they give for a sister machine): 2 x 10 cores with two
		// threads each. Linux lets a task run for 3 ms when others wait.
		Threads: 40, Quantum: 3 * time.Millisecond,
	}
}

// Rack100G is the network of the papers' rack.
func Rack100G() Network {
	return Network{
		GbitPerSecond: 100,
		Propagation:   15,       // 3 m of copper
		Switch:        300,      // data sheet of the SN2700
		Queue:         16 << 20, // data sheet: packet buffer
	}
}
