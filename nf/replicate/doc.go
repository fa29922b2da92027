// Package replicate copies writes of Clio's key/value store to several devices, and joins their acknowledgements.
//
//	clients ── (nf/gobackn, nf/kvcache) ── replicate ──┬── device 0, the primary
//	                                                   ├── device 1
//	                                                   └── ...
//
// A write with the replicate flag to the primary's address goes to every device. Its client is answered once,
// when all devices have answered. Reads go to the primary unchanged. The app handles plain frames, without
// go-back-N headers.
//
// # Order
//
// Of each key one write is under way, and other writes of the key wait. So all devices execute a key's writes in
// the same order, and hold the same value when all writes are answered. An answered write is in every device that
// is not down, and histories of the primary are linearizable.
//
// # Loss, and death
//
// A device that has not answered gets the write again after timeout=, up to tries= times. Devices execute a
// repeated request once, because they know its number. A device that still has not answered is down, and gets no
// more writes. If it is not the primary, writes are answered with the remaining copies, and counted as degraded.
// If it is the primary, writes under way are answered Unknown, and later ones Busy, which says that they were not
// executed. There is no failover, because the app cannot know which reads the primary still answers. The operator
// decides when a device is trusted again (revive=), and must first copy to it what it has missed.
//
// A write that finds no place or no buffer is answered Busy.
//
// Source: Shan, dissertation, UC San Diego 2022, section 5.6.1: K copies, sent by the sNIC. Order, repetition and
// death are not from there.
package replicate
