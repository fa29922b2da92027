package swordbox

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/tor/conn"
)

// A word is tracked if any of the spans has it, however many spans there are and however they overlap. Spans
// survive being written as an argument and read again.
func TestTracked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spans := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) span {
			va := rapid.Uint64Range(0, 60).Draw(t, "va") * 8
			return span{va, va + rapid.Uint64Range(1, 100).Draw(t, "length"), int32(rapid.IntRange(1, 3).Draw(t, "priority"))}
		}), 0, 12).Draw(t, "spans")
		text := "none"
		for i := range spans {
			if i == 0 {
				text = spans[i].String()
			} else {
				text += ":" + spans[i].String()
			}
		}
		cfg, err := parseArgs(graph.Args{"track": text})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(cfg.track, spans) && len(spans) > 0 {
			t.Fatalf("track=%s is %v", text, cfg.track)
		}
		for va := uint64(0); va < 700; va += 3 {
			for _, n := range []uint32{1, 8, 40} {
				want := slices.ContainsFunc(spans, func(s span) bool { return va < s.end && va+uint64(n) > s.va })
				if cfg.tracked(va, n) != want {
					t.Fatalf("track=%s: %d bytes at %#x: %v", text, n, va, !want)
				}
			}
		}
		rows := trackedOf(graph.Args{"track": text})
		args, err := setTracked(nil, rows)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(rows, trackedOf(args)); d != "" {
			t.Fatalf("track=%s: %s", args["track"], d)
		}
	})
	for text, want := range map[string]string{"1000+10#0": "want a priority", "1000+10#x": "want a priority", "1000#5": "want VA+LENGTH"} {
		if _, err := parseArgs(graph.Args{"track": text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("track=%s: %v", text, err)
		}
	}
}

// change writes to a table of the rig's app.
func (r *rig) change(op table.Ops, name string, e table.Text) error {
	r.t.Helper()
	d := tableOf(name)
	x, err := d.Parse(e)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.Inst.WriteTables([]graph.TableChange{{App: graphtest.App, Change: table.Change{Table: name, Op: op, Entry: x}}}, false)[0]
}

func tableOf(name string) *table.Decl {
	all := tables()
	return &all[slices.IndexFunc(all, func(d table.Decl) bool { return d.Name == name })]
}

