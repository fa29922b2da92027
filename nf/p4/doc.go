// Package p4 runs compiled P4_16 programs. It reads the JSON that p4c's bmv2 back ends write for the v1model
// architecture and for the Portable Switch Architecture (PSA; format version 2), and behaves like bmv2's
// simple_switch and psa_switch. Load finds the architecture by the program's metadata.
//
//	prog, err := p4.Load(json)
//	sw, err := p4.NewSwitch(prog, p4.Config{})
//	_, err = sw.Insert("ingress.ipv4_lpm", p4.Entry{
//		Key:    []p4.Match{{Value: []byte{10, 0, 0, 0}, Prefix: 8}},
//		Action: p4.Action{Name: "ingress.forward", Args: [][]byte{{2}}},
//	})
//	sw.Process(now, 1, frame, func(port uint32, frame []byte) { ... })
//
// # From JSON to a program
//
// Load turns names into offsets. The state of a packet is one flat array of 64-bit words: every field takes one
// or more words, and a header is its validity bit followed by its fields. Expressions become closures. In bmv2
// the values of P4 expressions are integers without bounds. Here every node of an expression knows the bounds
// of its value, so that most values are computed in one word modulo 2^64, and the others in as many words of
// two's complement as they need. While packets are processed nothing is looked up by name and nothing is
// allocated.
//
// # What differs from simple_switch
//
//   - A packet starts with all fields zero; bmv2 leaves in an invalid header
//     what an earlier packet left there.
//   - One packet is processed to its end, with its clones, replicas and
//     recirculations in the order in which they were queued, before the next.
//     There is no queue: depths and times in queues are 0.
//   - A packet may take Config.MaxPasses passes through the pipelines, and a
//     parser maxStates states (then: error.ParserTimeout), an action maxJumps jumps.
//     bmv2 would go on for ever.
//   - Where bmv2 aborts or reads random memory the outcome is defined. An index
//     outside of a stack or a register array reads 0 and writes nothing, a
//     division by zero yields 0, a lookahead behind the end of the packet is
//     error.PacketTooShort. A failed assert or assume drops the packet.
//   - Misses are counted with the default entry's direct counter, and metered when
//     its direct meter has rates.
//   - A clone session may cut its clones (Session.Length): in v1model when they leave and when
//     they are recirculated, in PSA before egress.
//   - Shifts to the left by a variable keep at least 4096 bits.
//   - A prefix counts the bits of its field. In bmv2 it also counts the zeros that fill up the first byte of a
//     field whose width is no multiple of 8.
//
// # What differs from psa_switch
//
// The same, and where psa_switch does not do what the specification of PSA says:
//
//   - A resubmitted packet has the ingress_port that it had; in psa_switch it has 0.
//   - An InternetChecksum begins with 0 for each packet, and subtracts all words of its data; psa_switch
//     keeps the sum of the packet before, and leaves out words that are 0 at the beginning of the data.
//   - Direct meters give PSA's colors, as indirect ones do.
//   - Digests reach the controller, each with what its fields were when the program packed it;
//     psa_switch takes no program with digests.
//   - A clone session has a class of service and instances. PSA_CLONE_SESSION_TO_CPU (session 0) is
//     there from the start.
//   - A parser may have errors of its own: p4c-bm2-psa leaves their list out of the JSON, and psa_switch aborts
//     when one comes.
//   - A class of service that ports do not have (Config.Queues) counts as class 0.
package p4
