package police

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
)

// per says which packets share a meter.
type per uint8

const (
	perPort per = iota
	perSrc
	perDst
	perFlow
)

var perNames = []string{"port", "src", "dst", "flow"}

// key returns what packets that share a meter have in common with datagram d in frame b. All fragments of a
// datagram have one key, without ports, because the later ones have none.
func (p per) key(b []byte, d *hdr.Layers, in int) (k flow.Key) {
	k.Addrs(b, d)
	k.Proto, k.Tag = 0, uint32(in)
	switch p {
	case perSrc:
		k.Dst = [16]byte{}
	case perDst:
		k.Src = [16]byte{}
	case perFlow:
		k.Proto = d.Proto
		if (d.Proto == hdr.ProtoTCP || d.Proto == hdr.ProtoUDP) && !d.Fragment && d.End >= d.L4+4 {
			k.SrcPort, k.DstPort = binary.BigEndian.Uint16(b[d.L4:]), binary.BigEndian.Uint16(b[d.L4+2:])
		}
	}
	return k
}

// flowTable has a meter for each key. A new key may take a place whose buckets are full: that meter is equal to a
// new one, so that nothing is forgotten. A key that finds no such place has no meter of its own.
type flowTable struct{ flow.Table[flow.Key, meter] }

// meter returns the meter of key k, or nil if there is no room. isNew reports that k had no meter before.
func (t *flowTable) meter(p *police, k *flow.Key, now clock.Time) (x *meter, isNew bool) {
	hash := k.Hash(p.seed)
	i := t.Find(k, hash)
	if i >= 0 {
		return &t.At(i).Val, false
	}
	if i = t.Add(k, hash); i < 0 {
		if i = t.full(p, hash, now); i < 0 {
			return nil, false
		}
		p.give(&t.At(i).Val)
		t.Replace(i, k, hash)
	}
	x = &t.At(i).Val
	*x = p.fresh(now)
	return x, true
}

// full returns a place for that hash whose buckets are full, or a negative number if there is none.
func (t *flowTable) full(p *police, hash uint64, now clock.Time) int {
	a, b := t.Sets(hash)
	for _, first := range [2]int{a, b} {
		for i := first; i < first+flow.Ways; i++ {
			x := &t.At(i).Val
			p.load(x)
			if p.marker.full(x, now) {
				return i
			}
		}
	}
	return -1
}
