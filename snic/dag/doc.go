// Package dag says what is deployed on a SuperNIC: network tasks, the DAGs in
// which tenants want them to run, and what follows from both: which tasks of a
// DAG may run side by side, which chains a region may be loaded with, and which
// chains a packet must visit. It holds no packets and has no state that changes
// under traffic.
//
// A network task (NT) has effects: what its function declares (nf/effect), or what the
// deployment says. A DAG names tasks and the order in which the user wants them. A
// Deployment is all of it, read from YAML and checked. Which tasks are independent is
// said in nf/effect.
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
// accept. Tasks that are in no DAG together are in no chain together. A set whose
// DAGs want opposite orders is there once for each of those that hold all of it. As
// tasks of a chain can be skipped, one order of what is independent serves all. A task
// that no DAG names has a chain of its own. Where these are too many, only tasks that
// are next to each other in a DAG are a chain: every DAG can run with those, too.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.3, 5.4.2
// and 5.4.3. The source states no rule of independence, no form of the text and
// no way to choose among chains: those are this package's.
package dag
