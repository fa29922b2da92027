// Package attach is the switch-attached pool of boards: a top-of-rack switch (ToR) in front of boards that are attached to
// it. It steers the frames of each DAG to boards that run it, spreads them over these, and decides which board launches
// what. The boards are those of package snic, each with its pool port at a port of the switch.
//
// # What goes where
//
// A rule of the deployment, which is that of the boards, says which DAG a frame is for. A DAG's flows are divided by their
// hash into Buckets groups, and each group has a board. A DAG with state is at one board at a time. The frame goes to the
// board as it does between boards of a pool (package snic), with the UID of its DAG and the port by which it is to leave;
// the answer leaves by that port. All other frames cross.
//
// # Decisions
//
// A Balancer makes them: a state machine. What boards tell (snic/pool), what was counted, and the time go in; wants of a
// pool.Node and tables come out. The Node is that of the switch (pool.SwitchAttached), which runs nothing itself.
//
//   - Launch: the first frames of a DAG wait (hold=) while a board is asked: one that runs it, or the least loaded that has a
//     region. When none can, its frames cross unprocessed if endpoints can do the work of all of its tasks (endpoint: true), and
//     are dropped otherwise. Boards are asked again after 100 ms, or when one joins.
//   - Overload: a board says how much more of a DAG it could do. When that is less than a sixteenth of what it is sent, groups of
//     flows move to boards that can do more, as many as make up the difference; when there are none, another board launches the
//     DAG. A DAG with state moves as a whole, with its state, to a board that has less to do than this one would have
//     without it. A group moves in a pause of its flows that is longer
//     than frames are at the board (gap=, and twice what that tells), so that they keep their order; after 20 ms without
//     one, all the same, which is counted: then frames of a flow may overtake those that an overloaded board still has.
//   - Less load: a DAG whose other boards could do all of it for a second leaves the one that it uses least.
//   - A board that leaves: its DAGs go to others with their state; their frames wait meanwhile.
//   - A board that dies is lost when nothing was heard of it for pool.Config.Dead, a second with quillon run. Frames that were
//     sent there until then are lost; then its groups are the other boards', and what was there alone is launched anew, with
//     the last copy of its state if boards send some (pool-copy=).
//
// # Trust
//
// A board is known by its messages, which are encrypted and authenticated with the pool's secret (snic/pool/gossip). Frames
// count as a board's only when they come in by the port of that board, from the address that it told, for a DAG that it
// runs. What a host sends is an ordinary frame, whatever it looks like. A board is trusted with the frames of the DAGs that
// it runs: it may send anything out by any port that hosts are at.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.3 and 5.5; how the switch decides is ours.
package attach
