// Package afxdp makes ports of the queues of network interfaces by AF_XDP:
// one interface alone (Open), or two that are spliced into a wire (OpenPair).
//
// # The wire
//
// Each interface of a pair has an XDP program, derived from the filter of the
// graph, that decides in the kernel where a frame goes:
//
//	frame ─► wanted? ──no──────────────────────────────► other interface  (Stats.Bypassed)
//	            │yes
//	            ▼
//	         longer than the MTU was? ──yes────────────► other interface  (Missed)
//	            │no
//	            ▼
//	         heartbeat of the queue fresh? ──no────────► other interface  (Missed)
//	            │yes
//	            ▼
//	         live socket in the queue's place? ──no────► other interface  (Missed)
//	            │yes
//	            ▼
//	         socket: Port.Rx
//
// If the filter is Watched, frames that are not wanted go the same way, and those of them that are missed
// count as bypassed. When the filter is not Watched any more, or the worker pauses, frames that are in
// the ring then come behind later ones that cross in the kernel.
//
// If the filter is Closed, what is missed is dropped instead of crossing. If it is
// Bound, a part of what is missed is dropped: frames to the queue pairs that Port.Bind bound, by
// destination address and QPN, in RoCEv2 and RoCE v1 behind up to two VLAN tags. What
// does not show its queue pair (fragments, IPv6 with extension headers, more tags)
// crosses. The queue pairs are in a map, of 6 MB in the kernel, that the program looks
// into when it has missed a frame, and at no other time: a frame that a worker takes
// costs what it did. Bind is a system call of one to two microseconds, and no
// allocation. Rebind reads what is bound and makes one for each queue pair that
// changes: of a thousand one to two milliseconds, of port.MaxBound up to 0.2 s. They
// need no more rights than quillon run keeps, and since Linux 5.19 none.
//
// If the filter is Guarded, another part is dropped: atomics of RC and XRC to the words that are in
// Port.Guard, but for those that link the entry which is guarded there. An app stores
// there directly; the program looks, as above, only at frames that it has missed.
//
// The heartbeat is a word in a page that the process and the program share;
// Rx and Wait store CLOCK_MONOTONIC there, with no system call. A worker that
// does neither for Options.Stale (60 ms) is bypassed, whether it is stopped,
// stalled or gone. Behind a filter that is Closed its frames wait in the ring for 1 s
// before they are dropped: it may only have got no processor. The socket of a process that
// died leaves its place at once. Steering begins with the worker's first Rx, not with Open.
//
// A frame that was received before others went past, and not handed over yet,
// is dropped when the worker comes back: it must not arrive behind them, and
// what an app learnt from it would be stale. That breath receives nothing, so
// that the apps are told (Missed) before they see another frame.
//
// # What outlives the process
//
// The programs of a pair are attached by netlink, not by a bpf_link: they,
// their maps and with them the wire stay when the process dies, without a bpf
// file system, which would be a mount, and gone with a mount namespace. The
// next OpenPair of the interfaces finds the programs by name and binds its
// sockets. Where its own program would be the same, instruction by instruction
// and with the same hosts, it goes on with the one that is attached and with its
// maps. Otherwise it replaces each program in one step, which waits until all
// processors have forgotten the one before. The settings that are put back at
// the end (offloads, promiscuous mode) are noted in a map of the program, so
// that they survive too. While the settings are changed and no program is attached,
// at the start and at the end, they are in a file in /run.
//
// The queue pairs that are bound outlive the process, too: the next program, of the
// same process or of the one after it, has the same map, so that at no moment a frame
// to one of them crosses. A filter that does not say Bound drops them. While nobody is
// there they can be read: bpftool map dump name quillon_bound. So does the guard, for
// port.GuardFor after a worker was there last.
//
// Close removes the wire, unless PairConfig.Keep is set or queue pairs are bound. Where both interfaces
// are ports of a bridge, which the wire would keep from all others, the programs pass to it what they do not
// hold; they do so, too, where nothing but words is held, wherever the interfaces are.
// Detach(a, b) removes a wire that somebody left. Detach of a Pair comes first, then
// the workers stop, then Close: a stopped worker behind an attached program would
// only hold frames up until its heartbeat is stale.
//
// A native redirect to a veth arrives only when the other end of that veth
// runs NAPI: GRO on, or an XDP program there. OpenPair turns GRO on there,
// also in another network namespace when it can find it (named, open in this
// process, or that of any process), and asks the kernel (netdev family,
// NETDEV_XDP_ACT_NDO_XMIT) whether redirects will arrive. Where they will not,
// it attaches generically, where a redirect sends like any other frame; where
// that was ruled out, all frames go through the process and Info says that
// there is no wire.
//
// An interface that is moved to another network namespace is gone for the pair, and
// keeps its program: Detach there takes it off, and puts the settings back, but not
// where the interface got another number.
//
// With Fallback Pass, frames that are not for a socket go up the stack: for
// two ports of one bridge.
//
// # One interface alone
//
// Frames that the filter does not want go to the kernel's stack. The program
// is attached by bpf_link and goes with its last port, or the process. Settings
// are put back by Close: a process that is killed leaves them as it made them, and
// what to put back in a file, to the next one and to Detach.
//
// # Memory
//
// A queue (of a pair: the two queues of a number) has one UMEM and so one
// pool; a frame crosses from one interface to the other without a copy in
// user space. PairConfig.Separate gives each interface its own and copies.
// The shared one is the default: it is as fast, within the spread of what was measured (docs/PERFORMANCE.md, AF_XDP). A
// copy has one advantage: its loads of many frames overlap, and those of the kernel, which copies frame by frame in Tx,
// do not. So Rx loads every cache line of a batch first.
//
// The kernel is told of up to four full batches at once. While frames of sparse flows come it is told of each batch: what
// it sends in one go is time in which nobody looks for the next of them, on a veth with all that the receiver's stack does.
//
// At most one ring of chunks is with the kernel for receiving, whether in the
// fill ring or received and not yet handed out, so half of the four rings of chunks
// of a pair is always left for frames that apps hold or that are on their way
// out.
//
// Chunks are of 2 KiB while a frame of the MTU fits behind the kernel's 256
// bytes of headroom, else of 4 KiB. Where even those are too small (an MTU
// above 3818), a frame arrives in several chunks: it is gathered into one Buf
// of a pool on the heap, with slots for the MTU, and split again by Tx.
// The MTU counts that the interface had when it was opened: of one that is raised
// later, what is longer crosses in the kernel.
//
// An app may hold a frame for longer than its port is open. So memory is unmapped
// by the garbage collector, when nobody has a frame of it, nor its port: within
// Go's two minutes at the latest.
//
// # Order
//
// When more than a batch waits in the ring, Rx takes it all, and hands out first the frames
// of flows that have few: those that came behind hundreds of another flow's need not
// wait for these. It does what the queues of fq_codel do (RFC 8290), with turns of a batch,
// and drops nothing. Order is
// kept within a flow: of TCP and UDP the addresses and ports, of RoCEv2 the destination
// queue pair, too, of fragments and all else the addresses. So a datagram that was not
// fragmented may get ahead of one that was, as it may where a network card chooses
// queues by ports. Frames of a flow keep their order whatever their tags. While a batch
// is all that waits, nothing of that is done.
//
// # Settings
//
// On the interface: GRO, LRO and the taking off of VLAN tags are turned off.
// On a veth's other end: transmit checksums, segmentation and tag insertion,
// because what the kernel leaves to a network card to do is never done to a
// frame that crosses here. Info lists what was changed. The namespace of that end
// is looked for again when the settings are put back, so that it can go meanwhile
// with the veth; but one without a file (of ip netns, of Docker) stays until Close.
//
// # Threads
//
// A Port belongs to one worker; Name, Stats, FD and SetFilter may be called
// from any goroutine. Open, OpenPair and Detach act in the network namespace
// of the calling thread: lock the goroutine to it. The sockets that they keep open work
// from any thread later.
package afxdp
