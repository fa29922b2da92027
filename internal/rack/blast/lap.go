package blast

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/nf/hdr"
)

// Offsets of the words in front of a frame in the generator's map: 32 bits each, in the
// byte order of this machine.
const (
	atLen   = 0
	atStep  = 4  // Frame.Step
	atPSN   = 8  // PSN in the first lap
	atTable = 12 // index of the frame's delta
	atWord  = 16 // offset of the frame's word whose low 24 bits are the PSN
	atICRC  = 20 // offset of the ICRC
	prefix  = 24
)

// delta says how the ICRC of frames of one shape changes with their PSN: if v is XORed into the i-th byte of
// the PSN, the most significant first, delta[i][v] is XORed into the ICRC.
type delta [3][256]uint32

// deltas has the delta of each frame; frames of one shape share it.
type deltas struct {
	list []delta
	of   map[int]uint32 // by distance from PSN to ICRC
}

// describe writes the words in front of frame f to v.
func (d *deltas) describe(v []byte, f *Frame) error {
	ne := binary.NativeEndian
	ne.PutUint32(v[atLen:], uint32(len(f.Bytes)))
	if f.Step == 0 {
		return nil
	}
	var p hdr.Frame
	if why := hdr.Parse(f.Bytes, &p); why != hdr.IsRoCE {
		return fmt.Errorf("a frame that has no PSN to step on: %v", why)
	}
	at := int(p.BTH) + 8
	shape := int(p.End) - at
	i, ok := d.of[shape]
	if !ok {
		if d.of == nil {
			d.of = map[int]uint32{}
		}
		i = uint32(len(d.list))
		d.of[shape] = i
		d.list = append(d.list, deltaOf(f.Bytes, &p))
	}
	ne.PutUint32(v[atStep:], f.Step)
	ne.PutUint32(v[atPSN:], p.BTHOf(f.Bytes).PSN())
	ne.PutUint32(v[atTable:], i)
	ne.PutUint32(v[atWord:], uint32(at))
	ne.PutUint32(v[atICRC:], uint32(p.End))
	return nil
}

// deltaOf tries every change on a copy of frame b.
func deltaOf(b []byte, f *hdr.Frame) (d delta) {
	b = append([]byte(nil), b...)
	right := append([]byte(nil), b[f.End:]...)
	for i := range d {
		at := int(f.BTH) + 9 + i
		was := b[at]
		for v := range d[i] {
			b[at] = was ^ byte(v)
			hdr.PatchICRC(b, f, at, []byte{was})
			for j := range hdr.ICRCLen {
				b[int(f.End)+j] ^= right[j]
			}
			d[i][v] = binary.NativeEndian.Uint32(b[f.End:])
			copy(b[f.End:], right)
		}
		b[at] = was
	}
	return d
}

// load makes the generator's map of deltas.
func (d *deltas) load() (*ebpf.Map, error) {
	const size = 3 * 256 * 4
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "blast_deltas", Type: ebpf.Array, KeySize: 4, ValueSize: size, MaxEntries: uint32(max(1, len(d.list))),
	})
	if err != nil {
		return nil, err
	}
	for i := range d.list {
		if err := m.Put(uint32(i), &d.list[i]); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}
