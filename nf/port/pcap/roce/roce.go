package roce

import (
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/hdr"
)

// The layer types, in gopacket's range for applications.
const (
	LayerTypeGRH gopacket.LayerType = 1479 + iota
	LayerTypeBTH
	LayerTypeFETH
	LayerTypeDETH
	LayerTypeRETH
	LayerTypeAtomicETH
	LayerTypeMaskedAtomicETH
	LayerTypeAETH
	LayerTypeAtomicAckETH
	LayerTypeImmDt
	LayerTypeIETH
)

// Register makes gopacket decode UDP datagrams to port 4791, and frames of
// EtherType 0x8915 (RoCE v1), with these layers. gopacket's tables are global
// and unguarded: call it before anything is decoded. More calls change nothing.
func Register() {
	for _, r := range []struct {
		t    gopacket.LayerType
		name string
		d    gopacket.DecodeFunc
	}{
		{LayerTypeGRH, "GRH", decodeGRH},
		{LayerTypeBTH, "BTH", decodeBTH},
		{LayerTypeFETH, "FETH", alone[FETH]},
		{LayerTypeDETH, "DETH", alone[DETH]},
		{LayerTypeRETH, "RETH", alone[RETH]},
		{LayerTypeAtomicETH, "AtomicETH", alone[AtomicETH]},
		{LayerTypeMaskedAtomicETH, "MaskedAtomicETH", alone[MaskedAtomicETH]},
		{LayerTypeAETH, "AETH", alone[AETH]},
		{LayerTypeAtomicAckETH, "AtomicAckETH", alone[AtomicAckETH]},
		{LayerTypeImmDt, "ImmDt", alone[ImmDt]},
		{LayerTypeIETH, "IETH", alone[IETH]},
	} {
		gopacket.OverrideLayerType(int(r.t), gopacket.LayerTypeMetadata{Name: r.name, Decoder: r.d})
	}
	layers.RegisterUDPPortLayerType(hdr.RoCEv2Port, LayerTypeBTH)
	layers.EthernetTypeMetadata[hdr.EtherRoCEv1] = layers.EnumMetadata{DecodeWith: LayerTypeGRH, Name: "RoCEv1", LayerType: LayerTypeGRH}
}

// layer is what gopacket wants of a header that it can decode by itself.
type layer interface {
	gopacket.Layer
	gopacket.DecodingLayer
}

// alone decodes one header of type T and takes the rest for payload.
func alone[T any, P interface {
	*T
	layer
}](data []byte, p gopacket.PacketBuilder) error {
	l := P(new(T))
	if err := l.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(l)
	return p.NextDecoder(l.NextLayerType())
}

// cut splits data behind n bytes into a BaseLayer.
func cut(name string, data []byte, n int, df gopacket.DecodeFeedback) (layers.BaseLayer, error) {
	if len(data) < n {
		df.SetTruncated()
		return layers.BaseLayer{}, fmt.Errorf("%s is truncated: %d of %d bytes", name, len(data), n)
	}
	return layers.BaseLayer{Contents: data[:n], Payload: data[n:]}, nil
}

// GRH is the network header of RoCE v1.
type GRH struct {
	layers.BaseLayer
	TClass     uint8
	FlowLabel  uint32
	PayLen     uint16
	NxtHdr     uint8
	HopLmt     uint8
	SGID, DGID netip.Addr
}

// DecodeFromBytes reads a GRH; what follows is cut to PayLen.
func (l *GRH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("GRH", data, hdr.GRHLen, df); err != nil {
		return err
	}
	h := hdr.GRH(data)
	l.TClass, l.FlowLabel, l.PayLen, l.NxtHdr, l.HopLmt, l.SGID, l.DGID = h.TClass(), h.FlowLabel(), h.PayLen(), h.NxtHdr(), h.HopLmt(), h.SGID(), h.DGID()
	if len(l.Payload) < int(l.PayLen) {
		df.SetTruncated()
		return fmt.Errorf("GRH announces %d bytes, %d follow", l.PayLen, len(l.Payload))
	}
	l.Payload = l.Payload[:l.PayLen]
	return nil
}

