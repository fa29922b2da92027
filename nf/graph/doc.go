// Package graph turns a passive description (Spec) of ports, apps and links
// into running workers, and changes them under traffic: Diff makes a printable
// Plan of two Specs, and a Plan is applied between breaths.
//
//	port.Rx ─► app ─► app ─► port.Tx     one breath of one worker:
//	   a.out    steer.a  …     b.in      timers, receive, push in order, send
//
// Each worker has its own instances of all apps, its own queues of all ports
// and its own buffers; within a breath nothing is shared and nothing is locked.
// The instances of an app may hand each other frames (Ctx.Hand, Hooks.Taken). The frames
// are copied into rings, one from each worker to each other one; a breath makes what it wrote
// visible, and frees what it read, with one store each.
// A worker does what others ask of it (a Plan, a trace, a tap, a report)
// between two breaths. Live, a worker is a goroutine on a thread of its own
// (Instance.Run); in replay, in tests and in simulations somebody else owns the
// time (Instance.Step, Instance.Push), and the same breath runs without any
// goroutine, the same way every time.
//
// Every frame stays in the books: received + generated = transmitted + dropped
// (for a named reason) + punted + held, where a frame on its way from worker to worker
// is held. Instance.Conservation checks them.
package graph
