// Package replicate copies writes of Clio's key/value store to several devices, and
// joins their acknowledgements.
//
//	clients ── (nf/gobackn, nf/kvcache) ── replicate ──┬── device 0, the primary
//	                                                   ├── device 1
//	                                                   └── ...
//
// A write with the replicate flag to the primary's address goes to every device; its
// client is answered once, when all have. Reads go to the primary, as they came. It
// speaks plain frames, without go-back-N headers.
//
// # Order
//
// Of each key one write is under way; others of it wait. So all devices execute a
// key's writes in the same order, and hold the same when all is answered. What an
// answered write wrote is in every device that is not down, and histories of the
// primary are linearizable.
//
// # Loss, and death
//
// A device that has not answered gets the write again, after timeout=, up to tries=
// times: devices execute a repeated request once (they know its number). One that
// still has not answered is down, and gets no more writes. When it is not the
// primary, its writes are answered with the copies that there are, and counted as
// degraded. When it is the primary, writes under way are answered Unknown, and later
// ones Busy, which says that they were not executed; there is no failover, since
// nothing here knows which reads the primary still answers. Which device is trusted
// again is the operator's decision (revive=): what it missed must be copied to it
// first.
//
// A write that finds no place or no buffer is answered Busy.
//
// Source: Shan, dissertation, UC San Diego 2022, section 5.6.1: K copies, sent by the
// sNIC. Order, repetition and death are ours.
package replicate