func (l *GRH) LayerType() gopacket.LayerType  { return LayerTypeGRH }
func (l *GRH) CanDecode() gopacket.LayerClass { return LayerTypeGRH }
func (l *GRH) NextLayerType() gopacket.LayerType {
	if l.NxtHdr == hdr.ProtoBTH {
		return LayerTypeBTH
	}
	return gopacket.LayerTypePayload
}

func decodeGRH(data []byte, p gopacket.PacketBuilder) error { return alone[GRH](data, p) }

// BTH is a base transport header. Its payload are the extended headers and
// the message's bytes, without pad and ICRC.
type BTH struct {
	layers.BaseLayer
	OpCode            hdr.Opcode
	Solicited, MigReq bool
	PadCount          int
	TVer              uint8
	PKey              uint16
	FECN, BECN        bool
	DestQP            uint32
	AckReq            bool
	PSN               uint32
	ICRC              uint32 // as stored, low byte first
}

// DecodeFromBytes reads a BTH from a whole datagram, which ends with the ICRC.
func (l *BTH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) (err error) {
	if l.BaseLayer, err = cut("BTH", data, hdr.BTHLen, df); err != nil {
		return err
	}
	h := hdr.BTH(data)
	l.OpCode, l.Solicited, l.MigReq, l.PadCount, l.TVer, l.PKey = h.OpCode(), h.Solicited(), h.MigReq(), h.PadCount(), h.TVer(), h.PKey()
	l.FECN, l.BECN, l.DestQP, l.AckReq, l.PSN = h.FECN(), h.BECN(), h.DestQP(), h.AckReq(), h.PSN()
	n := len(l.Payload) - hdr.ICRCLen
	if want := int(l.OpCode.Info().Len) + l.PadCount; n < want {
		df.SetTruncated()
		return fmt.Errorf("%v is truncated: %d bytes behind the BTH, its headers, pad and ICRC need %d", l.OpCode, len(l.Payload), want+hdr.ICRCLen)
	}
	t := l.Payload[n:]
	l.ICRC = uint32(t[0]) | uint32(t[1])<<8 | uint32(t[2])<<16 | uint32(t[3])<<24
	l.Payload = l.Payload[:n-l.PadCount]
	return nil
}

func (l *BTH) LayerType() gopacket.LayerType  { return LayerTypeBTH }
func (l *BTH) CanDecode() gopacket.LayerClass { return LayerTypeBTH }

// NextLayerType is the first extended header. An extended header cannot tell
// what follows it, only the BTH can: NewPacket shows all of them, a
// DecodingLayerParser the first, and takes the others for payload.
func (l *BTH) NextLayerType() gopacket.LayerType {
	for i, t := range extTypes {
		if l.OpCode.Info().Ext&(1<<i) != 0 {
			return t
		}
	}
	return gopacket.LayerTypePayload
}

func (l *BTH) String() string {
	return fmt.Sprintf("%v QP 0x%06x PSN 0x%06x", l.OpCode, l.DestQP, l.PSN)
}

// extTypes has the layer type of each bit of hdr.Ext.
var extTypes = [...]gopacket.LayerType{LayerTypeFETH, LayerTypeDETH, LayerTypeRETH, LayerTypeAtomicETH, LayerTypeMaskedAtomicETH,
	LayerTypeAETH, LayerTypeAtomicAckETH, LayerTypeImmDt, LayerTypeIETH}

// newExt is an empty header for bit i of hdr.Ext.
func newExt(i int) layer {
	return [...]layer{new(FETH), new(DETH), new(RETH), new(AtomicETH), new(MaskedAtomicETH),
		new(AETH), new(AtomicAckETH), new(ImmDt), new(IETH)}[i]
}

func decodeBTH(data []byte, p gopacket.PacketBuilder) error {
	l := new(BTH)
	if err := l.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(l)
	rest := l.Payload
	for i := range extTypes {
		if l.OpCode.Info().Ext&(1<<i) == 0 {
			continue
		}
		x := newExt(i)
		if err := x.DecodeFromBytes(rest, p); err != nil {
			return err
		}
		p.AddLayer(x)
		rest = x.LayerPayload()
	}
	return p.NextDecoder(gopacket.LayerTypePayload)
}
