package snic

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/snic/pool"
	"github.com/quillon/quillon/snic/vmem"
)

// carried sends messages about pages of a board of a rack: four times as many are lost as of the others, for too few of which a peer is lost.
type carried struct {
	r    *rack
	from int
}

func (c carried) Room(to int) bool { return to < len(c.r.members) }
func (c carried) Send(to int, m []byte) {
	r := c.r
	for range 1 + r.rng.IntN(2) {
		if to < len(r.members) && r.rng.IntN(100) >= 4*r.lose {
			r.net = append(r.net, parcel{r.now + clock.Duration(20+r.rng.IntN(300))*time.Microsecond, to, slices.Clone(m)})
		}
	}
}

// rackWithMemory is boards that keep pages for each other; requests are repeated after 2 ms.
func rackWithMemory(t *testing.T, deployments []string, args ...string) *rack {
	r := newRack(t, deployments, append([]string{"memory", "64k", "page", "4k"}, args...)...)
	for i, m := range r.members {
		m.join.pages.Pager = pool.NewPager(i, MaxPeers, 2*time.Millisecond)
		m.join.CarryPages(carried{r, i})
	}
	return r
}

func (r *rack) memory(i int) *onboard { return r.members[i].App().(*board).memory }

func (r *rack) check() {
	r.t.Helper()
	for i, m := range r.members {
		if m.dead {
			continue
		}
		if err := r.memory(i).Check(); err != nil {
			r.t.Fatalf("board %d: %v", i, err)
		}
	}
}

// bytes are those that the task of a board has at an address, wherever they are.
func (r *rack) bytes(i, task int, va uint64, n int) []byte {
	r.t.Helper()
	out := make([]byte, n)
	for at := 0; at < n; {
		k, st := r.memory(i).Read(task, va+uint64(at), out[at:])
		if at += k; st == vmem.Faulted {
			r.t.Fatal(r.memory(i).Err(task))
		}
		r.memory(i).look = true
		r.run(slice)
	}
	return out
}

// alone is a deployment of a task that touches memory.
func alone(memory string) string {
	return fmt.Sprintf(`
regions: {count: 1, area: 1}
tasks:
  a: {kind: dummy, memory: %s, args: {touch: "64", memory: %[1]s, hold: "1000"}}
tenants: {alice: {}}
dags: [{uid: 7, tenant: alice, run: a}]
rules: [{match: "src:10.0.0.1", dag: 7}]
`, memory)
}

// Memory that is more than a board has is at peers: frames wait for their pages, nothing is lost or
// touched twice, whatever becomes of messages.
func TestPagesTravel(t *testing.T) {
	for _, lose := range []int{0, 5} {
		r := rackWithMemory(t, []string{alone("48k"), alone("4k"), alone("4k")})
		r.lose = lose
		if err := r.members[0].Set(graph.Args{"deployment": alone("160k")}); err == nil || !strings.Contains(err.Error(), "there is room for") {
			t.Fatal("taken before peers are known:", err)
		}
		r.run(30 * time.Millisecond)
		if err := r.members[0].Set(graph.Args{"deployment": alone("160k")}); err != nil {
			t.Fatal(err)
		}
		if err := r.members[0].Set(graph.Args{"deployment": alone("240k")}); err == nil || !strings.Contains(err.Error(), "there is room for") {
			t.Fatal("more than all have:", err)
		}
		r.run(10 * time.Millisecond)
		fs, sent := flows(1, 400), 0
		r.run(800*time.Millisecond, func() {
			if sent < len(fs) && r.now%(5*time.Millisecond) == 0 {
				r.push(0, "p0", fs[sent:sent+5]...)
				sent += 5
			}
			if r.now%(20*time.Millisecond) == 0 {
				r.check()
			}
		})
		v := taskOf(r.members[0].Test, "a")
		if n := len(r.flush(0, "p1")); n != sent || v.Fault != "" || len(r.members[0].drop) != 0 {
			t.Fatalf("lose %d: %d frames of %d, %v, %+v, %+v", lose, n, sent, r.members[0].drop, v, v.Memory)
		}
		if m := v.Memory; m.Swapped < 25*4096 || m.Out < 50 || m.In < 50 || r.memory(1).Lending() == 0 || r.memory(2).Lending() == 0 {
			t.Errorf("lose %d: %+v, %d and %d frames lent", lose, m, r.memory(1).Lending(), r.memory(2).Lending())
		}
		sum := 0
		for va := uint64(0); va < 160<<10; va += 4096 {
			page := r.bytes(0, 0, va, 4096)
			for i := 0; i < len(page); i += 64 {
				sum += int(page[i])
				if page[i] != page[i+63] {
					t.Fatalf("at %#x: %x", va, page[i:i+64])
				}
			}
		}
		if sum != sent {
			t.Errorf("lose %d: memory was touched %d times, %d frames", lose, sum, sent)
		}
		// The task goes: so do its pages.
		if err := r.members[0].Set(graph.Args{"deployment": alone("4k")}); err != nil {
			t.Fatal(err)
		}
		r.run(50 * time.Millisecond)
		r.check()
		if n := r.memory(1).Lending() + r.memory(2).Lending(); n != 0 {
			t.Errorf("lose %d: %d frames are lent to nobody", lose, n)
		}
	}
}

