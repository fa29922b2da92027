package xdp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/outer"
)

// chain14 is a chain of functions with balance or police in it. fine has times between ticks of the kernel's coarse clock, which functions that remember when a flow was
// last heard do not see alike.
type chain14 struct {
	name string
	apps []string
	args map[string]graph.Args
	fine bool
	sets map[string][]graph.Args // by app: what is set while traffic runs
}

var (
	firewall14 = graph.Args{"rules": "allow+in:a", "rules6": "allow+in:a"}
	napt14     = graph.Args{"public": public, "mac": mac}
	vxlan14    = graph.Args{"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01", "remote-mac": "02:00:00:00:00:02", "inner-tags": "keep"}
	backends14 = []graph.Args{
		{"backends": backends},
		{"backends": "10.9.0.1@02:00:00:00:09:01+10.9.0.2@02:00:00:00:09:02*2/drain+10.9.0.3@02:00:00:00:09:03"},
		{"backends": "10.9.0.3@02:00:00:00:09:03+10.9.0.1@02:00:00:00:09:01*9"},
		{"backends": "10.9.0.1@02:00:00:00:09:01/down+10.9.0.4@02:00:00:00:09:04"},
		{"backends": "10.9.0.1@02:00:00:00:09:11+10.9.0.2@02:00:00:00:09:02+10.9.0.3@02:00:00:00:09:03/drain"},
		{"backends": "none"}, {"mac": "02:00:00:00:00:77"}, {"idle": "40ms"}, {"conns": "16"}, {"size": "251"},
	}
	police14 = []graph.Args{
		{"cir": "20kbit", "pir": "40kbit"}, {"cir": "9kbit", "pir": "none"}, {"cbs": "1500", "pbs": "700"}, {"cbs": "9000", "pbs": "20000"}, {"aware": "af"}, {"aware": "no"}, {"green": "dscp:11"}, {"green": "pass"},
		{"green": "dscp:AF12", "yellow": "dscp:AF13", "red": "dscp:CS1"}, {"red": "drop"}, {"red": "pass"}, {"yellow": "drop"}, {"yellow": "pass"}, {"green": "drop", "red": "pass"}, {"green": "pass"}, {"on": "a"}, {"on": "b"},
		{"on": "both"}, {"per": "src"}, {"per": "flow"}, {"per": "port"}, {"per": "dst"}, {"flows": "16"}, {"flows": "64"}, {"full": "pass"}, {"full": "drop"}, {"full": "shared"},
	}
	chains14 = []chain14{
		{"balance", []string{"balance"}, map[string]graph.Args{"balance": {"vip": vip, "port": "80", "backends": backends, "conns": "16", "idle": "200ms"}}, false, map[string][]graph.Args{"balance": backends14}},
		{"checked", []string{"balance"}, map[string]graph.Args{"balance": {"vip": vip, "port": "80", "backends": backends, "conns": "64", "check": "icmp", "check-down": "move", "check-from": "10.9.0.99@02:00:00:00:00:99",
			"check-interval": "40ms", "check-timeout": "20ms", "check-fall": "1", "check-rise": "1"}}, false, map[string][]graph.Args{"balance": backends14}},
		{"firewall-balance", []string{"firewall", "balance"}, map[string]graph.Args{"firewall": firewall14, "balance": {"vip": vip, "port": "80", "backends": backends, "conns": "64"}}, false, map[string][]graph.Args{"balance": backends14}},
		{"balance-police", []string{"balance", "police"}, map[string]graph.Args{"police": {"cir": "300kbit", "cbs": "4000", "per": "dst", "yellow": "dscp:AF12"}, "balance": {"vip": vip, "port": "80", "backends": backends, "conns": "64"}}, false,
			map[string][]graph.Args{"balance": backends14, "police": police14}},
		{"balance-vxlan", []string{"balance", "vxlan"}, map[string]graph.Args{"vxlan": vxlan14, "balance": {"vip": vip, "port": "80", "backends": backends, "conns": "64"}}, false, map[string][]graph.Args{"balance": backends14}},
		{"police", []string{"police"}, map[string]graph.Args{"police": {"cir": "200kbit", "pir": "400kbit", "cbs": "1500", "pbs": "3000", "yellow": "dscp:AF12"}}, true, map[string][]graph.Args{"police": police14}},
		{"police-flow", []string{"police"}, map[string]graph.Args{"police": {"cir": "20kbit", "cbs": "1500", "pbs": "800", "per": "flow", "flows": "16", "yellow": "dscp:9", "aware": "af"}}, true, map[string][]graph.Args{"police": police14}},
		{"police-packets", []string{"police"}, map[string]graph.Args{"police": {"cir": "10pps", "pir": "20pps", "cbs": "3", "pbs": "5", "per": "src", "red": "dscp:CS1"}}, true,
			map[string][]graph.Args{"police": {{"cir": "3pps", "pir": "9pps"}, {"cir": "30pps", "pir": "30pps"}, {"per": "dst"}, {"on": "a"}, {"on": "both"}, {"red": "drop"}, {"cbs": "1"}, {"cbs": "9"}}}},
		{"two-police", []string{"police", "police2"}, map[string]graph.Args{"police": {"cir": "200kbit", "cbs": "1500", "on": "a", "yellow": "dscp:AF12"}, "police2": {"cir": "100kbit", "cbs": "3000", "on": "b", "per": "flow"}}, true, nil},
		{"firewall-police", []string{"firewall", "police"}, map[string]graph.Args{"firewall": firewall14, "police": {"cir": "20kbit", "cbs": "2000", "per": "dst"}}, false, map[string][]graph.Args{"police": police14}},
		{"police-napt", []string{"police", "napt"}, map[string]graph.Args{"napt": napt14, "police": {"cir": "200kbit", "cbs": "4000", "yellow": "dscp:AF12", "per": "flow"}}, false, map[string][]graph.Args{"police": police14}},
		{"between", []string{"firewall", "police", "napt"}, map[string]graph.Args{"firewall": firewall14, "police": {"cir": "450kbit", "cbs": "4000", "yellow": "dscp:AF12"}, "napt": napt14}, false, map[string][]graph.Args{"police": police14}},
		{"police-vxlan", []string{"police", "vxlan"}, map[string]graph.Args{"police": {"cir": "300kbit", "cbs": "4000", "yellow": "dscp:AF12"}, "vxlan": vxlan14}, true,
			map[string][]graph.Args{"police": police14, "vxlan": {{"dscp": "9"}, {"dscp": "copy"}, {"ecn": "compatibility"}, {"ecn": "normal"}, {"mtu": "1300"}, {"mtu": "1500"}, {"inner-tags": "drop"}, {"inner-tags": "keep"}}}},
	}
)

