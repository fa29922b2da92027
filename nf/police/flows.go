package police

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// flowKey is what packets that share a meter have in common; unused parts are
// zero.
type flowKey struct {
	src, dst [16]byte
	ports    uint32
	proto    uint8
	family   uint8 // hdr.NetIPv4 or NetIPv6: no key is zero
	in       uint8
}

// hash spreads keys over sets.
func (k *flowKey) hash() uint64 {
	le := binary.LittleEndian
	h := uint64(k.ports) | uint64(k.proto)<<32 | uint64(k.family)<<40 | uint64(k.in)<<48
	for _, v := range [4]uint64{le.Uint64(k.src[:]), le.Uint64(k.src[8:]), le.Uint64(k.dst[:]), le.Uint64(k.dst[8:])} {
		h = hdr.Fold(h, v)
	}
	return hdr.Fold(h, 0)
}

// per says which packets share a meter.
type per uint8

const (
	perPort per = iota
	perSrc
	perDst
	perFlow
)

var perNames = []string{"port", "src", "dst", "flow"}

// key of a datagram d in frame b. Fragments of a datagram have one key, without
// ports: later ones have none.
func (p per) key(b []byte, d *hdr.Layers, in int) (k flowKey) {
	k.family, k.in = d.Family(), uint8(in)
	n, at := 4, d.L3+12
	if k.family == hdr.NetIPv6 {
		n, at = 16, d.L3+8
	}
	if p != perDst {
		copy(k.src[:], b[at:at+n])
	}
	if p != perSrc {
		copy(k.dst[:], b[at+n:at+2*n])
	}
	if p == perFlow {
		k.proto = d.Proto
		if (d.Proto == hdr.ProtoTCP || d.Proto == hdr.ProtoUDP) && !d.Fragment && d.End >= d.L4+4 {
			k.ports = binary.BigEndian.Uint32(b[d.L4:])
		}
	}
	return k
}

// ways is how many places a key may have.
const ways = 8

type flow struct {
	key flowKey
	meter
}

// flowTable has a meter for each key, in sets of ways places. A place is taken
// over when its buckets are full: then its meter is what a new one would be, and
// nothing is forgotten. A key for which no place is free has no meter of its own.
type flowTable struct {
	flows []flow
	mask  uint64 // of sets
}

func newFlowTable(n int) flowTable {
	sets := 1
	for sets*ways < n {
		sets *= 2
	}
	return flowTable{make([]flow, sets*ways), uint64(sets - 1)}
}

// meter of key k; nil: there is no room. isNew: it had none before.
func (t *flowTable) meter(m *marker, k *flowKey, now clock.Time) (x *meter, isNew bool) {
	at := (k.hash() & t.mask) * ways
	set := t.flows[at : at+ways]
	for i := range set {
		if set[i].key == *k {
			return &set[i].meter, false
		}
	}
	for i := range set {
		if f := &set[i]; f.key.family == hdr.NetNone || m.full(&f.meter, now) {
			f.key, f.meter = *k, m.fresh(now)
			return &f.meter, true
		}
	}
	return nil, false
}
