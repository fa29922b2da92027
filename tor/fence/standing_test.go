package fence

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// Queue pairs of the asker's connection.
const itsQP, serversQP = 0x11, 0x201

// talk is a frame of the asker's connection: a request, or an answer of the server's.
func talk(t *testing.T, op hdr.Opcode, psn, rkey uint32, length int, syndrome byte) []byte {
	t.Helper()
	be := binary.BigEndian
	body := make([]byte, op.Info().Len)
	switch {
	case op.Info().Ext&hdr.HasRETH != 0:
		be.PutUint32(body[8:], rkey)
		be.PutUint32(body[12:], uint32(length))
	case op.Has(hdr.IsAtomic):
		be.PutUint32(body[8:], rkey)
	case op.Info().Ext&hdr.HasAETH != 0:
		body[0] = syndrome
	}
	if op.Has(hdr.MayCarry) {
		body = append(body, make([]byte, length)...)
	}
	from, to, qp := asker, theServer, uint32(serversQP)
	macs := []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1}
	if op.Has(hdr.IsResponse) {
		from, to, qp = to, from, itsQP
		macs = []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9}
	}
	n := hdr.BTHLen + len(body) + hdr.ICRCLen
	b := append(macs, 8, 0, 0x45, 0, byte((28+n)>>8), byte(28+n), 0, 0, 0x40, 0, 64, 17, 0, 0)
	b = append(append(b, from[:]...), to[:]...)
	b = append(b, 0xC0, 0, 4791>>8, 4791&255, byte((8+n)>>8), byte(8+n), 0, 0)
	b = append(b, byte(op), 0, 0xFF, 0xFF, 0, byte(qp>>16), byte(qp>>8), byte(qp), 0x80, byte(psn>>16), byte(psn>>8), byte(psn))
	b = append(append(b, body...), 0, 0, 0, 0)
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE {
		t.Fatal(op, f.Why)
	}
	hdr.SetICRC(b, &f)
	return b
}

