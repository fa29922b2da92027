package bed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
)

// KeyOp is an operation on a key in a history; the answer is the value that was there before, 0 for none, someValue where
// the client is not told which.
type KeyOp struct {
	Key   uint64
	Kind  KeyKind
	Value uint64
}

// KeyKind is what an operation does; the stores number theirs alike.
type KeyKind uint8

const (
	keyRead KeyKind = iota
	keyInsert
	keyUpdate
	keyDelete
)

func (k KeyKind) String() string { return [...]string{"read", "insert", "update", "delete"}[k] }

const someValue = 1<<64 - 1

// keyOps is the model of a store of keys, of which initial says what they have at first. blind: who writes is not told what
// was there.
func keyOps(initial func(uint64) uint64, blind bool) history.Model[KeyOp, uint64] {
	untold := func(o KeyOp, out uint64) bool { return out == someValue || blind && o.Kind != keyRead }
	return history.Model[KeyOp, uint64]{
		Name:   "key",
		Object: func(o KeyOp) uint64 { return o.Key },
		Init:   initial,
		Step: func(v uint64, o KeyOp, out uint64, told bool) (uint64, bool) {
			if told && out == someValue {
				return o.Value, v != 0 // a deletion's is 0
			}
			ok := !told || untold(o, out) || out == v
			switch {
			case o.Kind == keyInsert && v == 0, o.Kind == keyUpdate && v != 0:
				return o.Value, ok
			case o.Kind == keyDelete:
				return 0, ok
			}
			return v, ok
		},
		Needs: func(o KeyOp, out uint64) (uint64, bool) { return out, untold(o, out) },
		Makes: func(o KeyOp) (uint64, bool) { return o.Value, true },
		Inert: func(o KeyOp) bool { return o.Kind == keyRead },
		Describe: func(o KeyOp, out uint64, told bool) string {
			s := fmt.Sprintf("%v %#x", o.Kind, o.Value)
			if told {
				return fmt.Sprintf("%s, was %#x", s, out)
			}
			return s + ", outcome unknown"
		},
		State: func(v uint64) string { return fmt.Sprintf("%#x", v) },
	}
}

// half has every second key at first, with itself as its value.
func half(k uint64) uint64 { return k * (1 - k&1) }

// keyLoad is what clients do to a store of keys, and are told. A last client, which never dies, does its part when the
// others are through.
type keyLoad struct {
	seed                         uint64
	clients, sessions, ops, keys int
	size                         int // of values
	kinds                        [4]int
	lives                        []*keyLife // by client, that of now
	swept                        int        // keys that the last client has changed
	b                            *Bed
	err                          error
	log                          *history.Log[KeyOp, uint64]
}

// keyLife is one life of a client.
type keyLife struct {
	l            *keyLoad
	c            *Client
	life         int
	rng          *rand.Rand
	ids, numbers []int // in the history, by session
	kinds        []KeyKind
	ops          []int // that it has begun
	dead, busy   []bool
}

// live begins a client's life.
func (l *keyLoad) live(b *Bed, c *Client) *keyLife {
	n := l.sessions
	x := &keyLife{l: l, c: c, life: c.Life, rng: rand.New(rand.NewPCG(l.seed, uint64(c.Number<<8|c.Life))), ids: make([]int, n), numbers: make([]int, n),
		kinds: make([]KeyKind, n), ops: make([]int, n), dead: make([]bool, n), busy: make([]bool, n)}
	for i := range x.numbers {
		x.numbers[i] = l.log.NewClient()
	}
	l.b, l.lives[c.Number] = b, x
	return x
}

// begin begins an operation, and returns the value that it writes.
func (x *keyLife) begin(now clock.Time, session int, key uint64, k KeyKind) []byte {
	x.ops[session]++
	// Numbers up to the last key are those of the loaded values.
	v := uint64(x.c.Number+1)<<24 | uint64(x.c.Life)<<20 | uint64(session)<<16 | uint64(x.ops[session])
	o := KeyOp{Key: key, Kind: k, Value: v}
	if k == keyRead || k == keyDelete {
		o.Value = 0
	}
	x.ids[session], x.kinds[session], x.busy[session] = x.l.log.Call(x.numbers[session], now, o), k, true
	return x.l.value(v)
}

// draw draws an operation; false: the session is through.
func (x *keyLife) draw(session int) (key uint64, k KeyKind, ok bool) {
	l := x.l
	if x.ops[session] == l.ops || x.dead[session] {
		return 0, 0, false
	}
	n := x.rng.IntN(l.kinds[0] + l.kinds[1] + l.kinds[2] + l.kinds[3])
	for ; n >= l.kinds[k]; k++ {
		n -= l.kinds[k]
	}
	return 1 + x.rng.Uint64N(uint64(l.keys)), k, true
}

// value is the bytes of a value with a number.
func (l *keyLoad) value(n uint64) []byte {
	b := make([]byte, max(l.size, 8))
	binary.LittleEndian.PutUint64(b, n)
	for i := 8; i < len(b); i++ {
		b[i] = byte(n) ^ byte(i)
	}
	return b[:l.size]
}

// number is value's inverse.
func (l *keyLoad) number(b []byte) uint64 {
	var w [8]byte
	copy(w[:], b)
	n := binary.LittleEndian.Uint64(w[:])
	if len(b) > 0 && !slices.Equal(b, l.value(n)) {
		l.err = errors.Join(l.err, fmt.Errorf("value % x is not one that was written", b))
	}
	return n
}

// through reports whether all clients but the last have nothing left to do.
func (l *keyLoad) through() bool {
	if l.b.More() {
		return false
	}
	for i, x := range l.lives[:l.clients] {
		if l.b.Down(i) {
			continue
		}
		for s := range x.ops {
			if x.busy[s] || x.ops[s] < l.ops && !x.dead[s] {
				return false
			}
		}
	}
	return true
}

func (l *keyLoad) wrong() error { return l.err }

// close ends the history with what the store holds.
func (l *keyLoad) close(now clock.Time, held func(k uint64) []byte) {
	reader := l.log.NewClient()
	for k := uint64(1); k <= uint64(l.keys); k++ {
		l.log.Return(l.log.Call(reader, now, KeyOp{Key: k}), now, l.number(held(k)))
	}
}
