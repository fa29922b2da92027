package bed

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/nf/clock"
	format "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/rack/rnic"
)

// Rogue is a client that may use the store's memory, and is malicious. It asks as others do for a while, writes an
// entry of a key that others use, and sends the CAS that links it behind a WRITE that the server refuses, or without
// the right to atomics: on a bare wire the CAS does nothing. Then it connects anew.
type Rogue struct {
	Strikes   []time.Duration // from one connection to the refusal
	Powerless bool            // its queue pair has no right to atomics
	Unheard   bool            // the server has executed no atomic of its before
}

// rogue plays a Rogue. It implements host.App for the client of the bed that is not the store's.
type rogue struct {
	Rogue
	b             *Bed
	c             *Client
	cl            *clover.Cluster
	rng           *rand.Rand
	qp            *rnic.QP
	next          clock.Time // of its strike, or its next connection
	open          int        // work requests that have no completion
	entry         uint32     // handle of its next entry
	wrote, struck bool
	err           error
}

// Deadline implements host.App.
func (r *rogue) Deadline() clock.Time {
	if len(r.Strikes) == 0 || r.qp != nil {
		return clock.Never
	}
	return r.next
}

// Step implements host.App.
func (r *rogue) Step(now clock.Time) bool {
	did := false
	var wc [16]rnic.WC
	for n := r.c.CQ.Poll(wc[:]); n > 0; n = r.c.CQ.Poll(wc[:]) {
		r.open -= n
		did = true
	}
	switch {
	case len(r.Strikes) == 0 || r.err != nil:
	case r.qp == nil:
		if did = r.next <= now; did {
			r.connect(now)
		}
	case r.qp.State() != rnic.StateReady:
		r.qp, r.open, did = nil, 0, true
		r.next, r.Strikes = now.Add(handshake), r.Strikes[1:]
	case r.open > 0 || r.struck:
	default:
		did = true
		r.ask(now)
	}
	return did
}

func (r *rogue) connect(now clock.Time) {
	l := Link{PD: r.cl.MemoryPD(0)}
	if r.Powerless {
		l.Access = rnic.RemoteRead | rnic.RemoteWrite
	}
	r.qp, r.err = r.b.Connect(r.c, 0, l)
	r.wrote, r.struck, r.open = false, false, 0
	r.next = now.Add(r.Strikes[0])
}

func (r *rogue) post(op rnic.Op, va uint64, rkey uint32, data []byte, compare, swap uint64) {
	if r.err == nil {
		r.err = r.qp.PostSend(&rnic.SendWR{Op: op, SGL: [][]byte{data}, RemoteAddr: va, RKey: rkey, Compare: compare, Swap: swap, Signaled: true})
		r.open++
	}
}

// ask sends what comes next, when all before was answered.
func (r *rogue) ask(now clock.Time) {
	space := r.cl.Layout()[0]
	at := func(lh uint32) uint64 { return space.VA + uint64(lh-space.FirstLH)*uint64(space.Slab) }
	fresh := uint64(format.Fresh(format.MinVersion))
	switch {
	case r.next > now && (r.Powerless || r.Unheard || r.rng.IntN(2) == 0):
		r.post(rnic.OpRead, at(r.entry), space.RKey, make([]byte, space.Slab), 0, 0)
	case r.next > now: // an atomic on its own entry, which changes nothing
		r.post(rnic.OpCompareSwap, at(r.entry), space.RKey, make([]byte, 8), fresh, fresh)
	case !r.wrote:
		r.wrote = true
		r.entry--
		b := binary.LittleEndian.AppendUint64(make([]byte, 0, space.Slab), fresh)
		b = binary.LittleEndian.AppendUint64(b, 1)
		r.post(rnic.OpWrite, at(r.entry), space.RKey, b[:space.Slab], 0, 0)
	default:
		r.struck = true
		if !r.Powerless {
			r.post(rnic.OpWrite, at(r.entry), space.RKey+1<<8, make([]byte, 8), 0, 0)
		}
		r.post(rnic.OpCompareSwap, at(space.FirstLH), space.RKey, make([]byte, 8), fresh, uint64(format.Linked(format.MinVersion, format.Ref(r.entry, format.MinVersion))))
	}
}