// A peer that dies takes the pages that it kept: the task that they are of stops, and starts anew. A
// board that dies has its pages given back.
func TestPagesLost(t *testing.T) {
	r := rackWithMemory(t, []string{alone("4k"), alone("4k"), alone("4k")})
	r.run(30 * time.Millisecond)
	big := alone("100k")
	if err := r.members[0].Set(graph.Args{"deployment": big}); err != nil {
		t.Fatal(err)
	}
	r.run(time.Millisecond)
	n := 0
	touch := func() {
		if r.now%(200*time.Microsecond) == 0 {
			r.push(0, "p0", flows(1, 200)[n%200])
			n++
		}
	}
	r.run(100*time.Millisecond, touch)
	dies, stays := 1, 2
	if r.memory(1).Lending() == 0 {
		dies, stays = 2, 1
	}
	if r.memory(dies).Lending() == 0 {
		t.Fatal("nothing is away")
	}
	r.members[dies].dead = true
	r.run(30*time.Millisecond, touch)
	r.check()
	if v := taskOf(r.members[0].Test, "a"); !strings.HasSuffix(v.Fault, "is lost with the board that had it") {
		t.Fatalf("%+v", v)
	}
	for _, c := range r.members[0].Inst.Counters() {
		if c.Node == graphtest.App+"/a" && c.Name == "held" && c.Value != 0 {
			t.Errorf("%d frames are held by a task that was stopped", c.Value)
		}
	}
	if r.members[0].drop["task-faulted"] == 0 || r.memory(stays).Lending() != 0 {
		t.Errorf("%v, %d frames lent", r.members[0].drop, r.memory(stays).Lending())
	}
	if err := r.members[0].Set(graph.Args{"deployment": strings.Replace(big, "kind:", "restart: 1, kind:", 1)}); err != nil {
		t.Fatal(err)
	}
	r.flush(0, "p1")
	r.run(100*time.Millisecond, touch)
	r.check()
	if v := taskOf(r.members[0].Test, "a"); v.Fault != "" || len(r.flush(0, "p1")) == 0 || r.memory(stays).Lending() == 0 {
		t.Errorf("%+v, %d frames lent", v, r.memory(stays).Lending())
	}
	r.members[0].dead = true
	r.run(30 * time.Millisecond)
	r.check()
	if n := r.memory(stays).Lending(); n != 0 {
		t.Errorf("%d frames are lent to the dead", n)
	}
}

