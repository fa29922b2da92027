// Package dag says what is deployed on a SuperNIC: network tasks, the DAGs in
// which tenants want them to run, and what follows from both: which tasks of a
// DAG may run side by side, which chains a region may be loaded with, and which
// chains a packet must visit. It holds no packets and has no state that changes
// under traffic.
//
// A network task (NT) declares its effects: the fields of a packet that it
// reads and writes, whether a packet may end in it, whether packets come out of
// it at a time of its own choice, and whether it remembers packets. A DAG names
// tasks and the order in which the user wants them. A Deployment is all of it,
// read from YAML and checked.
//
// # Independence
//
// Two tasks are independent, and may change places or run side by side on
// copies of a packet's header, if all of these hold:
//
//   - Neither writes what the other reads or writes.
//   - Neither adds or removes bytes, unless the other looks at no byte: where a
//     field is depends on every byte in front of it, and two copies of which
//     one has grown cannot be merged field by field.
//   - Where one may end packets (Drops or Answers), the other neither remembers
//     packets (State) nor answers them itself: it must not have seen, or
//     answered, a packet that would never have come to it.
//   - Where one Answers, the other writes nothing: an answer is made of the packet
//     as those before have left it, and goes back through them.
//
// Checksums, the lengths in headers and the ICRC are derived from the rest and
// are no fields: who merges copies computes them again.
//
// To find it from what functions declare to read and write is NFP's idea (Sun et
// al., SIGCOMM 2017: 53.8 % of the pairs of network functions can run side by
// side, 41.5 % without more resources). The rules here are stricter, and
// symmetric: on copies of packets, a task could also write beside one in front
// of it that reads the same. Here it does not, so that independent tasks may
// change places within one chain, too. That what a task remembers or answers
// must not change is this package's rule.
//
// # Stages
//
// A user's order is often a line where less would do. What remains of it are
// the pairs that are not independent, in the user's direction; a pair of which
// the user says nothing and that is not independent runs in the order in which
// the DAG's text names the two. What remains is cut into a series of stages; a
// stage is a set of branches that run in parallel, a branch a sequence of
// tasks. A stage begins where all that is before must be done before anything
// that is behind; within it, tasks that are bound to each other, directly or
// through others, are one branch. A branch that is no sequence by itself is put
// into one, which costs some parallelism and no region.
//
// # Chains
//
// The chains are the bitstreams of a region, made at deployment: every set of
// tasks that fits a region and that a DAG has, in an order that all DAGs
// accept. Tasks that are in no DAG together are in no chain together. A set whose DAGs want opposite orders is there once for each of those
// that hold all of it. As tasks of a chain can be skipped, one order of what is
// independent serves all. A task that no DAG names has a chain of its own.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.3, 5.4.2
// and 5.4.3. The source states no rule of independence, no form of the text and
// no way to choose among chains: those are this package's.
package dag