// rows are the entries of a table as text.
func (r *rig) rows(name string) (out []table.Text) {
	r.t.Helper()
	d := tableOf(name)
	if err := r.Inst.ReadTable(graphtest.App, name, func(e *table.Entry) error {
		out = append(out, d.Text(e))
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	return out
}

func codeOf(err error) table.Code {
	var e *table.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// suffix is what the tables of a rig's family end with.
func (r *rig) suffix() string {
	if r.server.Is6() {
		return "_ipv6"
	}
	return ""
}

// From the time that memory is tracked its operations move; when its entry is deleted they move no longer.
// The app, and its knowledge, stay.
func TestTrackWhileRunning(t *testing.T) {
	const va = 0x7100
	r := newRig(t, graph.Args{"learn": "off"})
	was := r.box()
	a, b := r.join(), r.join()
	own := func(when string) {
		t.Helper()
		psn, spsn := b.psn, b.spsn
		same(t, b.write(va, 1).Out["b"], b.made(hdr.WriteOnly, psn, reth(va, testRKey, 8), little(1)))
		b.msn++
		one(t, b.ack().Out["a"])
		if b.spsn != spsn+1 {
			t.Error(when)
		}
	}
	own("before")
	e := table.Text{Match: map[string]string{"va": "0x7000..0x7fff"}, Priority: 3, Action: "track"}
	if err := r.change(table.Insert, "tracked", e); err != nil {
		t.Fatal(err)
	}
	psn := b.psn
	same(t, b.write(va, 2).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(2)))
	b.msn++
	same(t, a.ack().Out["a"], b.ackTo(psn, b.msn))
	if got := r.rows("tracked"); len(got) != 1 || got[0].Match["meta.va"] != "0x7000..0x7fff" || got[0].Priority != 3 || r.Inst.Spec().Apps[graphtest.App].Args["track"] != "7000+1000#3" {
		t.Errorf("%v", got)
	}
	if err := r.change(table.Insert, "tracked", e); codeOf(err) != table.Exists {
		t.Errorf("%v", err)
	}
	if err := r.change(table.Delete, "tracked", table.Text{Match: e.Match, Priority: 3}); err != nil || r.Inst.Spec().Apps[graphtest.App].Args["track"] != "none" {
		t.Errorf("%v", err)
	}
	// The word itself is known still; its neighbour never was.
	same(t, b.write(va+0x100, 3).Out["b"], b.made(hdr.WriteOnly, b.spsn, reth(va+0x100, testRKey, 8), little(3)))
	if err := r.change(table.Insert, "tracked", table.Text{Match: map[string]string{"va": "0..0xffffffffffffffff"}, Priority: 1, Action: "track"}); codeOf(err) != table.Invalid {
		t.Errorf("%v", err)
	}
	if r.box() != was {
		t.Error("the app was made anew")
	}
	b.msn++
	one(t, b.ack().Out["a"])
}

// TestVouchedLater: until memory is tracked anybody may have written there. What the box believed about the
// words there does not count then: the next atomic goes unchanged, and only those behind its answer are
// replaced.
func TestVouchedLater(t *testing.T) {
	const va = 0x7100
	r := newRig(t, graph.Args{"replace": "tracked"})
	a, b := r.join(), r.join()
	b.learn(a, va, 1)
	psn := b.psn
	same(t, b.cas(va, 1, 2).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(va, testRKey, 2, 1), nil))
	b.msn++
	same(t, a.atomicAck(1).Out["a"], b.atomicAckTo(psn, b.msn, 1))
	// The server's processor writes 7.
	if err := r.change(table.Insert, "tracked", table.Text{Match: map[string]string{"va": "0x7000..0x7fff"}, Priority: 1, Action: "track"}); err != nil {
		t.Fatal(err)
	}
	psn = b.psn
	same(t, b.cas(va, 7, 8).Out["b"], b.moved(a, hdr.CompareSwap, a.spsn, atomicETH(va, testRKey, 8, 7), nil))
	b.msn++
	same(t, a.atomicAck(7).Out["a"], b.atomicAckTo(psn, b.msn, 7))
	psn = b.psn
	same(t, b.cas(va, 8, 9).Out["b"], b.moved(a, hdr.WriteOnly, a.spsn, reth(va, testRKey, 8), little(9)))
	b.msn++
	same(t, a.ack().Out["a"], b.atomicAckTo(psn, b.msn, 8))
}

func TestTakes(t *testing.T) {
	for args, keeps := range map[string]bool{
		"guard=drop": true, "bad=drop": true, "track=1000+8": true, "static=10.9.0.5/0x11-10.9.0.1/0x77": true, "mode=replace": true,
		"mode=mux": false, "conns=9": false, "learn=off": false, "servers=10.9.0.1": false, "giveup=60ms": false,
	} {
		r := newRig(t, graph.Args{})
		was := r.box()
		k, v, _ := strings.Cut(args, "=")
		p, err := r.Inst.Set(graphtest.App, graph.Args{k: v})
		if err != nil || (r.box() == was) != keeps || strings.Contains(p.String(), "anew") == keeps {
			t.Errorf("%s: %v, the same app: %v; %v", args, err, r.box() == was, p)
		}
	}
	r := newRig(t, graph.Args{})
	was := r.box()
	for k, v := range map[string]string{"guard": "x", "static": "nonsense", "track": "x"} {
		if _, err := r.Inst.Set(graphtest.App, graph.Args{k: v}); err == nil || r.box() != was {
			t.Errorf("%s=%s: %v", k, v, err)
		}
	}
}

func TestGuardWhileRunning(t *testing.T) {
	r := newRig(t, graph.Args{})
	a := r.join()
	spoofed := func() graphtest.Result {
		x := *a
		x.ip = netip.MustParseAddr("10.9.0.66")
		return r.Push("a", x.made(hdr.WriteOnly, a.psn, reth(0x7000, testRKey, 8), little(1)))
	}
	one(t, spoofed().Out["b"])
	if err := r.change(table.Default, "guard", table.Text{Default: true, Action: "drop"}); err != nil {
		t.Fatal(err)
	}
	dropped(t, spoofed(), "spoofed")
	if err := r.change(table.Default, "guard", table.Text{Default: true, Action: "pass"}); err != nil {
		t.Fatal(err)
	}
	one(t, spoofed().Out["b"])
}

// Static connections are added and deleted while the app runs. An entry that would contradict what is known,
// and the removal of a connection that needs the app, are refused.
func TestStaticWhileRunning(t *testing.T) {
	for _, server := range []string{"10.9.0.1", "fd00::9:1"} {
		t.Run(server, func(t *testing.T) {
			r := rigOf(t, graph.Args{}, netip.MustParseAddr(server))
			static := "static" + r.suffix()
			a := r.join()
			b := r.client() // no connection manager announced it
			entry := func(c *party, qpn uint32, action string) table.Text {
				e := table.Text{Match: map[string]string{"src": c.ip.String(), "dst": server, "dst_qp": fmt.Sprint(qpn)}, Action: action,
					Params: map[string]string{"client_qp": fmt.Sprint(c.cqpn), "mtu": "256"}}
				if action == "connect_from" {
					e.Params["first_psn"] = fmt.Sprint(c.psn)
				}
				return e
			}
			e := entry(b, b.sqpn, "connect_from")
			if err := r.change(table.Insert, static, e); err != nil {
				t.Fatal(err)
			}
			r.Advance(50 * time.Millisecond)
			find := func() conn.State {
				n := (*r.box().nodes.Load())[0]
				s, _ := n.conns.Find(conn.AddrFrom(r.server), b.sqpn)
				if s == conn.NoSlot {
					return conn.HalfOpen
				}
				if got := n.conns.Row(s); got.Learnt != conn.Static || got.Client.Addr != conn.AddrFrom(b.ip) || got.Client.QPN != b.cqpn {
					t.Errorf("%v", got)
				}
				return n.conns.Row(s).State
			}
			if find() != conn.Paired {
				t.Error("the connection is not there")
			}
			// a's queue pair is in use: the connection manager announced it.
			if err := r.change(table.Insert, static, entry(b, a.sqpn, "connect")); codeOf(err) != table.Busy || !strings.Contains(err.Error(), "is in use by") {
				t.Errorf("%v", err)
			}
			if got := r.rows(static); len(got) != 1 || got[0].Params["first_psn"] != fmt.Sprint(b.psn) {
				t.Errorf("%v", got)
			}
			gone := table.Text{Match: e.Match}
			if err := r.change(table.Delete, "clients"+r.suffix(), gone); codeOf(err) != table.Busy || !strings.Contains(err.Error(), "table static has it") {
				t.Errorf("%v", err)
			}
			if err := r.change(table.Delete, static, gone); err != nil {
				t.Error(err)
			}
			r.Advance(50 * time.Millisecond)
			if find() != conn.HalfOpen {
				t.Error("the connection is still there")
			}
			// One whose ends count differently stays until its client has gone.
			if err := r.change(table.Insert, static, e); err != nil {
				t.Fatal(err)
			}
			r.Advance(50 * time.Millisecond)
			b.proven()
			b.learn(a, 0x7000, 5)
			if err := r.change(table.Delete, static, gone); codeOf(err) != table.Busy || !strings.Contains(err.Error(), "its two ends count differently") || len(r.rows(static)) != 1 {
				t.Errorf("%v", err)
			}
		})
	}
}

// The tables of state: connections, shared ones and words, and forgetting.
func TestShownState(t *testing.T) {
	for _, server := range []string{"10.9.0.1", "fd00::9:1"} {
		t.Run(server, func(t *testing.T) {
			r := rigOf(t, graph.Args{}, netip.MustParseAddr(server))
			a, b := r.join(), r.join()
			c := r.client().connect() // not heard yet
			b.learn(a, 0x7000, 5)
			ip := "ipv4"
			if r.server.Is6() {
				ip = "ipv6"
			}
			at := func(x *party) map[string]string {
				return map[string]string{"hdr." + ip + ".src": x.ip.String(), "hdr." + ip + ".dst": server, "hdr.bth.dst_qp": fmt.Sprintf("%#x", x.sqpn)}
			}
			n := (*r.box().nodes.Load())[0]
			slot := func(x *party) string {
				s, _ := n.conns.Find(conn.AddrFrom(r.server), x.sqpn)
				return fmt.Sprint(int(s))
			}
			clients := map[string]table.Text{}
			for _, e := range r.rows("clients" + r.suffix()) {
				clients[e.Match["hdr.bth.dst_qp"]] = e
			}
			if len(clients) != 3 {
				t.Errorf("%v", clients)
			}
			for x, want := range map[*party]table.Text{
				a: {Action: "join", Params: map[string]string{"client": slot(a), "shared": slot(a), "next_client": fmt.Sprint(a.psn), "next_server": fmt.Sprint(a.spsn), "msn": fmt.Sprint(a.msn),
					"open": "0", "guests": "0", "waiting": "0", "bound": "1"}},
				b: {Action: "join", Params: map[string]string{"client": slot(b), "shared": slot(b), "next_client": fmt.Sprint(b.psn), "next_server": fmt.Sprint(b.spsn), "msn": fmt.Sprint(b.msn),
					"open": "0", "guests": "0", "waiting": "0", "bound": "1"}},
				c: {Action: "not_followed", Params: map[string]string{"client": slot(c), "paired": "1", "lost": "0"}},
			} {
				want.Match = at(x)
				want.Params["client_qp"], want.Params["mtu"] = fmt.Sprintf("%#x", x.cqpn), "256"
				if d := cmp.Diff(want, clients[fmt.Sprintf("%#x", x.sqpn)]); d != "" {
					t.Error(d)
				}
			}
			if got := r.rows("shared" + r.suffix()); len(got) != 1 || got[0].Match["meta.shared"] != slot(a) || got[0].Params["src"] != a.ip.String() || got[0].Params["dst"] != server || got[0].Params["server_qp"] != fmt.Sprintf("%#x", a.sqpn) {
				t.Errorf("%v", got)
			}
			if got := r.rows("answers" + r.suffix()); len(got) != 1 || got[0].Match["hdr."+ip+".dst"] != a.ip.String() || got[0].Match["hdr.bth.dst_qp"] != fmt.Sprintf("%#x", a.cqpn) || got[0].Params["shared"] != slot(a) {
				t.Errorf("%v", got)
			}
			words := r.rows("words" + r.suffix())
			i := slices.IndexFunc(words, func(e table.Text) bool { return e.Match["meta.va"] == "0x7000" })
			if i < 0 || words[i].Match["hdr."+ip+".dst"] != server || words[i].Match["meta.rkey"] != "0x1234" || words[i].Params["known"] != "1" || words[i].Params["value"] != "0x5" || words[i].Params["open"] != "0" {
				t.Errorf("%v", words)
			}
			// While an operation is open its word and its connection say so.
			one(t, b.cas(0x7000, 5, 6).Out["b"])
			for _, e := range r.rows("clients" + r.suffix()) {
				if e.Match["hdr.bth.dst_qp"] == fmt.Sprintf("%#x", b.sqpn) && (e.Params["open"] != "1" || e.Params["shared"] != slot(a)) {
					t.Errorf("%v", e)
				}
			}
			if w := r.rows("words" + r.suffix())[i]; w.Params["open"] != "1" || w.Params["value"] != "0x6" {
				t.Errorf("%v", w)
			}
			if err := r.change(table.Delete, "clients"+r.suffix(), table.Text{Match: at(b)}); codeOf(err) != table.Busy {
				t.Errorf("%v", err)
			}
			one(t, a.ack().Out["a"])

			// c counts as its server does: it may be forgotten.
			if err := r.change(table.Delete, "clients"+r.suffix(), table.Text{Match: at(c)}); err != nil {
				t.Error(err)
			}
			if err := r.change(table.Delete, "clients"+r.suffix(), table.Text{Match: at(c)}); codeOf(err) != table.Missing {
				t.Errorf("%v", err)
			}
			if got := len(r.rows("clients" + r.suffix())); got != 2 {
				t.Errorf("%d connections", got)
			}
			one(t, c.write(0x9000, 1).Out["b"]) // and passes
			other := map[string]string{"": "_ipv6", "_ipv6": ""}[r.suffix()]
			for _, name := range []string{"clients", "answers", "shared", "words"} {
				if got := r.rows(name + other); len(got) != 0 {
					t.Errorf("%s%s: %v", name, other, got)
				}
			}
		})
	}
}

// A large table is shown in slices, none of which is long, and each row once.
func TestScan(t *testing.T) {
	addr := func(s string) []conn.Addr { return []conn.Addr{conn.AddrFrom(netip.MustParseAddr(s))} }
	n, err := newNode(0, &memory{geometry: geometry{4, 16, 1}}, &settings{conns: 4, window: 16, words: 1000, shared: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newNode(0, &memory{geometry: geometry{4, 16, 1}}, &settings{conns: 4, window: 16, words: 1000, shared: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	n.addrs, m.addrs = addr("10.9.0.1"), addr("10.9.0.2")
	for k := range uint64(700) {
		n.words.add(8*k, 1)
		m.words.add(8*k, 1)
	}
	s := &Box{shared: &shared{}, workers: 1, cfg: settings{conns: 4, words: 1000}}
	s.nodes.Store(&[]*node{n, m})
	for _, slice := range []int{1, 7, 100, 699, 700, 701, 1400, 5000} {
		seen := map[string]int{}
		for from := 0; from >= 0; {
			rows := 0
			from = s.scan(nil, tableWords4, from, slice, func(e *table.Entry) { seen[fmt.Sprint(e.Key)]++; rows++ })
			if rows > slice {
				t.Errorf("%d rows in a slice of %d", rows, slice)
			}
		}
		for k, n := range seen {
			if n != 1 {
				t.Fatalf("%s %d times", k, n)
			}
		}
		if len(seen) != 1400 {
			t.Errorf("slices of %d: %d words", slice, len(seen))
		}
	}
}

// BenchmarkScan reads 65,536 words as the graph does: what a worker waits for is
// one slice of 256 places.
func BenchmarkScan(b *testing.B) {
	r := newRig(b, graph.Args{"words": "65536"})
	r.join()
	n := (*r.box().nodes.Load())[0]
	for k := uint64(n.words.n); k < 65536; k++ {
		n.words.add(1<<40+8*k, 1)
	}
	b.ReportAllocs()
	for b.Loop() {
		rows := 0
		if err := r.Inst.ReadTable(graphtest.App, "words", func(*table.Entry) error { rows++; return nil }); err != nil || rows != 65536 {
			b.Fatalf("%d rows, %v", rows, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/256, "ns/slice")
}
