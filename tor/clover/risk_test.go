package clover

import (
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// Nobody is led behind an append that may never be linked, since the server may refuse a request in front
// of it: whoever was would get no answer. When that request was answered all is as before.
func TestNobodyBehindRisk(t *testing.T) {
	for name, front := range map[string]func(r *rig){
		"a READ under another R_Key":  func(r *rig) { r.to(0x20, 110, hdr.ReadRequest, reth(entryAt(0x9002), r.rkey+1, r.size), nil) },
		"a READ beyond what is known": func(r *rig) { r.to(0x20, 110, hdr.ReadRequest, reth(0x7f0000000000, r.rkey, r.size), nil) },
		"its first READ":              func(r *rig) { r.to(0x20, 110, hdr.ReadRequest, reth(entryAt(0x9002), r.rkey, r.size), nil) },
		"an atomic on no word":        func(r *rig) { r.to(0x20, 110, hdr.FetchAdd, atomicETH(entryAt(0x9002)+4, r.rkey, 0, 0), nil) },
		"a SEND":                      func(r *rig) { r.to(0x20, 110, hdr.SendOnly, nil, make([]byte, 64)) },
		"a long WRITE beyond what is known": func(r *rig) {
			r.to(0x20, 110, hdr.WriteFirst, reth(0x7f0000000000, r.rkey, 512), make([]byte, 256))
			r.to(0x20, 111, hdr.WriteLast, nil, make([]byte, 256))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := crew(t, graph.Args{})
			r.wrote(0x10, 108, 0x9001)
			r.link(0x10, 109, 0x9001, old)
			r.linked(0x10, 109)
			r.wrote(0x20, 108, 0x9002)
			r.wrote(0x30, 108, 0x9003)
			r.wrote(0x20, 109, 0x9004)
			front(r)
			psn := uint32(111)
			if name == "a long WRITE beyond what is known" {
				psn = 112
			}
			if at := r.link(0x20, psn, 0x9002, old); at != old {
				t.Errorf("an append behind what may be refused is led to %#x", at)
			}
			if at := r.link(0x30, 109, 0x9003, old); at == entryAt(0x9002) {
				t.Error("another is led behind it")
			}
			if r.Counter("unproven-front") == 0 {
				t.Error("nothing is counted")
			}
		})
	}
}

// Behind requests such as the server has executed for the connection before an append is led as ever.
func TestLedBehindKnown(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.wrote(0x20, 108, 0x9002)
	r.to(0x20, 109, hdr.ReadRequest, reth(entryAt(0x9002), r.rkey, r.size), nil)
	r.from(0x20, 109, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
	r.to(0x20, 110, hdr.ReadRequest, reth(entryAt(0x9002), r.rkey, r.size), nil)
	p := make([]byte, r.size)
	wireEntry(p, key)
	r.to(0x20, 111, hdr.WriteOnly, reth(entryAt(0x9003), r.rkey, r.size), p)
	if at := r.link(0x20, 112, 0x9002, old); at != entryAt(0x9001) {
		t.Errorf("sent to %#x", at)
	}
}

// The first append of a connection that the server has executed no atomic for may be refused for want of
// the right: nobody is led behind it until it was answered.
func TestNobodyBehindFirstAtomic(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.pair(0x40, 102)
	r.wrote(0x40, 108, 0x9004)
	r.wrote(0x30, 108, 0x9003)
	if at := r.link(0x40, 109, 0x9004, old); at != entryAt(0x9001) {
		t.Fatalf("sent to %#x", at)
	}
	if at := r.link(0x30, 109, 0x9003, old); at != old {
		t.Errorf("another is led to %#x", at)
	}
}
