// Package sherman is a B+tree on disaggregated memory as Sherman has it (Wang, Lu
// and Shu, "Sherman: a write-optimized distributed B+tree index on disaggregated
// memory", SIGMOD 2022): clients do everything with one-sided verbs.
//
//	search   [READ root pointer, READ internal pages] READ leaf
//	write    ... CAS lock 0 -> tag, READ leaf, WRITE entry + WRITE lock 0 (one post)
//	split    ... WRITE new page; WRITE page + WRITE lock 0; the same one level up
//	delete   as a write, with the value 0, which means that the key is not there
//	range    ... READs of up to 32 leaves at a time
//
// Locks lie in a table of their own (device memory, 256 KiB, at address 0). A lock has 8
// bytes; a hash of the page's address is its index. Sessions of one client hand a
// lock over to each other up to 8 times before it is released. Pages have a
// version at both ends, and so have entries of leaves: a reader without the lock reads
// again if the two versions differ. Pages link to their right neighbours, so that a search
// that arrives too far left finds its way (Lehman and Yao, TODS 1981).
//
// As in Sherman, a range is no snapshot: each key has its value of one moment of the
// operation, and these moments may differ between keys. The public code skips
// entries that are being written; this package reads the leaf again. Pages that deletions
// leave empty stay where they are.
//
// A session whose queue pair fails while it holds a lock connects again, reads which session holds the lock,
// and repeats the operation. If a client dies while it holds a lock, the lock stays taken: Sherman has no way
// to take it away.
//
// Layouts are little-endian and packed; page.go has the offsets.
package sherman
