// Package sherman is a B+tree on disaggregated memory as Sherman has it (Wang, Lu
// and Shu, "Sherman: a write-optimized distributed B+tree index on disaggregated
// memory", SIGMOD 2022): clients do everything with one-sided verbs.
//
//	search   [READ root pointer, READ internal pages] READ leaf
//	write    ... CAS lock 0 -> tag, READ leaf, WRITE entry + WRITE lock 0 (one post)
//	split    ... WRITE new page; WRITE page + WRITE lock 0; the same one level up
//	delete   as a write, with the value 0, which is none
//	range    ... READs of up to 32 leaves at a time
//
// Locks lie in a table of their own (device memory, 256 KiB, at address 0), 8
// bytes each, found by a hash of the page's address. Sessions of one client hand a
// lock over to each other up to 8 times before it is released. Pages carry a
// version at both ends, entries of leaves, too: who reads without the lock reads
// again when they differ. Pages link to their right neighbours, so that a search
// that comes too far left finds its way (Lehman and Yao, TODS 1981).
//
// A range is no snapshot, as in Sherman: each key is as it was at one moment of the
// operation, and keys may be of different moments. The public code passes over
// entries that are being written; here the leaf is read again. Pages that deletions
// leave empty stay where they are.
//
// A session whose queue pair fails while it holds a lock dials again, looks whose
// the lock is, and repeats what was under way. A client that dies with a lock
// keeps it: Sherman has no way to take it away.
//
// Layouts are little-endian and packed; offsets are at page.go.
package sherman
