package snic

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// mark adds its letter to a frame; upper case on the way back. Frames whose last
// byte before that is '!' it drops, '?' it answers; with hold it keeps frames for
// 1 ms.
type mark struct {
	letter byte
	hold   bool
	q      []*packet.Buf
	ins    []int
	at     []clock.Time
}

func (m *mark) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		p := x.Bytes()
		switch p[len(p)-1] {
		case '!':
			c.Drop(x, 0)
			continue
		case '?':
			p[len(p)-1] = m.letter
			c.Emit(in, x)
			continue
		}
		q, _ := x.Append(1)
		q[len(q)-1] = m.letter - byte(in)*('a'-'A')
		if m.hold {
			m.q, m.ins, m.at = append(m.q, x), append(m.ins, in), append(m.at, c.Now().Add(time.Millisecond))
			continue
		}
		c.Emit(1-in, x)
	}
}

func (m *mark) Tick(c *graph.Ctx) clock.Time {
	for len(m.q) > 0 && m.at[0] <= c.Now() {
		c.Emit(1-m.ins[0], m.q[0])
		m.q, m.ins, m.at = m.q[1:], m.ins[1:], m.at[1:]
	}
	if !m.hold {
		return clock.Never
	}
	return c.Now().Add(100 * time.Microsecond)
}

func (m *mark) Held() int { return len(m.q) }
func (m *mark) Stop(c *graph.Ctx) {
	for i, x := range m.q {
		c.Emit(1-m.ins[i], x)
	}
	m.q = nil
}

// quick is mark without a queue.
type quick struct{ m mark }

func (q *quick) Push(c *graph.Ctx, in int, b *packet.Batch) { q.m.Push(c, in, b) }

func kinds() []graph.Kind {
	two := []string{"a", "b"}
	params := []graph.Param{{Name: "letter"}}
	return []graph.Kind{*Kind(declared()...),
		{Name: "mark", In: two, Out: two, Params: params, Reasons: []counter.Def{{Name: "bang"}}, New: func(_ graph.Env, a graph.Args) (graph.App, error) {
			return &quick{mark{letter: a["letter"][0]}}, nil
		}},
		{Name: "hold", In: two, Out: two, Params: params, Reasons: []counter.Def{{Name: "bang"}}, New: func(_ graph.Env, a graph.Args) (graph.App, error) {
			return &mark{letter: a["letter"][0], hold: true}, nil
		}},
	}
}

// frame is a UDP datagram from 10.0.0.src with a payload.
func frame(src byte, payload string) []byte {
	b := make([]byte, 12, 128)
	b = binary.BigEndian.AppendUint16(b, hdr.EtherIPv4)
	b = append(b, 0x45, 0, 0, byte(28+len(payload)), 0, 0, 0, 0, 64, hdr.ProtoUDP, 0, 0, 10, 0, 0, src, 10, 0, 1, 1)
	b = append(b, 0, 9, 0, 80, 0, byte(8+len(payload)), 0, 0)
	return append(b, payload...)
}

// back is the way back of frame.
func back(src byte, payload string) []byte {
	b := frame(src, payload)
	a := bytes.Clone(b[26:30])
	copy(b[26:30], b[30:34])
	copy(b[30:34], a)
	b[34], b[35], b[36], b[37] = b[36], b[37], b[34], b[35]
	return b
}

// tail is what follows the headers of each frame.
func tail(fs []graphtest.Frame) string {
	var out []string
	for _, f := range fs {
		out = append(out, string(f.Bytes[42:]))
	}
	return strings.Join(out, " ")
}

const three = `
regions: {count: 2, area: 3}
tasks:
  a: {kind: mark, args: {letter: a}}
  b: {kind: mark, args: {letter: b}}
  c: {kind: mark, args: {letter: c}}
tenants: {alice: {}, bob: {weight: 2}}
dags:
  - {uid: 7, tenant: alice, run: a -> b -> c}
  - {uid: 8, tenant: bob, run: a -> c}
rules:
  - {match: "src:10.0.0.1", dag: 7}
  - {match: "src:10.0.0.2", dag: 8}
  - {match: "src:10.0.0.3", road: control}
  - {match: "src:10.0.0.4", road: refuse}
`

func setup(t testing.TB, deployment string, args ...string) *graphtest.Test {
	t.Helper()
	a := graph.Args{"deployment": deployment}
	for i := 0; i < len(args); i += 2 {
		a[args[i]] = args[i+1]
	}
	return graphtest.NewOuter(t, kinds(), a)
}

// The three roads; packets run through their DAG in its order, and back in the
// other one; what is sent in before the chain is loaded waits for it.
func TestRoads(t *testing.T) {
	x := setup(t, three)
	if r := x.Push("p0", frame(1, "-"), frame(2, "-"), frame(9, "-"), frame(3, "-"), frame(4, "-")); tail(r.Out["p1"]) != "-" || len(r.Punted) != 1 || len(r.Dropped) != 1 || r.Dropped[0].Reason != "nobody" {
		t.Errorf("while the region loads: %v", r)
	}
	if r := x.Advance(4 * time.Millisecond); len(r.Out["p1"]) != 0 {
		t.Errorf("before it is loaded: %v", tail(r.Out["p1"]))
	}
	if r := x.Advance(2 * time.Millisecond); tail(r.Out["p1"]) != "-abc -ac" {
		t.Errorf("when it is loaded: %v", tail(r.Out["p1"]))
	}
	if r := x.Push("p0", frame(1, "-"), frame(2, "+"), frame(1, "=")); tail(r.Out["p1"]) != "-abc =abc +ac" {
		t.Errorf("forward: %v", tail(r.Out["p1"]))
	}
	if r := x.Push("p1", back(1, "-"), back(2, "+"), back(9, "/")); tail(r.Out["p0"]) != "/ -CBA +CA" {
		t.Errorf("back: %v", tail(r.Out["p0"]))
	}
	if r := x.Push("p6", frame(1, "-")); tail(r.Out["p7"]) != "-abc" {
		t.Errorf("another pair: %v", r)
	}
	if n := x.Counter("switched"); n != 2 {
		t.Errorf("%d switched", n)
	}
}

func TestAnswersAndDrops(t *testing.T) {
	for _, kind := range []string{"mark", "hold"} {
		x := setup(t, strings.Replace(three, "b: {kind: mark", "b: {kind: "+kind, 1))
		x.Advance(10 * time.Millisecond)
		r := x.Push("p0", frame(1, "!"), frame(1, "?"), frame(1, "-"))
		more := x.Advance(3 * time.Millisecond)
		// a answers itself: the answer leaves where the question came from.
		if len(r.Dropped) != 1 || tail(r.Out["p0"]) != "a" || tail(append(r.Out["p1"], more.Out["p1"]...)) != "-abc" {
			t.Errorf("%s: %v, %v", kind, r, more)
		}
		// Back: c drops or answers, and what it answers leaves forward.
		r = x.Push("p1", back(1, "!"), back(1, "?"), back(1, "-"))
		more = x.Advance(3 * time.Millisecond)
		if len(r.Dropped) != 1 || tail(r.Out["p1"]) != "c" || tail(append(r.Out["p0"], more.Out["p0"]...)) != "-CBA" {
			t.Errorf("%s: %v, %v", kind, r, more)
		}
	}
}
