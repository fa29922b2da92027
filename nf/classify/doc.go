// Package classify finds the first of many entries that a packet hits: rules of firewalls, entries of P4
// tables. Each entry says for each field of a packet which bits it must have, or in which range it must be.
//
//	s := classify.New([]classify.Field{{Bits: 32}, {Bits: 16, Range: true}})
//	s.Insert(7, []uint64{0x0a000000, 80}, []uint64{0xff000000, 90}, 1)
//	e := s.Find([]uint64{0x0a010203, 85}) // 7
//
// A key has its fields one behind the other, each in words of its own, the lowest word first. For a range the
// key has the lowest value, and the mask the highest.
//
// # How
//
// A tree divides the entries by bytes of the key. A node divides by the byte that tells most of its entries
// apart. Entries that want a certain value of this byte are in the branch of this value; all others are in
// one branch beside them. So a search goes down at most two branches of a node, and each entry is in one
// leaf. A leaf is a short list. Entries that no byte tells apart are in vectors of bits: for each byte of the
// key and each value of this byte, one vector says which entries it may hit. A packet may hit the entries
// that are in all of its vectors (Lakshman and Stiliadis, High-Speed Policy-based Packet Forwarding, SIGCOMM
// 1998). The vectors lie in segments of 512 entries, in the entries' order, so that a search ends when no
// better entry can follow.
//
// # Bounds
//
// A search looks at 64 leaves at most: in each at a list of 64 entries, or at segments. A segment takes some
// cache lines for each byte of the key. The entries that are left then are looked at one by one, except those
// with ranges whose bytes fit and that do not contain the key, which are looked at all at once. No entry is
// looked at twice, so even the worst rules cost no more than a walk through the list. The worst rules of
// classifytest's Worst take 24 us among 10,000 entries, and 240 us among 100,000: all of them ranges, with a
// packet at the border of each. So rules should come only from people who are trusted with a worker's time.
// Packets alone, among rules as networks have them, do not make a search slow.
//
// A change moves a bounded number of entries, however many there are: when a leaf is divided, the changes
// that follow move its entries, and a full segment becomes two. The longest change among 100,000 entries took
// 0.6 ms, among a thousand 0.2 ms. An entry of five fields takes 0.3 to 0.7 KiB in rules about flows. After
// most entries were removed, the rest takes as much memory as it would alone, except for the arrays of
// numbers, keys and masks, which stay.
//
// A search only reads, and allocates nothing. Any number of goroutines may search at once, while no goroutine
// changes the set.
package classify
