package pcap

import (
	"encoding/binary"
	"errors"
)

// Link types of Linux cooked captures (LINKTYPE_LINUX_SLL and _SLL2), as of tcpdump -i any.
const (
	LinkCooked  = 113
	LinkCooked2 = 276
)

// Lengths of what cooked frames have in the place of an Ethernet header, and of that.
const (
	cookedLen   = 16
	cooked2Len  = 20
	ethernetLen = 14
)

// errCooked: a cooked frame is shorter than its header.
var errCooked = errors.New("a cooked frame is cut within its header: capture with a longer snap length")

// IsCooked reports whether a link type is one of a Linux cooked capture.
func IsCooked(link uint16) bool { return link == LinkCooked || link == LinkCooked2 }

// Uncook gives a packet of a cooked link type an Ethernet header in the place of what it has, within Data. The
// source is what the capture knows, if that is 6 bytes; the destination is not known: all ones for a broadcast,
// 01:00:00:00:00:00 for a multicast, else zero. A protocol that is no Ethernet type becomes a length.
func (p *Packet) Uncook(link uint16) error {
	// Fields of both, all big-endian: where they are in the header.
	n, kind, size, addr, proto := cookedLen, 1, 5, 6, 14
	if link == LinkCooked2 {
		n, kind, size, addr, proto = cooked2Len, 10, 11, 12, 0
	}
	if len(p.Data) < n || int(p.OrigLen) < n {
		return errCooked
	}
	var eth [ethernetLen]byte
	switch p.Data[kind] {
	case 1:
		copy(eth[:], "\xff\xff\xff\xff\xff\xff")
	case 2:
		eth[0] = 1
	}
	if p.Data[size] == 6 {
		copy(eth[6:], p.Data[addr:addr+6])
	}
	typ := binary.BigEndian.Uint16(p.Data[proto:])
	if typ < 0x600 {
		typ = uint16(min(len(p.Data)-n, 0x5DC))
	}
	binary.BigEndian.PutUint16(eth[12:], typ)
	p.Data = p.Data[n-ethernetLen:]
	p.OrigLen -= uint32(n - ethernetLen)
	copy(p.Data, eth[:])
	return nil
}
