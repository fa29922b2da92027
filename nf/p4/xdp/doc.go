// Package xdp runs P4 programs in the kernel. It translates a program that package p4 has loaded to XDP (eBPF),
// without a compiler on the machine, and keeps the program's tables equal to those of a p4.Switch.
//
//	prog, tree, err := p4.LoadTree(json)
//	sw, err := p4.NewSwitch(prog, p4.Config{})
//	x, err := xdp.New(tree, sw.Config(), xdp.Options{From: ..., To: ...})
//	x.Begin(sw)
//	// attach x.Program() to the interfaces; entries are inserted into sw, as ever
//
// Apps of Kind do all this in a graph, if their argument exec asks for it (kernel.go).
//
// # What a frame sees
//
// A frame gets the same treatment as in the engine, or it goes to the engine. If a frame comes to something
// that the kernel cannot run (Analyse says what and why), the program gives the frame to the engine as it came
// in, by a tail call of the interface's own program, which has the AF_XDP sockets. Nothing that the program
// does to a frame or counts is visible before the frame has come to its end in the kernel, so the engine can
// run the frame from the start. Each reason for giving a frame to the engine has a counter.
//
// The state of a frame is in a per-CPU array: metadata as 64-bit words, as in the engine, and headers as they
// are on the wire. The parser is unrolled: a state that is entered at two offsets in a frame is translated
// twice, so that all offsets are constants and the verifier sees that the parser ends. What is never read is
// neither kept nor computed: the program is translated again and again until a pass finds nothing more that is
// used. At the end, changed headers are written back to their places. If headers were added, removed or moved,
// all headers are written one after the other, and the head of the frame is moved by the difference.
//
// The kernel's compiler does not optimise. The program is therefore shortened as a whole before it is loaded
// (shorten.go): words of the state whose value is known are not loaded, branches whose direction is known
// become jumps, stores that nothing reads are removed, and the zeros at the start of a state are stored only on
// paths that read them. The checks that the verifier demands stay, because the verifier knows less about the
// state.
//
// # Tables
//
// Exact keys are looked up in a hash (cuckoo), keys of one LPM field in a trie (strides), keys with ternary
// fields under each of up to 8 masks of the entries, and keys with ranges in bit vectors (vectors.go), as keys of the parser are that ask
// value sets (valueset.go). Entries may run members or groups of an action profile, of
// which the hash of the selector chooses a member, as in the engine (profile.go). Entries and default entries are changed one by one, so
// that a frame sees either the old one or the new one (see follow.go). If not all entries of a table fit into
// the kernel, because they have more masks or ranges, the engine runs all frames that come to the table,
// until they fit again (stopped.go).
//
// An entry that the kernel has hit counts as hit at the time when EntryIdle or ExpiredFrom asks for it. It may
// therefore outlive its timeout by the time between two questions.
//
// # Meters
//
// Meters are memory of both executors (meter.go). Each cell has a word that says who changes it, so that frames wait only for frames
// of the same cell.
//
// # Multicast
//
// The program runs egress for each replica of a group. If the copies are alike, one frame goes to a set of
// interfaces (copies.go); otherwise the frame goes to the engine.
//
// # Order, and who sees what
//
// The frames of a flow that the kernel runs keep their order, and so do those that the engine runs. A frame
// that the engine runs may leave after later frames that the kernel has run; for this reason exec=engine is the
// default of an app. While frames are watched (by a capture or a trace), all go to the engine. A change of a
// table is made in the engine first, and is in the kernel when the call returns. If several processors receive
// frames, they run them at the same time, as bmv2 does. They share only the registers, which one frame has at a
// time, and the meters; each processor has counters of its own.
//
// # What is not here
//
// The engine runs frames that need stacks of header unions, copies of fields of variable length, sums and products of
// more than 64 bits, hashes other than crc32 and crc16, copies that differ, clones, digests or recirculation. New refuses programs that are too long for the kernel in one piece, and
// programs of which the kernel could finish no frame. Pairs of interfaces and generic XDP are left to the engine.
//
// # When the process dies
//
// By default the kernel runs nothing of it then. With Options.Outlives, and on ports that outlive the process
// (afxdp.Port.Outlive), the program goes on with the entries that it had, and drops frames for the engine. The next
// Executor of the same program shares its counts and registers: see heritage.go. Nothing is pinned.
package xdp
