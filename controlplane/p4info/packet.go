package p4info

import (
	"encoding/hex"
	"slices"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
)

const notFound = codes.NotFound

// Header is the header in front of a packet that goes to the controller or comes from it.
type Header struct {
	Object
	Fields []Field
	bits   int
}

// With returns a copy of the header whose fields have other widths: those that the device uses for translated
// types.
func (h *Header) With(widths []int) *Header {
	c := &Header{Object: h.Object, Fields: slices.Clone(h.Fields)}
	for n, w := range widths {
		c.Fields[n].Type.Bits = w
		c.bits += w
	}
	return c
}

// Len returns the length of the header in bytes; it is 0 for a nil Header.
func (h *Header) Len() int {
	if h == nil {
		return 0
	}
	return (h.bits + 7) / 8
}

// Metadata checks the metadata of a packet against the header, and returns it in canonical form, in the order
// of the header. A nil Header allows no metadata.
func (h *Header) Metadata(list []*p4v1.PacketMetadata) ([]*p4v1.PacketMetadata, error) {
	if h == nil {
		if len(list) > 0 {
			return nil, invalid("metadata %d: the program has no such header", list[0].GetMetadataId())
		}
		return nil, nil
	}
	list, err := arranged(h.Fields, "metadata", list, (*p4v1.PacketMetadata).GetMetadataId)
	if err != nil {
		return nil, in("header "+h.Name, err)
	}
	out := make([]*p4v1.PacketMetadata, len(h.Fields))
	for n := range out {
		f := &h.Fields[n]
		switch {
		case len(list) > 0 && list[0].GetMetadataId() == f.ID:
			v, err := f.Type.canonical(list[0].GetValue())
			if err != nil {
				return nil, in("header "+h.Name+", metadata "+f.Name, err)
			}
			out[n] = &p4v1.PacketMetadata{MetadataId: f.ID, Value: v}
			list = list[1:]
		case f.padding(): // what only fills up a byte may be left out
			out[n] = &p4v1.PacketMetadata{MetadataId: f.ID, Value: []byte{0}}
		default:
			return nil, invalid("header %s: metadata %s is missing", h.Name, f.Name)
		}
	}
	return out, nil
}

func (f *Field) padding() bool {
	return slices.Contains(f.Annotations, "@padding") || slices.Contains([]string{"padding", "_pad", "pad"}, f.Name)
}

// Pack appends the header of a packet to dst: the fields of list one after the other, without gaps between
// their bits. list must be canonical.
func (h *Header) Pack(dst []byte, list []*p4v1.PacketMetadata) []byte {
	if h == nil {
		return dst
	}
	start := len(dst)
	dst = append(dst, make([]byte, h.Len())...)
	at := 0
	for n, f := range h.Fields {
		v := list[n].GetValue()
		for b := range min(f.Type.Bits, 8*len(v)) { // from the lowest bit
			if v[len(v)-1-b/8]>>(b%8)&1 != 0 {
				p := at + f.Type.Bits - 1 - b
				dst[start+p/8] |= 0x80 >> (p % 8)
			}
		}
		at += f.Type.Bits
	}
	return dst
}

// Unpack returns the metadata in the header of frame, and the bytes after the header.
func (h *Header) Unpack(frame []byte) ([]*p4v1.PacketMetadata, []byte, error) {
	if h == nil {
		return nil, frame, nil
	}
	if len(frame) < h.Len() {
		return nil, nil, invalid("header %s takes %d bytes, the packet has %d: %s", h.Name, h.Len(), len(frame), hex.EncodeToString(frame))
	}
	out := make([]*p4v1.PacketMetadata, len(h.Fields))
	at := 0
	for n, f := range h.Fields {
		w := f.Type.Bits
		v := make([]byte, max(1, (w+7)/8))
		for b := range w {
			p := at + w - 1 - b
			if frame[p/8]&(0x80>>(p%8)) != 0 {
				v[len(v)-1-b/8] |= 1 << (b % 8)
			}
		}
		c, _ := Canonical(v, w)
		out[n] = &p4v1.PacketMetadata{MetadataId: f.ID, Value: c}
		at += w
	}
	return out, frame[h.Len():], nil
}