// answers has time go on to w.at, and backends but the dead one answer checks.
func (w *world) answers(dead byte) {
	w.fast.tell(w.at)
	for _, x := range []*box{w.plain, w.fast} {
		for n := range x.queues {
			x.queues[n][1].sent = nil
		}
		x.breathe(w.at)
		for _, f := range x.ports[1].sent {
			if ip := hdr.IPv4(f[14:]); len(f) > 42 && ip.Protocol() == hdr.ProtoICMP && f[33] != dead {
				x.give(0, w.at, 1, echoed(f))
			}
		}
	}
}

// TestAttack14Fuzz: TestAttack12Fuzz for balance and police.
func TestAttack14Fuzz(t *testing.T) {
	from, seeds, workers := 1, 1, 1
	if n, err := strconv.Atoi(os.Getenv("QUILLON_SEED")); err == nil {
		from = n
		if n%5 == 4 {
			workers = 2
		}
	}
	for seed := from; seed < from+seeds; seed++ {
		for _, c := range chains14 {
			t.Run(fmt.Sprint(c.name, seed), func(t *testing.T) { c.fuzz(t, seed, workers) })
		}
		for _, c := range chains12 {
			if c.vlan == 0 && len(c.apps) > 1 {
				x := chain14{c.name, c.apps, c.args, false, map[string][]graph.Args{
					"firewall": {{"mode": "loose"}, {"mode": "strict"}, {"rules": "deny+dst:203.0.113.2;allow+in:a"}, {"rules": "allow+in:a"}, {"udp-idle": "100ms"}, {"udp-idle": "300ms"}},
					"napt":     {{"filter": "address"}, {"filter": "port"}, {"filter": "endpoint"}, {"udp-idle": "350ms"}, {"private": "10.0.0.0/28"}, {"private": "10.0.0.0/8"}}}}
				t.Run("idle-"+fmt.Sprint(c.name, seed), func(t *testing.T) { x.fuzz(t, seed, workers) })
			}
		}
	}
}

