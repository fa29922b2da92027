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
// If the filter is Watched, frames that are not wanted take the same path, and those that no worker takes
// count as bypassed. When the filter stops being Watched, or the worker pauses, frames that are in
// the ring arrive behind later frames that cross in the kernel.
//
// If the filter is Closed, missed frames are dropped instead of crossing. If it is
// Bound, only missed frames to the queue pairs that Port.Bind bound are dropped. They are recognized by
// destination address and QPN, in RoCEv2 and RoCE v1, behind up to two VLAN tags. Frames that
// do not show their queue pair (fragments, IPv6 with extension headers, more tags)
// cross. The queue pairs are in a map, which takes 6 MB in the kernel. The program reads the map only
// for a missed frame, so that a frame that a worker takes costs nothing more. Bind is one system call of one
// to two microseconds, without an allocation. Rebind reads the map and makes one system call for each queue
// pair that changes: for a thousand it takes one to two milliseconds, for port.MaxBound up to 0.2 s. Bind and
// Rebind need no more rights than quillon run keeps, and since Linux 5.19 none.
//
// If the filter is Guarded, missed atomics of RC and XRC to the words in Port.Guard are dropped, except
// those that link the entry which is guarded at the word. An app writes the guard's memory
// directly. As with Bound, the program reads it only for a missed frame.
//
// The heartbeat is a word in a page that the process and the program share.
// Rx and Wait store CLOCK_MONOTONIC there, without a system call. A worker that
// calls neither for Options.Stale (60 ms) is bypassed, whether it is stopped,
// stalled or gone. If the filter is Closed, frames wait in the ring for 1 s before the program drops
// later ones, because the worker may only lack a processor. If it Waits, they wait as long, and later ones cross. The kernel removes the socket of a process that
// died at once. The program sends frames to the socket from the worker's first Rx on, not from Open.
//
// If a worker comes back after frames went past it, its port drops the frames that it received before and
// did not hand over: they must not arrive behind later frames, and what an app learnt from them would
// be stale. Rx delivers nothing in that breath, so
// that the apps are told (Missed) before they see another frame.
//
// # What outlives the process
//
// The programs of a pair are attached by netlink, not by a bpf_link. Therefore the programs,
// their maps and the wire stay when the process dies. No bpf file system is needed, which
// would be a mount and vanish with its mount namespace. The
// next OpenPair of the interfaces finds the programs by name and binds its
// sockets. If its own program would be the same, instruction by instruction
// and with the same hosts, OpenPair keeps the attached program and its
// maps. Otherwise it replaces each program in one step, which waits until all
// processors have forgotten the former program. The settings that Close puts
// back (offloads, promiscuous mode) are stored in a map of the program, so
// that they survive the process, too. While settings are changed and no program is attached,
// at the start and at the end, they are stored in a file in /run.
//
// The bound queue pairs outlive the process, too: the next program, of the
// same process or of the next one, gets the same map, so that at no moment a frame
// to one of them crosses. A filter that is not Bound drops the set. While no process
// is there, "bpftool map dump name quillon_bound" shows the set. The guard outlives the process, too,
// and has an effect for port.GuardFor after the last sign of a worker.
//
// Close removes the wire, unless PairConfig.Keep is set or queue pairs are bound. Where both interfaces
// are ports of a bridge, which the wire would keep from all others, the programs pass to it what they do not
// hold; they do so, too, where nothing but words is held, wherever the interfaces are.
// Detach(a, b) removes a wire that an earlier process left. The caller calls Pair.Detach first, then stops
// the workers, then calls Close: a program that is attached while its worker is stopped would
// hold frames up until the heartbeat is stale.
//
// A native redirect to a veth arrives only when the other end of that veth
// runs NAPI: GRO on, or an XDP program there. OpenPair turns GRO on there,
// also in another network namespace if it can find that namespace (a named one, one open in this
// process, or one of any process), and asks the kernel (netdev family,
// NETDEV_XDP_ACT_NDO_XMIT) whether redirects will arrive. If they will not,
// it attaches generically, where a redirected frame is sent like any other frame. If
// the options rule that out, all frames go through the process and Info says that
// there is no wire.
//
// An interface that is moved to another network namespace is lost for the pair, and
// keeps its program. Detach in that namespace removes the program and puts the settings back, unless
// the interface got another index there.
//
// With Fallback Pass, frames that are not for a socket go to the kernel's stack. This is for
// two ports of one bridge.
//
// # One interface alone
//
// Frames that the filter does not want go to the kernel's stack. The program
// is attached by bpf_link and is removed with its last port, or with the process, unless an app wants a program that
// outlives the process (Port.Outlive). That one is attached by netlink, and is Closed; what it leaves the next Open or Detach
// finds. Close puts the settings back. A process that is killed leaves the changed settings, and a file that says
// what the next process, or Detach, must put back.
//
// # Memory
//
// A queue (of a pair: the two queues of one number) has one UMEM and so one
// pool; a frame crosses from one interface to the other without a copy in
// user space. With PairConfig.Separate, each interface has a UMEM of its own and frames are copied.
// The shared UMEM is the default, because copying is not faster (docs/PERFORMANCE.md, AF_XDP).
// A copy has one advantage: its loads of many frames overlap, while those of the kernel, which copies frame by frame in
// Tx, do not. Therefore Rx loads every cache line of a batch first.
//
// Tx wakes the kernel once for up to four full batches. While frames of sparse flows come, it wakes the kernel for each
// batch, because nobody looks for the next such frame while the kernel sends, on a veth with the receiver's stack.
//
// At most one ring of chunks per interface is used for receiving, whether in the
// fill ring or received and not handed out. So half of the four rings of chunks
// of a pair is always left for frames that apps hold or that are being
// sent.
//
// Chunks are of 2 KiB while a frame of the MTU fits behind the kernel's 256
// bytes of headroom, else of 4 KiB. Where even those are too small (an MTU
// above 3818), a frame arrives in several chunks: it is gathered into one Buf
// of a pool on the heap, with slots for the MTU, and split again by Tx.
// All this depends on the MTU that the interface had when it was opened. If the MTU is raised
// later, longer frames cross in the kernel.
//
// An app may hold a frame for longer than its port is open. Therefore the garbage collector
// unmaps the memory when nobody refers to the port or to one of its frames, which Go notices within
// two minutes.
//
// # Order
//
// If more than a batch waits in the ring, Rx takes all frames, and hands out the frames
// of flows with few frames first, so that they do not wait behind hundreds of frames of another
// flow. The algorithm is that of fq_codel's queues (RFC 8290), with turns of a batch,
// and it drops nothing. Order is kept within a flow. A flow is identified by addresses and ports for
// TCP and UDP, by the destination queue pair in addition for RoCEv2, and by addresses alone for
// fragments and all other frames. So an unfragmented datagram
// may overtake a fragmented one, as with a network card that chooses
// queues by ports. Tags do not distinguish flows. If no more than a batch waits,
// Rx keeps the order of the ring.
//
// # Settings
//
// On the interface, GRO, LRO and the removal of VLAN tags are turned off.
// On a veth's other end, transmit checksums, segmentation and tag insertion are turned off,
// because no network card does to a crossing frame what the kernel leaves to the
// card. Info lists what was changed. When the settings are put back, the namespace of that end
// is looked for again, so that the namespace can vanish with the veth meanwhile. A
// namespace without a file (of ip netns, of Docker) is kept alive until Close. A namespace that is not found is
// searched for again after 1 s, and less and less often down to every 30 s.
//
// Another instance may have the other end of a veth. GRO of an end is then changed by both. Only the instance that changes it
// first has it on record and puts it back. An instance that ends turns GRO on again at its end if the other one needs that.
// This holds for two ends in one network namespace.
//
// # Threads
//
// A Port belongs to one worker; any goroutine may call Name, Stats, FD and SetFilter.
// Open, OpenPair and Detach act in the network namespace
// of the calling thread, so that the caller locks the goroutine to its thread. The sockets that they keep
// open work from any thread later.
package afxdp
