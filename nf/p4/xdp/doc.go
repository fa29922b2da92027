// Package xdp runs P4 programs in the kernel: it translates a program that package p4 has loaded to one for XDP (eBPF), without a compiler on the machine,
// and keeps its tables in step with those of a p4.Switch.
//
//	prog, tree, err := p4.LoadTree(json)
//	sw, err := p4.NewSwitch(prog, p4.Config{})
//	x, err := xdp.New(tree, sw, xdp.Options{Ports: map[int]uint32{ifindex1: 1, ifindex2: 2}})
//	// attach x.Program() to the interfaces; entries are inserted into sw, as ever
//
// # What a frame sees
//
// The same as in the engine, or the engine itself. What the kernel cannot run (Analyse says what, and why) gives the frame to the engine, by an AF_XDP
// socket, as it came in: nothing that the program does to a frame, and nothing that it counts, is seen before the frame has come to its end in
// the kernel. So the engine runs it from the start. Each reason has a counter.
//
// The state of a frame lies in an array that each processor has one of: metadata as words of 64 bits, as in the engine, and headers as they are on the wire.
// The parser is unrolled: a state that is entered at two places of a frame is there twice, so that all places are constants, and the
// kernel sees that the parser ends. What is never read is neither kept nor computed: the program is looked through until no more of it is found to be used.
// At the end headers that were changed are written where they came from; when headers were added, removed, or may have moved, all are written anew
// behind each other, and the head of the frame is moved by the difference.
//
// # Tables
//
// Keys that are exact are looked up in one hash, those with an LPM field in a trie, those with ternary fields under each of up to 8 masks that entries
// have. Entries and default entries are changed one by one in a way that a frame sees the old one or the new one (follow.go says how). A table whose
// entries are not all in the kernel, as they have more masks or a real range, is the engine's alone, until its Executor ends.
//
// An entry that the kernel has hit counts as hit at the time when somebody asks for it (EntryIdle, ExpiredFrom): it may live longer than its timeout by the time
// between two questions.
//
// # What is not here yet
//
// Registers, hashes, meters with rates, action profiles, header stacks, fields of variable length, value sets, numbers of more than 64 bits
// in arithmetic, multicast, clones, digests, recirculation: the engine runs such frames. Programs that are too long for the kernel in one piece are
// refused. No app of a graph runs a program this way.
package xdp
