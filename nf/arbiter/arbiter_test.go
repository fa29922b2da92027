package arbiter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/table"
)

var me, them = []byte{10, 0, 0, 9}, func(n byte) []byte { return []byte{10, 0, 0, n} }

// datagram is a message of host n to the arbiter.
func datagram(t testing.TB, n byte, port uint16, m *message.Message, vlans ...uint16) []byte {
	t.Helper()
	return hdrtest.Build(t, append(hdrtest.Stack(vlans...), &layers.IPv4{SrcIP: them(n), DstIP: me, TTL: 9}, &layers.UDP{SrcPort: layers.UDPPort(port), DstPort: message.Port}, gopacket.Payload(m.Append(nil)))...)
}

// test is an arbiter, and the sessions that it has given to hosts.
type test struct {
	*graphtest.Test
	t        *testing.T
	sessions map[byte]uint64
}

var quick = graph.Args{"addr": "10.0.0.9", "max-lease": "1s", "settle": "10ms"}

func with(more ...string) graph.Args {
	a := graph.Args{}
	for k, v := range quick {
		a[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		a[more[i]] = more[i+1]
	}
	return a
}

// begun is an arbiter that grants.
func begun(t *testing.T, args graph.Args) *test {
	x := &test{graphtest.New(t, *Kind(), args), t, map[byte]uint64{}}
	x.Advance(1100 * time.Millisecond)
	return x
}

// answers are those that came out.
func answers(t testing.TB, r graphtest.Result) (all []message.Message) {
	t.Helper()
	for _, f := range r.Out["a"] {
		p := gopacket.NewPacket(f.Bytes, layers.LayerTypeEthernet, gopacket.Default)
		u, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		var m message.Message
		if !ok || !m.Parse(u.Payload) || !m.Answer || u.SrcPort != message.Port {
			t.Fatalf("%v", p)
		}
		ip := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		seg := append(slices.Clone(u.Contents), u.Payload...)
		if src, _ := netip.AddrFromSlice(ip.SrcIP.To4()); u.Checksum == 0 || hdr.Checksum(seg, hdr.PseudoSum(src, netip.AddrFrom4([4]byte(ip.DstIP.To4())), hdr.ProtoUDP, len(seg))) != 0 || ip.Length != 28+message.Len {
			t.Fatalf("%v", p)
		}
		all = append(all, m)
	}
	return all
}

// ask sends a request of host n's, and is the answer.
func (x *test) ask(n byte, m message.Message) message.Message {
	x.t.Helper()
	if x.sessions[n] == 0 {
		a := answers(x.t, x.Push("a", datagram(x.t, n, 1000, &message.Message{Op: message.Hello, Incarnation: m.Incarnation, Token: 77})))
		if len(a) != 1 || a[0].Result != message.OK || a[0].Token != 77 {
			x.t.Fatalf("hello: %+v", a)
		}
		x.sessions[n] = a[0].Session
	}
	m.Session = x.sessions[n]
	a := answers(x.t, x.Push("a", datagram(x.t, n, 1000, &m)))
	if len(a) == 0 || a[0].Request != m.Request || a[0].Attempt != m.Attempt || a[0].Op != m.Op {
		x.t.Fatalf("%+v: %+v", m, a)
	}
	return a[0]
}

func acquire(id uint32, wait uint32, words ...message.Word) message.Message {
	m := message.Message{Op: message.Acquire, Request: id, Lease: 500, Wait: wait, N: len(words)}
	copy(m.Words[:], words)
	return m
}

func release(id uint32, of *message.Message) message.Message {
	return message.Message{Op: message.Release, Request: id, Lease: 500, Token: of.Token, Handle: of.Handle}
}

func excl(addr uint64) message.Word   { return message.Word{Space: 7, Addr: addr, Exclusive: true} }
func shared(addr uint64) message.Word { return message.Word{Space: 7, Addr: addr} }

func (x *test) want(got message.Message, r message.Result) message.Message {
	x.t.Helper()
	if got.Result != r {
		x.t.Fatalf("%v, want %v: %+v", got.Result, r, got)
	}
	return got
}

func (x *test) rows(name string) (rows []string) {
	x.t.Helper()
	d := tables()[slices.IndexFunc(tables(), func(d table.Decl) bool { return d.Name == name })]
	if err := x.Inst.ReadTable(graphtest.App, name, func(e *table.Entry) error {
		text := d.Text(e)
		rows = append(rows, fmt.Sprint(text))
		return nil
	}); err != nil {
		x.t.Fatal(err)
	}
	return rows
}

// TestLocks: what is granted, denied, and why; what is repeated gets the same answer.
func TestLocks(t *testing.T) {
	x := begun(t, with())
	one := x.want(x.ask(1, acquire(1, 0, excl(1), shared(2))), message.OK)
	if again := x.want(x.ask(1, acquire(1, 0, excl(1), shared(2))), message.OK); again.Token != one.Token {
		t.Errorf("granted again: %d after %d", again.Token, one.Token)
	}
	x.want(x.ask(2, acquire(1, 0, shared(2))), message.OK)
	no := x.want(x.ask(2, acquire(2, 0, excl(3), shared(1))), message.Held)
	if no.N != 1 || no.Holder != [4]byte{10, 0, 0, 1} || no.Wait == 0 || no.Wait > 500 {
		t.Errorf("%+v", no)
	}
	x.want(x.ask(3, acquire(1, 0, excl(3))), message.OK) // nothing of the denied request is held
	x.want(x.ask(2, acquire(3, 0, excl(2))), message.Held)
	for r, m := range map[message.Result]message.Message{
		message.Refused: acquire(4, 0), message.NotYours: {Op: message.Release, Request: 5, Lease: 500, Token: one.Token, Handle: one.Handle}} {
		x.want(x.ask(2, m), r)
	}
	x.want(x.ask(2, acquire(6, 0, excl(9), shared(9))), message.Refused)
	x.want(x.ask(2, message.Message{Op: message.Renew, Request: 7}), message.Refused) // no lease
	if n := len(x.rows("locks")); n != 4 {
		t.Errorf("%d locks: %v", n, x.rows("locks"))
	}
	x.want(x.ask(1, release(2, &one)), message.OK)
	x.want(x.ask(1, release(2, &one)), message.OK)
	x.want(x.ask(1, release(3, &one)), message.NotYours)
	two := x.want(x.ask(2, acquire(8, 0, excl(1))), message.OK)
	if two.Token <= one.Token {
		t.Errorf("token %d after %d", two.Token, one.Token)
	}
	// The first request comes once more, late: its answer is the same, and nothing is held by it.
	if late := x.ask(1, acquire(1, 0, excl(1), shared(2))); late.Token != one.Token || len(x.rows("locks")) != 3 {
		t.Errorf("%+v %v", late, x.rows("locks"))
	}
	// One that is older than its slot's is not answered.
	x.want(x.ask(1, message.Message{Op: message.Renew, Request: 17, Lease: 500}), message.OK)
	m := acquire(1, 0, excl(5))
	m.Session = x.sessions[1]
	if r := x.Push("a", datagram(t, 1, 1000, &m)); len(r.Dropped) != 1 || r.Dropped[0].Reason != "old" {
		t.Errorf("%+v", r)
	}
}

// TestLine: who stands in line is told in its turn, by age; who gives up leaves no trace.
func TestLine(t *testing.T) {
	x := begun(t, with())
	one := x.want(x.ask(1, acquire(1, 0, excl(1))), message.OK)
	x.want(x.ask(2, acquire(1, 400, excl(1), excl(2))), message.Waiting)
	x.want(x.ask(3, acquire(1, 400, excl(2))), message.Waiting) // behind host 2, though nobody holds the word
	x.want(x.ask(4, acquire(1, 100, shared(1))), message.Waiting)
	x.want(x.ask(5, acquire(1, 0, excl(2))), message.Held)
	if x.Counter("waiting") != 3 || x.Counter("words") != 2 {
		t.Errorf("%d wait for %d", x.Counter("waiting"), x.Counter("words"))
	}
	a := answers(t, x.Advance(150*time.Millisecond))
	if len(a) != 1 || a[0].Result != message.TimedOut {
		t.Fatalf("%+v", a)
	}
	m := release(2, &one)
	m.Session = x.sessions[1]
	a = answers(t, x.Push("a", datagram(t, 1, 1000, &m)))
	if len(a) != 2 || a[1].Result != message.OK || a[1].Session != x.sessions[2] {
		t.Fatalf("%+v", a)
	}
	two := x.want(x.ask(2, acquire(1, 400, excl(1), excl(2))), message.OK)
	// Host 2 gives back what request 1 has got, by its number; host 3 is next.
	m = message.Message{Op: message.Release, Request: 2, Lease: 500, Handle: 1, Session: x.sessions[2]}
	a = answers(t, x.Push("a", datagram(t, 2, 1000, &m)))
	if len(a) != 2 || a[0].Result != message.OK || a[1].Session != x.sessions[3] || a[1].Token <= two.Token {
		t.Fatalf("%+v", a)
	}
	// Host 4 gives up a request in line, and one that never came.
	x.want(x.ask(4, acquire(2, 400, excl(2))), message.Waiting)
	x.want(x.ask(4, message.Message{Op: message.Release, Request: 3, Lease: 500, Handle: 2}), message.OK)
	x.want(x.ask(4, message.Message{Op: message.Release, Request: 5, Lease: 500, Handle: 4}), message.OK)
	x.want(x.ask(4, acquire(4, 400, excl(5))), message.TimedOut)
	if x.Counter("waiting") != 0 || x.Counter("words") != 1 {
		t.Errorf("%d wait for %d", x.Counter("waiting"), x.Counter("words"))
	}
	// Two that share are next together.
	one = x.want(x.ask(1, acquire(3, 0, excl(21))), message.OK)
	x.want(x.ask(2, acquire(4, 400, shared(21))), message.Waiting)
	x.want(x.ask(3, acquire(2, 400, shared(21))), message.Waiting)
	m = release(4, &one)
	m.Session = x.sessions[1]
	if a = answers(t, x.Push("a", datagram(t, 1, 1000, &m))); len(a) != 3 || a[1].Result != message.OK || a[2].Result != message.OK {
		t.Fatalf("%+v", a)
	}
	// Host 7 is behind host 6 for word 12: it is not granted when only word 13 is free, but when host 6 gives up.
	x.want(x.ask(5, acquire(2, 0, excl(11))), message.OK)
	x.want(x.ask(8, acquire(1, 0, excl(13))), message.OK)
	x.want(x.ask(6, acquire(1, 50, excl(11), excl(12))), message.Waiting)
	x.want(x.ask(7, acquire(1, 400, excl(12), excl(13))), message.Waiting)
	x.want(x.ask(8, message.Message{Op: message.Release, Request: 2, Lease: 500, Handle: 1}), message.OK)
	x.want(x.ask(7, acquire(1, 400, excl(12), excl(13))), message.Waiting)
	a = answers(t, x.Advance(60*time.Millisecond))
	if len(a) != 2 || a[0].Result != message.TimedOut || a[1].Result != message.OK || a[1].Session != x.sessions[7] {
		t.Fatalf("%+v", a)
	}
}

// TestLease: locks go with the lease and the time after it, and not before.
func TestLease(t *testing.T) {
	x := begun(t, with())
	x.want(x.ask(1, acquire(1, 0, excl(1))), message.OK)
	x.Advance(400 * time.Millisecond)
	if m := x.want(x.ask(1, message.Message{Op: message.Renew, Request: 2, Lease: 500}), message.OK); m.Lease != 500 {
		t.Errorf("%d ms are left", m.Lease)
	}
	x.Advance(505 * time.Millisecond)
	x.want(x.ask(2, acquire(1, 0, excl(1))), message.Held)
	x.want(x.ask(1, message.Message{Op: message.Renew, Request: 3, Lease: 500}), message.Lost)
	x.Advance(6 * time.Millisecond)
	x.want(x.ask(2, acquire(2, 0, excl(1))), message.OK)
	// A later incarnation is let in, an earlier one is not.
	x.sessions[1] = 0
	m := acquire(1, 0, excl(2))
	m.Incarnation = 5
	if a := x.ask(1, m); a.Result != message.Settling || a.Wait == 0 {
		t.Errorf("%+v", a)
	}
	x.Advance(20 * time.Millisecond)
	x.want(x.ask(1, m), message.OK)
	m.Incarnation = 4
	x.sessions[1] = 0
	x.want(x.ask(1, m), message.Stale)
	// Who asks for more than max-lease= has no more.
	m = acquire(3, 0, excl(3))
	m.Lease = 100_000
	if a := x.want(x.ask(2, m), message.OK); a.Lease != 1000 {
		t.Errorf("%d", a.Lease)
	}
	// Whoever holds nothing is forgotten after a while.
	x.want(x.ask(4, message.Message{Op: message.Renew, Request: 1, Lease: 500}), message.OK)
	x.Advance(30 * time.Second)
	x.want(x.ask(4, message.Message{Op: message.Renew, Request: 2, Lease: 500}), message.OK)
	x.Advance(60 * time.Second)
	if n := x.Counter("clients") + x.Counter("locks") + x.Counter("words"); n != 0 {
		t.Errorf("%v", x.rows("clients"))
	}
}

// TestTableClients: whoever is deleted is taken for dead.
func TestTableClients(t *testing.T) {
	x := begun(t, with())
	x.want(x.ask(1, acquire(1, 0, excl(1))), message.OK)
	if rows := x.rows("clients"); len(rows) != 1 || !strings.Contains(rows[0], "10.0.0.1") {
		t.Errorf("%v", rows)
	}
	a := x.App().(*app)
	k := []table.Cond{{V: table.Uint(0x0A000001)}, {V: table.Uint(0)}}
	a.die(x.Clock.Now(), int32(len(a.clients)-1)) // records are given out from the end on
	if err := a.remove(nil, tableClients, k); err == nil || !strings.Contains(err.Error(), "shut out") {
		t.Error(err)
	}
	k[1] = table.Cond{V: table.Uint(1)}
	if err := a.remove(nil, tableClients, k); err == nil || !strings.Contains(err.Error(), "no client") {
		t.Error(err)
	}
}

// TestStrangers: what anybody can make up changes nothing, and what is none of the arbiter's passes as it is.
func TestStrangers(t *testing.T) {
	x := begun(t, with("from", "10.0.0.0/29"))
	one := x.want(x.ask(1, acquire(1, 0, excl(1))), message.OK)
	for guess := range uint64(64) { // of the session
		m := release(2, &one)
		m.Session = x.sessions[1] ^ 1<<guess
		a := answers(t, x.Push("a", datagram(t, 1, 1000, &m)))
		if len(a) != 1 || a[0].Result != message.NoSession || a[0].Session != m.Session {
			t.Fatalf("%+v", a)
		}
	}
	m := release(2, &one)
	m.Session = x.sessions[1]
	x.want(answers(t, x.Push("a", datagram(t, 1, 1001, &m)))[0], message.NoSession) // from another socket
	x.want(answers(t, x.Push("a", datagram(t, 2, 1000, &m)))[0], message.NoSession) // from another host
	for range 3000 {
		x.Push("a", datagram(t, 3, 1000, &message.Message{Op: message.Hello, Token: 1}))
	}
	if x.Counter("clients") != 1 {
		t.Errorf("%d clients", x.Counter("clients"))
	}
	x.Advance(50 * time.Second) // a session that was offered long ago
	m = acquire(1, 0, excl(7))
	m.Session = x.sessions[1]
	x.want(answers(t, x.Push("a", datagram(t, 1, 1000, &m)))[0], message.NoSession)

	good := datagram(t, 1, 1000, &message.Message{Op: message.Hello})
	for name, c := range map[string]struct {
		f    []byte
		want string
	}{
		"an answer":     {datagram(t, 1, 1000, &message.Message{Op: message.Hello, Answer: true}), "malformed"},
		"cut":           {hdrtest.Build(t, append(hdrtest.Stack(), &layers.IPv4{SrcIP: them(1), DstIP: me, TTL: 9}, &layers.UDP{SrcPort: 1, DstPort: message.Port}, gopacket.Payload("short"))...), "malformed"},
		"a stranger":    {datagram(t, 9, 1000, &message.Message{Op: message.Hello}), "stranger"},
		"no port":       {datagram(t, 1, 0, &message.Message{Op: message.Hello}), "stranger"},
		"its checksum":  {append(good[:len(good)-1:len(good)-1], good[len(good)-1]^1), "damaged"},
		"another port":  {hdrtest.Build(t, append(hdrtest.Stack(), &layers.IPv4{SrcIP: them(1), DstIP: me, TTL: 9}, &layers.UDP{SrcPort: 1, DstPort: 7475}, gopacket.Payload("x"))...), ""},
		"another host":  {hdrtest.Build(t, append(hdrtest.Stack(), &layers.IPv4{SrcIP: them(1), DstIP: them(8), TTL: 9}, &layers.UDP{SrcPort: 1, DstPort: message.Port}, gopacket.Payload("x"))...), ""},
		"no UDP at all": {hdrtest.Build(t, append(hdrtest.Stack(), &layers.ARP{AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1, SourceHwAddress: make([]byte, 6), SourceProtAddress: them(1), DstHwAddress: make([]byte, 6), DstProtAddress: me})...), ""},
	} {
		got := x.Push("a", c.f)
		switch {
		case c.want == "" && (len(got.Out["b"]) != 1 || !slices.Equal(got.Out["b"][0].Bytes, c.f)):
			t.Errorf("%s: %+v", name, got)
		case c.want != "" && (len(got.Dropped) != 1 || got.Dropped[0].Reason != c.want):
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestFull: where there is no room it is said, and nothing is lost.
func TestFull(t *testing.T) {
	x := begun(t, with("clients", "2", "locks", "32", "each", "20", "waiting", "1"))
	var words []message.Word
	for i := range uint64(21) {
		words = append(words, excl(i))
	}
	x.want(x.ask(1, acquire(1, 0, words...)), message.Full)
	x.want(x.ask(1, acquire(2, 0, words[:20]...)), message.OK)
	x.want(x.ask(2, acquire(1, 0, excl(100), excl(101), excl(102), excl(103), excl(104), excl(105), excl(106), excl(107), excl(108), excl(109), excl(110), excl(111), excl(112))), message.Full)
	x.want(x.ask(2, acquire(2, 100, excl(1))), message.Waiting)
	x.want(x.ask(2, acquire(3, 100, excl(1))), message.Full)
	x.want(x.ask(3, acquire(1, 0, excl(50))), message.Full)
	if n := x.Counter("clients"); n != 2 {
		t.Errorf("%d clients", n)
	}
}

// TestNoFence: where the fence is not there nothing is granted, and it is said.
func TestNoFence(t *testing.T) {
	x := begun(t, with("fence", "fence"))
	x.want(x.ask(1, acquire(1, 0, message.Word{Space: 0x0A000008, Addr: 1})), message.Settling)
	if x.Counter("no-fence") != 1 {
		t.Error("it is not said")
	}
}

// TestTagged: an answer goes back in the VLANs that the request came in; ARP is answered for an address of the arbiter's own.
func TestTagged(t *testing.T) {
	x := begun(t, with("mac", "02:00:00:00:00:99"))
	got := x.Push("b", datagram(t, 1, 1000, &message.Message{Op: message.Hello}, 5, 6)).Out["b"]
	if len(got) != 1 {
		t.Fatal(got)
	}
	p := gopacket.NewPacket(got[0].Bytes, layers.LayerTypeEthernet, gopacket.Default)
	if v, ok := p.Layers()[2].(*layers.Dot1Q); !ok || v.VLANIdentifier != 6 || p.Layer(layers.LayerTypeUDP) == nil {
		t.Errorf("%v", p)
	}
	q := hdrtest.Build(t, append(hdrtest.Stack(), &layers.ARP{AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1, SourceHwAddress: []byte{2, 0, 0, 0, 0, 1}, SourceProtAddress: them(1), DstHwAddress: make([]byte, 6), DstProtAddress: me})...)
	a := x.Push("a", q).Out["a"]
	if len(a) != 1 || hdr.ARP(a[0].Bytes[14:]).SHA() != [6]byte{2, 0, 0, 0, 0, 0x99} || hdr.ARP(a[0].Bytes[14:]).Op() != hdr.ARPReply {
		t.Errorf("%+v", a)
	}
}

// TestKilled: a process that ends in the middle of a grant has not made it, one in the middle of a release has; all else goes on.
func TestKilled(t *testing.T) {
	for name, c := range map[string]struct {
		break_ func(h *header, clients []client, holds []hold, token uint64)
		held   int
		again  func(was, now message.Message) bool
	}{
		"between requests": {func(*header, []client, []hold, uint64) {}, 3, func(was, now message.Message) bool { return was.Token == now.Token }},
		"making, no answer": {func(h *header, c []client, l []hold, at uint64) {
			h.pend(at, true)
			l[2].token = 0
			c[0].slots[1] = slot{}
		}, 0, func(was, now message.Message) bool { return was.Token < now.Token }},
		"made, not noted": {func(h *header, _ []client, _ []hold, at uint64) { h.note(3, 1) }, 0, func(was, now message.Message) bool { return was.Token < now.Token }},
		"noted in part": {func(h *header, c []client, l []hold, at uint64) {
			h.note(3, 1)
			h.pend(at, true)
			c[0].slots[1].token = 5
		}, 0, func(was, now message.Message) bool { return was.Token < now.Token }},
		"making, noted":       {func(h *header, _ []client, _ []hold, at uint64) { h.note(3, 1); h.pend(at, true) }, 0, func(was, now message.Message) bool { return was.Token < now.Token }},
		"giving back":         {func(h *header, _ []client, l []hold, at uint64) { h.pend(at, false); l[2].token = 0 }, 0, func(was, now message.Message) bool { return was.Token == now.Token }},
		"a table of nonsense": {func(_ *header, _ []client, l []hold, _ uint64) { l[2].head = 1 << 20 }, 0, nil},
		"another version":     {func(h *header, _ []client, _ []hold, _ uint64) { h.magic++ }, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var kept []byte
			args := with("clients", "4", "locks", "32", "waiting", "4")
			x := &test{graphtest.NewKept(t, *Kind(), args, graphtest.Start, &kept), t, map[byte]uint64{}}
			x.Advance(1100 * time.Millisecond)
			was := x.want(x.ask(1, acquire(1, 0, excl(1), excl(2), excl(3))), message.OK)
			x.want(x.ask(2, acquire(1, 500, excl(1))), message.Waiting)
			h, cl, l := lay(kept, 4, 32)
			slices.Reverse(l) // places are given out from the end on
			c.break_(h, cl[3:], l, was.Token)
			slices.Reverse(l)
			now := x.Clock.Now()
			y := &test{graphtest.NewKept(t, *Kind(), args, now, &kept), t, x.sessions}
			y.Advance(time.Millisecond)
			if n := len(y.rows("locks")); n != c.held {
				t.Errorf("%d locks, want %d: %v", n, c.held, y.rows("locks"))
			}
			again := acquire(1, 0, excl(1), excl(2), excl(3))
			again.Session = x.sessions[1]
			if c.again == nil {
				y.want(answers(t, y.Push("a", datagram(t, 1, 1000, &again)))[0], message.Settling)
				y.Advance(1100 * time.Millisecond)
				if a := y.want(y.ask(1, again), message.OK); a.Token <= was.Token {
					t.Errorf("token %d after %d", a.Token, was.Token)
				}
				return
			}
			if a := y.want(y.ask(1, again), message.OK); !c.again(was, a) {
				t.Errorf("%+v after %+v", a, was)
			}
			if c.held > 0 { // the line is made anew, and leases begin anew
				y.want(y.ask(2, acquire(1, 500, excl(1))), message.Waiting)
				y.Advance(499 * time.Millisecond)
				y.want(y.ask(3, acquire(1, 0, excl(1))), message.Held)
			}
		})
	}
}

// TestArguments: what makes no sense is refused, and names the argument.
func TestArguments(t *testing.T) {
	for want, a := range map[string]graph.Args{
		"addr= is missing": {}, "address of a host": {"addr": "224.0.0.1"}, "IPv4": {"addr": "fd00::1"}, "from=": with("from", "10.0.0.1/8"), "max-lease": with("max-lease", "1ms"), "mac=": with("mac", "01:00:00:00:00:01"), "locks": with("locks", "5"),
	} {
		if _, err := Kind().New(graph.Env{Asked: true}, a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", a, err)
		}
	}
	x := begun(t, with())
	if err := x.Set(with("max-lease", "2s")); err != nil {
		t.Error(err)
	}
	x.want(x.ask(1, acquire(1, 0, excl(1))), message.OK)
	if err := x.Set(with("fence", "fence")); err == nil {
		t.Error("a fence while locks of any space are held")
	}
	if n := Kind().Note(with()); !strings.Contains(n, "fence") {
		t.Error(n)
	}
}

// TestDue: a heap is what a sorted list is.
func TestDue(t *testing.T) {
	d := newDue(8)
	model := map[int32]int64{}
	r := uint64(1)
	for range 20_000 {
		r = r*6364136223846793005 + 1442695040888963407
		id, at := int32(r>>40%8), int64(r>>50%100)
		if r>>33%3 == 0 {
			d.remove(id)
			delete(model, id)
		} else {
			d.set(id, clock.Time(at))
			model[id] = at
		}
		least := int64(1 << 62)
		for _, at := range model {
			least = min(least, at)
		}
		if id, at := d.next(); len(model) == 0 != (id < 0) || id >= 0 && int64(at) != least {
			t.Fatalf("%d at %d, want %d", id, at, least)
		}
	}
}

// FuzzPush: whatever comes, a frame comes out or is dropped with a reason, and what is held has sense.
func FuzzPush(f *testing.F) {
	m := acquire(1, 0, excl(1))
	f.Add(m.Append(nil), uint8(0), false)
	m = message.Message{Op: message.Release, Request: 2, Lease: 5, Handle: 1}
	f.Add(m.Append(nil), uint8(14), false)
	f.Add([]byte("QA"), uint8(200), true)
	f.Fuzz(func(t *testing.T, b []byte, flip uint8, cut bool) {
		if len(b) > 1400 { // no frame is as long
			t.Skip()
		}
		x := graphtest.NewSmall(t, *Kind(), with("clients", "2", "locks", "32", "waiting", "2"))
		x.Advance(1100 * time.Millisecond)
		a := x.App().(*app)
		var p message.Message
		if p.Parse(b) { // a session that is good
			from := peer{ip: [4]byte{10, 0, 0, 1}, port: 1000}
			p.Session = a.cookie(&from, &p, uint64(x.Clock.Now())/uint64(epoch))
			b = p.Append(nil)
		}
		g := hdrtest.Build(t, append(hdrtest.Stack(), &layers.IPv4{SrcIP: them(1), DstIP: me, TTL: 9}, &layers.UDP{SrcPort: 1000, DstPort: message.Port}, gopacket.Payload(b))...)
		if flip != 0 {
			g[int(flip)%len(g)] ^= 1 << (flip % 8)
		}
		if cut {
			g = g[:max(14, len(g)-int(flip)%len(g))]
		}
		for range 2 {
			r := x.Push("a", g)
			if n := len(r.Out["a"]) + len(r.Out["b"]) + len(r.Dropped); n != 1 {
				t.Fatalf("%d frames", n)
			}
			for _, d := range r.Out["a"] {
				if len(d.Bytes) > len(g) {
					t.Fatalf("an answer of %d bytes to %d", len(d.Bytes), len(g))
				}
			}
		}
		x.Advance(3 * time.Second)
		if a.words.Len() != 0 || len(a.freeHolds) != 32 || !a.sound() {
			t.Fatalf("%d words, %d places", a.words.Len(), len(a.freeHolds))
		}
	})
}