// A peer that leaves has what it kept moved on.
func TestPagesOfALeaver(t *testing.T) {
	r := rackWithMemory(t, []string{alone("4k"), alone("4k"), alone("4k")})
	r.run(30 * time.Millisecond)
	if err := r.members[0].Set(graph.Args{"deployment": alone("100k")}); err != nil {
		t.Fatal(err)
	}
	n := 0
	touch := func() {
		if r.now%(200*time.Microsecond) == 0 {
			r.push(0, "p0", flows(1, 200)[n%200])
			n++
		}
	}
	r.run(100*time.Millisecond, touch)
	leaves, stays := 1, 2
	if r.memory(1).Lending() == 0 {
		leaves, stays = 2, 1
	}
	kept := r.members[leaves].join.Keeps()
	r.do(r.members[leaves])(func(n *pool.Node, now clock.Time) { n.Leave(now) })
	r.run(50 * time.Millisecond) // nobody accesses them meanwhile
	r.check()
	if kept == 0 || r.members[leaves].join.Keeps() != 0 || r.memory(stays).Lending() == 0 {
		t.Errorf("of %d pages %d are left", kept, r.members[leaves].join.Keeps())
	}
	r.members[leaves].dead = true
	r.run(100*time.Millisecond, touch)
	if v := taskOf(r.members[0].Test, "a"); v.Fault != "" {
		t.Error(v.Fault)
	}
}

// Who wants more than there is has its share of the board's memory, by weight.
func TestPagesShared(t *testing.T) {
	small, large := fmt.Sprintf(touching, "4k", "", "", "4k"), fmt.Sprintf(touching, "96k", "", "", "96k")
	r := rackWithMemory(t, []string{small, small, small, small})
	r.run(30 * time.Millisecond)
	if err := r.members[0].Set(graph.Args{"deployment": large}); err != nil {
		t.Fatal(err)
	}
	n := 0
	// 15 frames, weights 1 and 3, and a page that is on its way each; without shares both have the same.
	for _, c := range []struct {
		fair       string
		alice, bob [2]int64
	}{{"on", [2]int64{3, 6}, [2]int64{10, 13}}, {"off", [2]int64{6, 10}, [2]int64{6, 10}}, {"on", [2]int64{3, 6}, [2]int64{10, 13}}} {
		if err := r.members[0].Set(graph.Args{"fair": c.fair}); err != nil {
			t.Fatal(err)
		}
		alice, bob, looks, start := int64(0), int64(0), int64(0), r.now
		r.run(400*time.Millisecond, func() {
			if r.now%(time.Millisecond) == 0 {
				r.push(0, "p0", flows(1, 200)[n%200], flows(2, 200)[n%200])
				n++
			}
			if r.now-start > 200*time.Millisecond && r.now%(5*time.Millisecond) == 0 {
				v := viewOf(r.members[0].Test)
				alice, bob, looks = alice+v.Tenants[0].Memory.Held, bob+v.Tenants[1].Memory.Held, looks+1
			}
		})
		r.check()
		if a, b := alice/looks, bob/looks; a < c.alice[0]*4096 || a > c.alice[1]*4096 || b < c.bob[0]*4096 || b > c.bob[1]*4096 {
			t.Errorf("fair=%s: alice has %d bytes, bob %d", c.fair, a, b)
		}
	}
}

// keyed is a frame between a client and a device of Clio's key/value store.
func keyed(id uint16, op clio.Opcode, key uint64, value string, answer bool) []byte {
	n := clio.LegoLen + clio.RequestLen + len(value)
	b := make([]byte, clio.HeadersLen+n)
	src, dst := clio.End{IP: [4]byte{10, 0, 0, 1}, Port: 8000}, clio.End{IP: [4]byte{10, 0, 0, 9}, Port: clio.Port}
	clio.Headers(b, &src, &dst, n)
	f := clio.Plain(false)
	clio.Lego(b[f.Lego:]).Encode(&clio.Fields{ID: id, Opcode: op, Size: uint16(n)})
	clio.Request(b[f.Op:]).Encode(key, 8, uint16(len(value)))
	copy(b[f.Op+clio.RequestLen:], value)
	f.Seal(b, len(b), true)
	if answer {
		clio.Parse(b, false, &f)
		end := f.AnswerEnd(1000)
		b = append(b, make([]byte, end)...)[:end]
		f.Answer(b, clio.OK, []byte(strings.Repeat(string(rune('a'+key%26)), 1000)))
	}
	return b
}

