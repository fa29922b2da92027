package fence

import (
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port/pcap"
	"github.com/quillon/quillon/nf/table"
)

// frames are requests of clients to a server, 10.9.0.1, under R_Key 0x1234, and datagrams.
func frames(t *testing.T) (all [][]byte) {
	t.Helper()
	f, err := os.Open("../../tests/pcap/swordbox-multiplex/clients.pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcap.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		var p pcap.Packet
		if r.Next(&p) != nil {
			return all
		}
		all = append(all, slices.Clone(p.Data))
	}
}

// about are those frames of which want is true.
func about(all [][]byte, want func(b []byte, f *hdr.Frame) bool) (some [][]byte) {
	for _, b := range all {
		var f hdr.Frame
		if hdr.Parse(b, &f) == hdr.IsRoCE && want(b, &f) {
			some = append(some, b)
		}
	}
	return some
}

func from(client byte, datagrams bool) func([]byte, *hdr.Frame) bool {
	return func(b []byte, f *hdr.Frame) bool {
		return b[f.L3+15] == client && (f.Op.Transport() == hdr.UD) == datagrams
	}
}

// TestShuts: what an entry names is dropped, and nothing else.
func TestShuts(t *testing.T) {
	all := frames(t)
	for _, c := range []struct {
		fence string
		want  func(b []byte, f *hdr.Frame) bool
	}{
		{"none", func([]byte, *hdr.Frame) bool { return false }},
		{"10.9.0.16-10.9.0.1", from(16, false)},
		{"10.9.0.16-10.9.0.2", func([]byte, *hdr.Frame) bool { return false }},
		{"10.9.0.17-10.9.0.1/0x201", from(17, false)},
		{"10.9.0.17-10.9.0.1/0x202", func([]byte, *hdr.Frame) bool { return false }},
		{"10.9.0.18-10.9.0.1@0x1234", from(18, false)},
		{"10.9.0.18-10.9.0.1@0x1235", func(b []byte, f *hdr.Frame) bool { // packets that name no R_Key
			return from(18, false)(b, f) && (f.Op == hdr.WriteMiddle || f.Op == hdr.WriteLast || f.Op.Info().Flags&hdr.IsSend != 0)
		}},
		{"10.9.0.16-10.9.0.1;10.9.0.17-10.9.0.1/0x201@0x1234", func(b []byte, f *hdr.Frame) bool {
			return from(16, false)(b, f) || from(17, false)(b, f)
		}},
	} {
		x := graphtest.New(t, *Kind(), graph.Args{"fence": c.fence})
		got := x.Push("a", all...)
		want := about(all, c.want)
		if len(got.Dropped) != len(want) || len(got.Out["b"]) != len(all)-len(want) {
			t.Errorf("%s: %d dropped, %d passed, want %d and %d", c.fence, len(got.Dropped), len(got.Out["b"]), len(want), len(all)-len(want))
		}
		for i, d := range got.Dropped {
			if d.Reason != "fenced" || i < len(want) && string(d.Bytes) != string(want[i]) {
				t.Errorf("%s: %s", c.fence, d.Reason)
			}
		}
		// Frames in the other direction are never dropped.
		if back := x.Push("b", all...); len(back.Out["a"]) != len(all) {
			t.Errorf("%s: %d of %d go back", c.fence, len(back.Out["a"]), len(all))
		}
	}
	if n := graphtest.Allocs(t, *Kind(), graph.Args{"fence": "10.9.0.16-10.9.0.1;10.9.0.18-10.9.0.1@0x1234"}, "a", all...); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := graphtest.Allocs(t, *Kind(), graph.Args{"requests": "on"}, "a", all...); n != 0 {
		t.Errorf("with requests: %v allocations", n)
	}
}

