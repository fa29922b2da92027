package clio

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quillon/quillon/internal/rack/clio"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clio"
)

// events numbers calls and returns, of all clients.
type events struct {
	n   int64
	ops []porcupine.Operation
}

// asked is an operation, told its answer: a value's number, and whether it was done.
type asked struct {
	code       wire.Opcode
	key, value uint64
}

type told struct {
	ok    bool
	value uint64
}

// keysModel is a key/value store whose keys come and go. State 0: the key is not there.
var keysModel = porcupine.Model{
	Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
		by := map[uint64][]porcupine.Operation{}
		for _, o := range h {
			k := o.Input.(asked).key
			by[k] = append(by[k], o)
		}
		var all [][]porcupine.Operation
		for _, p := range by {
			all = append(all, p)
		}
		return all
	},
	Init: func() any { return uint64(0) },
	Step: func(state, in, out any) (bool, any) {
		s, i, o := state.(uint64), in.(asked), out.(told)
		switch there := s != 0; i.code {
		case wire.Read:
			return o.ok == there && (!there || o.value == s), s
		case wire.Create:
			if there {
				return !o.ok, s
			}
			return o.ok, i.value
		case wire.Update:
			if !there {
				return !o.ok, s
			}
			return o.ok, i.value
		default:
			return o.ok == there, uint64(0)
		}
	},
}

// everything is a client that creates, updates, reads and deletes. It is an app.
type everything struct {
	c      *clio.Client
	number uint64
	rng    *rand.Rand
	left   int
	open   map[[2]int]int // by session and number: index in ops
	log    *events
	stats  clio.LoadStats
}

func (e *everything) Idle() bool            { return e.left == 0 && len(e.open) == 0 }
func (e *everything) Stats() clio.LoadStats { return e.stats }
func (e *everything) Deadline() clock.Time  { return clock.Never }

func (e *everything) Step(now clock.Time) bool {
	did := false
	for {
		d, ok := e.c.Next()
		if !ok {
			break
		}
		did = true
		k := [2]int{d.Session, int(d.ID)}
		o := &e.log.ops[e.open[k]]
		delete(e.open, k)
		e.log.n++
		o.Return = e.log.n
		a := told{ok: d.Status == wire.OK}
		if d.Status != wire.OK && d.Status != wire.Invalid {
			e.stats.Unknown++
		}
		if d.Code == wire.Read {
			e.stats.Reads++
			if a.ok {
				if a.value, ok = clio.NumberOf(d.Value, d.Key); !ok {
					e.stats.Corrupt++
				}
			}
		} else {
			e.stats.Writes++
		}
		o.Output = a
	}
	for i := range e.c.Sessions() {
		for e.left > 0 && e.c.Ready(i) {
			op := clio.Op{Code: []wire.Opcode{wire.Read, wire.Read, wire.Create, wire.Update, wire.Delete}[e.rng.IntN(5)], Key: 1 + uint64(e.rng.IntN(3))}
			in := asked{code: op.Code, key: op.Key}
			if op.Code == wire.Create || op.Code == wire.Update {
				e.number++
				in.value = e.number
				op.Value = make([]byte, clio.MinValue+e.rng.IntN(64))
				clio.FillValue(op.Value, op.Key, in.value)
			}
			id, err := e.c.Start(now, i, op)
			if err != nil {
				break
			}
			e.left--
			did = true
			e.log.n++
			e.open[[2]int{i, int(id)}] = len(e.log.ops)
			e.log.ops = append(e.log.ops, porcupine.Operation{Input: in, Call: e.log.n})
		}
	}
	return did
}

// All operations, of keys that come and go.
func TestAllOperations(t *testing.T) {
	for _, name := range []string{"plain", "gobackn+cache", "gobackn+cache+copies", "cache, lossy", "cache+copies, lossy"} {
		for seed := range uint64(3) {
			s := setups[name]
			s.all = &events{}
			schedule := fault.Random(seed, fault.Mix{Links: []string{"c0", "c1", "c2", "s0", "s1"}, Frames: 60, Within: 800, Late: 300 * time.Microsecond})
			what := fmt.Sprintf("%s, seed %d", name, seed)
			r, err := run(s, schedule, seed)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if r.stats.Corrupt+r.stats.Unknown > 0 || r.stats.Reads == 0 || r.stats.Writes == 0 {
				t.Errorf("%s: %+v", what, r.stats)
			}
			if got := porcupine.CheckOperationsTimeout(keysModel, s.all.ops, 20*time.Second); got != porcupine.Ok {
				t.Errorf("%s: %v", what, got)
			}
		}
	}
}
