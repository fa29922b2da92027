// Package xdp runs P4 programs in the kernel: it translates a program that package p4 has loaded to one for XDP (eBPF), without a compiler on the machine,
// and keeps its tables in step with those of a p4.Switch.
//
//	prog, tree, err := p4.LoadTree(json)
//	sw, err := p4.NewSwitch(prog, p4.Config{})
//	x, err := xdp.New(tree, sw.Config(), xdp.Options{From: ..., To: ...})
//	x.Begin(sw)
//	// attach x.Program() to the interfaces; entries are inserted into sw, as ever
//
// Apps of Kind do all that for a graph, by their argument exec (kernel).
//
// # What a frame sees
//
// The same as in the engine, or the engine itself. What the kernel cannot run (Analyse says what, and why) gives the frame to the engine, by a tail
// call of the interface's own program, which has the AF_XDP sockets, as it came in: nothing that the program does to a frame, and nothing that it counts, is seen before the frame has come to its end in
// the kernel. So the engine runs it from the start. Each reason has a counter.
//
// The state of a frame lies in an array that each processor has one of: metadata as words of 64 bits, as in the engine, and headers as they are on the wire.
// The parser is unrolled: a state that is entered at two places of a frame is there twice, so that all places are constants, and the
// kernel sees that the parser ends. What is never read is neither kept nor computed: the program is looked through until no more of it is found to be used.
// At the end headers that the frame has changed are written where they came from; when it has added, removed or moved some, all are written anew
// behind each other, and the head of the frame is moved by the difference.
//
// The kernel's compiler takes instructions as they are. So the program is shortened as a whole before it is loaded (shorten.go): words of the state that are known, by spans,
// are not loaded, branches of which the way is known go there, what nobody reads is not stored, and the zeros with which a state begins are stored where a way comes to
// what reads them. The kernel's own checks stay: it knows less of the state.
//
// # Tables
//
// Keys that are exact are looked up in one hash (cuckoo), those of one LPM field in a trie (strides), those with ternary fields under each of up to 8 masks that entries
// have. Entries and default entries are changed one by one in a way that a frame sees the old one or the new one (follow.go says how). A table whose
// entries are not all in the kernel, as they have more masks or a real range, is the engine's alone, until its Executor ends.
//
// An entry that the kernel has hit counts as hit at the time when somebody asks for it (EntryIdle, ExpiredFrom): it may live longer than its timeout by the time
// between two questions.
//
// # Order, and who sees what
//
// Frames of one flow that are run in the kernel keep their order, and so do those that the engine runs. One that the engine runs comes behind later ones
// that the kernel ran. So exec=engine is an app's default. While a frame is watched (a capture, a trace) all go to the engine. A change of a table is in the engine
// first, and in the kernel when the change returns. When several processors receive, they run frames at the same time, as bmv2 does, without
// anything between them but the registers, which one frame has at a time; of counters each processor has its own.
//
// # What is not here
//
// Meters with rates, action profiles, header stacks, fields of variable length, value sets, sums and products of more than 64 bits, other hashes than crc32 and
// crc16, multicast, clones, digests, recirculation: the engine runs such frames. Programs that are too long for the kernel in one piece are
// refused, and those of which it could finish no frame. Pairs of interfaces (a wire outlives its process, and these programs must not) and generic XDP are the engine's. When the process ends the
// kernel runs nothing any more: nothing is pinned.
package xdp
