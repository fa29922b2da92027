// Package cm implements the communication manager of a NIC, which makes and ends reliable
// connections with datagrams on queue pair 1, as RDMA CM over IP does.
//
//	Dial ──► ConnectRequest ────────────► Requested ──► Accept, Reject, Delay
//	Established ◄── ConnectReply ◄──────────────────────────┘
//	     └────────► ReadyToUse ─────────► Established
//	Disconnect ───► DisconnectRequest ──► Disconnected
//	Disconnected ◄─ DisconnectReply ◄──────────┘
//
// An Agent is a state machine like the NIC that it uses: Step takes received datagrams
// and does the work that is due, Deadline returns the time of the next such work, and Poll
// returns what happened. The Agent repeats a message that is not answered, and gives up after the
// number of retries that the ConnectRequest named. It connects queue
// pairs, and fails them when their connection ends; their owner makes and
// destroys them.
//
// Sources: IBTA Architecture Specification Volume 1 Release 1.4, chapter 12
// and annex A11 (RDMA IP CM). Where these leave a choice, the package does what Linux does.
package cm
