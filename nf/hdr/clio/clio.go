// Package clio has the headers of Clio, a disaggregated memory device, as far as
// its key/value store and its go-back-N transport go:
//
//	Ethernet | IPv4 | UDP | go-back-N 8, with the transport only | lego header 16 | operation | value
//
// All fields above UDP are little-endian. Requests go to UDP port 1234, answers
// come from it. Nothing on the wire says whether a go-back-N header is there:
// both ends know.
//
// Source: github.com/WukLab/Clio, include/uapi/{gbn,net_header,opcode}.h and
// board/fpga/src/main/scala/wuklab (Guo et al., Clio, ASPLOS '22).
//
// The source leaves open, and here is chosen:
//   - A request is known by lego tag (high byte) and seqId (low byte), a number of
//     16 bits that its answer carries back.
//   - The key slot of a request holds the key itself, up to 8 bytes, where the C
//     interface puts the address of the caller's buffer.
//   - Statuses above 3: Busy and Unknown.
//   - An answer's opcode is the request's with the lowest bit set; the replicate
//     flag, not the opcode, asks for copies.
//   - UDP checksums may be used. Clio's own frames have none (0).
package clio

import "encoding/binary"

var le = binary.LittleEndian

// Port is the device's UDP port.
const Port = 1234

// Sizes in bytes. MaxPacket is the longest frame that a device takes.
const (
	GBNLen     = 8
	LegoLen    = 16
	RequestLen = 12 // of an operation on a key, with the key
	AnswerLen  = 4
	SessionLen = 4
	MaxKey     = 8
	MaxPacket  = 1536
)

// Types of go-back-N frames.
const (
	ACK  uint8 = 1
	NACK uint8 = 2
	DATA uint8 = 3
)

// Sessions is how many there can be at an end; number 0 is for management, and
// unreliable.
const Sessions = 1 << 10

// FirstSeq is the sequence number of a session's first frame.
const FirstSeq = 1

// GBN is a go-back-N header of 8 bytes:
//
//	0 type | 1 sequence number | 5 source slot:10 | destination slot:10 | 4 bits
type GBN []byte

func (h GBN) Type() uint8 { return h[0] }
func (h GBN) Seq() uint32 { return le.Uint32(h[1:]) }

func (h GBN) session() uint32 { return uint32(h[5]) | uint32(h[6])<<8 | uint32(h[7])<<16 }

// Src is the sender's number of the session, Dst the receiver's.
func (h GBN) Src() uint16 { return uint16(h.session() & (Sessions - 1)) }
func (h GBN) Dst() uint16 { return uint16(h.session() >> 10 & (Sessions - 1)) }

// Encode writes all 8 bytes.
func (h GBN) Encode(typ uint8, seq uint32, src, dst uint16) {
	h[0] = typ
	le.PutUint32(h[1:], seq)
	s := uint32(src&(Sessions-1)) | uint32(dst&(Sessions-1))<<10
	h[5], h[6], h[7] = byte(s), byte(s>>8), byte(s>>16)
}

// Opcode is a lego header's.
type Opcode uint8

// Opcodes of the key/value store and of sessions.
const (
	Read   Opcode = 0x60
	Create Opcode = 0x62
	Update Opcode = 0x64
	Delete Opcode = 0x66

	OpenSession  Opcode = 0x88
	CloseSession Opcode = 0x8A
)

// answer is the bit that tells an answer's opcode from its request's.
const answer = 1

// Answer is the opcode of o's answers.
func (o Opcode) Answer() Opcode { return o | answer }

// IsAnswer and Request hold for the opcodes of this package.
func (o Opcode) IsAnswer() bool  { return o&answer != 0 }
func (o Opcode) Request() Opcode { return o &^ answer }

// OfKeys reports whether o is of the key/value store.
func (o Opcode) OfKeys() bool { return o >= Read && o <= Delete|answer }

// OfSessions reports whether o opens or closes a session, or says how that went.
func (o Opcode) OfSessions() bool { return o >= OpenSession && o <= CloseSession|answer }

// Writes reports whether o is a request that changes a key.
func (o Opcode) Writes() bool { return o == Create || o == Update || o == Delete }

