// Package classify finds, of entries that want fields of a packet to have some bits, or to be in a range, the one that comes first of those
// that a packet hits: rules of firewalls, entries of P4 tables.
//
//	s := classify.New([]classify.Field{{Bits: 32}, {Bits: 16, Range: true}})
//	s.Insert(7, []uint64{0x0a000000, 80}, []uint64{0xff000000, 90}, 1)
//	e := s.Find([]uint64{0x0a010203, 85}) // 7
//
// A key has its fields one behind the other, each in words of its own, the lowest word first. Of a range the key is the lowest value and
// the mask the highest.
//
// # How
//
// A tree divides the entries by bytes of the key: a node by the byte that tells most of its entries apart. Entries that want the whole
// byte to be something are in the branch of that value, all others in one branch beside them, so that a search goes down two branches at most,
// and an entry is in one leaf. A leaf is a short list. Entries that no byte tells apart are in vectors of bits: for each byte of
// the key and each of its values one vector says which entries it may hit; the entries are in all of them (Lakshman and Stiliadis, High-Speed
// Policy-based Packet Forwarding, SIGCOMM 1998).
//
// A search reads only: any number of goroutines may search at once, while nobody changes the set. It allocates nothing.
package classify
