// Package pool is the distributed part of SuperNIC: boards of a rack run chains and keep pages for each
// other. A Node is the part of one board (or of the switch): a state machine without clock, goroutine or
// I/O. Its caller, the body, passes messages, the time and what the board does; the Node returns messages
// and events.
//
// # View
//
// Every board tells every other, once a period and after changes, which of its regions are free, which
// chains it runs and how much bandwidth each has left, how many pages are free, and how much of its
// ports' bandwidth is in use. Each board has its own view of the rack, and knows how old it is; there is
// no manager.
//
// # Placement
//
// A chain for which a board has no region goes to a peer that runs it and has
// bandwidth left; else to one with a free region that is large enough. Among these
// it goes to the nearest (fewest hops), then to the least loaded, then to the lowest
// number. Behind a switch that balances (SwitchAttached) all are as near: the least
// loaded is chosen.
//
//	owner                                   host
//	ask ───────────────────────────────────► Reserve: a region, or a share
//	  ◄─────────────────────────── Granted, or Refused: the next peer is asked
//	bitstream (its bytes at the link's rate) ► Load: PR
//	Redirect: a rule in the parser ◄── Ready
//
// Packets of a chain whose state moves to the host (Chain.Hand) wait between Ready and Redirect: after
// the event Pause the body calls Hand with the state, and the host restores it (Restore, Serving). Boards
// with different chains (Info.Deployment) do not use each other.
//
// Only the host decides about its regions, so that two boards never get the same region. The owner
// redirects packets when the chain runs at the host, never before.
//
// # Coming back
//
// When a region of the owner becomes free (Freed), the chain with most traffic comes back: the event
// Return tells the body to launch it. When it runs at the owner as well (Local), a chain without state is
// at home at once. For a chain with state, new packets wait (Pause), and the host stops the chain and
// saves its state. The owner restores it (Resume), and then runs the packets that wait, in their order.
//
// A long state is sent once, and again only if it was lost: while a long message is on its way (Sending, Sent)
// a Node makes no other message for its receiver. A host may send copies of the state of a chain that goes on
// (Copied); copies are numbered, and each is kept until the owner has that number.
//
// The state of a chain goes in one message, of at most MaxState bytes, together with the states of other
// chains between the two boards. A chain with more state stays where it is (TooMuch).
//
// # Leaving
//
// A board that will stop announces it (Leave), and takes no more chains. Owners fetch their chains
// from it at once, as above. If an owner has no region (Stay), packets still wait for the state, and the
// chain may move with its state to another peer. When no peer's chain is left (Left) the board may stop.
// A chain with too much state (Guest.Stuck) runs there until the board stops.
//
// # Messages may be lost, repeated, late and out of order
//
// There is one type of message, State. It holds all that its sender has to say to the receiver: its Info,
// what it asks for and what it answers. The newest message counts (by the incarnation of the sender, which
// grows with each start, and the number of the message); no message depends on an earlier one. From a message
// that newer ones have overtaken, a Node takes only states that it still awaits. A message also says which
// message of the receiver its sender has seen: if the host has seen an ask and has no answer, it has forgotten it.
//
// # Pages
//
// A Pager moves pages of virtual memory between boards. A board without room for a page asks the peer that
// Node.Memory names to keep it, and loads it from there when it is accessed again. Requests have numbers within a
// session of two boards; they are repeated until there is an answer, but done once. A session ends when the peer is
// lost: then all pages at the peer are lost, and frames that were lent to it are free again. Pages at a peer that
// leaves move to another peer, if one has room.
//
// # Peers that are lost
//
// A peer is lost if no message of it comes for Config.Dead, or if the body calls Lost for it. Then packets are
// no longer sent to it (Unredirect), and the chains that it ran are placed anew, or refused with a reason. Pages
// that it kept are lost (PeerLost; the body tells its virtual memory). Regions that its chains had here are
// released. The state of a chain is lost with its host; the owner has the newest copy, if there are copies. If
// two boards do not agree on whether the other is alive, the host may keep a region for a while that no board
// uses; packets go to one place only.
//
// Package gossip is the live body: membership by hashicorp/memberlist.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), section 5.5. This package defines the protocol.
package pool
