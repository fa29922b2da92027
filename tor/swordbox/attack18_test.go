package swordbox

import (
	"fmt"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// A client asks for eight bytes at the address that words without a place have. The server refuses them, and nothing else happens: neither
// while no word is known, nor when one gets a place meanwhile.
func TestNoPlace(t *testing.T) {
	const last = ^uint64(0)
	for name, request := range map[string]func(c *party) []byte{
		"write":  func(c *party) []byte { return one(t, c.write(last, 1).Out["b"]) },
		"atomic": func(c *party) []byte { return one(t, c.cas(last, 0, 1).Out["b"]) },
		"read":   func(c *party) []byte { return one(t, c.read(last, 8).Out["b"]) },
		"atomic write": func(c *party) []byte {
			return one(t, c.request(hdr.AtomicWrite, reth(last, testRKey, 8), little(1)).Out["b"])
		},
	} {
		for _, between := range []bool{false, true} {
			t.Run(fmt.Sprint(name, between), func(t *testing.T) {
				r := newRig(t, graph.Args{"learn": "off", "track": "7000+8"})
				a, b, c := r.join(), r.join(), r.join()
				request(c)
				if between {
					one(t, a.cas(0x7000, 1, 2).Out["b"])
				}
				one(t, c.nak(c.spsn, hdr.SynNAKRemoteAccess).Out["a"])
				if between {
					one(t, a.atomicAck(5).Out["a"])
					one(t, b.cas(0x7000, 5, 6).Out["b"])
				}
				n := (*r.box().nodes.Load())[0]
				for i := range n.words.w {
					if v := &n.words.w[i]; v.flight < 0 || v.loose < 0 || v.atomics < 0 || v.va == nowhere && v.flight != 0 {
						t.Errorf("word %d: %+v", i, *v)
					}
				}
			})
		}
	}
}

// Somebody sends a request without an address of memory under the PSN of an ATOMIC WRITE or a FLUSH that has no answer: it is no repetition of
// these.
func TestShortRepetition(t *testing.T) {
	for _, op := range []hdr.Opcode{hdr.AtomicWrite, hdr.Flush} {
		r := newRig(t, graph.Args{})
		a := r.join()
		ext, payload := reth(0x7000, testRKey, 8), little(1)
		if op == hdr.Flush {
			ext, payload = append(make([]byte, hdr.FETHLen), ext...), nil
		}
		one(t, a.request(op, ext, payload).Out["b"])
		r.Push("a", a.made(hdr.SendOnly, a.psn-1, nil, nil))
		one(t, a.answer(hdr.ReadRespOnly, nil, nil).Out["a"])
	}
}
