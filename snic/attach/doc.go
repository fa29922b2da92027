// Package attach is the switch-attached pool of boards: a top-of-rack switch (ToR) with boards attached to
// it. It steers the frames of each DAG to the boards that run the DAG, divides the frames among these, and
// decides which board launches which DAG. The boards are those of package snic; the pool port of each is
// connected to a port of the switch.
//
// # What goes where
//
// The deployment is that of the boards. A rule of it says which DAG a frame is for. The flows of a DAG are
// divided into Buckets groups by their hash, and each group has a board. A DAG with state runs at one board
// at a time. A frame goes to its board in the form that boards of a pool use among each other (package snic),
// with the UID of its DAG and the port by which it has to leave. The answer leaves by that port. All other
// frames cross.
//
// # Decisions
//
// A Balancer makes the decisions. It is a state machine: its inputs are the boards' reports (snic/pool), the
// counted bytes and the time; its outputs are wants of a pool.Node, and tables. The Node is that of the
// switch (pool.SwitchAttached), which runs no tasks itself.
//
//   - Launch: the first frames of a DAG wait (hold=) while a board is asked: one that runs the DAG, or
//     else the least loaded board with a free region. If none can run it, its frames cross unprocessed
//     if endpoints can do the work of all of its tasks (endpoint: true), and are dropped otherwise.
//     Boards are asked again after 100 ms, or when one joins.
//   - Overload: each board reports how much more of a DAG it could do. If that is less than a sixteenth
//     of what the board is sent, groups move to boards that can do more, as many groups as make up the
//     difference. If there is no such board, another board launches the DAG. A DAG with state moves as a
//     whole, with its state, to a board that would have less to do with it than this board has now. A
//     group moves in a pause of its flows, so that their frames keep their order. The pause must be
//     longer than gap=, and than twice the time that frames are at the board by its report. After 20 ms
//     without such a pause the group moves all the same, and is counted: then frames of a flow may
//     overtake earlier ones that the overloaded board still has.
//   - Less load: if the other boards of a DAG could do all of it for a second, the DAG leaves the board
//     that it uses least.
//   - A board that leaves: its DAGs go to other boards with their state. Their frames wait meanwhile.
//   - A board that dies is lost when nothing was heard of it for pool.Config.Dead, a second with
//     quillon run. Frames that were sent to it until then are lost. Then its groups go to the other
//     boards, and a DAG that ran there only is launched again, with the last copy of its state if boards
//     send copies (pool-copy=).
//
// # Trust
//
// A board is known by its messages, which are encrypted and authenticated with the pool's secret
// (snic/pool/gossip). A frame counts as a board's only if it comes in by the port of that board, from the
// address that the board reported, for a DAG that runs there. A frame from a host is an ordinary frame,
// whatever it looks like. A board is trusted with the frames of the DAGs that it runs: it may send any frame
// out by any port of a host.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.3 and 5.5; how the switch decides is ours.
package attach
