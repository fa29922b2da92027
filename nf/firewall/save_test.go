package firewall

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

func save(t testing.TB, x *graphtest.Test) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := x.App().(graph.Saver).Save(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestMove: connections go on behind another firewall, whose clock is another,
// whether it has begun or not, with the time that they had left.
func TestMove(t *testing.T) {
	x := graphtest.New(t, *Kind(), args())
	const n = 1000
	for i := range n {
		run(t, x, pkt{client: i, sport: 5, dport: 80}, handshake("opened"))
	}
	half := pkt{in: "a", client: n, sport: 5, dport: 80, flags: "S"}
	goes(t, x, half)
	udp := pkt{in: "a", v6: true, proto: layers.IPProtocolUDP, sport: 1, dport: 2}
	goes(t, x, udp)
	udp.in = "b"
	goes(t, x, udp)
	x.Advance(20 * time.Second)
	image := save(t, x)
	for _, begun := range []bool{false, true} {
		y := graphtest.New(t, *Kind(), args("conns", "1010"))
		y.Advance(time.Hour)
		if begun {
			run(t, y, pkt{client: n + 1, sport: 5, dport: 80}, handshake("opened"))
		} else {
			y = graphtest.New(t, *Kind(), args("conns", "1010"))
			y.Clock.Advance(time.Hour)
		}
		if err := y.App().(graph.Saver).Load(bytes.NewReader(image)); err != nil {
			t.Fatal(err)
		}
		if !begun && !bytes.Equal(save(t, y), image) {
			t.Error("what was loaded is not saved")
		}
		// Both ends have gone on meanwhile, by less than a window; not by more.
		run(t, y, pkt{client: 0, sport: 5, dport: 80}, []step{
			{"a", "A", isn(800), serverISN + 2500, "on", "-out-of-window"},
			{"a", "A", isn(800), serverISN + 900, "on", "known"}, {"b", "A", serverISN + 900, isn(802), "on", "known"},
			{"a", "A", isn(802), serverISN + 902, "on", "known"}, {"b", "A", serverISN + 902, isn(900), "on", "-out-of-window"},
		})
		for i := 1; i < n; i++ {
			run(t, y, pkt{client: i, sport: 5, dport: 80}, []step{{"b", "A", serverISN + 1, isn(1), "on", "known"}, {"b", "A", serverISN + 5000, isn(1), "on", "-out-of-window"}})
		}
		if got := goes(t, y, udp); got != "known" {
			t.Error(got)
		}
		if begun {
			run(t, y, pkt{client: n + 1, sport: 5, dport: 80}, []step{{"b", "A", serverISN + 1, isn(1), "on", "-no-connection"}})
		}
		s := &y.App().(*app).st.shards[0]
		if s.tents != 1 || s.conns.Len() != n+2 {
			t.Errorf("%d half-open, %d in all", s.tents, s.conns.Len())
		}
		y.Advance(10 * time.Second)
		if got := goes(t, y, half); got != "known" {
			t.Error(got)
		}
		y.Advance(31 * time.Second)
		if got := goes(t, y, half); got != "opened" {
			t.Error(got)
		}
	}
	// The rules of its new place count.
	y := graphtest.New(t, *Kind(), graph.Args{"rules": "allow+dport:81"})
	if err := y.App().(graph.Saver).Load(bytes.NewReader(image)); err != nil {
		t.Fatal(err)
	}
	run(t, y, pkt{client: 1, sport: 5, dport: 80}, []step{{"b", "A", serverISN + 1, isn(1), "on", "-denied-by-default"}})
	// What is damaged leaves what there is.
	z := graphtest.New(t, *Kind(), args())
	run(t, z, pkt{sport: 5, dport: 80}, handshake("opened"))
	was := save(t, z)
	for i := 0; i < len(image); i += 97 {
		bad := bytes.Clone(image)
		bad[i] ^= 4
		if err := z.App().(graph.Saver).Load(bytes.NewReader(bad)); err == nil {
			t.Fatalf("byte %d is changed, and taken", i)
		}
	}
	if !bytes.Equal(save(t, z), was) {
		t.Error("what was refused has changed something")
	}
}

// TestMoveBesideTraffic: what is saved a piece at a time while connections come and go can be loaded, also while
// the other one goes on, and those that were there all the time are in it.
func TestMoveBesideTraffic(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("udp-idle", "2s"))
	conn := func(i int) pkt {
		return pkt{in: "a", proto: layers.IPProtocolUDP, client: i, sport: 1, dport: 2}
	}
	const stay, n = 300, 1000
	for i := range n {
		goes(t, x, conn(i))
	}
	var b bytes.Buffer
	next := x.App().(graph.Mover).Saving(&b)
	for pieces, more := 0, true; more; pieces++ {
		var err error
		if more, err = next(32); err != nil || pieces > 200 {
			t.Fatalf("%d pieces: %v", pieces, err)
		}
		for i := range stay {
			goes(t, x, conn(i))
		}
		if pieces < 40 {
			goes(t, x, conn(n+pieces))
		}
		x.Advance(100 * time.Millisecond)
	}
	y := graphtest.New(t, *Kind(), args("udp-idle", "2s"))
	goes(t, y, conn(5*n))
	read := y.App().(graph.Mover).Loading()
	put, err := read(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if got := goes(t, y, conn(5*n)); got != "known" {
		t.Errorf("what is not put in place changes something: %s", got)
	}
	put()
	if got := goes(t, y, conn(5*n)); got != "opened" {
		t.Errorf("what was there before is %s", got)
	}
	for i := range stay {
		if got := goes(t, y, conn(i)); got != "known" {
			t.Fatalf("%d is %s", i, got)
		}
	}
	// A connection that went and came again may be in it twice.
	all, err := flow.Open(bytes.NewReader(b.Bytes()), "firewall", version, recordSize, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var twice bytes.Buffer
	i := flow.NewImage(&twice, "firewall", version)
	unique := 0
	for sort, b := range all.All {
		i.Record(sort, b)
		i.Record(sort, b)
		unique++
	}
	if err := errors.Join(i.Close(), y.App().(graph.Saver).Load(&twice)); err != nil {
		t.Fatal(err)
	}
	if got := y.App().(*app).st.shards[0].conns.Len(); got != unique {
		t.Errorf("%d connections of %d", got, unique)
	}
	y.Advance(time.Minute)
	if s := &y.App().(*app).st.shards[0]; s.conns.Len() != 0 || s.tents != 0 || *s.openers != (flow.Counts{}) || *s.sources != (flow.Counts{}) {
		t.Errorf("%d connections are left, %d of them half-open", s.conns.Len(), s.tents)
	}
}

// TestInherit: what takes another's place has its connections, if its rules would let them be opened, and as
// much room.
func TestInherit(t *testing.T) {
	x := graphtest.New(t, *Kind(), args())
	web, other := pkt{client: 1, sport: 5, dport: 80}, pkt{client: 1, sport: 5, dport: 81}
	run(t, x, web, handshake("opened"))
	run(t, x, other, handshake("opened"))
	more := graphtest.New(t, *Kind(), args("conns", "5000"))
	if more.App().(graph.Mover).Inherit(x.App()) || more.App().(graph.Mover).Inherit(nil) {
		t.Error("it takes what it has no room for")
	}
	y := graphtest.New(t, *Kind(), args("rules", "allow+dport:80"))
	if y.App().(*app).st == x.App().(*app).st || !y.App().(graph.Mover).Inherit(x.App()) {
		t.Fatal("it does not inherit")
	}
	run(t, y, web, []step{{"b", "A", serverISN + 1, isn(1), "on", "known"}})
	run(t, y, other, []step{{"b", "A", serverISN + 1, isn(1), "on", "-denied-by-default"}})
	if s := &y.App().(*app).st.shards[0]; s.conns.Len() != 1 {
		t.Errorf("%d connections", s.conns.Len())
	}
	idle := graphtest.New(t, *Kind(), args())
	z := graphtest.New(t, *Kind(), args())
	if !z.App().(graph.Mover).Inherit(idle.App()) { // neither has begun
		t.Fatal("it does not inherit")
	}
	run(t, z, web, handshake("opened"))
}

// TestWorkers: four workers share their connections, whoever sees their packets.
func TestWorkers(t *testing.T) {
	shared := map[string]any{}
	var apps []*app
	for w := range 4 {
		a, err := newApp(args(), graph.Env{Worker: w, Workers: 4, Share: func(mk func() any) any {
			if shared["x"] == nil {
				shared["x"] = mk()
			}
			return shared["x"]
		}})
		if err != nil {
			t.Fatal(err)
		}
		apps = append(apps, a)
	}
	for _, a := range apps {
		if a.st != apps[0].st || len(a.st.shards) != 4 {
			t.Fatal("they do not share")
		}
	}
	hit, opened := map[uint64]int{}, 0
	for i := range 1000 {
		k := flow.Key{SrcPort: uint16(i), Proto: 6, Family: 1}
		h := k.Hash(9)
		sh := apps[0].st.take(h)
		if c, _, _ := sh.open(&k, h, 0, 1, &apps[0].settings, 9, 4); c != nil {
			opened++
		} else if i < 256 {
			t.Fatal("no place")
		}
		apps[0].st.give(sh)
		hit[h&3]++
	}
	if opened != 256 {
		t.Errorf("%d half-open connections of a source", opened)
	}
	// A limit that is less than there are shards holds, too, and is no less in any.
	few := apps[1].settings
	few.perSource, opened = 3, 0
	for i := range 100 {
		k := flow.Key{Src: [16]byte{10, 1}, SrcPort: uint16(i), Proto: 6, Family: 1}
		h := k.Hash(9)
		sh := apps[1].st.take(h)
		if c, _, _ := sh.open(&k, h, 0, 1, &few, 9, 4); c != nil {
			opened++
		} else if opened < 3 {
			t.Errorf("refused with %d", opened)
		}
		apps[1].st.give(sh)
	}
	if opened != 3 {
		t.Errorf("%d connections of a source, of 3", opened)
	}
	for i, n := range hit {
		if n < 200 {
			t.Errorf("shard %d has %d of 1000", i, n)
		}
	}
}

// FuzzLoad: any bytes are refused, or are a state that can be used and saved.
func FuzzLoad(f *testing.F) {
	x := graphtest.New(f, *Kind(), args())
	f.Add([]byte("QFLW"))
	x.Push("a", pkt{in: "a", sport: 5, dport: 80, flags: "S"}.bytes(f))
	f.Add(save(f, x))
	record := func(change func(b []byte)) []byte {
		var b bytes.Buffer
		var r [recordLen]byte
		encode(r[:], &flow.Key{Proto: 6, Family: 1}, &conn{state: tcpOpen, until: 5}, 0)
		change(r[:])
		i := flow.NewImage(&b, "firewall", version)
		i.Record(recordSort, r[:])
		_ = i.Close()
		return b.Bytes()
	}
	for _, at := range []int{4, 36, 38, 39, 40, 48, 49, 50, 67, 68} {
		f.Add(record(func(b []byte) { b[at] = 0xFF }))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		y := graphtest.New(t, *Kind(), args("conns", "100"))
		// The sum is made right, so that what is behind it is tried.
		if len(b) > 30 {
			var out bytes.Buffer
			i := flow.NewImage(&out, "firewall", version)
			for p := b; len(p) >= recordLen; p = p[recordLen:] {
				i.Record(recordSort, p[:recordLen])
			}
			_ = i.Close()
			if err := y.App().(graph.Saver).Load(&out); err == nil {
				y.Advance(time.Second)
				save(t, y)
			}
		}
		if err := y.App().(graph.Saver).Load(bytes.NewReader(b)); err == nil {
			y.Push("a", pkt{in: "a", sport: 5, dport: 80, flags: "A"}.bytes(t))
			y.Advance(time.Minute)
			if err := y.App().(graph.Saver).Load(bytes.NewReader(save(t, y))); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzFrames: nothing that passes is changed, and nothing makes it panic.
func FuzzFrames(f *testing.F) {
	for _, p := range mixed() {
		f.Add(p.bytes(f), true)
	}
	f.Add(pkt{in: "b", proto: layers.IPProtocolICMPv4, icmp: 3 << 8, quote: pkt{in: "a", proto: layers.IPProtocolUDP}.bytes(f)[14:]}.bytes(f), false)
	f.Add(pkt{in: "a", proto: layers.IPProtocolUDP, more: true, payload: "12345678"}.bytes(f), true)
	f.Add(pkt{v6: true, in: "a", proto: layers.IPProtocolUDP, offset: 16, payload: "12345678", tags: []uint16{1, 2}}.bytes(f), true)
	f.Fuzz(func(t *testing.T, b []byte, fromA bool) {
		if len(b) == 0 || len(b) > graphtest.SlotSize {
			return
		}
		x := graphtest.New(t, *Kind(), args("default", "allow", "conns", "10"))
		in := "b"
		if fromA {
			in = "a"
		}
		first := frame(t, x, in, b)
		second := frame(t, x, in, b)
		if first == "opened" && second != "known" || first[0] == '-' && second[0] != '-' {
			t.Fatalf("%s, then %s", first, second)
		}
	})
}

func mixed() (all []pkt) {
	for i := range 16 {
		p := pkt{in: "a", v6: i%2 == 1, client: i, sport: uint16(i), dport: 80, flags: "S", win: 1000, tags: []uint16{1, 2}[:i%3]}
		switch i % 4 {
		case 1:
			p.proto = layers.IPProtocolUDP
		case 2:
			p.proto = 47
		}
		all = append(all, p)
	}
	return all
}

// TestAllocs: nothing is allocated, whatever comes.
func TestAllocs(t *testing.T) {
	var frames [][]byte
	for _, p := range mixed() {
		frames = append(frames, p.bytes(t))
		p.in, p.flags = "b", "SA"
		frames = append(frames, p.bytes(t))
	}
	frames = append(frames, frames[0][:40],
		pkt{in: "a", proto: layers.IPProtocolUDP, more: true, payload: "12345678"}.bytes(t),
		pkt{in: "a", proto: layers.IPProtocolUDP, offset: 16, payload: "12345678"}.bytes(t),
		pkt{in: "a", proto: layers.IPProtocolICMPv4, icmp: 3 << 8, quote: pkt{in: "b", sport: 1, dport: 80}.bytes(t)[14:]}.bytes(t))
	for _, in := range []string{"a", "b"} {
		for _, conns := range []string{"5", "1000"} {
			if n := graphtest.Allocs(t, *Kind(), args("conns", conns, "default", "allow"), in, frames...); n != 0 {
				t.Errorf("port %s, %s places: %v allocations", in, conns, n)
			}
		}
	}
}

// BenchmarkKnown is packets of 64 open connections, or UDP flows.
func BenchmarkKnown(b *testing.B) {
	for _, proto := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
		b.Run(proto.String(), func(b *testing.B) {
			var frames [][]byte
			for i := range packet.MaxBatch {
				frames = append(frames, pkt{in: "a", client: i, proto: proto, sport: 5, dport: 80, flags: "A", win: 1000, payload: "12345678"}.bytes(b))
			}
			graphtest.Benchmark(b, *Kind(), args("mode", "loose"), "a", frames...)
		})
	}
}

// BenchmarkDenied is packets that are compared with n rules, which they do not
// meet.
func BenchmarkDenied(b *testing.B) {
	for _, n := range []int{1, 100, 2000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			rules := ""
			for i := range n {
				rules += fmt.Sprintf("allow+src:172.16.%d.%d+proto:tcp+dport:%d-%d;", i>>8, i&255, i, i+100)
			}
			var frames [][]byte
			for i := range packet.MaxBatch {
				frames = append(frames, pkt{in: "a", client: i, sport: 5, dport: 80, flags: "S"}.bytes(b))
			}
			graphtest.Benchmark(b, *Kind(), graph.Args{"rules": rules}, "a", frames...)
		})
	}
}

// BenchmarkManyFlows is packets of 100,000 UDP flows, in turn.
func BenchmarkManyFlows(b *testing.B) {
	a, err := newApp(args("conns", "100000", "half", "100000", "half-per-source", "100000"), graph.Env{})
	if err != nil {
		b.Fatal(err)
	}
	a.Begun, a.Now = true, 1
	var keys []flow.Key
	for i := range 100_000 {
		k := flow.Key{SrcPort: uint16(i), DstPort: 80, Proto: 17, Family: 1}
		k.Src[2] = byte(i >> 16)
		keys = append(keys, k)
		h := k.Hash(0)
		if c, _, _ := a.st.shards[0].open(&k, h, 0, clock.Time(1), &a.settings, 0, 1); c == nil {
			b.Fatal("no place")
		} else {
			c.until, c.gen, c.state = clock.Never, a.gen, bothWays
		}
	}
	r := uint32(1)
	var q ask
	for b.Loop() {
		r = r*1664525 + 1013904223
		q.key = keys[uint64(r)*100_000>>32]
		q.hash, q.place = q.key.Hash(0), -1
		if v := a.find(nil, &a.st.shards[0], &q, 0); v.reason != reasonKnown {
			b.Fatal(v)
		}
	}
	b.ReportMetric(float64(a.st.shards[0].conns.Bytes())/100_000, "bytes/flow")
}

// BenchmarkChange is a change of the last of 2,000 rules: all of it, and what of it
// holds up a worker.
func BenchmarkChange(b *testing.B) {
	rules := ""
	for i := range 2000 {
		rules += fmt.Sprintf("allow+src:172.16.%d.%d+proto:tcp+dport:%d-%d;", i>>8, i&255, i, i+100)
	}
	for _, held := range []bool{false, true} {
		b.Run(fmt.Sprintf("held=%v", held), func(b *testing.B) {
			a, err := newApp(graph.Args{}, graph.Env{})
			if err != nil {
				b.Fatal(err)
			}
			var all [2]graph.Args
			for i := range all {
				all[i] = graph.Args{"rules": rules + fmt.Sprintf("deny+dport:%d", i)}
			}
			a.Takes(all[0])
			for i := 0; b.Loop(); i++ {
				if !held {
					a.Takes(all[i&1])
				} else if err := a.Reconfigure(all[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestAtOnce: four workers open and use the same connections at the same time.
func TestAtOnce(t *testing.T) {
	st := newState(1000, 4)
	var all []*graphtest.Test
	for w := range 4 {
		k := *Kind()
		k.New = func(_ graph.Env, a graph.Args) (graph.App, error) {
			return newApp(a, graph.Env{Worker: w, Workers: 4, Share: func(func() any) any { return st }})
		}
		all = append(all, graphtest.New(t, k, args()))
	}
	var frames [2][][]byte
	for i := range 300 {
		p := pkt{in: "a", client: i, proto: layers.IPProtocolUDP, sport: uint16(i), dport: 53}
		frames[0] = append(frames[0], p.bytes(t))
		p.in = "b"
		frames[1] = append(frames[1], p.bytes(t))
	}
	var wg sync.WaitGroup
	for w, x := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 12 {
				x.Push([]string{"a", "b"}[w%2], frames[w%2][i*25:i*25+25]...)
				if w == 0 {
					_ = x.App().(graph.Saver).Save(io.Discard)
				}
			}
		}()
	}
	wg.Wait()
	n := 0
	for i := range st.shards {
		n += st.shards[i].conns.Len()
	}
	if n != 300 {
		t.Errorf("%d connections, want 300", n)
	}
}

// The turn at a shard, which workers write for each packet, lies on no line of the processor's cache that they read
// for packets of any shard.
func TestLines(t *testing.T) {
	st := newState(1000, 4)
	turns := map[uintptr]bool{}
	for i := range st.shards {
		turns[uintptr(unsafe.Pointer(&st.shards[i].turn))/64] = true
	}
	for i := range st.shards {
		s := &st.shards[i]
		for at, end := uintptr(unsafe.Pointer(&s.conns)), uintptr(unsafe.Pointer(s))+unsafe.Sizeof(*s); at < end; at += 8 {
			if turns[at/64] {
				t.Fatalf("shard %d: what is %d bytes from its beginning is on the line of a turn", i, at-uintptr(unsafe.Pointer(s)))
			}
		}
	}
}
