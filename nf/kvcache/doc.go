// Package kvcache is a cache on the way to Clio's key/value devices: it answers reads of keys that it knows.
//
//	clients ── (nf/gobackn) ── kvcache ── (nf/replicate) ── devices
//
// It handles plain frames, without go-back-N headers: it stands behind nf/gobackn, or serves clients that repeat
// requests themselves.
//
// # Why it is never stale
//
// All requests to a device pass through the cache. An entry is valid only while no write of its key is between
// the cache and the device, and then holds what the device holds. An answer from the entry is thus one that the
// device could have given at the same moment, and histories stay linearizable.
//
//   - A write invalidates its key's entry before it goes on. Its value is put aside, and becomes valid when
//     the device answers, unless another write of the key was under way meanwhile.
//   - A read that misses is remembered; its answer fills the cache, unless a write of the key has passed
//     meanwhile.
//   - Nothing is learnt from a repeated request, because a device executes a repeated write once, and nobody
//     knows when. A request is known to be no repetition by its number, which must be above all earlier ones
//     of its session (address and UDP port). From a session that was not known before, nothing is learnt for
//     64 numbers, nor for settle= from its first request on, because these requests may have passed before. A
//     client must have no two requests under way whose numbers are further apart.
//   - A write without an answer, or with the answer Busy or Unknown, keeps its key out of the cache for the
//     time settle=, which must be longer than any frame lives.
//   - When frames have passed unseen, at the start, and when a write cannot be followed (pending=), the cache
//     forgets everything, and learns nothing for the time settle=; it follows writes meanwhile.
//
// The same key of different devices, or in different VLANs (both tags count), is a different key. Clio's pid is
// not part of a key, because the key/value store of a board has a pid of its own. Two kinds of frames are not
// seen, and must not occur: fragments, which Clio's devices do not take, and reads of the copies that
// nf/replicate writes to devices other than the primary.
//
// Several workers share one cache, and take turns at it for a batch (nf/turn). It does not matter which of them
// gets a frame.
//
// Source: Shan, dissertation, UC San Diego 2022, section 5.6.1 (a FIFO cache of recently read and written pairs).
// LRU and all of the above are not from there.
package kvcache
