package hdr

import "encoding/binary"

var be = binary.BigEndian

// RoCEv2Port is the UDP destination port of RoCEv2 (IANA).
const RoCEv2Port = 4791

// BTH is a base transport header, 12 bytes (IBTA 9.2):
//
//	0 OpCode | 1 SE M Pad TVer | 2 P_Key            |
//	4 FECN BECN resv | 5 DestQP                     |
//	8 AckReq resv    | 9 PSN                        |
type BTH []byte

func (h BTH) OpCode() Opcode     { return Opcode(h[0]) }
func (h BTH) SetOpCode(o Opcode) { h[0] = byte(o) }
func (h BTH) Solicited() bool    { return h[1]&0x80 != 0 }
func (h BTH) MigReq() bool       { return h[1]&0x40 != 0 }

// PadCount is the number of pad bytes between payload and ICRC.
func (h BTH) PadCount() int       { return int(h[1] >> 4 & 3) }
func (h BTH) SetPadCount(n int)   { h[1] = h[1]&^0x30 | byte(n&3)<<4 }
func (h BTH) TVer() uint8         { return h[1] & 15 }
func (h BTH) PKey() uint16        { return be.Uint16(h[2:]) }
func (h BTH) SetPKey(v uint16)    { be.PutUint16(h[2:], v) }
func (h BTH) FECN() bool          { return h[4]&0x80 != 0 }
func (h BTH) BECN() bool          { return h[4]&0x40 != 0 }
func (h BTH) DestQP() uint32      { return be.Uint32(h[4:]) & 0xFFFFFF }
func (h BTH) SetDestQP(v uint32)  { be.PutUint32(h[4:], uint32(h[4])<<24|v&0xFFFFFF) }
func (h BTH) AckReq() bool        { return h[8]&0x80 != 0 }
func (h BTH) PSN() uint32         { return be.Uint32(h[8:]) & 0xFFFFFF }
func (h BTH) SetPSN(v uint32)     { be.PutUint32(h[8:], uint32(h[8])<<24|v&0xFFFFFF) }
func (h BTH) SetSolicited(v bool) { setBit(h, 1, 0x80, v) }
func (h BTH) SetMigReq(v bool)    { setBit(h, 1, 0x40, v) }
func (h BTH) SetBECN(v bool)      { setBit(h, 4, 0x40, v) }
func (h BTH) SetAckReq(v bool)    { setBit(h, 8, 0x80, v) }

func setBit(h []byte, at int, bit byte, v bool) {
	if v {
		h[at] |= bit
	} else {
		h[at] &^= bit
	}
}

// BTHFields are the fields of a BTH, for Encode.
type BTHFields struct {
	OpCode                             Opcode
	Solicited, MigReq, BECN, FECN, Ack bool
	Pad                                int
	PKey                               uint16
	DestQP, PSN                        uint32
}

// Encode writes all 12 bytes; TVer and the reserved bits are zero.
func (h BTH) Encode(f *BTHFields) {
	h = h[:BTHLen]
	h[0] = byte(f.OpCode)
	h[1] = byte(f.Pad&3) << 4
	be.PutUint16(h[2:], f.PKey)
	be.PutUint32(h[4:], f.DestQP&0xFFFFFF)
	be.PutUint32(h[8:], f.PSN&0xFFFFFF)
	h.SetSolicited(f.Solicited)
	h.SetMigReq(f.MigReq)
	h.SetBECN(f.BECN)
	setBit(h, 4, 0x80, f.FECN)
	h.SetAckReq(f.Ack)
}

// PSNMask keeps the 24 bits of a packet sequence number.
const PSNMask = 0xFFFFFF

// PSNDiff is a - b modulo 2^24, as a signed number: negative when a is older
// than b (IBTA 9.7.2: half of the space is older).
func PSNDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }

// RETH is an RDMA extended transport header, 16 bytes (IBTA 9.3.3).
type RETH []byte

func (h RETH) VA() uint64            { return be.Uint64(h) }
func (h RETH) SetVA(v uint64)        { be.PutUint64(h, v) }
func (h RETH) RKey() uint32          { return be.Uint32(h[8:]) }
func (h RETH) SetRKey(v uint32)      { be.PutUint32(h[8:], v) }
func (h RETH) DMALength() uint32     { return be.Uint32(h[12:]) }
func (h RETH) SetDMALength(v uint32) { be.PutUint32(h[12:], v) }

// AtomicETH is an atomic extended transport header, 28 bytes (IBTA 9.3.5).
// Swap and Compare are numbers: on a little-endian host they lie byte-reversed
// in memory, unlike a payload.
type AtomicETH []byte