// The values of a cache are in its memory: those whose pages are at a peer are misses, and the next
// time hits.
func TestCacheInMemory(t *testing.T) {
	const text = `
regions: {count: 1, area: 1}
tasks:
  cache: {kind: kvcache, memory: %s, args: {settle: 1ms}}
tenants: {alice: {}}
dags: [{uid: 7, tenant: alice, run: cache}]
rules: [{match: "all", dag: 7}]
`
	r := rackWithMemory(t, []string{fmt.Sprintf(text, "4k"), fmt.Sprintf(text, "4k")})
	r.run(30 * time.Millisecond)
	if err := r.members[0].Set(graph.Args{"deployment": fmt.Sprintf(text, "80k")}); err != nil {
		t.Fatal(err)
	}
	r.run(time.Millisecond)
	id := uint16(0)
	counter := func(name string) uint64 {
		for _, c := range r.members[0].Inst.Counters() {
			if c.Node == graphtest.App+"/cache" && c.Name == name {
				return c.Value
			}
		}
		t.Fatal("no counter", name)
		return 0
	}
	get := func(key uint64) (hit bool) {
		id++
		r.push(0, "p1", keyed(id, clio.Read, key, "", false))
		if out := r.flush(0, "p1"); len(out) == 1 {
			p := out[0].Bytes
			var f clio.Frame
			if clio.Parse(p, false, &f) != clio.Message || string(p[f.Data:f.Stop]) != strings.Repeat(string(rune('a'+key%26)), 1000) {
				t.Fatalf("key %d: %q", key, p)
			}
			return true
		}
		r.flush(0, "p0")
		return false
	}
	id += 200
	get(1)
	r.run(3 * time.Millisecond)
	id += 200
	for key := uint64(0); key < 70; key++ { // 18 pages, of which 15 fit
		for range 20 {
			if get(key) {
				break
			}
			r.push(0, "p0", keyed(id, clio.Read, key, "", true))
			r.flush(0, "p1")
			r.run(500 * time.Microsecond)
		}
	}
	hits, away := 0, 0
	for key := uint64(0); key < 70; key++ {
		if get(key) {
			hits++
			continue
		}
		away++
		r.run(3 * time.Millisecond)
		if !get(key) {
			t.Errorf("key %d: its page has not come", key)
		}
	}
	if away == 0 || hits == 0 || counter("away") < uint64(away) || counter("entries") != 70 {
		t.Errorf("%d hits, %d away, counted %d, %d entries", hits, away, counter("away"), counter("entries"))
	}
	r.check()
}

// A task that starts anew has the room of the one that it was, that of its pages at peers, too.
func TestPagesOfARestart(t *testing.T) {
	r := rackWithMemory(t, []string{alone("4k"), alone("4k"), alone("4k")})
	r.run(30 * time.Millisecond)
	big := alone("140k")
	if err := r.members[0].Set(graph.Args{"deployment": big}); err != nil {
		t.Fatal(err)
	}
	n := 0
	touch := func() {
		if r.now%(200*time.Microsecond) == 0 {
			r.push(0, "p0", flows(1, 200)[n%200])
			n++
		}
	}
	r.run(200*time.Millisecond, touch)
	for i := 1; i < 10; i++ {
		if m := taskOf(r.members[0].Test, "a").Memory; m == nil || m.Swapped < 15*4096 {
			t.Fatalf("%d: %+v", i, taskOf(r.members[0].Test, "a"))
		}
		if err := r.members[0].Set(graph.Args{"deployment": strings.Replace(big, "kind:", fmt.Sprintf("restart: %d, kind:", i), 1)}); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		r.run(100*time.Millisecond+clock.Duration(i)*slice, touch)
		r.check()
		if v := taskOf(r.members[0].Test, "a"); v.Fault != "" {
			t.Fatalf("%d: %s", i, v.Fault)
		}
	}
}
