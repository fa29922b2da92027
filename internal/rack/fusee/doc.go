// Package fusee is the key/value store on disaggregated memory of FUSEE (Shen et al.,
// "FUSEE: A Fully Memory-Disaggregated Key-Value Store", FAST '23): clients do everything
// with one-sided verbs, on an index and objects of which several memory nodes have copies.
//
//	read    READ both buckets; READ the object [both at once, of a slot that is cached]
//	update  WRITE object + READ buckets; READ old object; CAS backups; [CAS those that
//	        others have;] WRITE old word into the object; CAS primary; WRITE old object's state
//	insert  as an update of a free slot, tentatively; READ buckets again; then for good
//	delete  as an update whose word says that the slot is free; its object is the log
//
// A Wide client's reads, updates and deletions READ the object of a cached slot together with both buckets.
// With one replica the backups' CASes and the WRITE of the old word are left out.
//
// The index is RACE hashing's: subtables of bucket groups, two main buckets and an overflow
// bucket between them; a key has a main bucket, with its overflow bucket, in each half of a
// subtable. A slot is 8 bytes: fingerprint, length, address. Subtables do not grow.
//
// A slot is changed by a round of SNAPSHOT (round.go). Memory is allocated at two levels: memory nodes
// give blocks to clients (Cluster.Alloc), clients divide blocks into objects. Each object ends with the log entry
// of the operation that wrote it: its kind, and, once the operation has won its round, the word that it replaced.
// Recover finds the operations that a dead session had under way, and finishes or undoes them. Master removes
// memory nodes that have vanished.
//
// Where the authors leave something open, or this package differs from them:
//
//   - With the public code, two clients that insert one key at once may both succeed, in two slots. Here an
//     insertion is tentative until it has looked for others (insert). Blind insertions work as those of the code.
//   - A deletion's word is not 0, but says that the slot is free, and refers to the deletion's object. The reason:
//     SNAPSHOT needs that no word comes into a slot a second time while a session still knows the first one. The
//     object's memory is free when the slot is taken again.
//   - A session that has waited for a round's winner for FailAfter finishes the round itself, because the backups'
//     words show the winner. The authors ask the master.
//   - The log is walked by blocks, and not by lists through the objects: objects are used anew in any order, which
//     breaks lists. An operation is redone only if some copy of a slot has its word; a session that has learned that
//     it lost need not write that down.
//   - A session, and not a process, owns blocks and is recovered.
//   - Free memory is used anew after FailAfter. A read, and the words that a round replaces, are trusted for half of
//     that time; so is a cached word whose object is read beside its slot.
//   - A client that is slow for FailAfter counts as dead. Its later requests are mostly harmless, since their CASes
//     fail; to mark an object free is not harmless.
//   - A node that was taken out does not come back, and no other node takes its place.
package fusee
