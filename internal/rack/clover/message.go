package clover

import "encoding/binary"

var le = binary.LittleEndian

// Sizes of the metadata server's messages (mitsume_msg, mitsume_large_msg).
const (
	MsgLen      = 192
	LargeMsgLen = 560
)

// MsgType is the type of a message; a reply has the request's type plus one.
type MsgType uint32

const (
	MsgInit     MsgType = 1
	MsgAskEntry MsgType = 3
	MsgEntry    MsgType = 5
	MsgGC       MsgType = 7
	MsgRecycle  MsgType = 11
)

// Sub-types of MsgEntry.
const (
	EntryOpen  uint32 = 1
	EntryQuery uint32 = 2
)

// Values of end_crc: crcPending is what a client puts into its reply buffer before it asks, crcDone ends a
// finished reply.
const (
	crcPending uint64 = 0x8BADF00D
	crcDone    uint64 = 0xCAFEBABE
)

// Offsets of a message's header and trailer.
const (
	msgType    = 0
	msgSrc     = 4
	msgDes     = 8
	msgThread  = 12
	msgAddr    = 16
	msgRKey    = 24
	msgMachine = 28
	msgContent = 32
	msgOption  = 176
	msgCRC     = 184
)

// Offsets in the content of MsgEntry and of its reply.
const (
	entType     = 32
	entKey      = 40
	entPtr      = 48
	entShortcut = 56
	entFactor   = 64
	entVersion  = 68
)

// Offsets in a space grant.
const (
	grantPtrs  = 32
	grantSize  = 160
	grantCount = 164
	// GrantMax is the most entries in one grant.
	GrantMax = 16
)

// Offsets in a GC request (a large message) and in its records.
const (
	gcEntries  = 32
	gcEntryLen = 32
	gcOld      = 0
	gcNew      = 8
	gcKey      = 16
	gcFactor   = 24
	gcCount    = 544
	gcCRC      = 552
	// GCMax is the most records in one message.
	GCMax = 16
)

// Offsets in an init reply. One message carries one Space, which the request names by its index.
const (
	initVA    = 32
	initRKey  = 40
	initNode  = 44
	initFirst = 48
	initCount = 52
	initSlab  = 56
	initKind  = 60
	initTotal = 64
	initIndex = 32 // in the request
)

// Results, in the option field of a reply. OPEN and QUERY are EntryOpen and EntryQuery.
const (
	resOK      uint64 = iota
	resNoKey          // QUERY: the key is not known
	resExists         // OPEN: the key is there already; ptr is the head of its chain
	resLinked         // QUERY with an entry: that entry is, or was, linked
	resNoSpace        // ASK ENTRY: no entry is free now; OPEN: no shortcut is free
	resBad            // the request makes no sense
)

func u32(m []byte, at int) uint32        { return le.Uint32(m[at:]) }
func u64(m []byte, at int) uint64        { return le.Uint64(m[at:]) }
func put32(m []byte, at int, v uint32)   { le.PutUint32(m[at:], v) }
func put64(m []byte, at int, v uint64)   { le.PutUint64(m[at:], v) }
func pointerAt(m []byte, at int) Pointer { return Pointer(le.Uint64(m[at:])) }

// putHeader fills in a request's header and trailer.
func putHeader(m []byte, t MsgType, src, thread uint32, addr uint64, rkey uint32) {
	put32(m, msgType, uint32(t))
	put32(m, msgSrc, src)
	put32(m, msgDes, 0)
	put32(m, msgThread, thread)
	put64(m, msgAddr, addr)
	put32(m, msgRKey, rkey)
	le.PutUint16(m[msgMachine:], uint16(src))
	if len(m) == LargeMsgLen {
		put64(m, gcCRC, crcDone)
		return
	}
	put64(m, msgOption, 0)
	put64(m, msgCRC, crcDone)
}

func getSpace(m []byte) Space {
	return Space{
		VA: u64(m, initVA), RKey: u32(m, initRKey), Node: u32(m, initNode), FirstLH: u32(m, initFirst),
		Count: u32(m, initCount), Slab: u32(m, initSlab), Kind: u32(m, initKind),
	}
}

func putSpace(m []byte, s *Space) {
	put64(m, initVA, s.VA)
	put32(m, initRKey, s.RKey)
	put32(m, initNode, s.Node)
	put32(m, initFirst, s.FirstLH)
	put32(m, initCount, s.Count)
	put32(m, initSlab, s.Slab)
	put32(m, initKind, s.Kind)
}
