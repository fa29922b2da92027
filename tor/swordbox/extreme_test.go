package swordbox

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// Clients ask for what lies at the ends of what a field can say, and the server answers as it likes. Nothing ends the process, and no word's
// count falls below what is under way. QUILLON_EXTREMES says how many runs there are.
func TestExtremes(t *testing.T) {
	runs, first := 20, 0
	if n, err := strconv.Atoi(os.Getenv("QUILLON_EXTREMES")); err == nil {
		runs = n
	}
	if n, err := strconv.Atoi(os.Getenv("QUILLON_FIRST")); err == nil {
		first = n
	}
	for seed := first; seed < first+runs; seed++ {
		if extremes(t, uint64(seed)); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func extremes(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0x65787472))
	of := func(from ...uint64) uint64 { return from[rng.IntN(len(from))] }
	args := graph.Args{"settle": "1us", "track": []string{"none", "0+ffffffffffffffff", "7000+40", "fffffffffffffff0+f"}[rng.IntN(4)], "order": []string{"strict", "word"}[rng.IntN(2)],
		"words": []string{"1", "2", "18"}[rng.IntN(3)], "hold": []string{"12", "32"}[rng.IntN(2)]}
	if rng.IntN(2) == 0 {
		args["servers"] = "10.9.0.1=10.9.0.2" // several NICs
	}
	r, k := keeping(t, args)
	if r.start = uint32(of(1000, 0xFFFFF0, 0x7FFFF0, 0)); rng.IntN(2) == 0 {
		r.resources = uint8(of(0, 1, 16, 255))
	}
	all := []*party{r.join(), r.join(), r.join()}
	for range 150 {
		c := all[rng.IntN(len(all))]
		va := of(0, 1, 7, 8, 0x7000, 0x7000, 0x7008, lowest, highest, 1<<63, 1<<63-8, 1<<32-8, 1<<21-8, ^uint64(0), ^uint64(0)-7, ^uint64(0)-7, ^uint64(0)-8, ^uint64(0)-15) + of(0, 0, 0, 8, 64)
		ln := uint32(of(0, 1, 7, 8, 8, 8, 9, 16, 255, 256, 257, 4096, 65536, 1<<24, 1<<31-1, 1<<31, 1<<31+1, 1<<32-1))
		key := uint32(of(testRKey, testRKey, testRKey, testRKey, 0, 1<<32-1))
		psn := c.psn + uint32(of(0, 0, 0, 0, 0, 0, 1, 1<<16, 1<<22, 1<<23-1, 1<<23, ^uint64(0), 1<<24-1<<16))
		size := int(of(0, 1, 8, 8, 8, 255, 256, 257))
		payload := make([]byte, size)
		var b []byte
		op := []hdr.Opcode{hdr.WriteOnly, hdr.WriteOnly, hdr.WriteFirst, hdr.WriteMiddle, hdr.WriteLast, hdr.ReadRequest, hdr.ReadRequest, hdr.CompareSwap, hdr.FetchAdd, hdr.MaskedCompSwap, hdr.MaskedFetchAdd,
			hdr.SendOnly, hdr.SendFirst, hdr.SendLast, hdr.SendOnlyInv, hdr.WriteOnlyImm, hdr.AtomicWrite, hdr.Flush, hdr.WriteLastImm}[rng.IntN(19)]
		info := op.Info()
		switch {
		case op == hdr.CompareSwap || op == hdr.FetchAdd:
			b = c.made(op, psn, atomicETH(va, key, rng.Uint64N(3), rng.Uint64N(3)), nil)
		case op.Has(hdr.IsAtomic):
			b = c.made(op, psn, maskedETH(va, key, rng.Uint64N(3), rng.Uint64N(3), of(0, 1, ^uint64(0)), of(0, 1, ^uint64(0))), nil)
		case op == hdr.ReadRequest:
			b = c.made(op, psn, reth(va, key, ln), nil)
		case op == hdr.SendOnlyInv:
			b = c.made(op, psn, []byte{byte(key >> 24), byte(key >> 16), byte(key >> 8), byte(key)}, payload)
		case op == hdr.Flush:
			b = c.made(op, psn, append(make([]byte, 4), reth(va, key, ln)...), nil)
		case info.Ext&hdr.HasRETH != 0:
			if rng.IntN(2) == 0 {
				ln = uint32(size)
			}
			ext := reth(va, key, ln)
			if info.Ext&hdr.HasImmDt != 0 {
				ext = append(ext, 0, 0, 0, 0)
			}
			if op == hdr.AtomicWrite {
				payload = payload[:0]
				payload = append(payload, little(1)...)
			}
			b = c.made(op, psn, ext, payload)
		default:
			var ext []byte
			if info.Ext&hdr.HasImmDt != 0 {
				ext = make([]byte, 4)
			}
			b = c.made(op, psn, ext, payload)
		}
		if psn == c.psn {
			c.psn++
			if op == hdr.ReadRequest && ln <= maxMessage && ln > 0 {
				c.psn += (ln - 1) / 256
			}
			c.psn &= hdr.PSNMask
		}
		out := r.Push("a", b).Out["b"]
		for len(out) > 0 && rng.IntN(8) > 0 {
			x := out[0].Bytes
			out = out[1:]
			var f hdr.Frame
			if hdr.Parse(x, &f) != hdr.IsRoCE {
				continue
			}
			var to *party
			for _, p := range all {
				if p.sqpn == f.BTHOf(x).DestQP() {
					to = p
				}
			}
			if to == nil {
				continue
			}
			p := f.BTHOf(x).PSN() + uint32(of(0, 0, 0, 0, 0, 0, ^uint64(0), 1, 1<<23))
			to.smsn = (to.smsn + uint32(of(0, 1, 1, 1, 1))) & 0xFFFFFF
			syn := hdr.Syndrome(of(0x1F, 0x1F, 0x1F, 0x1F, 0x1F, 0x1F, 0x1F, 0x1F, 0, 0x20, 0x3F, 0x60, 0x60, 0x61, 0x62, 0x63))
			var a []byte
			switch {
			case syn&0x60 != 0 || !f.Op.Has(hdr.IsRead) && !f.Op.Has(hdr.IsAtomic):
				a = to.response(hdr.Acknowledge, p, aeth(syn, to.smsn), nil)
			case f.Op.Has(hdr.IsAtomic):
				a = to.response(hdr.AtomicAck, p, append(aeth(syn, to.smsn), little(rng.Uint64N(3))...), nil)
			default:
				want := f.RETHOf(x).DMALength()
				if want <= 256 {
					a = to.response(hdr.ReadRespOnly, p, aeth(syn, to.smsn), make([]byte, want))
				} else {
					a = to.response([]hdr.Opcode{hdr.ReadRespFirst, hdr.ReadRespLast}[rng.IntN(2)], p, aeth(syn, to.smsn), make([]byte, 256))
				}
			}
			out = append(out, r.Push("b", a).Out["b"]...)
		}
		switch rng.IntN(30) {
		case 0:
			r.Advance(time.Duration(of(1e3, 1e6, 1e8, 1e9)))
		case 1: // another connection in its place
			if rng.IntN(3) == 0 {
				r.serverMAC[5] = byte(of(1, 1, 2, 3))
				r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn}))
				r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply}))
				r.Push("a", c.connectRequest())
				r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.ConnectReply, LocalQPN: c.sqpn, StartingPSN: c.psn, ResponderResources: r.resources, InitiatorDepth: r.resources}))
				r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.ReadyToUse}))
				c.smsn = 0
			}
		case 2: // the next process, or two
			for range 1 + rng.IntN(2) {
				r.restart(k, rng.IntN(2) == 0, time.Duration(of(1e3, 1e6, 1e9)), nil)
				if rng.IntN(2) == 0 {
					r.Advance(time.Millisecond)
				}
			}
		}
		for _, n := range *r.box().nodes.Load() {
			sound(t, n)
		}
		if t.Failed() {
			t.Logf("behind %s", text(b))
			return
		}
	}
}

