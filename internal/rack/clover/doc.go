// Package clover is Clover, a key/value store on passive disaggregated memory (Tsai, Shan, Zhang, USENIX ATC
// '20), as it looks on the wire. It has memory nodes, where only the NIC works, a metadata server, and the
// client library.
//
//	compute node                      memory node
//	 Session ── READ entry ─────────► entry ─► entry ─► tail     one chain a key
//	   │ cache  WRITE new entry ────►                   ▲
//	   │        CAS tail's header ──► ──────────────────┘
//	   └─ SEND ──► Metadata ── READ ► recycles what is superseded
//
// A key's value is the last entry of a chain. A client remembers where it saw the tail. As long as no other
// client writes, a read is therefore one READ, and a write is one WRITE and one CAS. After a conflict the
// client walks along the chain. The comments of Client and Metadata say why the store stays correct when
// packets are lost, entries are recycled, and a middlebox redirects requests.
//
// Cluster puts a whole store on a rack's ports, runs YCSB on it, measures, and checks its integrity. Every
// machine is a state machine on one goroutine. The machines run live or in virtual time (see rack/host).
//
// Formats (pointer word, entry, messages) are Clover's with a replication factor of 1. One change is
// SwordBox's: the value of an entry starts with its key, 8 bytes, little-endian, at offset 8 of the entry.
package clover
