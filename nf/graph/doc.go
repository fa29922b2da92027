// Package graph turns a passive description (Spec) of ports, apps and links
// into running workers, and changes them under traffic: Diff makes a printable
// Plan of two Specs, and a Plan is applied between breaths.
//
//	port.Rx ─► app ─► app ─► port.Tx     one breath of one worker:
//	   a.out    steer.a  …     b.in      timers, receive, push in order, send
//
// Each worker has its own instances of all apps, its own queues of all ports
// and its own buffers; within a breath nothing is shared and nothing is locked.
// The instances of an app may hand frames to each other (Ctx.Hand, Hooks.Taken). The frames
// are copied into rings: each pair of workers has one ring in each direction. A breath publishes
// the frames that it wrote to a ring with one store, and frees the frames that it read with another.
// A worker carries out requests (a Plan, a trace, a tap, a report)
// between two breaths. Live, a worker is a goroutine on a thread of its own
// (Instance.Run). In replay, in tests and in simulations the caller sets the
// time (Instance.Step, Instance.Push): the same breath runs without any
// goroutine, with the same result every time.
//
// Every frame is counted: received + generated = transmitted + dropped
// (for a named reason) + punted + held. A frame on its way from worker to worker
// counts as held. Instance.Conservation checks the counts.
package graph