// sound checks the counts of a node's words, keys and connections against the operations on record.
func sound(t *testing.T, n *node) {
	t.Helper()
	type counts struct{ flight, loose, atomics, writes int32 }
	have, free := make([]counts, len(n.words.w)), int32(0)
	for i := range n.flows {
		c := &n.flows[i]
		guests, rd, writes, unkept := int32(0), int32(0), int32(0), int32(0)
		for o := n.oldest(c); o != nil; o = n.behind(o) {
			if o.is(fGuest) {
				guests++
			}
			if o.is(fUnkept) {
				unkept++
			}
			if o.is(fReplaced) {
				writes++
			} else if o.answered() {
				rd++
			}
			if o.word >= 0 {
				k := &have[o.word]
				if o.is(fLoose) {
					k.loose++
				} else if k.flight++; o.asAtomic() {
					k.atomics++
				}
				if o.is(fReplaced) {
					k.writes++
				}
			} else if o.word == none && o.modifies() {
				free++
			}
		}
		if c.guests != guests || c.rd != rd || c.writes != writes || c.unkept != unkept {
			t.Errorf("flow %d: guests %d (%d), rd %d (%d), writes %d (%d), unkept %d (%d)", i, c.guests, guests, c.rd, rd, c.writes, writes, c.unkept, unkept)
		}
	}
	for i := range n.words.w {
		v := &n.words.w[i]
		if got := (counts{v.flight, v.loose, v.atomics, v.writes}); got != have[i] {
			t.Errorf("word %d at %x: counted %+v, under way %+v", i, v.va, got, have[i])
		}
	}
	if got := n.words.free.open[0] + n.words.free.open[1]; got != free {
		t.Errorf("%d free operations, counted %d", free, got)
	}
}