// TestStanding: a client that has written under an R_Key may ask about it; one that only seems to have
// written may not.
func TestStanding(t *testing.T) {
	const key, psn = 0x2a, 0xFFFFFE // PSNs wrap around
	// The server's count of messages rises with each answer, whether it could have executed something or not.
	ack := func(p uint32) func() []byte { return func() []byte { return talk(t, hdr.Acknowledge, p, 0, 0, 0) } }
	nak := func(p uint32) func() []byte { return func() []byte { return talk(t, hdr.Acknowledge, p, 0, 0, 0x62) } }
	put := func(op hdr.Opcode, p uint32, k uint32, n int) func() []byte {
		return func() []byte { return talk(t, op, p, k, n, 0) }
	}
	broken := func(f func() []byte) func() []byte {
		return func() []byte { b := f(); b[len(b)-1] ^= 1; return b }
	}
	write, send := put(hdr.WriteOnly, psn, key, 8), put(hdr.SendOnly, psn, 0, 8)
	for name, c := range map[string]struct {
		frames []func() []byte
		may    bool
	}{
		"nothing":                      {nil, false},
		"written":                      {[]func() []byte{write, ack(psn)}, true},
		"an atomic":                    {[]func() []byte{put(hdr.CompareSwap, psn, key, 0), func() []byte { return talk(t, hdr.AtomicAck, psn, 0, 0, 0) }}, true},
		"answered together":            {[]func() []byte{write, put(hdr.SendOnly, psn+1, 0, 8), ack(psn + 1)}, true},
		"behind a READ":                {[]func() []byte{put(hdr.ReadRequest, psn, key, 256), put(hdr.WriteOnly, psn+1, key, 8), ack(psn + 1)}, true},
		"not answered":                 {[]func() []byte{write}, false},
		"refused":                      {[]func() []byte{write, nak(psn), ack(psn)}, false},
		"of nothing":                   {[]func() []byte{put(hdr.WriteOnly, psn, key, 0), ack(psn)}, false},
		"read":                         {[]func() []byte{put(hdr.ReadRequest, psn, key, 8), ack(psn)}, false},
		"another R_Key":                {[]func() []byte{put(hdr.WriteOnly, psn, key+1, 8), ack(psn)}, false},
		"only the one in front":        {[]func() []byte{send, put(hdr.WriteOnly, psn+1, key, 8), ack(psn)}, false},
		"an old one, repeated":         {[]func() []byte{send, ack(psn), write, ack(psn)}, false},
		"behind, and sent as another":  {[]func() []byte{write, send, ack(psn)}, false},
		"in a READ's answer":           {[]func() []byte{put(hdr.ReadRequest, psn, key, 1024), put(hdr.WriteOnly, psn+1, key, 8), ack(psn + 1)}, false},
		"in the longest READ's answer": {[]func() []byte{put(hdr.ReadRequest, psn, key, 1<<31), put(hdr.WriteOnly, psn+1, key, 8), ack(psn + 1)}, false},
		"old, behind such a READ":      {[]func() []byte{put(hdr.ReadRequest, psn, key, 1<<31), put(hdr.WriteOnly, psn-1, key, 8), ack(psn)}, false},
		"in a READ's answer too long":  {[]func() []byte{put(hdr.ReadRequest, psn, key, 3<<30), put(hdr.WriteOnly, psn+1, key, 8), ack(psn + 1)}, false},
		"far ahead":                    {[]func() []byte{send, put(hdr.SendOnly, psn+1, 0, 8), put(hdr.WriteOnly, psn+1+1<<23, key, 8), ack(psn)}, false},
		"old, once around":             {[]func() []byte{put(hdr.SendOnly, psn+0x600000, 0, 8), put(hdr.SendOnly, psn+0xC00000, 0, 8), put(hdr.SendOnly, psn-3, 0, 8), put(hdr.WriteOnly, psn-2, key, 8), ack(psn - 1)}, false},
		"old, behind dropped READs":    {[]func() []byte{broken(put(hdr.ReadRequest, psn, key, 1<<31)), broken(put(hdr.ReadRequest, psn+1<<23, key, 1<<31-1024)), put(hdr.WriteOnly, psn-2, key, 8), ack(psn - 1)}, false},
		"before the first answer, and sent as another": {[]func() []byte{send, ack(psn - 1), write, ack(psn)}, false},
		"before the first answer, and again later":     {[]func() []byte{send, ack(psn - 1), put(hdr.WriteOnly, psn+1, key, 8), ack(psn + 1)}, true},
		"behind an old answer":                         {[]func() []byte{send, ack(psn), put(hdr.WriteOnly, psn+1, key, 8), ack(psn - 1)}, false},
		"at the start, behind an old one": {[]func() []byte{put(hdr.SendOnly, psn-1<<23+2, 0, 8), send, put(hdr.SendOnly, psn+1, 0, 8), put(hdr.SendOnly, psn+2, 0, 8),
			put(hdr.SendOnly, psn+3, 0, 8), ack(psn), put(hdr.WriteOnly, psn+3, key, 8), ack(psn + 3)}, false},
		"at the start, as one unseen":  {[]func() []byte{put(hdr.SendOnly, psn+5, 0, 8), ack(psn), put(hdr.WriteOnly, psn+2, key, 8), ack(psn + 2)}, false},
		"before the first answer, old": {[]func() []byte{put(hdr.SendOnly, psn-5, 0, 8), ack(psn - 1), put(hdr.WriteOnly, psn-2, key, 8), ack(psn - 1)}, false},
		"which the server drops":       {[]func() []byte{broken(write), send, ack(psn)}, false},
		"with a wrong CRC":             {[]func() []byte{broken(write), ack(psn)}, false},
		"in front of all":              {[]func() []byte{put(hdr.WriteOnly, psn-0x400000, key, 8), ack(psn)}, false},
	} {
		x := graphtest.New(t, *Kind(), graph.Args{"requests": "on"})
		eyes := x.App().(*app).eyes
		if _, err := eyes.conns.AddStatic(x.Clock.Now(), conn.StaticConn{Client: netip.AddrFrom4(asker), Server: netip.AddrFrom4(theServer), ClientQPN: itsQP, ServerQPN: serversQP}); err != nil {
			t.Fatal(err)
		}
		first := []func() []byte{put(hdr.SendOnly, psn-2, 0, 8), ack(psn - 2), put(hdr.SendOnly, psn-1, 0, 8), ack(psn - 1)}
		early := 1 // how often the first answer comes, so that the count rises before the next request
		if strings.HasPrefix(name, "before the first answer") {
			first, early = first[2:3], 2
		} else if strings.HasPrefix(name, "at the start") {
			first, early = nil, 2
		}
		msn := 0
		for _, f := range append(first, c.frames...) {
			b, side := f(), "a"
			var fr hdr.Frame
			if hdr.Parse(b, &fr); fr.Op.Has(hdr.IsResponse) {
				side = "b"
			}
			for range early {
				x.Clock.Advance(time.Second)
				if side == "b" {
					msn++
					fr.AETHOf(b).SetMSN(uint32(msn))
					hdr.SetICRC(b, &fr)
				}
				if got := x.Push(side, b); len(got.Out["a"])+len(got.Out["b"]) != 1 {
					t.Fatalf("%s: %+v", name, got)
				}
				if side == "a" {
					break
				}
			}
			if side == "b" {
				early = 1
			}
		}
		_, r, ok := ask(t, x, theServer, asking(theClient, 7, 0, key))
		if ok != c.may {
			t.Errorf("%s: %+v %v", name, r, ok)
		}
		if !c.may {
			continue
		}
		// Another machine with the address may not ask, and no machine may when the connection has gone.
		b := request(t, hdr.FencePort, asker, theServer, asking(theClient, 8, 0, key))
		b[11]++
		if _, ok := answer(t, x.Push("a", b).Out["a"][0].Bytes); ok {
			t.Errorf("%s: another machine may", name)
		}
		s, _ := eyes.conns.Find(conn.AddrFrom(netip.AddrFrom4(asker)), itsQP)
		eyes.conns.Remove(s)
		if _, _, ok := ask(t, x, theServer, asking(theClient, 9, 0, key)); ok || len(x.App().(*app).held.rights) != 0 {
			t.Errorf("%s: it may still", name)
		}
	}
}

