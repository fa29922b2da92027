// Package packet holds the memory of the data plane: a Buf is one frame in
// one slot of a Pool, a Batch is what one breath moves.
//
//	slot:  | headroom ...... | frame bytes ............ | tailroom |
//	       0                 off                        off+n      slotSize
//
// Ownership: exactly one holder owns a Buf at any time. The holder that receives it
// must hand it on (transmit, emit), or give it back with Put; after that the
// pointer is dead. A Pool, its Bufs and every Batch of them belong to one
// worker; nothing here may be used by two goroutines at once.
//
// Build with -tags pktdebug to poison freed slots and to panic on a double
// Put or a use of a freed Buf.
package packet