// TestTables: entries come and go by the tables, and outlive the process.
func TestTables(t *testing.T) {
	e := entry{netip.MustParseAddr("10.9.0.16"), netip.MustParseAddr("10.9.0.1"), 0x200, 0x1234, 0}
	var kept []byte
	held := func(x *graphtest.Test) (by []uint64) {
		t.Helper()
		if err := x.Inst.ReadTable(graphtest.App, "held", func(r *table.Entry) error {
			if entryOf(r.Key) == e {
				by = append(by, r.Params[0].Lo)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return by
	}
	x := graphtest.NewKept(t, *Kind(), nil, graphtest.Start, &kept)
	if err := x.Set(graph.Args{"fence": e.String()}); err != nil {
		t.Fatal(err)
	}
	if by := held(x); !slices.Equal(by, []uint64{byArgument}) {
		t.Errorf("%v", by)
	}
	if n := len(x.Push("a", frames(t)...).Dropped); n == 0 {
		t.Error("nothing is dropped")
	}
	// The process is killed. The next one has other arguments, and the state that was left.
	y := graphtest.NewKept(t, *Kind(), nil, graphtest.Start, &kept)
	if n := len(y.Push("a", frames(t)...).Dropped); n == 0 {
		t.Error("after a crash nothing is dropped")
	}
	if by := held(y); !slices.Equal(by, []uint64{byBefore}) {
		t.Errorf("%v", by)
	}
	if err := y.App().(*app).remove(nil, tableHeld, key(entry{e.client, e.server, 1, 0, 0})); err == nil || !strings.Contains(err.Error(), "nobody is shut out") {
		t.Error(err)
	}
	y.App().(*app).held.lift(e)
	z := graphtest.NewKept(t, *Kind(), nil, graphtest.Start, &kept)
	if n := len(z.Push("a", frames(t)...).Dropped); n != 0 {
		t.Errorf("%d are dropped though it was lifted", n)
	}
	// Entries of the arguments are lifted there.
	if err := z.Set(graph.Args{"fence": e.String()}); err != nil {
		t.Fatal(err)
	}
	if err := z.App().(*app).remove(nil, tableHeld, key(e)); err == nil || !strings.Contains(err.Error(), "delete it there") {
		t.Error(err)
	}
	if err := z.Set(graph.Args{"fence": "none"}); err != nil || len(held(z)) != 0 {
		t.Errorf("%v, %v", err, held(z))
	}
}

// TestByApp: another function shuts a client out, and lifts only its own entries.
func TestByApp(t *testing.T) {
	var kept []byte
	x := graphtest.NewKept(t, *Kind(), graph.Args{"settle": "7ms"}, graphtest.Start, &kept)
	h := x.App().(*app).held
	client, server := netip.MustParseAddr("10.9.0.16"), netip.MustParseAddr("10.9.0.1")
	dropped := func() int { return len(x.Push("a", frames(t)...).Dropped) }
	if d, ok := h.Shut(client, server, 0x200, 0); !ok || d != 7*time.Millisecond || !h.Shuts(client, server, 0x200, 0) || h.Shuts(client, server, 0x201, 0) || h.Shuts(client, server, 0, 0) {
		t.Errorf("%v %v %v %v %v", d, ok, h.Shuts(client, server, 0x200, 0), h.Shuts(client, server, 0x201, 0), h.Shuts(client, server, 0, 0))
	}
	if dropped() == 0 {
		t.Error("nothing is dropped")
	}
	if h.Lift(client, server, 0x200, 0); dropped() != 0 || h.Shuts(client, server, 0x200, 0) {
		t.Error("it is not lifted")
	}
	if _, ok := h.Shut(client, client, 0, 0); ok {
		t.Error("a client is shut out from itself")
	}
	// What the operator says stays, and so does a request's.
	if err := x.Set(graph.Args{"settle": "7ms", "fence": "10.9.0.16-10.9.0.1"}); err != nil {
		t.Fatal(err)
	}
	if d, ok := h.Shut(client, server, 0, 0); !ok || d != 7*time.Millisecond || !h.Shuts(client, server, 5, 0) {
		t.Errorf("%v %v", d, ok)
	}
	h.add(byRequest, entry{client, server, 7, 0, 0})
	h.Shut(client, server, 7, 0)
	h.Lift(client, server, 0, 0)
	h.Lift(client, server, 7, 0)
	if all, by := h.list(); len(all) != 2 || by[0] != byArgument || by[1] != byRequest {
		t.Errorf("%v %v", all, by)
	}
	// An entry that an earlier process left is lifted by the function that shuts its client out again.
	h.Shut(client, server, 8, 0)
	x = graphtest.NewKept(t, *Kind(), nil, graphtest.Start, &kept)
	h = x.App().(*app).held
	if h.Lift(client, server, 8, 0); !h.Shuts(client, server, 8, 0) {
		t.Error("another's is lifted")
	}
	h.Shut(client, server, 8, 0)
	if h.Lift(client, server, 8, 0); h.Shuts(client, server, 8, 0) && !h.Shuts(client, server, 9, 0) {
		t.Error("it is not lifted")
	}
}

// request is a ConnectRequest of a client's to a server, with private data.
func request(t testing.TB, service uint16, client, server [4]byte, private []byte) []byte {
	t.Helper()
	mad := make([]byte, hdr.MADLen)
	c, s := netip.AddrFrom4(client), netip.AddrFrom4(server)
	hdr.CM(mad).Encode(&hdr.CMFields{AttributeID: hdr.ConnectRequest, ServiceID: hdr.ServiceIDOfPort(service), TransactionID: 5, LocalCommID: 6, PathMTU: 1024, LocalGID: c, RemoteGID: s,
		PrivateData: append(hdr.AppendIPCM(nil, netip.AddrPortFrom(c, 7), s), private...)})
	n := uint16(hdr.BTHLen + hdr.DETHLen + hdr.MADLen + 4)
	b := []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, byte((28 + n) >> 8), byte(28 + n), 0, 0, 0x40, 0, 64, 17, 0, 0}
	b = append(append(b, client[:]...), server[:]...)
	b = append(b, 0xC0, 0, 4791>>8, 4791&255, byte((8+n)>>8), byte(8+n), 0, 0)
	b = append(b, byte(hdr.UDSendOnly), 0, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 0)
	b = append(b, 0x80, 1, 0, 0, 0, 0, 0, 1)
	b = append(append(b, mad...), 0, 0, 0, 0)
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE {
		t.Fatal(f.Why)
	}
	if _, ok := f.CMOf(b); !ok {
		t.Fatal("no message of the connection manager")
	}
	hdr.SetICRC(b, &f)
	return b
}

// answer is what a ConnectReject that came back says; false: it is refused.
func answer(t testing.TB, b []byte) (r hdr.FenceReply, ok bool) {
	t.Helper()
	var f hdr.Frame
	hdr.Parse(b, &f)
	m, ok := f.CMOf(b)
	if !ok || m.AttributeID() != hdr.ConnectReject || m.RemoteCommID() != 6 || m.TransactionID() != 5 || !hdr.GoodICRC(b, &f) {
		t.Fatalf("%v %v", ok, m)
	}
	ok = r.Parse(m.PrivateData())
	return r, ok
}

// asking is a request's private data.
func asking(client netip.Addr, qpn uint32, cookie uint64, keys ...uint32) []byte {
	r := hdr.FenceRequest{Client: client, QPN: qpn, Cookie: cookie}
	r.N = copy(r.Keys[:], keys)
	return r.Bytes()
}

// stand lets the asker write under R_Keys of the server's.
func stand(x *graphtest.Test, server [4]byte, keys ...uint32) {
	for _, k := range keys {
		x.App().(*app).held.own(right{asker, server, [6]byte{2, 0, 0, 0, 0, 1}, 0, k})
	}
}

// ask asks with the cookie that it is told.
func ask(t testing.TB, x *graphtest.Test, server [4]byte, private []byte) (got graphtest.Result, r hdr.FenceReply, ok bool) {
	t.Helper()
	got = x.Push("a", request(t, hdr.FencePort, asker, server, private))
	if len(got.Out["a"]) != 1 {
		return got, r, false
	}
	if r, ok = answer(t, got.Out["a"][0].Bytes); r.Cookie != 0 {
		with := slices.Clone(private)
		binary.BigEndian.PutUint64(with[12:], r.Cookie)
		got = x.Push("a", request(t, hdr.FencePort, asker, server, with))
		r, ok = answer(t, got.Out["a"][0].Bytes)
	}
	return got, r, ok
}

var theServer, theClient, asker = [4]byte{10, 9, 0, 1}, netip.MustParseAddr("10.9.0.16"), [4]byte{10, 9, 0, 17}

// TestAsked: a valid request shuts out the client that it names, and no other. Another message is refused, or
// passes.
func TestAsked(t *testing.T) {
	one := asking(theClient, 0x201, 0, 0x2a)
	cut := append(slices.Clone(one[:len(one)-1]), 0)
	cut[0] ^= 1
	for name, k := range map[string]struct {
		server  [4]byte
		private []byte
		want    string // the entries
	}{
		"one":                     {theServer, one, "10.9.0.16-10.9.0.1/0x201@0x2a"},
		"two R_Keys":              {theServer, asking(theClient, 0x201, 0, 0x2b, 0x2a), "10.9.0.16-10.9.0.1/0x201@0x2a;10.9.0.16-10.9.0.1/0x201@0x2b"},
		"all queue pairs":         {theServer, asking(theClient, 0, 0, 0x2a), "10.9.0.16-10.9.0.1@0x2a"},
		"nothing":                 {theServer, nil, ""},
		"no R_Key":                {theServer, asking(theClient, 0x201, 0), ""},
		"another's R_Key":         {theServer, asking(theClient, 0x201, 0, 0x2c), ""},
		"one that is another's":   {theServer, asking(theClient, 0x201, 0, 0x2a, 0x2c), ""},
		"another server":          {[4]byte{10, 9, 0, 2}, one, ""},
		"another magic":           {theServer, cut, ""},
		"a queue pair of 25 bits": {theServer, asking(theClient, 1<<24, 0, 0x2a), ""}, // not all of them
		"a queue pair of 32 bits": {theServer, asking(theClient, 0xFF000201, 0, 0x2a), ""},
		"nobody":                  {theServer, asking(netip.IPv4Unspecified(), 0, 0, 0x2a), ""},
		"everybody":               {theServer, asking(netip.MustParseAddr("255.255.255.255"), 0, 0, 0x2a), ""},
		"a group":                 {theServer, asking(netip.MustParseAddr("224.0.0.1"), 0, 0, 0x2a), ""},
		"the server":              {theServer, asking(netip.AddrFrom4(theServer), 0, 0, 0x2a), ""},
		"of a group":              {[4]byte{224, 0, 0, 1}, one, "passes"},
		"of everybody":            {[4]byte{255, 255, 255, 255}, one, "passes"},
	} {
		x := graphtest.New(t, *Kind(), graph.Args{"requests": "on"})
		stand(x, theServer, 0x2a, 0x2b)
		got, r, ok := ask(t, x, k.server, k.private)
		all, _ := x.App().(*app).held.list()
		if k.want == "passes" {
			if len(got.Out["b"]) != 1 || len(all) != 0 {
				t.Errorf("%s: %v, %v", name, got, all)
			}
			continue
		}
		if len(got.Out["a"]) != 1 || len(got.Out["b"]) != 0 {
			t.Errorf("%s: %v", name, got)
			continue
		}
		if ok != (k.want != "") || ok && r.Settle != 500*time.Millisecond {
			t.Errorf("%s: %v, %v", name, r, ok)
		}
		var text []string
		for _, e := range all {
			text = append(text, e.String())
		}
		if strings.Join(text, ";") != k.want {
			t.Errorf("%s: %v", name, all)
		}
	}
	// Nobody has been let ask.
	x := graphtest.New(t, *Kind(), nil)
	if got := x.Push("a", request(t, hdr.FencePort, asker, theServer, one)); len(got.Out["b"]) != 1 {
		t.Error(got)
	}
	// Another service, and the side of the servers.
	x = graphtest.New(t, *Kind(), graph.Args{"requests": "on"})
	if got := x.Push("a", request(t, hdr.FencePort+1, asker, theServer, one)); len(got.Out["b"]) != 1 {
		t.Error(got)
	}
	if got := x.Push("b", request(t, hdr.FencePort, asker, theServer, one)); len(got.Out["a"]) != 1 || string(got.Out["a"][0].Bytes) != string(request(t, hdr.FencePort, asker, theServer, one)) {
		t.Error(got)
	}
	if all, _ := x.App().(*app).held.list(); len(all) != 0 {
		t.Error(all)
	}
}

// TestAskedOften: requests leave room for the operator's entries, and a second request for an entry that
// exists costs no more than an answer.
func TestAskedOften(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"requests": "on"})
	stand(x, theServer, 0x2a)
	n := 0
	for i := range most {
		if _, _, ok := ask(t, x, theServer, asking(theClient, uint32(i+1), 0, 0x2a)); ok {
			n++
		}
	}
	if n < most/4 || n == most {
		t.Errorf("%d of %d requests are done", n, most)
	}
	var text []string
	for i := range most - n {
		text = append(text, entry{netip.AddrFrom4([4]byte{10, 8, byte(i >> 8), byte(i)}), theClient, 0, 0, 0}.String())
	}
	if err := x.Set(graph.Args{"fence": strings.Join(text, ";"), "requests": "on"}); err != nil {
		t.Error(err)
	}
	h := x.App().(*app).held
	e := entry{theClient, netip.AddrFrom4(theServer), 1, 0x2a, 0}
	if n := testing.AllocsPerRun(10, func() { h.add(byRequest, e) }); n != 0 {
		t.Errorf("asking again for what there is: %v allocations", n)
	}
}