// TestUnseen: what the server has executed before the fence started, or while frames crossed without it, is acknowledged again without a look at its
// R_Key. It shows no right, until the server has executed something that the fence saw, and nothing unseen is under way any more.
func TestUnseen(t *testing.T) {
	const key, psn = 0x2a, 100
	x := graphtest.New(t, *Kind(), graph.Args{"requests": "on", "settle": "1s"})
	if _, err := x.App().(*app).eyes.conns.AddStatic(x.Clock.Now(), conn.StaticConn{Client: netip.AddrFrom4(asker), Server: netip.AddrFrom4(theServer), ClientQPN: itsQP, ServerQPN: serversQP}); err != nil {
		t.Fatal(err)
	}
	sent := func(op hdr.Opcode, psn uint32) {
		x.Push("a", talk(t, op, psn, key, 8, 0))
	}
	answered := func(op hdr.Opcode, psn, msn uint32) {
		b := talk(t, op, psn, 0, 8, 0)
		var f hdr.Frame
		hdr.Parse(b, &f)
		f.AETHOf(b).SetMSN(msn)
		hdr.SetICRC(b, &f)
		x.Push("b", b)
	}
	may := func(want bool, what string) {
		t.Helper()
		if _, _, ok := ask(t, x, theServer, asking(theClient, 7, 0, key)); ok != want {
			t.Errorf("%s: %v", what, ok)
		}
	}
	miss := func() { x.App().(*app).eyes.miss(x.Clock.Now()) }
	// again repeats READs and a WRITE that the server has executed. Its count of messages is msn, and is new with the second answer. Its newest request has PSN newest.
	again := func(from, newest, msn, now uint32) {
		sent(hdr.ReadRequest, from)
		answered(hdr.ReadRespOnly, from, msn)
		sent(hdr.ReadRequest, from+1)
		answered(hdr.ReadRespOnly, from+1, now)
		sent(hdr.WriteOnly, from+6)
		answered(hdr.Acknowledge, newest, now)
	}
	again(psn, psn+11, 11, 12)
	may(false, "executed before the fence started, while something unseen was under way")
	x.Clock.Advance(2 * time.Second)
	again(psn+20, psn+31, 31, 31)
	may(false, "executed before the fence started")
	sent(hdr.SendOnly, psn+32)
	answered(hdr.Acknowledge, psn+32, 32)
	again(psn+20, psn+32, 32, 32)
	may(false, "repeated behind something new")
	sent(hdr.WriteOnly, psn+33) // which the server drops
	miss()
	answered(hdr.Acknowledge, psn+33, 33)
	may(false, "acknowledged as another one that crossed")
	x.Clock.Advance(time.Millisecond)
	again(psn+34, psn+45, 45, 46)
	may(false, "executed unseen, while something unseen was under way")
	x.Clock.Advance(2 * time.Second)
	again(psn+50, psn+60, 61, 61)
	may(false, "executed unseen")
	sent(hdr.SendOnly, psn+61)
	answered(hdr.Acknowledge, psn+61, 62)
	sent(hdr.WriteOnly, psn+62)
	answered(hdr.Acknowledge, psn+62, 63)
	may(true, "a WRITE behind something new")
	miss()
	may(true, "what was shown before")
}

