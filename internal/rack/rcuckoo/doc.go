// Package rcuckoo is a cuckoo hash table on disaggregated memory as RCuckoo has it (Grant, "Disaggregated
// Data Structures", UCSD 2024, chapter 3): clients do everything with one-sided verbs.
//
//	read    READ both rows (one READ when they are near); READ the value, if it is not there
//	update  masked CAS of locks + READ rows; WRITE row + masked CAS (one post each)
//	insert  [search the cache] masked CAS + READ rows; [search the locked rows] WRITE rows,
//	        from the path's end + masked CAS
//
// Locks are bits of a table in the NIC's memory, at address 0. Each lock is for some neighbouring rows. A
// session takes locks in ascending order, and all locks of one 64-bit word at once. A key's two rows are near
// each other (Hashing), so most operations need locks of one word only. A session that waits too long for a
// lock frees the locks that it holds and begins again.
//
// A client that dies keeps its locks, and may leave a torn row and an entry in two places. A session that
// finds a lock held for long, while nothing changes in the rows behind it, takes the lease of the lock's
// region, repairs the region, and frees the lock. If this session dies meanwhile, another session does the
// same. A client that is slow for that time (FailAfter) counts as dead. Its late WRITEs would do damage; the
// authors leave this open (section 3.3.4). Sessions that have places (Layout.Places) write there which locks
// they want, so a repairer knows which sessions may hold the lock. The repairer asks that these sessions be
// shut out on the way (Config.Shut, tor/fence), observes the lock again from the time when none of their
// requests is under way, and then repairs. If no box shuts them out, it repairs as it does without places,
// and counts this (Stats.NotShut).
//
// What the authors leave open, or do not do, is decided as follows.
//
//   - Their text and their code differ in the row (Form) and in the hash (Hashing).
//     The CRC is CRC-64/ECMA; 7 bytes that are 0 follow the version.
//   - Entries with a pointer do not fit into 8 bytes: they have 16 (Wide). Entries of
//     8 bytes have no bit for their type.
//   - A key that is in neither row may have moved from the row that was read last to the row that was read first. It
//     counts as missing when two readings found the rows equal. Rows of the form Code cannot tell an old row from one
//     that became the same again.
//   - An insertion looks whether the key is there, and locks both rows of the key for that. Blind insertions work as
//     the authors' do.
//   - READs behind a masked CAS on one queue pair are executed behind it, so that no
//     fence is needed. The authors set one and say that it costs nothing; by the
//     InfiniBand specification it costs a round trip, and so it does here (Fence).
//   - A lease may be taken from a session that seems dead only if the lease has not changed since the observation of the
//     lock began (suspect). A repair that finds the other copy of an entry in another region takes the leases of both
//     regions: two repairs that clear one copy each would lose the entry.
//   - The memory of an extent is used anew FailAfter after it was freed. A read that took longer than half of FailAfter
//     begins again.
//   - After its queue pair failed, a session does not know which locks it holds, and leaves them for repair. An
//     operation whose WRITEs were posted ends with ErrUnknown.
package rcuckoo
