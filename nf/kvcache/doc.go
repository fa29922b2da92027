// Package kvcache is a cache for Clio's key/value devices, on the way to them: it
// answers reads of keys that it knows.
//
//	clients ── (nf/gobackn) ── kvcache ── (nf/replicate) ── devices
//
// It speaks plain frames, without go-back-N headers: behind nf/gobackn, or among
// clients that repeat requests themselves.
//
// # Why it is never stale
//
// All requests to a device pass here. An entry is valid only while no write of its
// key is between here and the device, and then holds what the device holds: an
// answer from it is one that the device could have given in the same moment. So
// histories stay linearizable.
//
//   - A write invalidates its key's entry before it goes on. Its value is put aside,
//     and becomes valid with the device's answer, when no other write of the key was
//     under way meanwhile.
//   - A read that misses is remembered; its answer fills the cache, unless a write of
//     the key passed meanwhile.
//   - Neither is learnt from a request that was seen before: a device executes a
//     repeated write once, and nobody knows when. Repetitions are known by their
//     number, which must be above all earlier ones of the session (address and UDP
//     port). Nothing is learnt from the first 64 of a session that is not known, and
//     not for settle= from its first one on: they may have passed before it was. A
//     client has no two under way that are further apart.
//   - A write without an answer, or with Busy or Unknown, keeps its key out of the cache for
//     the time settle=, which must be longer than any frame lives.
//   - When frames went past unseen, at the start, and when a write cannot be followed
//     (pending=), all is forgotten, and nothing learnt for that time; writes are
//     followed meanwhile.
//
// Keys of different devices, and in different VLANs (both tags count), are
// different; Clio's pid is not part of a key, since the key/value store of a board
// has one of its own. Two things are not seen, and must not be: fragments, which
// Clio's devices do not take, and copies that nf/replicate writes to others than the
// primary, which are not to be read through a cache.
//
// Several workers share all of it, a batch at a time (nf/turn): which of them gets a frame does not matter.
//
// Source: Shan, dissertation, UC San Diego 2022, section 5.6.1 (a FIFO cache of
// recently read and written pairs). LRU and all of the above are ours.
package kvcache
