package roce

import (
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/hdr"
)

// FETH is the header of a FLUSH.
type FETH struct {
	layers.BaseLayer
	Placement   uint8
	Selectivity uint8
}

// DecodeFromBytes reads the FETH at the start of data.
func (l *FETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("FETH", data, hdr.FETHLen, df); err != nil {
		return err
	}
	h := hdr.FETH(data)
	l.Placement, l.Selectivity = h.Placement(), h.Selectivity()
	return nil
}

func (l *FETH) LayerType() gopacket.LayerType     { return LayerTypeFETH }
func (l *FETH) CanDecode() gopacket.LayerClass    { return LayerTypeFETH }
func (l *FETH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// DETH is a datagram header.
type DETH struct {
	layers.BaseLayer
	QKey  uint32
	SrcQP uint32
}

// DecodeFromBytes reads the DETH at the start of data.
func (l *DETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("DETH", data, hdr.DETHLen, df); err != nil {
		return err
	}
	h := hdr.DETH(data)
	l.QKey, l.SrcQP = h.QKey(), h.SrcQP()
	return nil
}

func (l *DETH) LayerType() gopacket.LayerType     { return LayerTypeDETH }
func (l *DETH) CanDecode() gopacket.LayerClass    { return LayerTypeDETH }
func (l *DETH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// RETH is the header of an RDMA WRITE, READ or ATOMIC WRITE.
type RETH struct {
	layers.BaseLayer
	VA        uint64
	RKey      uint32
	DMALength uint32
}

// DecodeFromBytes reads the RETH at the start of data.
func (l *RETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("RETH", data, hdr.RETHLen, df); err != nil {
		return err
	}
	h := hdr.RETH(data)
	l.VA, l.RKey, l.DMALength = h.VA(), h.RKey(), h.DMALength()
	return nil
}

func (l *RETH) LayerType() gopacket.LayerType     { return LayerTypeRETH }
func (l *RETH) CanDecode() gopacket.LayerClass    { return LayerTypeRETH }
func (l *RETH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// AtomicETH is the header of an atomic; Swap is also the addend.
type AtomicETH struct {
	layers.BaseLayer
	VA      uint64
	RKey    uint32
	Swap    uint64
	Compare uint64
}

// DecodeFromBytes reads the AtomicETH at the start of data.
func (l *AtomicETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("AtomicETH", data, hdr.AtomicETHLen, df); err != nil {
		return err
	}
	h := hdr.AtomicETH(data)
	l.VA, l.RKey, l.Swap, l.Compare = h.VA(), h.RKey(), h.Swap(), h.Compare()
	return nil
}

func (l *AtomicETH) LayerType() gopacket.LayerType     { return LayerTypeAtomicETH }
func (l *AtomicETH) CanDecode() gopacket.LayerClass    { return LayerTypeAtomicETH }
func (l *AtomicETH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// MaskedAtomicETH is the header of Mellanox' masked atomics.
type MaskedAtomicETH struct {
	layers.BaseLayer
	VA          uint64
	RKey        uint32
	Swap        uint64
	Compare     uint64
	SwapMask    uint64
	CompareMask uint64
}

// DecodeFromBytes reads the MaskedAtomicETH at the start of data.
func (l *MaskedAtomicETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("MaskedAtomicETH", data, hdr.MaskedAtomicETHLen, df); err != nil {
		return err
	}
	h := hdr.MaskedAtomicETH(data)
	l.VA, l.RKey, l.Swap, l.Compare, l.SwapMask, l.CompareMask = h.VA(), h.RKey(), h.Swap(), h.Compare(), h.SwapMask(), h.CompareMask()
	return nil
}

func (l *MaskedAtomicETH) LayerType() gopacket.LayerType     { return LayerTypeMaskedAtomicETH }
func (l *MaskedAtomicETH) CanDecode() gopacket.LayerClass    { return LayerTypeMaskedAtomicETH }
func (l *MaskedAtomicETH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// AETH is the header of an acknowledgement.
type AETH struct {
	layers.BaseLayer
	Syndrome hdr.Syndrome
	MSN      uint32
}

// DecodeFromBytes reads the AETH at the start of data.
func (l *AETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("AETH", data, hdr.AETHLen, df); err != nil {
		return err
	}
	h := hdr.AETH(data)
	l.Syndrome, l.MSN = h.Syndrome(), h.MSN()
	return nil
}

func (l *AETH) LayerType() gopacket.LayerType     { return LayerTypeAETH }
func (l *AETH) CanDecode() gopacket.LayerClass    { return LayerTypeAETH }
func (l *AETH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// AtomicAckETH holds the value before an atomic.
type AtomicAckETH struct {
	layers.BaseLayer
	Original uint64
}

// DecodeFromBytes reads the AtomicAckETH at the start of data.
func (l *AtomicAckETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("AtomicAckETH", data, hdr.AtomicAckETHLen, df); err != nil {
		return err
	}
	h := hdr.AtomicAckETH(data)
	l.Original = h.Original()
	return nil
}

func (l *AtomicAckETH) LayerType() gopacket.LayerType     { return LayerTypeAtomicAckETH }
func (l *AtomicAckETH) CanDecode() gopacket.LayerClass    { return LayerTypeAtomicAckETH }
func (l *AtomicAckETH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// ImmDt is immediate data.
type ImmDt struct {
	layers.BaseLayer
	Data uint32
}

// DecodeFromBytes reads the ImmDt at the start of data.
func (l *ImmDt) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("ImmDt", data, hdr.ImmDtLen, df); err != nil {
		return err
	}
	h := hdr.ImmDt(data)
	l.Data = h.Data()
	return nil
}

func (l *ImmDt) LayerType() gopacket.LayerType     { return LayerTypeImmDt }
func (l *ImmDt) CanDecode() gopacket.LayerClass    { return LayerTypeImmDt }
func (l *ImmDt) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// IETH names the R_Key to invalidate.
type IETH struct {
	layers.BaseLayer
	RKey uint32
}

// DecodeFromBytes reads the IETH at the start of data.
func (l *IETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("IETH", data, hdr.IETHLen, df); err != nil {
		return err
	}
	h := hdr.IETH(data)
	l.RKey = h.RKey()
	return nil
}

func (l *IETH) LayerType() gopacket.LayerType     { return LayerTypeIETH }
func (l *IETH) CanDecode() gopacket.LayerClass    { return LayerTypeIETH }
func (l *IETH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }
