package clover

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// A stranger asks to write the last bytes that have an address. An entry could lie there, but behind it there is no address. The server
// refuses the request; here it is one as any other.
func TestLastAddress(t *testing.T) {
	r := steered(t, graph.Args{})
	s := r.App().(*Steer)
	at := s.servers[0].where
	va := at.off - at.step // modulo 2^64
	if !at.has(va) || va+at.step > at.step {
		t.Fatalf("%x is not the last one of %+v", va, at)
	}
	for _, n := range []uint32{1, 8, uint32(at.step - at.off - 1)} {
		// A frame that is in a loop cannot be stopped, and what cleans up would wait for it.
		late := time.AfterFunc(20*time.Second, func() { panic(fmt.Sprintf("%d bytes at %x: no end within 20 s", n, va)) })
		only(t, r.to(0x99, 7, hdr.WriteOnly, reth(va, r.rkey, n), make([]byte, n&7)).Out["b"])
		late.Stop()
	}
}
