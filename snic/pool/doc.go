// Package pool is the distributed part of SuperNIC: boards of a rack that run
// chains and keep pages for each other. A Node is one board's (or the switch's)
// share of it: a state machine, without clock, goroutine or I/O. Messages, the
// time and what the board does go in; messages and events come out.
//
// # View
//
// Every board tells every other, once a period and after changes, which regions
// are free, which chains it runs and with how much bandwidth left, how many pages
// are free, and how much of its ports' bandwidth is in use. Each has its own view
// of the rack, with the age of what it knows; there is no manager.
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
// A chain whose state goes along (Chain.Hand) waits between Ready and Redirect: after Pause
// the body calls Hand with the state, which the host gets (Restore, Serving). Boards with
// other chains (Info.Deployment) have nothing to do with each other.
//
// The host decides about its regions alone, so that two boards do not get the same
// one. The owner's rule comes when the chain runs, never before.
//
// # Coming back
//
// When a region of the owner frees (Freed), the chain that gets most traffic is to
// come back (Return). When it runs here as well (Local), a chain without state is
// at home at once. For one with state new packets wait (Pause), the host stops the
// chain and saves its state, and that is restored here (Resume) before the packets
// that wait, in their order.
//
// A long state is sent once, and again only if it was lost: while a long message is on its way (Sending, Sent) a Node
// makes no other message for its receiver. A host may send copies of the state of a chain that goes on (Copied); copies
// are numbered, and each is kept until the owner has that number.
//
// The state of a chain goes in one message, of at most MaxState bytes, together with the states of other
// chains between the two boards. A chain with more state stays where it is (TooMuch).
//
// # Leaving
//
// A board that stops says so first (Leave), and takes nothing more. Owners fetch the chains that
// it runs for them, as above, at once. If an owner has no room (Stay), packets still wait for
// the state, and the chain may go with it to another peer. When no chain is left (Left) the
// board may go. A chain with too much state (Guest.Stuck) runs there until the board goes.
//
// # Messages may be lost, repeated, late and out of order
//
// There is one message, State: all that its sender has to say to the receiver,
// with what it asks of it and what it answers. The newest counts (numbers, and the
// incarnation of the sender, which grows with each start); nothing depends on one
// that was lost. If newer messages have overtaken one, only states that are still awaited are taken from it.
// A message also says what its sender has seen: an ask that was seen and has no answer is no longer known to the host.
//
// # Pages
//
// A Pager moves pages of virtual memory between boards. A board without room for a page asks the peer that
// Node.Memory names to keep it, and loads it from there when it is accessed again. Requests have numbers within a session of
// two boards, and are done once; they are repeated until there is an answer. A session ends when the peer
// is lost: then all pages that were there are, and what it had here is given back. A page at a peer
// that leaves moves on to another, if one has room.
//
// # Peers that are lost
//
// A peer that is not heard of for Config.Dead is lost, and so is one that Lost names: rules that
// send packets there go (Unredirect), and its chains are placed anew, or refused
// with a reason. Pages that it had are lost (PeerLost; the body tells its virtual
// memory). What it had here is released. A chain's state dies with its board; its owner
// has the newest copy, if there are copies.
// Where two boards do not agree on whether the other is alive, the host may keep a
// region for a while that is of no use to anybody; packets go to one place only.
//
// Package gossip is the live body: membership by hashicorp/memberlist.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), section 5.5; the protocol
// is ours.
package pool
