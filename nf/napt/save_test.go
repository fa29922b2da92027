package napt

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
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

func load(x *graphtest.Test, b []byte) error { return x.App().(graph.Saver).Load(bytes.NewReader(b)) }

// TestMove: connections go on behind another NAPT, whose clock is another, whether
// it has begun or not, with the time that they had left.
func TestMove(t *testing.T) {
	x := graphtest.New(t, *Kind(), args("public", pub+"+"+pub2))
	const n = 500
	ends := map[int]string{}
	conn := func(i int) pkt {
		return pkt{proto: "tcp", flags: "S", src: fmt.Sprintf("10.0.%d.%d:5000", i>>8, i&255), dst: far + ":80", mac: byte(i)}
	}
	for i := range n {
		ends[i] = seen(t, x, conn(i))
		push(t, x, "b", pkt{proto: "tcp", flags: "SA", src: far + ":80", dst: ends[i]}.bytes(t))
	}
	udp := pkt{proto: "udp", src: host + ":7", dst: far + ":53"}
	end := seen(t, x, udp)
	x.Advance(20 * time.Second)
	image := save(t, x)
	for _, begun := range []bool{false, true} {
		y := graphtest.New(t, *Kind(), args("public", pub2+"+192.0.2.200+"+pub, "mappings", "1000"))
		y.Clock.Advance(time.Hour)
		if begun {
			seen(t, y, pkt{proto: "udp", src: "10.99.0.1:7", dst: far + ":53"})
		}
		if err := load(y, image); err != nil {
			t.Fatal(err)
		}
		if !begun && !bytes.Equal(save(t, y), image) {
			t.Error("what was loaded is not saved")
		}
		for i := range n {
			p := conn(i)
			goes(t, y, "b", pkt{proto: "tcp", flags: "A", payload: "on", src: far + ":80", dst: ends[i]}, "a inward", pkt{src: far + ":80", dst: p.src})
			_, b := push(t, y, "b", pkt{proto: "tcp", flags: "A", src: far + ":80", dst: ends[i]}.bytes(t))
			if hdr.Ethernet(b).Dst() != [6]byte{2, 0, 0, 0, 0, byte(i)} {
				t.Fatalf("%x", b[:12])
			}
			p.flags = "A"
			goes(t, y, "a", p, "b outward", pkt{src: ends[i], dst: far + ":80"})
		}
		s := &y.App().(*app).st.shards[0]
		if s.mappings.Len() != n+1 || s.sessions.Len() != 2*n+1 {
			t.Errorf("%d mappings, %d sessions", s.mappings.Len(), s.sessions.Len())
		}
		if !begun {
			// As the state before is as good as the one after.
			if again := save(t, y); len(again) != len(image) {
				t.Errorf("%d and %d bytes", len(image), len(again))
			}
		}
		goes(t, y, "b", pkt{proto: "udp", src: far + ":53", dst: end}, "a inward", pkt{src: far + ":53", dst: udp.src})
		y.Advance(4*time.Minute + 41*time.Second)
		goes(t, y, "b", pkt{proto: "udp", src: far + ":53", dst: end}, "-filtered", pkt{})
		y.Advance(3 * time.Hour)
		for _, pools := range s.pools {
			if pools[classTCP].free != 64512 || pools[classUDP].free != 64512 {
				t.Errorf("%d and %d ports are free", pools[classTCP].free, pools[classUDP].free)
			}
		}
	}
	// What does not go with the arguments, or is damaged, leaves what there is.
	for want, a := range map[string]graph.Args{"not in public=": args(), "not in ports=": args("public", pub+"+"+pub2, "ports", "1-99"), "more than": args("mappings", "20", "sessions", "20")} {
		z := graphtest.New(t, *Kind(), a)
		if err := load(z, image); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", err, want)
		}
	}
	z := graphtest.New(t, *Kind(), args("public", pub+"+"+pub2))
	seen(t, z, udp)
	was := save(t, z)
	for i := 0; i < len(image); i += 97 {
		bad := bytes.Clone(image)
		bad[i] ^= 4
		if load(z, bad) == nil {
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
	x := graphtest.New(t, *Kind(), args("tcp-trans", "1s", "udp-idle", "2s"))
	conn := func(i int) pkt {
		return pkt{proto: "udp", src: fmt.Sprintf("10.0.%d.%d:5000", i>>8, i&255), dst: far + ":53"}
	}
	const stay, n = 300, 1000
	ends := map[int]string{}
	for i := range n {
		ends[i] = seen(t, x, conn(i))
	}
	var b bytes.Buffer
	next := x.App().(graph.Mover).Saving(&b)
	for pieces, more := 0, true; more; pieces++ {
		var err error
		if more, err = next(32); err != nil || pieces > 200 {
			t.Fatalf("%d pieces: %v", pieces, err)
		}
		for i := range stay {
			seen(t, x, conn(i))
		}
		if pieces < 40 {
			seen(t, x, conn(n+pieces)) // into places that may have been saved as another's
		}
		x.Advance(100 * time.Millisecond) // what is not seen again is over soon
	}
	for _, begun := range []bool{false, true} {
		y := graphtest.New(t, *Kind(), args("tcp-trans", "1s", "udp-idle", "2s"))
		if begun {
			seen(t, y, conn(5*n))
		}
		read := y.App().(graph.Mover).Loading()
		put, err := read(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if begun {
			seen(t, y, conn(5*n)) // nothing has changed yet
		}
		put()
		for i := range stay {
			if end := seen(t, y, conn(i)); end != ends[i] {
				t.Fatalf("%d: %s, want %s", i, end, ends[i])
			}
		}
		y.Advance(time.Minute)
		if s := &y.App().(*app).st.shards[0]; s.mappings.Len() != 0 || s.sessions.Len() != 0 || s.pools[0][classUDP].free != 64512 || *s.hosts != (flow.Counts{}) {
			t.Errorf("begun %v: %d mappings, %d sessions and %d ports are left", begun, s.mappings.Len(), s.sessions.Len(), s.pools[0][classUDP].free)
		}
	}
}

// TestInherit: what takes another's place has its mappings, if it gives out the same.
func TestInherit(t *testing.T) {
	x := graphtest.New(t, *Kind(), args())
	udp := pkt{proto: "udp", src: host + ":7", dst: far + ":53"}
	end := seen(t, x, udp)
	for _, a := range []graph.Args{args("ports", "1-99"), args("mappings", "20"), args("public", pub+"+"+pub2)} {
		if graphtest.New(t, *Kind(), a).App().(graph.Mover).Inherit(x.App()) {
			t.Errorf("%v inherits", a)
		}
	}
	y := graphtest.New(t, *Kind(), args("udp-idle", "7s"))
	if y.App().(graph.Mover).Inherit(nil) || !y.App().(graph.Mover).Inherit(x.App()) {
		t.Fatal("it does not inherit")
	}
	goes(t, y, "b", pkt{proto: "udp", src: far + ":53", dst: end}, "a inward", pkt{src: far + ":53", dst: udp.src})
	if again := seen(t, y, udp); again != end {
		t.Errorf("%s, and then %s", end, again)
	}
	if s := &y.App().(*app).st.shards[0]; s.mappings.Len() != 1 {
		t.Errorf("%d mappings", s.mappings.Len())
	}
}

// TestFill: records that do not go together are left out: of two with one private end, or one public end, the
// second, and sessions of mappings that there are not.
func TestFill(t *testing.T) {
	x := graphtest.New(t, *Kind(), args())
	seen(t, x, pkt{proto: "udp", src: host + ":5000", dst: far + ":80"})
	image := save(t, x)
	all, err := flow.Open(bytes.NewReader(image), "napt", version, recordSize, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var mapping, session []byte
	for sort, b := range all.All {
		if sort == recordMapping {
			mapping = b
		} else {
			session = b
		}
	}
	change := func(b []byte, at int) []byte {
		c := bytes.Clone(b)
		c[at] ^= 2
		return c
	}
	for name, c := range map[string]struct {
		m, s [][]byte
		n    int
	}{
		"twice":             {[][]byte{mapping, mapping}, [][]byte{session, session}, 1},
		"a private end":     {[][]byte{mapping, change(mapping, 16)}, [][]byte{session}, 1},
		"a public end":      {[][]byte{mapping, change(mapping, 3)}, [][]byte{session}, 1},
		"no such mapping":   {[][]byte{mapping}, [][]byte{session, change(session, 5)}, 1},
		"a session's other": {[][]byte{mapping}, [][]byte{session, change(session, 9)}, 2},
	} {
		var b bytes.Buffer
		i := flow.NewImage(&b, "napt", version)
		for _, m := range c.m {
			i.Record(recordMapping, m)
		}
		for _, s := range c.s {
			i.Record(recordSession, s)
		}
		if err := i.Close(); err != nil {
			t.Fatal(err)
		}
		y := graphtest.New(t, *Kind(), args())
		seen(t, y, pkt{proto: "udp", src: "10.9.9.9:1", dst: far + ":80"})
		if err := load(y, b.Bytes()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := &y.App().(*app).st.shards[0]
		if s.mappings.Len() != 1 || s.sessions.Len() != c.n || s.pools[0][classUDP].free != 64511 {
			t.Errorf("%s: %d mappings, %d sessions, %d ports", name, s.mappings.Len(), s.sessions.Len(), s.pools[0][classUDP].free)
		}
		y.Advance(time.Hour)
		if s.mappings.Len() != 0 || s.sessions.Len() != 0 || s.pools[0][classUDP].free != 64512 {
			t.Errorf("%s: in the end %d mappings, %d sessions, %d ports", name, s.mappings.Len(), s.sessions.Len(), s.pools[0][classUDP].free)
		}
	}
}

// several are apps of n workers that share a state.
func several(t testing.TB, n int) (all []*graphtest.Test, st *state) {
	s, err := parse(args("filter", "endpoint"))
	if err != nil {
		t.Fatal(err)
	}
	st = newState(&s, n)
	for w := range n {
		k := *Kind()
		k.New = func(graph.Env, graph.Args) (graph.App, error) {
			return newApp(s, graph.Env{Worker: w, Workers: n, Share: func(func() any) any { return st }}), nil
		}
		all = append(all, graphtest.NewSmall(t, k, args()))
	}
	return all, st
}

// TestWorkers: whoever of four workers sees a packet, its ends are the same.
func TestWorkers(t *testing.T) {
	all, st := several(t, 4)
	if len(st.shards) != 4 {
		t.Fatal("shards")
	}
	taken := map[string]bool{}
	for i := range 400 {
		src := fmt.Sprintf("10.0.0.%d:%d", i%5+1, 1500+i/5)
		end := seen(t, all[i%4], pkt{proto: "udp", src: src, dst: far + ":53"})
		if taken[end] {
			t.Fatalf("%s twice", end)
		}
		taken[end] = true
		for _, x := range all {
			if again := seen(t, x, pkt{proto: "udp", src: src, dst: far + ":53"}); again != end {
				t.Fatalf("%s and %s", end, again)
			}
			goes(t, x, "b", pkt{proto: "udp", src: far + ":53", dst: end}, "a inward", pkt{src: far + ":53", dst: src})
		}
	}
	free := 0
	for i := range st.shards {
		free += st.shards[i].pools[0][classUDP].free
	}
	if free != 64512-400 {
		t.Errorf("%d are free", free)
	}
	// A host has one limit in all shards: less than there are, and no less in any.
	for _, x := range all {
		if err := x.Set(args("filter", "endpoint", "per-host", "3")); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 8 {
		src := fmt.Sprintf("10.3.0.1:%d", []int{2000, 2004, 2008, 2001, 2002, 2003, 2012, 2005}[i]) // three meet
		p := pkt{proto: "udp", src: src, dst: far + ":53"}
		if out, _ := push(t, all[i%4], "a", p.bytes(t)); (out == "-host-limit") != (i >= 3) {
			t.Errorf("%s, the %dth: %s", src, i+1, out)
		}
	}
	// A worker that has had no breath yet saves, and takes, the state of all.
	idle, _ := parse(args("filter", "endpoint"))
	fifth := newApp(idle, graph.Env{Worker: 3, Workers: 4, Share: func(func() any) any { return st }})
	var image5 bytes.Buffer
	if err := fifth.Save(&image5); err != nil || image5.Len() != len(save(t, all[2])) {
		t.Errorf("%d bytes, %v", image5.Len(), err)
	}
	if err := fifth.Load(&image5); err != nil {
		t.Error(err)
	}
	goes(t, all[1], "b", pkt{proto: "udp", src: far + ":53", dst: pub + ":1500"}, "a inward", pkt{src: far + ":53", dst: "10.0.0.1:1500"})
	// One worker takes what four have left, and not the other way around.
	image := save(t, all[2])
	one := graphtest.New(t, *Kind(), args())
	if err := load(one, image); err != nil {
		t.Error(err)
	}
	for i := range 100 {
		seen(t, one, pkt{proto: "udp", src: fmt.Sprintf("10.1.0.%d:1000", i), dst: far + ":53"})
	}
	image = save(t, one)
	four, _ := several(t, 4)
	if err := load(four[0], image); err == nil || !strings.Contains(err.Error(), "fewer workers") {
		t.Error(err)
	}
	for i := range 1 << 16 {
		p := uint16(i)
		if st.port(st.shardOf(p), st.index(p)) != p {
			t.Fatal(p)
		}
	}
}

// sums reports whether gopacket, which serialises the frame anew, gets its
// checksums; false, too, when it cannot.
func sums(b []byte) bool {
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	if p.ErrorLayer() != nil || p.NetworkLayer() == nil {
		return false
	}
	var all []gopacket.SerializableLayer
	for _, l := range p.Layers() {
		s, ok := l.(gopacket.SerializableLayer)
		if !ok {
			return false
		}
		switch l := l.(type) {
		case *layers.TCP:
			_ = l.SetNetworkLayerForChecksum(p.NetworkLayer())
		case *layers.UDP:
			if l.Checksum == 0 {
				return false
			}
			_ = l.SetNetworkLayerForChecksum(p.NetworkLayer())
		}
		all = append(all, s)
	}
	out := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{ComputeChecksums: true}, all...); err != nil {
		return false
	}
	return bytes.HasPrefix(b, out.Bytes()) || bytes.Equal(out.Bytes(), b)
}

// FuzzFrames: nothing makes it panic, what is right before is right behind, and
// what is not translated is not changed.
func FuzzFrames(f *testing.F) {
	quote := pkt{proto: "udp", src: pub + ":5000", dst: far + ":80", payload: "x"}.bytes(f)[14:]
	for _, p := range []pkt{{proto: "tcp", flags: "S"}, {proto: "udp", payload: "hello"}, {proto: "udp", nosum: true, tags: []uint16{1, 2}}, {proto: "echo"}, {proto: "udp", more: true, payload: "12345678"}} {
		p.src, p.dst = host+":5000", far+":80"
		f.Add(p.bytes(f), true)
		p.src, p.dst, p.flags = far+":80", pub+":5000", "SA"
		f.Add(p.bytes(f), false)
	}
	f.Add(pkt{proto: "unreachable", src: far, dst: pub, quote: quote}.bytes(f), false)
	f.Add(pkt{proto: "unreachable", src: host, dst: far, quote: pkt{proto: "udp", src: far + ":80", dst: host + ":5000"}.bytes(f)[14:]}.bytes(f), true)
	f.Add(pkt{proto: "udp", src: host + ":5000", dst: pub + ":5000"}.bytes(f), true)
	f.Fuzz(func(t *testing.T, b []byte, fromA bool) {
		if len(b) == 0 || len(b) > graphtest.SlotSize {
			return
		}
		x := graphtest.New(t, *Kind(), args("filter", "endpoint", "mappings", "10", "sessions", "10"))
		for _, proto := range []string{"udp", "tcp", "echo"} {
			push(t, x, "a", pkt{proto: proto, flags: "S", src: host + ":5000", dst: far + ":80"}.bytes(t))
		}
		in := "b"
		if fromA {
			in = "a"
		}
		out, got := push(t, x, in, b)
		if got == nil {
			return
		}
		switch out[2:] {
		case "not-ip", "ipv6", "not-private", "local", "not-public":
			if !bytes.Equal(b, got) {
				t.Fatalf("%s, and changed", out)
			}
			return
		}
		if sums(b) && !sums(got) {
			t.Fatalf("%s: checksums\n%x\n%x", out, b, got)
		}
		var was, is hdr.Layers
		if !hdr.Walk(b, &was) || !hdr.Walk(got, &is) || was != is {
			t.Fatalf("%+v became %+v", was, is)
		}
		if out == "b outward" && was.L4 != 0 && !was.Fragment && flagsOf(b, &was)&(tcpRST|tcpFIN) == 0 { // and the answer comes back
			back := bytes.Clone(got)
			copy(back[is.L3+12:], got[is.L3+16:is.L3+20])
			copy(back[is.L3+16:], got[is.L3+12:is.L3+16])
			if is.Proto == hdr.ProtoICMP {
				return
			}
			copy(back[is.L4:], got[is.L4+2:is.L4+4])
			copy(back[is.L4+2:], got[is.L4:is.L4+2])
			o, home := push(t, x, "b", back)
			if o != "a inward" || !bytes.Equal(home[is.L3+16:is.L3+20], b[was.L3+12:was.L3+16]) || !bytes.Equal(home[is.L4+2:is.L4+4], b[was.L4:was.L4+2]) {
				t.Fatalf("%s\n%x\n%x", o, b, home)
			}
		}
	})
}

// FuzzLoad: any bytes are refused, or are a state that can be used and saved.
func FuzzLoad(f *testing.F) {
	x := graphtest.NewSmall(f, *Kind(), args())
	seen(f, x, pkt{proto: "tcp", flags: "S", src: host + ":5000", dst: far + ":80"})
	seen(f, x, pkt{proto: "echo", src: host + ":5", dst: far})
	image := save(f, x)
	f.Add(image[10 : len(image)-13])
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		y := graphtest.NewSmall(t, *Kind(), args("mappings", "50", "sessions", "50"))
		var out bytes.Buffer
		i := flow.NewImage(&out, "napt", version) // so that its sum is right
		for p := b; len(p) > 0 && recordSize(p[0]) > 0 && len(p) > recordSize(p[0]); p = p[1+recordSize(p[0]):] {
			i.Record(p[0], p[1:1+recordSize(p[0])])
		}
		_ = i.Close()
		for _, image := range [][]byte{out.Bytes(), b} {
			if load(y, image) == nil {
				seen(t, y, pkt{proto: "udp", src: host + ":5000", dst: far + ":80"})
				push(t, y, "b", pkt{proto: "tcp", flags: "A", src: far + ":80", dst: pub + ":5000"}.bytes(t))
				y.Advance(time.Minute)
				if err := load(y, save(t, y)); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func batch(t testing.TB) (frames [][]byte) {
	for i := range packet.MaxBatch {
		frames = append(frames, pkt{proto: "udp", src: fmt.Sprintf("10.0.0.%d:5000", i), dst: far + ":80", payload: "12345678"}.bytes(t))
	}
	return frames
}

// TestAllocs: nothing is allocated, whatever comes.
func TestAllocs(t *testing.T) {
	var frames [][]byte
	for i := range 30 {
		p := pkt{proto: []string{"tcp", "udp", "echo"}[i%3], flags: "S", src: fmt.Sprintf("10.0.0.%d:5000", i), dst: far + ":80", tags: []uint16{1, 2}[:i/3%3]}
		frames = append(frames, p.bytes(t))
		p.src, p.dst = far+":80", pub+":5000"
		frames = append(frames, p.bytes(t))
	}
	frames = append(frames, pkt{proto: "udp", src: host + ":5000", dst: pub + ":5000"}.bytes(t),
		pkt{proto: "udp", src: host + ":5000", dst: far + ":80", more: true, payload: "12345678"}.bytes(t),
		pkt{proto: "udp", src: host, dst: far, offset: 16, payload: "12345678"}.bytes(t),
		pkt{proto: "unreachable", src: far, dst: pub, quote: pkt{proto: "udp", src: pub + ":5000", dst: far + ":80"}.bytes(t)[14:]}.bytes(t))
	for _, in := range []string{"a", "b"} {
		for _, n := range []string{"5", "1000"} {
			for _, filter := range []string{"endpoint", "port"} {
				if n := graphtest.Allocs(t, *Kind(), args("mappings", n, "sessions", n, "filter", filter), in, frames...); n != 0 {
					t.Errorf("port %s: %v allocations", in, n)
				}
			}
		}
	}
}

func BenchmarkOutward(b *testing.B) {
	for _, filter := range []string{"endpoint", "address", "port"} {
		b.Run(filter, func(b *testing.B) {
			graphtest.Benchmark(b, *Kind(), args("filter", filter, "mappings", "65536", "sessions", "131072"), "a", batch(b)...)
		})
	}
}

// BenchmarkManyFlows is packets of 50,000 UDP flows, in turn.
func BenchmarkManyFlows(b *testing.B) {
	x := graphtest.New(b, *Kind(), args("mappings", "65536", "sessions", "131072"))
	a := x.App().(*app)
	a.Begun, a.Now = true, 1
	frame := pkt{proto: "udp", src: host + ":5000", dst: far + ":80"}.bytes(b)
	var d hdr.Layers
	hdr.Walk(frame, &d)
	s := &a.st.shards[0]
	for i := range 50_000 {
		k := private{addr: uint32(0x0A000000 + i), port: uint16(i), class: classUDP}
		if at, _ := a.assign(s, &k, k.hash(0)); at < 0 {
			b.Fatal("no place")
		}
	}
	r := uint32(1)
	for b.Loop() {
		r = r*1664525 + 1013904223
		i := uint32(uint64(r) * 50_000 >> 32)
		be.PutUint32(frame[d.L3+12:], 0x0A000000+i)
		be.PutUint16(frame[d.L4:], uint16(i))
		if why := a.outward(nil, frame, &d, classUDP); why != reasonOut {
			b.Fatal(why)
		}
	}
	b.ReportMetric(float64(s.mappings.Bytes()+s.sessions.Bytes())/50_000, "bytes/flow")
}

// TestAtOnce: four workers at the same time, and one that saves; every end is
// one's own, and none is lost.
func TestAtOnce(t *testing.T) {
	all, st := several(t, 4)
	var wg sync.WaitGroup
	for w, x := range all {
		var frames [][]byte
		for i := range 500 {
			frames = append(frames, pkt{proto: "udp", src: fmt.Sprintf("10.0.%d.1:%d", i%2, 2000+(i*7+w*13)%400), dst: far + ":53"}.bytes(t))
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 20 {
				x.Push("a", frames[i*25:i*25+25]...)
				if w == 0 {
					_ = x.App().(graph.Saver).Save(io.Discard)
				}
			}
		}()
	}
	wg.Wait()
	ends := map[uint16]bool{}
	for n := range st.shards {
		s := &st.shards[n]
		for i := s.mappings.Next(0); i >= 0; i = s.mappings.Next(i + 1) {
			m := &s.mappings.At(i).Val
			if ends[m.port] || s.pools[0][classUDP].mapping[st.index(m.port)] != uint32(i)+1 {
				t.Errorf("port %d", m.port)
			}
			ends[m.port] = true
		}
	}
	if len(ends) < 400 {
		t.Errorf("%d mappings", len(ends))
	}
}

// The turn at a shard, which workers write for each packet, lies on no line of the processor's cache that they read
// for packets of any shard.
func TestLines(t *testing.T) {
	st := newState(&settings{mappings: 1000, sessions: 1000, public: []uint32{1}}, 4)
	turns := map[uintptr]bool{}
	for i := range st.shards {
		turns[uintptr(unsafe.Pointer(&st.shards[i].turn))/64] = true
	}
	for i := range st.shards {
		s := &st.shards[i]
		for at, end := uintptr(unsafe.Pointer(&s.mappings)), uintptr(unsafe.Pointer(s))+unsafe.Sizeof(*s); at < end; at += 8 {
			if turns[at/64] {
				t.Fatalf("shard %d: what is %d bytes from its beginning is on the line of a turn", i, at-uintptr(unsafe.Pointer(s)))
			}
		}
	}
}
