package pcap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/quillon/quillon/nf/clock"
)

// Format is the file format of a capture.
type Format uint8

const (
	Classic Format = iota
	NG             // pcapng
)

func (f Format) String() string {
	if f == NG {
		return "pcapng"
	}
	return "pcap"
}

// MaxCapLen is the longest frame that is read or written: libpcap's own limit
// for Ethernet. A longer one is taken for damage.
const MaxCapLen = 256 << 10

// LinkEthernet is the link type of Ethernet frames (LINKTYPE_ETHERNET).
const LinkEthernet = 1

// Damage of a file; every error of a Reader that is not the carrier's own or
// io.EOF wraps one of these.
var (
	// ErrFormat: the file is not a capture, or of a version that is not known.
	ErrFormat = errors.New("not a capture file")
	// ErrTruncated: the file ends inside a record.
	ErrTruncated = errors.New("the file ends inside a record")
	// ErrCorrupt: a length or a reference contradicts the rest.
	ErrCorrupt = errors.New("corrupt capture")
)

// Error says where a capture is damaged. The packets before that place were delivered.
type Error struct {
	Packet uint64 // number of the packet that could not be read, from 1; 0: the file's header
	Offset int64  // of its record in the file
	Err    error
}

func (e *Error) Error() string {
	if e.Packet == 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("packet %d at offset %d: %v", e.Packet, e.Offset, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Header is what stands at the front of a file. For pcapng only Format,
// BigEndian, Major and Minor mean something.
type Header struct {
	Format       Format
	BigEndian    bool
	Nano         bool // fractions of a second are nanoseconds
	Major, Minor uint16
	Zone         int32
	SigFigs      uint32
	SnapLen      uint32 // 0: no limit
	Link         uint32 // the whole word: link type and the bits above it
}

// NewHeader is a little-endian header for Ethernet with nanoseconds and a
// snap length that no frame reaches.
func NewHeader(f Format) Header {
	h := Header{Format: f, Nano: true, Major: 2, Minor: 4, SnapLen: MaxCapLen, Link: LinkEthernet}
	if f == NG {
		h = Header{Format: NG, Major: 1}
	}
	return h
}

// Interface is where frames of a capture were seen.
type Interface struct {
	Name, Description string
	Link              uint16
	SnapLen           uint32 // 0: no limit
	// Resol is the unit of timestamps, as if_tsresol: 10^-n seconds, or
	// 2^-(n&127) when the top bit is set.
	Resol uint8
	// Offset is added to timestamps: seconds.
	Offset int64
}

// Packet is one frame of a capture.
type Packet struct {
	Number    uint64 // in its file, from 1
	Interface int    // index in Reader.Interfaces
	Time      clock.Time
	// Stamp is the timestamp as the file has it (classic: seconds<<32 |
	// fraction; pcapng: units of the interface). A Writer whose file counts in
	// the same way stores it untouched; 0: the Writer makes it of Time.
	Stamp uint64
	// OrigLen is the frame's length on the wire; Data may hold less.
	OrigLen uint32
	Data    []byte
	// Comments of the packet, pcapng only.
	Comments [][]byte
}

const (
	magicMicro = 0xA1B2C3D4
	magicNano  = 0xA1B23C4D
	// magicModified is of old Linux captures: each record's header has 8 bytes more (interface, protocol, direction).
	magicModified = 0xA1B2CD34
	magicOrder    = 0x1A2B3C4D // pcapng byte-order magic

	fileHeaderLen   = 24
	recordHeaderLen = 16

	blockSection   = 0x0A0D0D0A
	blockInterface = 1
	blockPacket    = 2 // obsolete, still found in old files
	blockSimple    = 3
	blockEnhanced  = 6

	optEnd         = 0
	optComment     = 1
	optName        = 2 // if_name
	optDescription = 3 // if_description
	optResol       = 9 // if_tsresol
	optOffset      = 14

	defaultResol = 6 // pcapng without if_tsresol: microseconds

	// maxBlock is the longest block that is looked into: the longest frame and
	// as many bytes of options.
	maxBlock = 2 * MaxCapLen
	// maxInterfaces is what packet.Meta.Port can number.
	maxInterfaces = 1 << 16
	// maxName is where a longer name or description of an interface is cut: a
	// file with many must not fill the memory.
	maxName = 256
	// endOfTime is the first second that clock.Time cannot tell from Never.
	endOfTime = int64(clock.Never) / 1e9
)

func get16(b []byte, big bool) uint16 {
	if big {
		return binary.BigEndian.Uint16(b)
	}
	return binary.LittleEndian.Uint16(b)
}

func get32(b []byte, big bool) uint32 {
	if big {
		return binary.BigEndian.Uint32(b)
	}
	return binary.LittleEndian.Uint32(b)
}

func put16(b []byte, big bool, v uint16) {
	if big {
		binary.BigEndian.PutUint16(b, v)
	} else {
		binary.LittleEndian.PutUint16(b, v)
	}
}

func put32(b []byte, big bool, v uint32) {
	if big {
		binary.BigEndian.PutUint32(b, v)
	} else {
		binary.LittleEndian.PutUint32(b, v)
	}
}

// pad4 is the number of bytes that fill n up to a multiple of four.
func pad4(n int) int { return -n & 3 }

// unitsPerSecond turns an if_tsresol into a number; 0 when it does not fit.
func unitsPerSecond(resol uint8) uint64 {
	if resol&0x80 != 0 {
		if n := resol & 0x7F; n < 64 {
			return 1 << n
		}
		return 0
	}
	if resol > 19 {
		return 0
	}
	u := uint64(1)
	for range resol {
		u *= 10
	}
	return u
}

// stampToTime turns units since the epoch into a Time; false when the run's
// clock cannot show it.
func stampToTime(stamp, perSecond uint64, offset int64) (clock.Time, bool) {
	sec, frac := stamp/perSecond, stamp%perSecond
	if sec >= uint64(endOfTime) || offset >= endOfTime || offset <= -endOfTime {
		return 0, false
	}
	s := int64(sec) + offset
	if s < 0 || s >= endOfTime {
		return 0, false
	}
	hi, lo := bits.Mul64(frac, 1e9)
	ns, _ := bits.Div64(hi, lo, perSecond)
	return clock.Time(s*1e9 + int64(ns)), true
}

// timeToStamp is the reverse; fractions of a unit are cut.
func timeToStamp(t clock.Time, perSecond uint64, offset int64) (uint64, bool) {
	s := int64(t)/1e9 - offset
	if t < 0 || s < 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(s), perSecond)
	if hi != 0 {
		return 0, false
	}
	fh, fl := bits.Mul64(uint64(int64(t)%1e9), perSecond)
	frac, _ := bits.Div64(fh, fl, 1e9)
	sum, carry := bits.Add64(lo, frac, 0)
	return sum, carry == 0
}
