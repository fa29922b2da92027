package balance

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// connKey is a connection from a client to the virtual address of its family.
type connKey struct {
	client [16]byte
	port   uint16 // the client's
	proto  uint8
	net    uint8 // hdr.NetIPv4 or NetIPv6: no key is zero
}

func (k *connKey) hash() uint64 {
	be := binary.BigEndian
	h := hdr.Fold(uint64(k.port)|uint64(k.proto)<<16|uint64(k.net)<<24, be.Uint64(k.client[:]))
	return hdr.Fold(hdr.Fold(h, be.Uint64(k.client[8:])), 0)
}

// conn is 32 bytes.
type conn struct {
	key     connKey
	backend uint16
	seen    clock.Time
}

// ways is how many places a connection may have.
const ways = 8

// conns remembers the backends of connections, in sets of ways places. The place
// of a connection without traffic for the time idle is taken over; when there is
// none, the connection is not remembered.
type conns struct {
	places []conn
	mask   uint64 // of sets
}

func newConns(n int) conns {
	sets := 1
	for sets*ways < n {
		sets *= 2
	}
	return conns{make([]conn, sets*ways), uint64(sets - 1)}
}

// find is the place of a connection; nil: it has none.
func (t *conns) find(k *connKey, hash uint64) *conn {
	// The upper bits: the lookup table uses all.
	set := t.places[(hash>>32&t.mask)*ways:][:ways]
	for i := range set {
		if set[i].key == *k {
			return &set[i]
		}
	}
	return nil
}

// add gives a connection a place; nil when there is none. The place may have been
// another's.
func (t *conns) add(k *connKey, hash uint64, now clock.Time, idle clock.Duration) *conn {
	set := t.places[(hash>>32&t.mask)*ways:][:ways]
	for i := range set {
		if c := &set[i]; c.key.net == hdr.NetNone || now.Sub(c.seen) > idle {
			*c = conn{key: *k, seen: now}
			return c
		}
	}
	return nil
}
