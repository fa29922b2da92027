package p4

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/examples/controller"
	"github.com/quillon/quillon/nf/hdr"
)

// control runs a Controller, with an app if there is one, until the end of the test,
// and returns when the switch is at the intent.
func (b *bench) control(d *ctl.Device, app func() ctl.App) *ctl.Controller {
	b.t.Helper()
	o := ctl.ControllerOptions{Session: b.options(), Every: 100 * time.Millisecond}
	o.Session.Event = nil
	if app != nil {
		o.App = func(*ctl.Device) ctl.App { return app() }
	}
	c, err := ctl.NewController(b.dialer, &ctl.Intent{Devices: []*ctl.Device{d}}, o)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	b.t.Cleanup(func() { cancel(); <-done; c.Close() })
	if !b.until("the intent", func() bool { return c.Status()[0].Aligned }) {
		b.t.Fatalf("%+v", c.Status())
	}
	return c
}

// wellKept checks that a switch was at its intent all the time, and that nothing had
// to be done again.
func wellKept(t *testing.T, c *ctl.Controller) {
	if st := c.Status()[0]; !st.Aligned || st.Problem != "" || st.Loads != 1 || st.Lost != 0 || st.Writes > st.Entities {
		t.Errorf("%+v", st)
	}
}

// texts are the entries of a table, without its name.
func (b *bench) texts(table string) []string {
	b.t.Helper()
	ask, err := ctl.Queries(b.info, table)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	_, err = b.session.Ask(b.ctx, b.info, ask, true, func(e *p4v1.Entity) error {
		if t := e.GetTableEntry(); !t.IsDefaultAction {
			_, text, _ := strings.Cut(b.info.Text(e), "."+table+" ")
			out = append(out, text)
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// frames are those that came to a port and begin with two addresses.
func (b *bench) frames(n uint32, start []byte) [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out [][]byte
	for _, f := range b.came[n] {
		if bytes.HasPrefix(f, start) {
			out = append(out, f)
		}
	}
	return out
}

func (b *bench) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.came = map[uint32][][]byte{}
}

// device is an intent for a program; the bench speaks of that program from then on.
func (b *bench) device(name, lists string) *ctl.Device {
	b.t.Helper()
	b.files(name)
	d := b.intent(name, lists)
	b.info = d.Info
	return d
}

// tryLearning: frames are flooded until the digests of a real
// switch have taught where addresses are; they move, and are forgotten.
func tryLearning(t *testing.T, b *bench) {
	d := b.device("l2_bridge", "    multicast: [{group: 1, ports: [1, 2, 3, 4, 5]}]\n")
	c := b.control(d, func() ctl.App { return &controller.Learner{Idle: 3 * time.Second} })
	defer wellKept(t, c)
	x, y := []byte{2, 0, 0, 0, 0, 0xaa}, []byte{2, 0, 0, 0, 0, 0xbb}
	frame := func(dst, src []byte) []byte {
		return slices.Concat(dst, src, []byte{0x88, 0xb5}, bytes.Repeat([]byte{7}, 46))
	}
	counts := func(dst, src []byte, want [4]int) func() bool {
		return func() bool {
			for n := range want {
				if len(b.frames(uint32(n+1), slices.Concat(dst, src))) != want[n] {
					return false
				}
			}
			return true
		}
	}
	b.until("a digest that was asked for", func() bool {
		n := 0
		ask, err := ctl.Queries(b.info, "digests")
		if err == nil {
			_, err = b.session.Ask(b.ctx, b.info, ask, false, func(*p4v1.Entity) error { n++; return nil })
		}
		return err == nil && n == 1
	})
	b.inject(1, frame(y, x))
	b.until("a flooded frame", counts(y, x, [4]int{0, 1, 1, 1}))
	b.until("x learnt", func() bool {
		return slices.Equal(b.texts("dmac"), []string{"meta.vid=1 hdr.ethernet.dst=02:00:00:00:00:aa -> bridge_ingress.forward(port=1)"}) && len(b.texts("smac")) == 1
	})
	b.inject(2, frame(x, y))
	b.until("a frame to x alone", counts(x, y, [4]int{1, 0, 0, 0}))
	b.until("y learnt", func() bool { return len(b.texts("dmac")) == 2 && len(b.texts("smac")) == 2 })
	b.forget()
	b.inject(1, frame(y, x))
	b.until("a frame to y alone", counts(y, x, [4]int{0, 1, 0, 0}))
	// x moves to port 3.
	b.inject(3, frame(y, x))
	b.until("x moved", func() bool {
		return slices.Contains(b.texts("dmac"), "meta.vid=1 hdr.ethernet.dst=02:00:00:00:00:aa -> bridge_ingress.forward(port=3)") &&
			slices.Contains(b.texts("smac"), "meta.vid=1 hdr.ethernet.src=02:00:00:00:00:aa -> bridge_ingress.known(port=3)")
	})
	b.forget()
	b.inject(2, frame(x, y))
	b.until("a frame to x at port 3", counts(x, y, [4]int{0, 0, 1, 0}))
	b.until("both forgotten", func() bool { return len(b.texts("smac")) == 0 && len(b.texts("dmac")) == 0 })
}

// tryRouting: a real switch routes with what ARP through it found.
func tryRouting(t *testing.T, b *bench) {
	d := b.device("ipv4_router", "")
	file := filepath.Join(b.dir, "routes.yaml")
	text := `sw:
  interfaces:
    - {port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}
    - {port: 2, mac: 02:00:00:00:01:02, address: 10.0.2.1/24}
    - {port: 3, mac: 02:00:00:00:01:03, address: 10.0.3.1/24}
  routes:
    - {prefix: 10.9.0.0/16, via: [10.0.2.2, 10.0.3.2]}
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	routes, err := controller.ReadRoutes(file)
	if err != nil {
		t.Fatal(err)
	}
	c := b.control(d, func() ctl.App { return &controller.Router{Config: routes["sw"]} })
	defer wellKept(t, c)
	if !b.until("the interfaces' entries", func() bool { return len(b.texts("router_mac")) == 3 && len(b.texts("ipv4_lpm")) == 7 }) {
		return
	}
	all := bytes.Repeat([]byte{0xff}, 6)
	r := func(n byte) []byte { return []byte{2, 0, 0, 0, 1, n} }
	host := func(n byte) []byte { return []byte{2, 0, 0, 0, 0, n} }
	ip := func(s string) []byte { return netip.MustParseAddr(s).AsSlice() }
	arp := func(op byte, dst, src []byte, from string, target []byte, to string) []byte {
		f := slices.Concat(dst, src, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, op}, src, ip(from), target, ip(to))
		return append(f, make([]byte, 60-len(f))...)
	}
	none := make([]byte, 6)
	udp := func(dst, src []byte, ttl byte, from, to string, port uint16) []byte {
		f := slices.Concat(dst, src, []byte{8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, ttl, 17, 0, 0}, ip(from), ip(to))
		f = binary.BigEndian.AppendUint16(f, port)
		f = append(f, 0, 7, 0, 30, 0, 0)
		f = append(f, bytes.Repeat([]byte{9}, 22)...)
		binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
		hdr.IPv4(f[14:34]).UpdateChecksum()
		return f
	}
	came := func(n uint32, frame []byte) func() bool {
		return func() bool {
			return slices.ContainsFunc(b.frames(n, frame[:12]), func(f []byte) bool { return bytes.Equal(f, frame) })
		}
	}
	// Its addresses are answered for.
	b.inject(1, arp(1, all, host(1), "10.0.1.5", none, "10.0.1.1"))
	b.until("an answer to ARP", came(1, arp(2, host(1), r(1), "10.0.1.1", host(1), "10.0.1.5")))
	b.until("the neighbour", func() bool {
		return slices.ContainsFunc(b.texts("next_hop"), func(s string) bool {
			return strings.HasSuffix(s, "forward(dst=02:00:00:00:00:01, src=02:00:00:00:01:01, port=1)")
		})
	})
	// It asks for the route's neighbours, and routes flows to both.
	b.inject(2, arp(2, r(2), host(2), "10.0.2.2", r(2), "10.0.2.1"))
	b.inject(3, arp(2, r(3), host(3), "10.0.3.2", r(3), "10.0.3.1"))
	b.until("a group of two", func() bool { return len(b.texts("ecmp")) == 1 && len(b.texts("next_hop")) == 3 })
	for port := range uint16(32) {
		b.inject(1, udp(r(1), host(1), 64, "10.0.1.5", "10.9.1.1", 1000+port))
	}
	b.until("32 routed frames", func() bool {
		return len(b.frames(2, slices.Concat(host(2), r(2), []byte{8, 0})))+len(b.frames(3, slices.Concat(host(3), r(3), []byte{8, 0}))) == 32
	})
	if n := len(b.frames(2, slices.Concat(host(2), r(2), []byte{8, 0}))); n == 0 || n == 32 {
		t.Errorf("%d of 32 flows by one neighbour", n)
	}
	// A host that nobody knows: it is asked for, and what was sent first waits.
	first := udp(r(1), host(1), 64, "10.0.1.5", "10.0.2.77", 5)
	b.inject(1, first)
	b.until("a question for it", came(2, arp(1, all, r(2), "10.0.2.1", none, "10.0.2.77")))
	b.inject(2, arp(2, r(2), host(77), "10.0.2.77", r(2), "10.0.2.1"))
	b.until("the frame that waited", came(2, udp(host(77), r(2), 63, "10.0.1.5", "10.0.2.77", 5)))
	b.until("its entry", func() bool { return len(b.texts("next_hop")) == 4 })
	before, _ := b.counts("verdicts", "0") // routed by the switch itself
	b.inject(1, udp(r(1), host(1), 64, "10.0.1.5", "10.0.2.77", 6))
	b.until("the next frame", came(2, udp(host(77), r(2), 63, "10.0.1.5", "10.0.2.77", 6)))
	b.until("its count", func() bool { n, _ := b.counts("verdicts", "0"); return n == before+1 })
	// Its time is over: the sender is told.
	b.inject(1, udp(r(1), host(1), 1, "10.0.1.5", "10.0.2.77", 7))
	b.until("time exceeded", func() bool {
		return slices.ContainsFunc(b.frames(1, slices.Concat(host(1), r(1), []byte{8, 0})), func(f []byte) bool {
			return len(f) > 35 && f[23] == 1 && f[34] == 11 && hdr.IPv4(f[14:34]).ChecksumOK() && bytes.Equal(f[26:30], ip("10.0.1.1"))
		})
	})
}

// tryRestart ends the switch and starts it again: the controller brings it to the
// intent again, without anybody's doing.
func tryRestart(t *testing.T, b *bench) {
	d := b.device("ipv4_router", `    multicast: [{group: 7, ports: [1, 2]}]
    members: [{profile: ecmp_selector, member: 1, action: choose, params: {next_hop: 1}}]
    groups: [{profile: ecmp_selector, group: 1, members: [{member: 1, weight: 2}], max_size: 4}]
    meters: [{meter: port_meter, index: 3, cir: 1000, cburst: 1500, pir: 2000, pburst: 3000}]
    entries:
      - {table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: set_group}
      - {table: ecmp, match: {dst: 10.0.0.0/8}, group: 1}
      - {table: ipv4_multicast, match: {dst: 224.0.0.5, ingress_port: 1}, priority: 5, action: replicate, params: {group: 7}}
      - {table: ipv4_multicast, match: {dst: 224.0.0.5}, priority: 1, action: replicate, params: {group: 7}}
`)
	c := b.control(d, nil)
	for n := 1; ; n++ {
		if st := c.Status()[0]; st.Loads != n || st.Problem != "" {
			t.Errorf("start %d: %+v", n, st)
		}
		if !b.until("a session", func() bool { return b.session.Status().State == ctl.Backup }) {
			return
		}
		diff, err := b.session.Compare(b.ctx, d, ctl.LeaveValues)
		if err != nil || diff.Load != "" || len(diff.Changes) > 0 || diff.Same < len(d.Entities) {
			t.Fatalf("start %d: %+v %v", n, diff, err)
		}
		if n == 3 {
			return
		}
		losses := c.Status()[0].Losses
		b.kill()
		b.until("a loss", func() bool { return c.Status()[0].Losses > losses })
		b.start()
		if !b.until("the intent again", func() bool { st := c.Status()[0]; return st.Aligned && st.Loads == n+1 }) {
			t.Fatalf("%+v", c.Status())
		}
	}
}