func (o Opcode) String() string {
	s := "?"
	switch o.Request() {
	case Read:
		s = "read"
	case Create:
		s = "create"
	case Update:
		s = "update"
	case Delete:
		s = "delete"
	case OpenSession:
		s = "open"
	case CloseSession:
		s = "close"
	}
	if o.IsAnswer() {
		s += "-answer"
	}
	return s
}

// Status is an answer's, 4 bits.
type Status uint8

// Statuses.
const (
	OK        Status = 0
	Invalid   Status = 1 // no such key; of a create: there is one; or no room
	WritePerm Status = 2
	ReadPerm  Status = 3
	// Busy: this frame was not executed, and never will be (another copy of it may
	// have been); Unknown: nobody knows. Both are ours.
	Busy    Status = 4
	Unknown Status = 5
)

// Lego is a lego header of 16 bytes:
//
//	0 pid | 2 tag | 3 opcode | 4 status:4 route:1 replicate:1 | 5 seqId |
//	6 size | 8 cont | 10 source session | 11 destination session | 12 dest ip
type Lego []byte

func (h Lego) PID() uint16         { return le.Uint16(h) }
func (h Lego) SetPID(v uint16)     { le.PutUint16(h, v) }
func (h Lego) Opcode() Opcode      { return Opcode(h[3]) }
func (h Lego) SetOpcode(o Opcode)  { h[3] = byte(o) }
func (h Lego) Status() Status      { return Status(h[4] & 15) }
func (h Lego) SetStatus(s Status)  { h[4] = h[4]&0xF0 | byte(s&15) }
func (h Lego) Replicate() bool     { return h[4]&0x20 != 0 }
func (h Lego) SetReplicate(v bool) { h[4] = h[4]&^0x20 | bit(v)<<5 }
func (h Lego) Route() bool         { return h[4]&0x10 != 0 }
func (h Lego) ID() uint16          { return uint16(h[2])<<8 | uint16(h[5]) }
func (h Lego) SetID(v uint16)      { h[2], h[5] = byte(v>>8), byte(v) }
func (h Lego) Size() uint16        { return le.Uint16(h[6:]) }
func (h Lego) SetSize(v uint16)    { le.PutUint16(h[6:], v) }

func bit(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// Fields are those of a lego header, for Encode.
type Fields struct {
	PID       uint16
	ID        uint16
	Opcode    Opcode
	Status    Status
	Replicate bool
	Size      uint16 // lego header and what follows it
}

// Encode writes all 16 bytes. Fields that only the inside of a board uses are 0.
func (h Lego) Encode(f *Fields) {
	clear(h[:LegoLen])
	h.SetPID(f.PID)
	h.SetID(f.ID)
	h.SetOpcode(f.Opcode)
	h.SetStatus(f.Status)
	h.SetReplicate(f.Replicate)
	h.SetSize(f.Size)
}

// Request is what a request on a key has behind its lego header, 12 bytes, and
// the value of a write:
//
//	0 user | 1 key size | 2 value size | 4 key
type Request []byte

func (h Request) KeySize() uint8    { return h[1] }
func (h Request) ValueSize() uint16 { return le.Uint16(h[2:]) }

// Key is the key; bytes beyond its size are 0.
func (h Request) Key() uint64 {
	k := le.Uint64(h[4:])
	if n := h[1]; n < MaxKey {
		k &= 1<<(8*n) - 1
	}
	return k
}

// Encode writes all 12 bytes.
func (h Request) Encode(key uint64, keySize uint8, valueSize uint16) {
	h[0], h[1] = 0, keySize
	le.PutUint16(h[2:], valueSize)
	le.PutUint64(h[4:], key)
}

// Answer is what an answer has behind its lego header, 4 bytes, and the value of
// a read:
//
//	0 user | 1 key size | 2 value size
type Answer []byte

func (h Answer) ValueSize() uint16 { return le.Uint16(h[2:]) }

// Encode writes all 4 bytes.
func (h Answer) Encode(keySize uint8, valueSize uint16) {
	h[0], h[1] = 0, keySize
	le.PutUint16(h[2:], valueSize)
}

// Session is the number of a session behind a lego header: the opener's in a
// request to open one, the other end's in its answer.
func Session(h []byte) uint32       { return le.Uint32(h) }
func SetSession(h []byte, v uint32) { le.PutUint32(h, v) }
