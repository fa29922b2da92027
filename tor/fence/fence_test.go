package fence

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

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
		// The other direction is nobody's business.
		if back := x.Push("b", all...); len(back.Out["a"]) != len(all) {
			t.Errorf("%s: %d of %d go back", c.fence, len(back.Out["a"]), len(all))
		}
	}
	if n := graphtest.Allocs(t, *Kind(), graph.Args{"fence": "10.9.0.16-10.9.0.1;10.9.0.18-10.9.0.1@0x1234"}, "a", all...); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTables: entries come and go by the tables, and outlive the process.
func TestTables(t *testing.T) {
	e := entry{netip.MustParseAddr("10.9.0.16"), netip.MustParseAddr("10.9.0.1"), 0x200, 0x1234}
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
	// The process is killed: the next one has other arguments, and what was left.
	y := graphtest.NewKept(t, *Kind(), nil, graphtest.Start, &kept)
	if n := len(y.Push("a", frames(t)...).Dropped); n == 0 {
		t.Error("after a crash nothing is dropped")
	}
	if by := held(y); !slices.Equal(by, []uint64{byBefore}) {
		t.Errorf("%v", by)
	}
	if err := y.App().(*app).remove(nil, tableHeld, key(entry{e.client, e.server, 1, 0})); err == nil || !strings.Contains(err.Error(), "nobody is shut out") {
		t.Error(err)
	}
	y.App().(*app).held.lift(e)
	z := graphtest.NewKept(t, *Kind(), nil, graphtest.Start, &kept)
	if n := len(z.Push("a", frames(t)...).Dropped); n != 0 {
		t.Errorf("%d are dropped though it was lifted", n)
	}
	// What the arguments say is lifted there.
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

// TestRefuses: what is no entry is refused; a state of another version, too.
func TestRefuses(t *testing.T) {
	for _, bad := range []string{"10.0.0.1", "10.0.0.1-", "10.0.0.1-fd00::1", "10.0.0.1-10.0.0.2/0", "10.0.0.1-10.0.0.2/0x1000000", "10.0.0.1-10.0.0.2@0", "10.0.0.1-10.0.0.2@", "a-b"} {
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
		if !h.add(byRequest, entry{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), uint32(i + 1), 0}) {
			t.Fatalf("no room for entry %d", i)
		}
	}
	if h.add(byRequest, entry{netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.2"), 0, 0}) {
		t.Error("more entries than there can be")
	}
	old := make([]byte, memLen)
	old[0] = 1
	if _, err := Kind().New(graph.Env{Share: func(make func() any) any { return make() }, Memory: func(int) ([]byte, error) { return old, nil }}, nil); err != errFormat {
		t.Error(err)
	}
}
