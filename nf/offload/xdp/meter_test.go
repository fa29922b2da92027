package xdp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/outer"
)

// policed is a world with a flow in the kernel through functions, the police's settings being args. Time goes on by w.at alone.
func policed(t testing.TB, apps []string, args graph.Args) (*world, *conversation) {
	t.Helper()
	s := spec(apps, map[string]graph.Args{"police": args, "firewall": {"rules": "allow+in:a", "rules6": "allow+in:a"}})
	w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBoxOf(t, s, 1, 0, false), fast: newBoxOf(t, s, 1, 64, true), exact: true, at: clock.Time(time.Hour)}
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	return w, c
}

// began sends frames of a flow until the kernel runs it.
func (w *world) began(c *conversation) {
	w.Helper()
	for range 40 {
		w.at = w.at.Add(20 * time.Millisecond)
		ran := w.fast.ran
		w.send(c, 0, func(d *datagram) { d.payload = 0 })
		w.send(c, 1, func(d *datagram) { d.payload = 0 })
		if w.fast.ran == ran+2 {
			return
		}
	}
	r, err := w.fast.inst.Ahead()
	w.Fatal("the flow is not run in front", r, err)
}

// TestMeters: meters in the kernel give each frame the colour that the function gives it, whatever rates, bursts and times are.
func TestMeters(t *testing.T) {
	rates := []struct {
		word string
		is   uint64
	}{{"7bit", 7}, {"20kbit", 20_000}, {"3Mbit", 3_000_000}, {"400Gbit", 400_000_000_000}, {"2pps", 2}, {"900kpps", 900_000}}
	drops := 0
	for n := range 60 {
		r := rand.New(rand.NewPCG(7, uint64(n)))
		one := rates[r.IntN(len(rates))]
		// cbs of a frame without payload is needed to begin.
		args := graph.Args{"cir": one.word, "cbs": fmt.Sprint(30 + r.IntN(1500)), "pbs": fmt.Sprint(100 + r.IntN(3000)), "green": "dscp:CS3", "red": "drop", "aware": []string{"no", "af"}[r.IntN(2)],
			"yellow": []string{"pass", "dscp:AF12"}[r.IntN(2)]}
		if r.IntN(2) == 0 && one.is < rates[3].is {
			args["pir"] = fmt.Sprintf("%d%s", one.is*uint64(1+r.IntN(3)), map[bool]string{true: "pps", false: "bit"}[strings.HasSuffix(one.word, "pps")])
		}
		w, c := policed(t, []string{"police"}, args)
		w.sixth, c.six = 1, n%3 == 0
		for range 4 { // the buckets are full
			w.at = w.at.Add(200 * time.Millisecond)
			w.send(c, 0, func(d *datagram) { d.payload, d.tos = 0, 0 })
			w.send(c, 1, func(d *datagram) { d.payload, d.tos = 0, 0 })
		}
		for range 150 {
			switch r.IntN(10) {
			case 0:
				w.at = w.at.Add(time.Duration(r.Int64N(int64(20 * time.Second))))
			case 1: // as much as does not fit into 64 bits
				if d := math.MaxUint64/one.is + 1; d < uint64(time.Minute) {
					w.at = w.at.Add(time.Duration(d))
				}
			default:
				w.at = w.at.Add(time.Duration(r.Int64N(int64(time.Second / 100))))
			}
			out := w.push(0, (&datagram{src: c.cmac, dst: c.gmac, vlan: -1, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto, tos: byte(r.IntN(256)),
				payload: r.IntN(500), six: c.six}).bytes(r))
			if len(out[1]) == 0 {
				drops++
			}
		}
		if w.fast.ran < 100 {
			t.Errorf("%v: %d frames were run in front", args, w.fast.ran)
		}
		w.at = w.at.Add(20 * time.Millisecond)
		w.compare()
	}
	if drops < 1000 {
		t.Errorf("%d frames were dropped", drops)
	}
}

// TestDrops: what a meter drops, functions before it have seen, and those behind it have not: a firewall's times are the same where the kernel drops.
func TestDrops(t *testing.T) {
	for name, apps := range map[string][]string{"before": {"police", "firewall"}, "behind": {"firewall", "police"}} {
		t.Run(name, func(t *testing.T) {
			w, c := policed(t, apps, graph.Args{"cir": "8bit", "cbs": "600"})
			w.began(c)
			for range 100 {
				w.at = w.at.Add(time.Second / 2)
				w.send(c, 0, func(d *datagram) { d.payload = 900 }) // too long for the bucket
			}
			w.compare()
			if conns, _ := w.fast.state(w.at); len(conns) != 1 {
				t.Error(conns)
			}
		})
	}
}