// FuzzAsked: whatever the request is, a frame comes out, and the held entries are valid.
func FuzzAsked(f *testing.F) {
	f.Add([]byte(nil), []byte(nil), uint16(hdr.FencePort))
	f.Add(asking(theClient, 1, 2, 0x2a), []byte(nil), uint16(hdr.FencePort))
	f.Add(asking(theClient, 1, 2, 0x2a, 0x2b), []byte{16, 1, 2}, uint16(hdr.FencePort))
	f.Fuzz(func(t *testing.T, private, change []byte, service uint16) {
		b := request(t, service, asker, theServer, private[:min(len(private), 56)])
		for i := 0; i+1 < len(change); i += 2 {
			b[14+int(change[i])] ^= change[i+1]
		}
		var fr hdr.Frame
		if len(change) > 2 && hdr.Parse(b, &fr) == hdr.IsRoCE {
			hdr.SetICRC(b, &fr)
		}
		x := graphtest.New(t, *Kind(), graph.Args{"requests": "on"})
		stand(x, theServer, 0x2a)
		got := x.Push("a", b)
		if n := len(got.Out["a"]) + len(got.Out["b"]) + len(got.Dropped); n != 1 {
			t.Fatalf("%d frames", n)
		}
		for _, o := range got.Out["a"] {
			var f hdr.Frame
			if hdr.Parse(o.Bytes, &f) != hdr.IsRoCE || !hdr.GoodICRC(o.Bytes, &f) {
				t.Fatalf("% x", o.Bytes)
			}
		}
		all, _ := x.App().(*app).held.list()
		for _, e := range all {
			if back, err := parse(e.String()); err != nil || back != e {
				t.Fatalf("%v: %v", e, err)
			}
		}
	})
}