func (h AtomicETH) VA() uint64          { return be.Uint64(h) }
func (h AtomicETH) SetVA(v uint64)      { be.PutUint64(h, v) }
func (h AtomicETH) RKey() uint32        { return be.Uint32(h[8:]) }
func (h AtomicETH) SetRKey(v uint32)    { be.PutUint32(h[8:], v) }
func (h AtomicETH) Swap() uint64        { return be.Uint64(h[12:]) } // also: the addend
func (h AtomicETH) SetSwap(v uint64)    { be.PutUint64(h[12:], v) }
func (h AtomicETH) Compare() uint64     { return be.Uint64(h[20:]) }
func (h AtomicETH) SetCompare(v uint64) { be.PutUint64(h[20:], v) }

// MaskedAtomicETH is the header of Mellanox' masked atomics, 44 bytes: an
// AtomicETH followed by the masks of swap and compare. (The order of the masks
// is that of the mlx5 work queue entry.)
type MaskedAtomicETH []byte

func (h MaskedAtomicETH) VA() uint64              { return be.Uint64(h) }
func (h MaskedAtomicETH) SetVA(v uint64)          { be.PutUint64(h, v) }
func (h MaskedAtomicETH) RKey() uint32            { return be.Uint32(h[8:]) }
func (h MaskedAtomicETH) SetRKey(v uint32)        { be.PutUint32(h[8:], v) }
func (h MaskedAtomicETH) Swap() uint64            { return be.Uint64(h[12:]) }
func (h MaskedAtomicETH) SetSwap(v uint64)        { be.PutUint64(h[12:], v) }
func (h MaskedAtomicETH) Compare() uint64         { return be.Uint64(h[20:]) }
func (h MaskedAtomicETH) SetCompare(v uint64)     { be.PutUint64(h[20:], v) }
func (h MaskedAtomicETH) SwapMask() uint64        { return be.Uint64(h[28:]) }
func (h MaskedAtomicETH) SetSwapMask(v uint64)    { be.PutUint64(h[28:], v) }
func (h MaskedAtomicETH) CompareMask() uint64     { return be.Uint64(h[36:]) }
func (h MaskedAtomicETH) SetCompareMask(v uint64) { be.PutUint64(h[36:], v) }

// AETH is an ACK extended transport header, 4 bytes (IBTA 9.3.5.3).
type AETH []byte

func (h AETH) Syndrome() Syndrome     { return Syndrome(h[0]) }
func (h AETH) SetSyndrome(s Syndrome) { h[0] = byte(s) }
func (h AETH) MSN() uint32            { return be.Uint32(h) & 0xFFFFFF }
func (h AETH) SetMSN(v uint32)        { be.PutUint32(h, uint32(h[0])<<24|v&0xFFFFFF) }

// Syndrome is the first byte of an AETH: type in bits 7-5, value in 4-0.
type Syndrome uint8

const (
	SynACK                Syndrome = 0x00 // low bits: credit count
	SynACKUnlimited       Syndrome = 0x1F // no end-to-end credits
	SynRNR                Syndrome = 0x20 // low bits: timer code
	SynNAKSequence        Syndrome = 0x60
	SynNAKInvalidRequest  Syndrome = 0x61
	SynNAKRemoteAccess    Syndrome = 0x62
	SynNAKRemoteOperation Syndrome = 0x63
)

// ACK, RNR and NAK tell the syndrome's type.
func (s Syndrome) ACK() bool { return s&0xE0 == 0 }
func (s Syndrome) RNR() bool { return s&0xE0 == 0x20 }
func (s Syndrome) NAK() bool { return s&0xE0 == 0x60 }

// AtomicAckETH holds the value before the atomic, 8 bytes.
type AtomicAckETH []byte

func (h AtomicAckETH) Original() uint64     { return be.Uint64(h) }
func (h AtomicAckETH) SetOriginal(v uint64) { be.PutUint64(h, v) }

// DETH is a datagram extended transport header, 8 bytes.
type DETH []byte

func (h DETH) QKey() uint32      { return be.Uint32(h) }
func (h DETH) SetQKey(v uint32)  { be.PutUint32(h, v) }
func (h DETH) SrcQP() uint32     { return be.Uint32(h[4:]) & 0xFFFFFF }
func (h DETH) SetSrcQP(v uint32) { be.PutUint32(h[4:], v&0xFFFFFF) }

// ImmDt is immediate data, 4 bytes.
type ImmDt []byte

func (h ImmDt) Data() uint32     { return be.Uint32(h) }
func (h ImmDt) SetData(v uint32) { be.PutUint32(h, v) }

// IETH names the R_Key to invalidate, 4 bytes.
type IETH []byte

func (h IETH) RKey() uint32     { return be.Uint32(h) }
func (h IETH) SetRKey(v uint32) { be.PutUint32(h, v) }

// FETH is a FLUSH header, 4 bytes (IBTA annex A19).
type FETH []byte

func (h FETH) Placement() uint8   { return h[3] & 15 }
func (h FETH) Selectivity() uint8 { return h[3] >> 4 & 3 }
func (h FETH) Set(placement, selectivity uint8) {
	be.PutUint32(h, uint32(selectivity&3)<<4|uint32(placement&15))
}
