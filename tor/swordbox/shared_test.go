package swordbox

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
)

// adder is a client that counts on words that all share, and writes and reads a word
// of its own, one operation at a time.
type adder struct {
	*party
	request   []byte // that is not answered
	op        hdr.Opcode
	va, wrote uint64
	due       int // rounds until it repeats its request
	left      int // operations that it still begins
}

// crowd is a server's clients, whose frames several workers take.
type crowd struct {
	t        *testing.T
	x        *graphtest.Gang
	rng      *rand.Rand
	loss     float64
	workers  int
	of       func(client, port int) int
	adders   []*adder
	server   *responder
	toServer [][]byte
	found    map[uint64]map[uint64]bool // what additions found, by word
}

const sharedWord, ownWord = 0x20000, 0x30000

// begin is the next operation of client c.
func (m *crowd) begin(c *adder) {
	c.left--
	c.va = ownWord + 64*uint64(c.n)
	switch m.rng.IntN(4) {
	case 0:
		c.wrote = m.rng.Uint64()
		c.op, c.request = hdr.WriteOnly, c.made(hdr.WriteOnly, c.psn, reth(c.va, testRKey, 8), little(c.wrote))
	case 1:
		c.op, c.request = hdr.ReadRequest, c.made(hdr.ReadRequest, c.psn, reth(c.va, testRKey, 8), nil)
	default:
		c.va = sharedWord + 64*uint64(m.rng.IntN(4))
		c.op, c.request = hdr.FetchAdd, c.made(hdr.FetchAdd, c.psn, atomicETH(c.va, testRKey, 1, 0), nil)
	}
}

// told takes a frame that came to a client.
func (m *crowd) told(b []byte) {
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE || !hdr.GoodICRC(b, &f) || !f.ChecksumOK(b) {
		m.t.Fatalf("a client got %s", text(b))
	}
	if f.Op.Transport() != hdr.RC {
		return
	}
	c := m.adders[f.BTHOf(b).DestQP()-0x100]
	switch psn := f.BTHOf(b).PSN(); {
	case f.Op == hdr.Acknowledge && !f.AETHOf(b).Syndrome().ACK():
		if f.AETHOf(b).Syndrome() != hdr.SynNAKSequence {
			m.t.Fatalf("client %d got %s", c.n, text(b))
		}
		c.due = 0
		return
	case c.request == nil || psn != c.psn:
		return
	case c.op == hdr.WriteOnly && f.Op == hdr.Acknowledge:
	case c.op == hdr.ReadRequest && f.Op == hdr.ReadRespOnly:
		if v := le.Uint64(f.PayloadOf(b)); v != c.wrote {
			m.t.Fatalf("client %d wrote %#x and read %#x", c.n, c.wrote, v)
		}
	case c.op == hdr.FetchAdd && f.Op == hdr.AtomicAck:
		was := f.AtomicAckETHOf(b).Original()
		if m.found[c.va] == nil {
			m.found[c.va] = map[uint64]bool{}
		}
		if m.found[c.va][was] {
			m.t.Fatalf("two additions to word %#x found %d", c.va, was)
		}
		m.found[c.va][was] = true
	default:
		return // of an earlier one
	}
	c.request = nil
	c.psn = (c.psn + 1) & hdr.PSNMask
}

// round has all clients' requests and all answers go through the workers at once. True
// when all clients are done.
func (m *crowd) round() (done bool) {
	done = true
	m.x.Now += 20_000 // ns
	in := make([][2][][]byte, m.workers)
	give := func(n, port int, b []byte) {
		if p := &in[m.of(n, port)][port]; m.rng.Float64() >= m.loss && len(*p) < packet.MaxBatch {
			*p = append(*p, b)
		}
	}
	for _, i := range m.rng.Perm(len(m.adders)) {
		c := m.adders[i]
		if c.request == nil && c.left > 0 {
			m.begin(c)
			c.due = 0
		}
		if c.request != nil {
			if done = false; c.due == 0 {
				give(i, 0, c.request)
				c.due = 100
			}
			c.due--
		}
	}
	// Frames of two workers arrive in any order; frames of one worker keep their order.
	for _, b := range m.toServer {
		if m.rng.Float64() < m.loss {
			continue
		}
		for _, a := range m.server.serve(b) {
			var f hdr.Frame
			hdr.Parse(a, &f)
			give(int(f.BTHOf(a).DestQP()-0x100), 1, a)
		}
	}
	var wg sync.WaitGroup
	for w := range in {
		first := m.rng.IntN(2)
		wg.Go(func() {
			for i := range 2 {
				m.x.Push(w, (first+i)%2, in[w][(first+i)%2])
			}
		})
	}
	wg.Wait()
	m.toServer = m.x.Took(1)
	for _, b := range m.toServer {
		var f hdr.Frame
		if hdr.Parse(b, &f) != hdr.IsRoCE || !hdr.GoodICRC(b, &f) || !f.ChecksumOK(b) {
			m.t.Fatalf("the server got %s", text(b))
		}
	}
	for _, b := range m.x.Took(0) {
		m.told(b)
	}
	return done
}