// TestRefuses: a text that is no entry is refused, and so is a state of another version.
func TestRefuses(t *testing.T) {
	for _, bad := range []string{"10.0.0.1", "10.0.0.1-", "10.0.0.1-fd00::1", "10.0.0.1-10.0.0.2/0", "10.0.0.1-10.0.0.2/0x1000000", "10.0.0.1-10.0.0.2@0", "10.0.0.1-10.0.0.2@", "a-b",
		"0.0.0.0-10.0.0.2", "10.0.0.1-0.0.0.0", "10.0.0.1-255.255.255.255", "224.0.0.1-10.0.0.2", "10.0.0.1-10.0.0.1"} {
		if _, err := Kind().New(graph.Env{}, graph.Args{"fence": bad}); err == nil || !strings.Contains(err.Error(), "fence") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, good := range []string{"10.0.0.1-10.0.0.2", "10.0.0.1-10.0.0.2/0x11", "10.0.0.1-10.0.0.2@0x2a", "10.0.0.1-10.0.0.2/0x11@0x2a"} {
		if e, err := parse(good); err != nil || e.String() != good {
			t.Errorf("%s: %v, %v", good, e, err)
		}
	}
	h := &held{by: map[entry]int{}}
	for i := range most {
		if !h.add(byArgument, entry{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), uint32(i + 1), 0, 0}) {
			t.Fatalf("no room for entry %d", i)
		}
	}
	if h.add(byArgument, entry{netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.2"), 0, 0, 0}) {
		t.Error("more entries than there can be")
	}
	old := make([]byte, memLen)
	old[0] = 1
	if _, err := Kind().New(graph.Env{Share: func(make func() any) any { return make() }, Memory: func(int) ([]byte, error) { return old, nil }}, nil); err != errFormat {
		t.Error(err)
	}
}

// TestBoundBefore: the next process knows all queue pairs that were bound, also those of entries that were lifted. With more
// than there is room for, or after a version that did not note them, there may be others.
func TestBoundBefore(t *testing.T) {
	client, server := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	at := func(qpn uint32) entry { return entry{client, server, qpn, 0, 0} }
	left := func(mem []byte) (n int, more bool) {
		known, more := (&held{mem: mem}).bound()
		return len(known), more
	}
	h := newHeld()
	h.mem = make([]byte, memLen)
	if n, more := left(h.mem); n != 0 || more {
		t.Errorf("new memory: %d, %v", n, more)
	}
	if err := h.begin(); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(3) {
		h.add(byArgument, at(i)) // 0: no queue pair
	}
	h.write(at(1), false)
	if n, more := left(h.mem); n != 2 || more {
		t.Errorf("one of two was lifted: %d, %v", n, more)
	}
	next := newHeld()
	if next.mem = h.mem; next.begin() != nil || len(next.by) != 2 {
		t.Errorf("entries in force: %v", next.by)
	}
	next.write(at(1), true)
	if n, more := left(h.mem); n != 2 || more {
		t.Errorf("it is there again: %d, %v", n, more)
	}
	for i := range uint32(most) {
		next.write(at(100+i), true)
		next.write(at(100+i), false)
	}
	if n, more := left(h.mem); n != most-1 || !more {
		t.Errorf("more than there is room for: %d, %v", n, more)
	}
	binary.LittleEndian.PutUint64(h.mem, memMagic)
	h.mem[8] = 0
	if _, more := left(h.mem); !more {
		t.Error("a version that noted no lifted ones has left it")
	}
}

// rebooted starts a fence after the machine was started anew, with the journal on d.
func rebooted(t *testing.T, d *graphtest.Disk, args graph.Args) *graphtest.Test {
	t.Helper()
	var kept []byte
	d.Reboot()
	x := graphtest.NewKept(t, d.Kind(*Kind()), args, graphtest.Start, &kept)
	x.Advance(every)
	return x
}

// TestReboot: who is shut out is so after a reboot, whoever wanted it; who was let in again is not.
func TestReboot(t *testing.T) {
	d := graphtest.NewDisk()
	server := netip.AddrFrom4(theServer)
	x := rebooted(t, d, graph.Args{"fence": "10.9.0.16-10.9.0.1;10.9.0.18-10.9.0.1", "requests": "on"})
	if _, ok := x.App().(*app).held.Shut(netip.MustParseAddr("10.9.0.17"), server, 0x201, 0); !ok {
		t.Fatal("not shut out")
	}
	stand(x, theServer, 0x2a)
	if _, _, ok := ask(t, x, theServer, asking(netip.MustParseAddr("10.9.0.19"), 0, 0, 0x2a)); !ok {
		t.Fatal("not asked")
	}
	if err := x.Set(graph.Args{"fence": "10.9.0.16-10.9.0.1"}); err != nil {
		t.Fatal(err)
	}
	x.Advance(every)
	for range 2 {
		x = rebooted(t, d, nil)
		var all []string
		for _, e := range x.App().(*app).held.all {
			all = append(all, e.String())
		}
		if got, want := strings.Join(all, ";"), "10.9.0.16-10.9.0.1;10.9.0.17-10.9.0.1/0x201;10.9.0.19-10.9.0.1@0x2a"; got != want {
			t.Errorf("shut out are %s, want %s", got, want)
		}
		writes := about(frames(t), from(16, false))
		if got := x.Push("a", writes...); len(got.Dropped) != len(writes) {
			t.Errorf("%d of %d frames are dropped", len(got.Dropped), len(writes))
		}
	}
}

// TestSlowDisk: nobody is told that a client is shut out before that would outlive a reboot. Until then it is shut out all the
// same.
func TestSlowDisk(t *testing.T) {
	d := graphtest.NewDisk()
	x := rebooted(t, d, graph.Args{"requests": "on"})
	d.Busy = true
	h := x.App().(*app).held
	if _, ok := h.Shut(theClient, netip.AddrFrom4(theServer), 0, 0); ok {
		t.Error("the other function is told before the disk has it")
	}
	stand(x, theServer, 0x2a)
	if _, r, ok := ask(t, x, theServer, asking(netip.MustParseAddr("10.9.0.19"), 0, 0, 0x2a)); !ok || r.Cookie == 0 {
		t.Errorf("before the disk has it the client is told %+v (%v), want to ask again", r, ok)
	}
	x.Advance(every)
	if n := x.Counter("not-on-disk"); n != 2 {
		t.Errorf("%d entries are not on the disk, want 2", n)
	}
	if !h.Shuts(theClient, netip.AddrFrom4(theServer), 5, 0) {
		t.Error("not shut out meanwhile")
	}
	d.Busy = false
	if _, ok := h.Shut(theClient, netip.AddrFrom4(theServer), 0, 0); !ok {
		t.Error("the disk has it")
	}
	if _, r, ok := ask(t, x, theServer, asking(netip.MustParseAddr("10.9.0.19"), 0, 0, 0x2a)); !ok || r.Cookie != 0 {
		t.Error("the disk has both")
	}
	x.Advance(every)
	if n := x.Counter("not-on-disk"); n != 0 {
		t.Errorf("%d entries are not on the disk, want none", n)
	}
}
