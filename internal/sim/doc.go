// Package sim runs a rack in virtual time: the endpoints of rack, the graphs of
// nf/graph with the apps of tor, and models of the hardware between them.
//
//	host.Worker ─ Port ─ NIC model ─ link ─┐          ┌─ link ─ NIC model ─ Port ─ host.Worker
//	                                       switch ─ middlebox (graph.Instance)
//
// The code of endpoints and apps is the code that runs live. The models only
// decide when a frame gets in, when a verb executes and when a frame gets out. They have
// rates of links, queue pairs and NICs, round trips on PCIe, the atomic unit's
// serialisation of addresses, and stalls inside a NIC that let requests of
// different queue pairs overtake each other.
//
// A World is driven by one goroutine, and equal seeds give equal runs, event by
// event. Faults of cables, deaths and restarts of machines and of the middlebox
// are planned at virtual times and drawn from seeded sources.
//
// # A SuperNIC's board
//
// RunSNIC and Load.Scaled run a live board: an instance of the app snic, with frames,
// its own deployment, and the costs of the prototype's parts (HTG9200) as its arguments. Tasks
// are pipelines with a rate and a latency, and do not change frames.
//
//	source ─ PHY, MAC, data path ─► Push ─┐
//	                                      ├─ graph.Instance: snic ◄─ Step, when NextTick says
//	    PHY, MAC, the port's queue ◄─ Tx ─┘
//
// # Calibration
//
// The constants of ConnectX5 come from micro-benchmarks (Grant's dissertation,
// figures 1.1, 1.2, 2.1 to 2.3 and the measurements behind them; Clio's figure 4
// for contexts of queue pairs) and from data sheets. Those of CloverLibrary come from
// latencies of one client in Clover's paper. A comment at each constant names its source. None is
// fitted to a figure that Clover and CAS predict. Verbs and Reorder rerun the
// micro-benchmarks; a test fails if a point differs by more than 25 %.
//
// # What is missing
//
// The threads of a modelled host do not slow each other down. Clover's own threads do (by locks
// of its allocator and of the queues of its background threads, caches, and the two sockets): a write takes
// twice as long with 40 threads on a host as with one. Rates that neither the memory node's link nor
// the atomic unit bounds are therefore too high with many writing threads. rack/clover's writers
// search a chain forwards from where they failed, and never by shortcuts, which
// may be old. Under contention without a middlebox they therefore find the tail sooner
// than Clover's writers.
package sim
