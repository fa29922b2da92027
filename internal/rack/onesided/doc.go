// Package onesided has what clients share if the memory nodes of their store only execute READs, WRITEs and
// atomics: the life of a session's connections and posts (Session, Loop), the description of a memory node's memory
// (Region, Serve), and an allocator of pieces of memory for a client (Slab).
//
// A session stands for one thread of a client. It has one operation under way at a time, which is a chain of posts:
//
//	     Ask, Ask, ...           Post               every node has answered
//	Next ─────────────► requests ────► under way ──────────────────────────► Done ─► the next post, or the end
//	                       ▲               │ a queue pair failed
//	                       └─ Wake ◄─ Lost ┘
//
// Each store decides what its posts are, and where an operation goes on after Lost.
package onesided