// TestDropsBetween: where functions before the meter and behind it have a part, what it would drop comes up, and so does what is behind that.
func TestDropsBetween(t *testing.T) {
	s := spec([]string{"firewall", "police", "firewall2"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}, "firewall2": {"rules": "allow+in:a"}, "police": {"cir": "8kbit", "cbs": "600"}})
	w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBoxOf(t, s, 1, 0, false), fast: newBoxOf(t, s, 1, 64, true), exact: true, at: clock.Time(time.Hour)}
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	w.began(c)
	ran := w.fast.ran
	w.send(c, 0, func(d *datagram) { d.payload = 900 })
	w.send(c, 0, func(d *datagram) { d.payload = 0 })
	if w.fast.ran != ran {
		t.Errorf("%d frames were run in front", w.fast.ran-ran)
	}
	w.began(c)
	w.compare()
}

// TestPlaceOfMeter: a flow whose meter gives way to another flow's is not run by it any more.
func TestPlaceOfMeter(t *testing.T) {
	w, c := policed(t, []string{"police"}, graph.Args{"cir": "1Mbit", "cbs": "600", "per": "flow", "flows": "1"})
	w.began(c)
	w.at = w.at.Add(time.Second) // it is full
	for n := range 200 {
		w.send(w.conversation(1+n), 0, func(d *datagram) { d.payload = 0 })
	}
	ran := w.fast.ran
	if w.send(c, 0, nil); w.fast.ran != ran {
		t.Error("a frame is run by a meter that is another flow's")
	}
	w.at = w.at.Add(time.Second)
	w.began(c) // by another one
	w.at = w.at.Add(time.Second)
	w.compare()
}

// TestMetersComeBack: meters of flows that nobody answers are lent to others.
func TestMetersComeBack(t *testing.T) {
	w, _ := policed(t, []string{"police"}, graph.Args{"cir": "1Mbit", "per": "flow"})
	for n := range 400 { // there are 128
		w.at = w.at.Add(5 * time.Millisecond)
		w.send(w.conversation(n), 0, nil)
	}
	for range 4 {
		w.at = w.at.Add(time.Second)
		w.fast.tell(w.at)
		w.plain.breathe(w.at)
		w.fast.breathe(w.at)
	}
	w.began(w.conversation(1000))
	w.compare()
}

