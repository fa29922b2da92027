// Package dag says what is deployed on a SuperNIC: network tasks, the DAGs in
// which tenants want them to run, and what follows from both: which tasks of a
// DAG may run side by side, which chains a region may be loaded with, and which
// chains a packet must visit. It holds no packets and has no state that changes
// under traffic.
//
// A network task (NT) has effects: its function declares them (nf/effect), or the deployment
// does. A DAG names tasks and the order in which the user wants them. A Deployment holds the
// tasks, tenants, DAGs, regions and rules, read from YAML and checked. Package nf/effect
// defines which tasks are independent.
//
// # Stages
//
// A user's order is often a line, although fewer constraints would do. Stages keeps a
// constraint only for pairs of tasks that are not independent, in the user's direction. If the
// user states no order for such a pair, it runs in the order in which the DAG's text names the
// two. Stages cuts the DAG into a series of stages. A stage is a set of branches that run in
// parallel; a branch is a sequence of tasks. A new stage begins where all earlier tasks must be
// done before any later task. Within a stage, tasks that depend on each other, directly or
// through other tasks, are in one branch. If the tasks of a branch form no sequence by
// themselves, they are put into one, which costs some parallelism and no region.
//
// # Chains
//
// The chains are the bitstreams that a region may be loaded with. They are made at deployment,
// one for every set of tasks that fits a region and that some DAG has, in an order that all
// DAGs accept. Tasks that no DAG has together are in no chain together. If DAGs want a set in
// opposite orders, there is one chain for each DAG that has the whole set. One order of
// independent tasks serves all DAGs, because tasks of a chain can be skipped. A task that no
// DAG names has a chain of its own. Where there would be too many chains, only tasks that are
// next to each other in a DAG form a chain; every DAG can still run with those.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.3, 5.4.2 and 5.4.3. The
// source gives no rule of independence, no form of the text and no way to choose among chains:
// this package defines them.
package dag