// join connects client c, as the connection manager does.
func (m *crowd) join(c *party) {
	for i, b := range [][]byte{c.connectRequest(),
		c.cm(false, hdr.CMFields{AttributeID: hdr.ConnectReply, LocalQPN: c.sqpn, StartingPSN: c.psn, ResponderResources: c.r.resources, InitiatorDepth: c.r.resources}),
		c.cm(true, hdr.CMFields{AttributeID: hdr.ReadyToUse})} {
		m.x.Push(m.of(c.n, i%2), i%2, [][]byte{b})
	}
	m.x.Took(0)
	m.x.Took(1)
}

// poster sends each frame with copies, behind its turn.
type poster struct{ wire }

const posterCopies = 6

func (p *poster) Push(c *graph.Ctx, in int, b *packet.Batch) {
	p.c = c
	for _, x := range b.Bufs() {
		for range posterCopies {
			p.emit(1-in, hold.Copy(c, x))
		}
		b := x.Bytes()
		if hdr.Parse(b, &p.f) != hdr.IsRoCE {
			panic("a frame of the test does not parse")
		}
		b[p.f.BTH+11]++ // its PSN
		p.seal(1-in, x, b, &p.f)
	}
	p.dispatch()
}

// TestPost: frames that are sent behind the turn leave in their order, also when they are
// more than there is room for, and what changed has its ICRC.
func TestPost(t *testing.T) {
	r := newRig(t, nil)
	r.Test = graphtest.New(t, graph.Kind{Name: "poster", In: []string{"a", "b"}, Out: []string{"a", "b"},
		New: func(graph.Env, graph.Args) (graph.App, error) { return &poster{wire{post: &post{}}}, nil }}, nil)
	c := r.party(0)
	var in, want [][]byte
	for range packet.MaxBatch {
		b := c.made(hdr.ReadRequest, c.psn, reth(lowest, testRKey, 8), nil)
		c.psn += 2
		in = append(in, b)
		for range posterCopies {
			want = append(want, b)
		}
		want = append(want, c.made(hdr.ReadRequest, c.psn-1, reth(lowest, testRKey, 8), nil))
	}
	if room := len((&post{}).frames); len(want) < 3*room {
		t.Fatalf("there is room for %d of %d frames", room, len(want))
	}
	same(t, r.Push("a", in...).Out["b"], want...)
}

// TestOneServerOfWorkers: whichever worker gets a frame, and whatever the others do at
// that moment, no addition is lost or done twice, everyone reads what he wrote, every
// frame is whole, and all clients come to their end.
func TestOneServerOfWorkers(t *testing.T) {
	ops := 400
	if testing.Short() {
		ops = 150
	}
	for name, of := range map[string]func(client, port int) int{
		"by client":    func(client, _ int) int { return client % 2 },
		"by direction": func(_, port int) int { return port },
		"by both":      func(client, port int) int { return (client + port) % 3 },
	} {
		for seed, loss := range []float64{0, 0.02} {
			t.Run(fmt.Sprintf("%s/%v", name, loss), func(t *testing.T) {
				workers := 2
				if name == "by both" {
					workers = 3
				}
				r := &rig{t: t, serverMAC: [6]byte{2, 9, 0, 0, 0, 1}, server: netip.MustParseAddr("10.9.0.1"), mtu: 256, resources: 4, start: 1000}
				m := &crowd{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 7)), loss: loss, workers: workers, of: of, found: map[uint64]map[uint64]bool{},
					server: &responder{memory: map[uint64]uint64{}, qps: map[uint32]*respQP{}},
					x: graphtest.NewGang(t, *Kind(), workers, graph.Args{"replace": "learnt", "writable": "assume", "shared": "2", "settle": "100us", "giveup": "50ms",
						"alive": "1s", "verify": "1ms", "conns": "32", "window": "16", "words": "64", "hold": "64"})}
				for i := range 20 {
					c := &adder{party: r.party(i), left: ops}
					m.adders = append(m.adders, c)
					m.server.qps[c.sqpn] = &respQP{c: c.party, psn: c.psn, atomics: map[uint32]uint64{}}
					m.join(c.party)
				}
				for n := 0; !m.round(); n++ {
					if n > 1000*ops {
						t.Fatal("clients do not come to an end")
					}
				}
				for va, found := range m.found {
					if v := m.server.memory[va]; v != uint64(len(found)) {
						t.Errorf("word %#x is %d after %d additions", va, v, len(found))
					}
				}
				count := m.x.Close()
				t.Logf("%d moved, %d replaced", count["moved"], count["replaced"])
				if count["moved"] < uint64(ops) || count["replaced"] < uint64(ops) {
					t.Error("nothing happened")
				}
			})
		}
	}
}
