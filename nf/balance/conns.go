package balance

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
)

// connKey identifies a connection from a client to the virtual address of its family.
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

// conn is what is known of a connection.
type conn struct {
	backend uint16
	life    life
	flows   offload.Flows // in the kernel
	ack     uint32        // of TCP: the acknowledgement number of the backend's newest segment
	fin     uint32        // of TCP, with clientFinished: the acknowledgement number that covers the client's FIN
	seen    clock.Time
}

// conns remembers the backends of connections. A new connection may take the place of one that had no traffic for
// the time idle; if there is none, it is not remembered.
//
// A random seed decides where connections have their places. Without it, a client could choose its ports so that
// few places are used, and others' connections are forgotten. Backends are chosen without a seed, alike in all
// workers and hosts.
type conns struct {
	flow.Table[connKey, conn]
	seed   uint64
	seeded bool
	ahead  *offload.Table // of those that have flows
}

// add gives a connection a place, which may have been another's, and returns the place, or a negative number if
// there is none. o is the owner of the connections' entries in the kernel.
func (t *conns) add(o offload.Owner, k *connKey, hash uint64, now clock.Time, idle clock.Duration) int {
	i := t.Add(k, hash)
	if i < 0 {
		if i = t.idle(o, hash, now, idle); i < 0 {
			return i
		}
		t.withdraw(i)
		t.Replace(i, k, hash)
	}
	t.At(i).Val.seen = now
	return i
}

// idle returns a place for that hash whose connection is idle, or a negative number if there is none.
func (t *conns) idle(o offload.Owner, hash uint64, now clock.Time, idle clock.Duration) int {
	a, b := t.Sets(hash)
	for _, first := range [2]int{a, b} {
		for i := first; i < first+flow.Ways; i++ {
			if now.Sub(t.since(o, i, now, idle)) > idle {
				return i
			}
		}
	}
	return -1
}
