// Package onesided is what the clients of stores have in common whose memory nodes only execute READs, WRITEs and
// atomics: the life of a session's connections and posts (Session, Loop), what a memory node tells of its memory
// (Region, Serve), and memory of which a client gives out pieces (Slab).
//
// A session is a thread of a client. It has one operation under way, which is a chain of posts:
//
//	     Ask, Ask, ...           Post               every node has answered
//	Next ─────────────► requests ────► under way ──────────────────────────► Done ─► the next post, or the end
//	                       ▲               │ a queue pair failed
//	                       └─ Wake ◄─ Lost ┘
//
// What the posts of a store are, and from where an operation goes on after Lost, is the store's own.
package onesided
