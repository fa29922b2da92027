package hdr

import "fmt"

// Opcode is the first byte of a BTH: transport in the top three bits,
// operation in the low five.
type Opcode uint8

// Transports: the top three bits of an Opcode.
const (
	RC  Opcode = 0x00
	UC  Opcode = 0x20
	RD  Opcode = 0x40
	UD  Opcode = 0x60
	CNT Opcode = 0x80 // congestion notification
	MFR Opcode = 0xE0 // manufacturer
)

// Opcodes of the reliable connection, and the few others that have names of
// their own. The same operations of UC are UC | op, of UD UD | op.
const (
	SendFirst      Opcode = 0x00
	SendMiddle     Opcode = 0x01
	SendLast       Opcode = 0x02
	SendLastImm    Opcode = 0x03
	SendOnly       Opcode = 0x04
	SendOnlyImm    Opcode = 0x05
	WriteFirst     Opcode = 0x06
	WriteMiddle    Opcode = 0x07
	WriteLast      Opcode = 0x08
	WriteLastImm   Opcode = 0x09
	WriteOnly      Opcode = 0x0A
	WriteOnlyImm   Opcode = 0x0B
	ReadRequest    Opcode = 0x0C
	ReadRespFirst  Opcode = 0x0D
	ReadRespMiddle Opcode = 0x0E
	ReadRespLast   Opcode = 0x0F
	ReadRespOnly   Opcode = 0x10
	Acknowledge    Opcode = 0x11
	AtomicAck      Opcode = 0x12
	CompareSwap    Opcode = 0x13
	FetchAdd       Opcode = 0x14
	SendLastInv    Opcode = 0x16
	SendOnlyInv    Opcode = 0x17
	MaskedCompSwap Opcode = 0x18 // Mellanox; seen on the wire of ConnectX-5
	MaskedFetchAdd Opcode = 0x19 // Mellanox; by symmetry with 0x18, not seen on a wire
	Flush          Opcode = 0x1C // IBTA annex A19
	AtomicWrite    Opcode = 0x1D // IBTA annex A19
	UDSendOnly     Opcode = 0x64
	UDSendOnlyImm  Opcode = 0x65
	CNP            Opcode = 0x81 // RoCEv2 congestion notification packet
)

// Ext is a bit set of extended transport headers.
type Ext uint16

// The extended headers, in the order in which they follow the BTH.
const (
	HasFETH Ext = 1 << iota
	HasDETH
	HasRETH
	HasAtomicETH
	HasMaskedAtomicETH
	HasAETH
	HasAtomicAckETH
	HasImmDt
	HasIETH
	numExt = iota
)

// Flags of an Opcode.
type OpFlags uint16

const (
	IsRequest OpFlags = 1 << iota
	IsResponse
	IsFirst  // first packet of a message of several
	IsMiddle // neither first nor last
	IsLast   // last packet of a message of several
	IsOnly   // whole message
	MayCarry // may carry payload
	IsSend   // SEND of any sort
	IsWrite  // RDMA WRITE of any sort
	IsRead   // READ REQUEST
	IsReadResp
	IsAtomic // compare-and-swap, fetch-and-add, masked or not
	IsAck    // ACKNOWLEDGE
)

// OpInfo describes one opcode; opcodes that do not exist have an empty Name.
type OpInfo struct {
	Name  string
	Ext   Ext
	Flags OpFlags
	// mustNot has all bits unless the opcode may carry payload.
	mustNot uint16
	// Len is the number of bytes of the extended headers together.
	Len uint8
	off [numExt]uint8 // offset after the BTH of each extended header
}

var extLen = [numExt]uint8{4, 8, 16, 28, 44, 4, 8, 4, 4}

// Sizes of the headers in bytes.
const (
	BTHLen             = 12
	FETHLen            = 4
	DETHLen            = 8
	RETHLen            = 16
	AtomicETHLen       = 28
	MaskedAtomicETHLen = 44
	AETHLen            = 4
	AtomicAckETHLen    = 8
	ImmDtLen           = 4
	IETHLen            = 4
	ICRCLen            = 4
)

var opTable = makeOpTable()

