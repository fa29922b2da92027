package hop

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/quillon/quillon/nf/hdr"
)

var be = binary.BigEndian

// EtherTypes and sizes.
const (
	EtherType = 0x88B5 // of the last hop
	Control   = 0x8808 // MAC control: PFC and PAUSE

	Overhead = headerLen - addresses // number of bytes by which a frame grows
	MinFrame = 60                    // without FCS

	addresses = 12
	headerLen = 46
	version   = 1

	opPause = 0x0001
	opPFC   = 0x0101
)

// kind is the type of a frame of this layer.
type kind uint8

const (
	data kind = iota
	ack
	nak
	hello
	numKinds
)

// header is the decoded header of a frame.
type header struct {
	kind        kind
	length      int
	epoch, peer uint64
	seq, ack    uint32
}

// castagnoli is filled by hash/crc32 once, and is constant.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns the CRC of the first end bytes of a frame, without the CRC itself.
func sum(p []byte, end int) uint32 {
	c := crc32.Update(0, castagnoli, p[:42])
	return crc32.Update(c, castagnoli, p[headerLen:end])
}

// encode writes the header, behind the addresses, and the CRC.
func encode(p []byte, h header) {
	be.PutUint16(p[12:], EtherType)
	p[14], p[15] = version, byte(h.kind)
	be.PutUint16(p[16:], uint16(h.length))
	be.PutUint64(p[18:], h.epoch)
	be.PutUint64(p[26:], h.peer)
	be.PutUint32(p[34:], h.seq)
	be.PutUint32(p[38:], h.ack)
	be.PutUint32(p[42:], sum(p, headerLen+h.length))
}

// decode reads the header of a frame. ok is false if p is no frame of this layer, or is damaged.
func decode(p []byte) (h header, ok bool) {
	if len(p) < headerLen || be.Uint16(p[12:]) != EtherType || p[14] != version || p[15] >= byte(numKinds) {
		return h, false
	}
	h = header{kind(p[15]), int(be.Uint16(p[16:])), be.Uint64(p[18:]), be.Uint64(p[26:]), be.Uint32(p[34:]), be.Uint32(p[38:])}
	if headerLen+h.length > len(p) || h.epoch == 0 || h.kind == data && h.length < 2 || h.kind != data && h.length != 0 {
		return h, false
	}
	return h, be.Uint32(p[42:]) == sum(p, headerLen+h.length)
}

// EncodePause writes a PFC frame of MinFrame bytes to p: a pause for a class from 0 to 7. quanta is its
// length in units of 512 bit times; 0 ends the pause.
//
//	0 01-80-C2-00-00-01 | 6 source | 12 8808 | 14 0101 | 16 class vector
//	18 quanta of class 0 | 20 ... | 34 zeros
func EncodePause(p []byte, src [6]byte, class int, quanta uint16) {
	p = p[:MinFrame]
	clear(p)
	e := hdr.Ethernet(p)
	e.SetDst([6]byte{1, 0x80, 0xC2, 0, 0, 1})
	e.SetSrc(src)
	e.SetEtherType(Control)
	be.PutUint16(p[14:], opPFC)
	be.PutUint16(p[16:], 1<<class)
	be.PutUint16(p[18+2*class:], quanta)
}

// DecodePause reports whether p is a PFC frame for the class, or a PAUSE of all classes (IEEE 802.3
// annex 31B), and returns the quanta of the pause.
func DecodePause(p []byte, class int) (quanta uint16, ok bool) {
	if len(p) < 18 || be.Uint16(p[12:]) != Control {
		return 0, false
	}
	switch be.Uint16(p[14:]) {
	case opPause:
		return be.Uint16(p[16:]), true
	case opPFC:
		if len(p) >= 34 && be.Uint16(p[16:])&(1<<class) != 0 {
			return be.Uint16(p[18+2*class:]), true
		}
	}
	return 0, false
}
