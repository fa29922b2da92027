// Package cm is the communication manager of a NIC: it makes and ends reliable
// connections with datagrams on queue pair 1, as RDMA CM over IP does.
//
//	Dial ──► ConnectRequest ────────────► Requested ──► Accept, Reject, Delay
//	Established ◄── ConnectReply ◄──────────────────────────┘
//	     └────────► ReadyToUse ─────────► Established
//	Disconnect ───► DisconnectRequest ──► Disconnected
//	Disconnected ◄─ DisconnectReply ◄──────────┘
//
// An Agent is a state machine like the NIC that it uses: Step takes what has
// come and does what is due, Deadline says when something is, and Poll tells
// what happened. A message that is not answered is sent again, and given up after the
// number of retries that the ConnectRequest named. The Agent connects queue
// pairs, and fails them when their connection ends; their owner makes and
// destroys them.
//
// Sources: IBTA Architecture Specification Volume 1 Release 1.4, chapter 12
// and annex A11 (RDMA IP CM); where there is a choice, what Linux sends.
package cm
