package balance

import (
	"testing"

	"github.com/quillon/quillon/nf/flow"
)

// TestState: what was decided of a connection does not hold when it goes to another backend, nor of another connection in its place.
func TestState(t *testing.T) {
	b := &balance{}
	b.conns.Table = flow.New[connKey, conn](64)
	k := connKey{port: 1, net: 4}
	i := b.conns.add(b, &k, 5, 0, 0)
	was := b.State(uint32(i))
	b.conns.At(i).Val.backend = 1
	if b.State(uint32(i)) == was {
		t.Error("another backend")
	}
	b.conns.At(i).Val.backend = 0
	o := connKey{port: 2, net: 4}
	b.conns.Replace(i, &o, 5)
	if b.State(uint32(i)) == was {
		t.Error("another connection")
	}
}