func makeOpTable() (t [256]OpInfo) {
	set := func(op Opcode, name string, ext Ext, fl OpFlags) {
		i := OpInfo{Name: name, Ext: ext, Flags: fl}
		if fl&MayCarry == 0 {
			i.mustNot = 0xFFFF
		}
		for e := 0; e < numExt; e++ {
			if ext&(1<<e) != 0 {
				i.off[e] = i.Len
				i.Len += extLen[e]
			}
		}
		t[op] = i
	}
	const carry = IsRequest | MayCarry
	for _, x := range []struct {
		base Opcode
		name string
		deth Ext
	}{{RC, "RC ", 0}, {UC, "UC ", 0}} {
		set(x.base|SendFirst, x.name+"SEND FIRST", 0, carry|IsSend|IsFirst)
		set(x.base|SendMiddle, x.name+"SEND MIDDLE", 0, carry|IsSend|IsMiddle)
		set(x.base|SendLast, x.name+"SEND LAST", 0, carry|IsSend|IsLast)
		set(x.base|SendLastImm, x.name+"SEND LAST IMM", HasImmDt, carry|IsSend|IsLast)
		set(x.base|SendOnly, x.name+"SEND ONLY", 0, carry|IsSend|IsOnly)
		set(x.base|SendOnlyImm, x.name+"SEND ONLY IMM", HasImmDt, carry|IsSend|IsOnly)
		set(x.base|WriteFirst, x.name+"WRITE FIRST", HasRETH, carry|IsWrite|IsFirst)
		set(x.base|WriteMiddle, x.name+"WRITE MIDDLE", 0, carry|IsWrite|IsMiddle)
		set(x.base|WriteLast, x.name+"WRITE LAST", 0, carry|IsWrite|IsLast)
		set(x.base|WriteLastImm, x.name+"WRITE LAST IMM", HasImmDt, carry|IsWrite|IsLast)
		set(x.base|WriteOnly, x.name+"WRITE ONLY", HasRETH, carry|IsWrite|IsOnly)
		set(x.base|WriteOnlyImm, x.name+"WRITE ONLY IMM", HasRETH|HasImmDt, carry|IsWrite|IsOnly)
	}
	set(ReadRequest, "RC READ REQUEST", HasRETH, IsRequest|IsRead|IsOnly)
	set(ReadRespFirst, "RC READ RESPONSE FIRST", HasAETH, IsResponse|IsReadResp|IsFirst|MayCarry)
	set(ReadRespMiddle, "RC READ RESPONSE MIDDLE", 0, IsResponse|IsReadResp|IsMiddle|MayCarry)
	set(ReadRespLast, "RC READ RESPONSE LAST", HasAETH, IsResponse|IsReadResp|IsLast|MayCarry)
	set(ReadRespOnly, "RC READ RESPONSE ONLY", HasAETH, IsResponse|IsReadResp|IsOnly|MayCarry)
	set(Acknowledge, "RC ACK", HasAETH, IsResponse|IsAck|IsOnly)
	set(AtomicAck, "RC ATOMIC ACK", HasAETH|HasAtomicAckETH, IsResponse|IsOnly)
	set(CompareSwap, "RC COMPARE SWAP", HasAtomicETH, IsRequest|IsAtomic|IsOnly)
	set(FetchAdd, "RC FETCH ADD", HasAtomicETH, IsRequest|IsAtomic|IsOnly)
	set(SendLastInv, "RC SEND LAST INV", HasIETH, carry|IsSend|IsLast)
	set(SendOnlyInv, "RC SEND ONLY INV", HasIETH, carry|IsSend|IsOnly)
	set(MaskedCompSwap, "RC MASKED COMPARE SWAP", HasMaskedAtomicETH, IsRequest|IsAtomic|IsOnly)
	set(MaskedFetchAdd, "RC MASKED FETCH ADD", HasMaskedAtomicETH, IsRequest|IsAtomic|IsOnly)
	set(Flush, "RC FLUSH", HasFETH|HasRETH, IsRequest|IsOnly)
	set(AtomicWrite, "RC ATOMIC WRITE", HasRETH, carry|IsOnly)
	set(UDSendOnly, "UD SEND ONLY", HasDETH, carry|IsSend|IsOnly)
	set(UDSendOnlyImm, "UD SEND ONLY IMM", HasDETH|HasImmDt, carry|IsSend|IsOnly)
	set(CNP, "CNP", 0, MayCarry|IsOnly) // 16 reserved bytes follow
	return t
}

// Info is the table row of the opcode; Name is empty when it does not exist.
func (o Opcode) Info() *OpInfo { return &opTable[o] }

// Has reports whether the opcode has all of flags f.
func (o Opcode) Has(f OpFlags) bool { return opTable[o].Flags&f == f }

// Any reports whether the opcode has one of flags f.
func (o Opcode) Any(f OpFlags) bool { return opTable[o].Flags&f != 0 }

// Transport is RC, UC, RD, UD, CNT or MFR.
func (o Opcode) Transport() Opcode { return o & 0xE0 }

func (o Opcode) String() string {
	if n := opTable[o].Name; n != "" {
		return n
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}