func (c *chain14) fuzz(t *testing.T, seed, workers int) {
	s := spec(c.apps, c.args)
	w := &world{TB: t, r: rand.New(rand.NewPCG(uint64(seed), 14)), plain: newBoxOf(t, s, workers, 0, false), fast: newBoxOf(t, s, workers, 256, true), at: clock.Time(time.Hour), sixth: 5, exact: true}
	if _, ok := c.args["vxlan"]; ok {
		w.vni = 5000
		w.tunnel = outer.New(outer.Config{LocalMAC: [6]byte{2, 0, 0, 0, 0, 2}, RemoteMAC: [6]byte{2, 0, 0, 0, 0, 1}, Local: netip.MustParseAddr("192.0.2.2"),
			Remote: netip.MustParseAddr("192.0.2.1"), TTL: 64, Proto: hdr.ProtoUDP, Port: hdr.PortVXLAN})
	}
	if _, ok := c.args["balance"]; ok {
		w.vip = netip.MustParseAddr(vip).As4()
	}
	n, dead, off := 0, byte(0), ""
	for range 12 {
		w.all = append(w.all, w.conversation(n))
		n++
	}
	for k := range 5000 {
		i := w.r.IntN(len(w.all))
		switch w.r.IntN(200) {
		case 0, 1:
			w.all[i] = w.conversation(n)
			n++
		case 2: // one of the same addresses and ports, in another VLAN
			y := *w.all[w.r.IntN(len(w.all))]
			y.vlan, y.public, y.step = []int{-1, 7, 8, 0}[w.r.IntN(4)], [4]byte{}, 0
			w.all[i] = &y
		}
		x := w.all[i]
		step := time.Duration(w.r.IntN(2)) * 4 * time.Millisecond
		if w.r.IntN(200) == 0 {
			step = time.Duration(w.r.IntN(112)) * 4 * time.Millisecond
		}
		if w.r.IntN(1500) == 0 {
			step = time.Duration(w.r.IntN(9000)) * 4 * time.Millisecond
		}
		if c.fine {
			step += time.Duration(w.r.IntN(4_000_000))
		}
		w.at = w.at.Add(step)
		if w.r.IntN(300) == 0 {
			dead = byte(w.r.IntN(5))
		}
		w.answers(dead)
		switch w.r.IntN(8) {
		case 0:
			from := w.r.IntN(2)
			if from == 1 && x.public == [4]byte{} {
				continue
			}
			f := w.frame14(x, from)
			w.push(from, mutate12(w.r, f))
		case 1:
			if w.r.IntN(4) == 0 {
				w.odd(x)
			}
		default:
			w.goOn(x)
		}
		if k%150 == 149 && c.sets != nil {
			name := c.apps[w.r.IntN(len(c.apps))]
			if all := c.sets[name]; all != nil {
				w.trySet(name, all[w.r.IntN(len(all))])
				if w.r.IntN(12) == 0 {
					w.trySet(name, graph.Args{"offload": "off"})
					off = name
				}
			}
		}
		if k%450 == 440 {
			w.rechain(c)
		}
		if w.r.IntN(200) == 0 && w.fast.e != nil {
			w.fast.e.watched = w.r.IntN(3) == 0
		}
		if w.r.IntN(300) == 0 {
			down := w.r.IntN(4) == 0
			for _, x := range []*box{w.plain, w.fast} {
				x.inst.SetLinks(map[string]bool{"pa": true, "pb": !down})
				if err := x.inst.LeadLinks(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if off != "" && w.r.IntN(40) == 0 {
			w.trySet(off, graph.Args{"offload": "on"})
			off = ""
		}
		if k%200 == 199 {
			for range 6 {
				w.at = w.at.Add(12 * time.Millisecond)
				w.answers(dead)
			}
			if strings.HasPrefix(t.Name(), "TestAttack14Fuzz/idle") {
				w.compare12()
			} else {
				w.compare14()
			}
		}
	}
	r, _ := w.fast.inst.Ahead()
	t.Logf("%d frames, %d run in front: %v %v", w.frames, w.fast.ran, r.Outcomes, r.Decisions)
}

// trySet changes settings of both boxes, if both take them.
func (w *world) trySet(name string, args graph.Args) {
	w.Helper()
	w.Helper()
	if _, ok := w.fast.inst.Spec().Apps[name]; !ok {
		return
	}
	var errs [2]error
	for i, x := range []*box{w.plain, w.fast} {
		_, errs[i] = x.inst.Set(name, args)
	}
	if (errs[0] == nil) != (errs[1] == nil) {
		w.Fatal(name, args, errs)
	}
}

// rechain changes the chain to some of its functions, in the order of all.
func (w *world) rechain(c *chain14) {
	w.Helper()
	args, apps := map[string]graph.Args{}, []string(nil)
	for name, a := range w.fast.inst.Spec().Apps {
		args[name] = a.Args
	}
	for _, name := range c.apps {
		if w.r.IntN(3) > 0 || name == "vxlan" {
			if apps = append(apps, name); args[name] == nil {
				args[name] = c.args[name]
			}
		}
	}
	if len(apps) == 0 {
		apps = c.apps[:1]
		args[apps[0]] = c.args[apps[0]]
	}
	s := spec(apps, args)
	for _, x := range []*box{w.plain, w.fast} {
		p, err := x.inst.Plan(s)
		if err == nil {
			err = x.inst.Apply(p)
		}
		if err != nil {
			w.Fatal(apps, err)
		}
	}
}

// frame14 is a frame of a conversation, as it comes in.
func (w *world) frame14(c *conversation, from int) []byte {
	d := datagram{src: c.cmac, dst: c.gmac, vlan: c.vlan, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto, flags: 0x10, win: uint16(1000 + w.r.IntN(60000)),
		payload: w.r.IntN(60), seq: c.next[from], ack: c.next[1-from], noSum: w.r.IntN(4) == 0, six: c.six, tos: byte(w.r.IntN(256))}
	if from == 1 {
		d.src, d.dst, d.from, d.to, d.sport, d.dport = c.smac, c.gmac, c.server, c.public, c.sport, c.pport
		if c.behind != [4]byte{} {
			d.from = c.behind
		}
		return w.into(d.bytes(w.r), d.tos)
	}
	return d.bytes(w.r)
}

// compare14 compares what was counted, but for what depends on when a flow was forgotten.
func (w *world) compare14() {
	w.Helper()
	at := w.now()
	_, na := w.plain.state(at)
	_, nb := w.fast.state(at)
	for name, n := range na {
		if m := nb[name]; m != n && !hasSuffix(name, " calls", " sampled-ns", " sampled-packets") {
			w.Errorf("frame %d: %s is %d without, %d with", w.frames, name, n, m)
		}
	}
	if w.Failed() {
		w.FailNow()
	}
}