// TestOldAnswers: a server may answer a repeated atomic as it did the first time, with its count of messages of then. What it counts afterwards need
// not have come since. Who only does atomics shows a right when these are more than a server remembers.
func TestOldAnswers(t *testing.T) {
	const key, psn = 0x2a, 100
	begin := func() (*graphtest.Test, func(op, as hdr.Opcode, psn, msn uint32)) {
		x := graphtest.New(t, *Kind(), graph.Args{"requests": "on", "settle": "1s"})
		if _, err := x.App().(*app).eyes.conns.AddStatic(x.Clock.Now(), conn.StaticConn{Client: netip.AddrFrom4(asker), Server: netip.AddrFrom4(theServer), ClientQPN: itsQP, ServerQPN: serversQP}); err != nil {
			t.Fatal(err)
		}
		x.Push("a", talk(t, hdr.SendOnly, psn-1, key, 8, 0))
		x.Clock.Advance(2 * time.Second)
		return x, func(op, as hdr.Opcode, psn, msn uint32) {
			x.Push("a", talk(t, op, psn, key, 8, 0))
			b := talk(t, as, psn, 0, 8, 0)
			var f hdr.Frame
			hdr.Parse(b, &f)
			f.AETHOf(b).SetMSN(msn)
			hdr.SetICRC(b, &f)
			x.Push("b", b)
		}
	}
	x, does := begin()
	does(hdr.CompareSwap, hdr.AtomicAck, psn, 10)
	does(hdr.CompareSwap, hdr.AtomicAck, psn+1, 11)
	does(hdr.ReadRequest, hdr.ReadRespOnly, psn+2, 31)
	does(hdr.WriteOnly, hdr.Acknowledge, psn+3, 31)
	if _, _, ok := ask(t, x, theServer, asking(theClient, 7, 0, key)); ok {
		t.Error("a repeated atomic and a repeated WRITE show a right")
	}
	does(hdr.CompareSwap, hdr.AtomicAck, psn+31, 32)
	does(hdr.WriteOnly, hdr.Acknowledge, psn+32, 33)
	if _, _, ok := ask(t, x, theServer, asking(theClient, 7, 0, key)); !ok {
		t.Error("a WRITE behind a new atomic shows no right")
	}
	x, does = begin()
	for k := range uint32(300) {
		if _, _, ok := ask(t, x, theServer, asking(theClient, 7, 0, key)); ok != (k > mostStored+1) {
			t.Fatalf("%d atomics show a right: %v", k, ok)
		}
		does(hdr.CompareSwap, hdr.AtomicAck, psn+k, 10+k)
	}
}

// TestCookie: a request counts with the cookie that was told its asker, about the same client, not long ago.
func TestCookie(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"requests": "on", "settle": "5ms"})
	stand(x, theServer, 0x2a)
	push := func(qpn uint32, cookie uint64) hdr.FenceReply {
		t.Helper()
		r, ok := answer(t, x.Push("a", request(t, hdr.FencePort, asker, theServer, asking(theClient, qpn, cookie, 0x2a))).Out["a"][0].Bytes)
		if !ok {
			t.Fatal("refused")
		}
		return r
	}
	told := push(1, 0).Cookie
	if told == 0 || push(1, told^2).Cookie == 0 || push(2, told).Cookie == 0 || len(x.App().(*app).held.all) != 0 {
		t.Error("done without its cookie")
	}
	x.Clock.Advance(cookieAge)
	if r := push(1, told); r.Cookie != 0 || r.Settle != 5*time.Millisecond {
		t.Errorf("%+v", r)
	}
	// Asked again, it says since when.
	x.Clock.Advance(time.Second)
	if r := push(1, push(1, 0).Cookie); r.Settle != 5*time.Millisecond-time.Second {
		t.Errorf("%+v", r)
	}
	x.Clock.Advance(2 * cookieAge)
	if push(1, told).Cookie == 0 {
		t.Error("an old cookie is good")
	}
}

// TestUnpairedUnseen: answers undo a pairing that was wrong, also in a breath in which frames crossed unseen. What it has shown is shown no more.
func TestUnpairedUnseen(t *testing.T) {
	const key, psn = 0x2a, 100
	x := graphtest.New(t, *Kind(), graph.Args{"requests": "on", "settle": "0s"})
	n := uint32(0)
	answered := func(op hdr.Opcode, psn uint32) {
		n++
		b := talk(t, op, psn, 0, 8, 0)
		var f hdr.Frame
		hdr.Parse(b, &f)
		f.AETHOf(b).SetMSN(n)
		hdr.SetICRC(b, &f)
		x.Push("b", b)
	}
	for k := range uint32(10) {
		x.Push("a", talk(t, hdr.WriteOnly, psn+k, key, 8, 0))
		x.Clock.Advance(time.Millisecond)
		answered(hdr.Acknowledge, psn+k)
		x.Clock.Advance(time.Millisecond)
	}
	may := func(want bool) {
		t.Helper()
		if _, _, ok := ask(t, x, theServer, asking(theClient, 7, 0, key)); ok != want {
			t.Errorf("may ask: %v, want %v", ok, want)
		}
	}
	may(true)
	x.App().(*app).eyes.miss(x.Clock.Now())
	for k := range uint32(3) {
		answered(hdr.Acknowledge, 0x500000+k)
	}
	may(false)
}