// TestMetersAtOnce: frames on several processors, and those that come to the function, go by one meter: none is counted twice or not at all, and no token spent twice.
func TestMetersAtOnce(t *testing.T) {
	const size = 28 + 100
	s := spec([]string{"police"}, map[string]graph.Args{"police": {"cir": "80Mbit", "cbs": "20000", "on": "a"}})
	x := newBox(t, s, 64)
	w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBox(t, s, 0), fast: x}
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	d := datagram{src: c.cmac, dst: c.gmac, vlan: -1, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto, payload: 100}
	back := datagram{src: c.smac, dst: c.gmac, vlan: -1, from: c.server, to: c.client, sport: c.sport, dport: c.cport, proto: c.proto, payload: 100}
	f, b := d.bytes(w.r), back.bytes(w.r)
	begun := time.Now()
	for n := 0; x.ran == 0; n++ {
		if n == 100 {
			t.Fatal("no frame is run in front")
		}
		x.frame(now(), 0, f)
		x.frame(now(), 1, b)
		time.Sleep(time.Millisecond)
	}
	x.e.Turn(0, loopback, true)
	ran, before := x.ran, x.finished()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 200 {
				if _, _, err := x.e.prog.Benchmark(f, 1000, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	d.options = 4 // comes up
	odd := d.bytes(w.r)
	given := 0
	stop := make(chan struct{})
	go func() { wg.Wait(); close(stop) }()
	for done := false; !done; given++ {
		x.give(0, now(), 0, odd)
		select {
		case <-stop:
			done = true
		default:
		}
	}
	took := time.Since(begun)
	if x.finished() < before+1000 {
		t.Fatal("the kernel has run nothing")
	}
	time.Sleep(30 * time.Millisecond)
	_, counts := x.state(now())
	time.Sleep(30 * time.Millisecond)
	_, counts = x.state(now())
	all := map[string]uint64{}
	for name, n := range counts {
		for _, colour := range []string{"green", "yellow", "red", "green-bytes", "yellow-bytes"} {
			if strings.HasPrefix(name, "police ") && strings.HasSuffix(name, " "+colour) {
				all[colour] += n
			}
		}
	}
	passed, most := all["green-bytes"]+all["yellow-bytes"], uint64(2*20000+took.Seconds()*10e6)
	t.Logf("%v in %v; %d frames to the function, %d run before", all, took, given, ran)
	if link := counts["link pa.out -> police.a"]; all["green"]+all["yellow"]+all["red"] != link {
		t.Errorf("%d frames have colours, and %d have come", all["green"]+all["yellow"]+all["red"], link)
	}
	if passed > most+size || passed < most/4 {
		t.Errorf("%d bytes pass, of %d", passed, most)
	}
}

// TestMirrored: a flow that a mirror may copy is not run in front, whether it copies the frames or not.
func TestMirrored(t *testing.T) {
	for _, match := range []string{"proto:17", "proto:6"} {
		s := spec([]string{"firewall", "mirror"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}, "mirror": {"match": match, "by": "b"}})
		w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBox(t, s, 0), fast: newBox(t, s, 64)}
		c := w.conversation(0)
		c.proto, c.vlan = hdr.ProtoUDP, -1
		c.public, c.pport = c.client, c.cport
		for n := range 40 {
			w.send(c, n%2, nil)
		}
		r, err := w.fast.inst.Ahead()
		if err != nil || w.fast.ran > 0 || r.Entries > 0 || r.Decisions["undecided"] == 0 {
			t.Errorf("match=%s: %d frames are run, %+v, %v", match, w.fast.ran, r, err)
		}
	}
}

// TestMeterTaken: while the function has a meter, frames that go by it come up, and it waits for one that a frame has.
func TestMeterTaken(t *testing.T) {
	w, c := policed(t, []string{"police"}, graph.Args{"cir": "1Mbit"})
	w.began(c)
	f := (&datagram{src: c.cmac, dst: c.gmac, vlan: -1, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto, payload: 10}).bytes(w.r)
	for n := range w.fast.e.meters {
		w.fast.e.meters[n].Take()
	}
	if _, ran := w.fast.e.run(0, f); ran {
		t.Error("a frame is run by a meter that is taken")
	}
	m, taken := &w.fast.e.meters[1], make(chan struct{})
	go func() {
		m.Take()
		close(taken)
	}()
	select {
	case <-taken:
		t.Error("a meter is taken twice")
	case <-time.After(20 * time.Millisecond):
	}
	for n := range w.fast.e.meters {
		w.fast.e.meters[n].Give()
	}
	<-taken
	m.Give()
	w.at = w.at.Add(200 * time.Millisecond) // until then what is behind the frame that came up does, too
	ran := w.fast.ran
	if w.send(c, 0, nil); w.fast.ran == ran {
		t.Error("a frame is not run by a meter that is free again")
	}
}

// TestOuterMeter: a meter of datagrams that are in a tunnel already is not run in front, as the program looks at what is inside.
func TestOuterMeter(t *testing.T) {
	s := spec([]string{"vxlan", "police"}, map[string]graph.Args{"police": {"cir": "1Mbit"},
		"vxlan": {"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01", "remote-mac": "02:00:00:00:00:02"}})
	w := &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBox(t, s, 0), fast: newBox(t, s, 64), vni: 5000}
	w.tunnel = outer.New(outer.Config{LocalMAC: [6]byte{2, 0, 0, 0, 0, 2}, RemoteMAC: [6]byte{2, 0, 0, 0, 0, 1}, Local: netip.MustParseAddr("192.0.2.2"),
		Remote: netip.MustParseAddr("192.0.2.1"), TTL: 64, Proto: hdr.ProtoUDP, Port: hdr.PortVXLAN})
	c := w.conversation(0)
	c.proto, c.vlan = hdr.ProtoUDP, -1
	for n := range 40 {
		w.send(c, n%2, nil)
	}
	if r, err := w.fast.inst.Ahead(); err != nil || w.fast.ran > 0 || r.Entries > 0 || r.Decisions["other-change"] == 0 {
		t.Errorf("%d frames are run, %+v, %v", w.fast.ran, r, err)
	}
}
