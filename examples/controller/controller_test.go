package controller

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/p4src"
)

// intent is an intent for one device with a program of p4src.
func intent(t testing.TB, address, program, entities string) *ctl.Intent {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("devices:\n  s1:\n    address: %s\n    p4info: %s.p4info.txtpb\n    config: %s.json\n%s", address, program, program, entities)
	files := map[string][]byte{"intent.yaml": []byte(text)}
	for _, name := range []string{program + ".p4info.txtpb", program + ".json"} {
		b, err := p4src.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = b
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	in, err := ctl.ReadIntent(filepath.Join(dir, "intent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func options() ctl.Options {
	return ctl.Options{Clock: clock.NewWall(), Backoff: ctl.Backoff{First: time.Millisecond, Most: 20 * time.Millisecond}}
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open is a session that is primary, with a device at its intent.
func open(t testing.TB, d *ctl.Device) *ctl.Session {
	t.Helper()
	s, err := ctl.Open(&ctl.Dialer{}, d.Target, options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	diff, err := s.Compare(within(t), d, ctl.LeaveValues)
	if err != nil {
		t.Fatal(err)
	}
	if o, err := s.Apply(within(t), diff, ctl.Limits{}); err != nil || o.Err() != nil {
		t.Fatal(err, o.Err())
	}
	return s
}

// keep runs a controller with an app until the end of the test; it returns when the device is at its intent.
func keep(t testing.TB, in *ctl.Intent, app ctl.App) *ctl.Controller {
	t.Helper()
	c, err := ctl.NewController(&ctl.Dialer{}, in, ctl.ControllerOptions{Session: options(), App: func(*ctl.Device) ctl.App { return app }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done; c.Close() })
	ctltest.Eventually(t, "aligned", func() bool { return c.Status()[0].Aligned })
	return c
}

// appBed is an app on a device of a server in memory.
type appBed struct {
	t  *testing.T
	f  *ctltest.Server
	d  *ctl.Device
	c  *ctl.Controller
	mu sync.Mutex
	// news is what the app reported.
	news []string
}

func newAppBed(t *testing.T, program, entities string, app func(report func(string)) ctl.App) *appBed {
	t.Helper()
	b := &appBed{t: t, f: ctltest.New(1)}
	at, _ := b.f.Start(t, "127.0.0.1:0", nil)
	in := intent(t, at, program, entities)
	b.d = in.Devices[0]
	b.c = keep(t, in, app(func(s string) {
		b.mu.Lock()
		b.news = append(b.news, s)
		b.mu.Unlock()
	}))
	return b
}

// texts are the entries of a table that the device holds, sorted.
func (b *appBed) texts(table string) []string {
	b.f.Lock()
	defer b.f.Unlock()
	var out []string
	for _, e := range b.f.Devices[1].Entities {
		if x := e.GetTableEntry(); x != nil && strings.HasSuffix(b.d.Info.Table(x.TableId).Name, "."+table) {
			_, text, _ := strings.Cut(b.d.Info.Text(e), "."+table+" ")
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}

// until waits until a table holds what is wanted.
func (b *appBed) until(table string, want ...string) {
	b.t.Helper()
	slices.Sort(want)
	ok := false
	defer func() {
		if !ok {
			b.t.Logf("table %s:\n%s\nwant\n%s", table, strings.Join(b.texts(table), "\n"), strings.Join(want, "\n"))
		}
	}()
	ctltest.Eventually(b.t, "table "+table, func() bool { return slices.Equal(b.texts(table), want) })
	ok = true
}

// tell sends digests of src, vid, port.
func (b *appBed) tell(list uint64, learnt ...[3]uint64) {
	m := &p4v1.DigestList{DigestId: b.d.Info.Digests[0].ID, ListId: list}
	for _, l := range learnt {
		data := &p4v1.P4StructLike{}
		for _, v := range l {
			data.Members = append(data.Members, &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: binary.BigEndian.AppendUint64(nil, v)[2:]}})
		}
		m.Data = append(m.Data, &p4v1.P4Data{Data: &p4v1.P4Data_Struct{Struct: data}})
	}
	b.f.Tell(1, &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Digest{Digest: m}})
}

func (b *appBed) sent() []*p4v1.StreamMessageRequest {
	b.f.Lock()
	defer b.f.Unlock()
	return slices.Clone(b.f.Sent)
}

func TestLearner(t *testing.T) {
	b := newAppBed(t, "l2_bridge", "    multicast: [{group: 1, ports: [1, 2]}]", func(report func(string)) ctl.App {
		return &Learner{Idle: time.Minute, Most: 3, Report: report}
	})
	const m1, m2, m3, m4 = 0x020000000001, 0x020000000002, 0x020000000003, 0x020000000004
	subscribed := func() bool {
		b.f.Lock()
		defer b.f.Unlock()
		return b.f.Devices[1].Entities[p4info.Key(&p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: &p4v1.DigestEntry{DigestId: b.d.Info.Digests[0].ID}}})] != nil
	}
	ctltest.Eventually(t, "a digest is asked for", subscribed)
	b.tell(7, [3]uint64{m1, 1, 1}, [3]uint64{m2, 1, 2}, [3]uint64{m1, 1, 1})
	b.until("smac", "meta.vid=1 hdr.ethernet.src=02:00:00:00:00:01 -> bridge_ingress.known(port=1)", "meta.vid=1 hdr.ethernet.src=02:00:00:00:00:02 -> bridge_ingress.known(port=2)")
	b.until("dmac", "meta.vid=1 hdr.ethernet.dst=02:00:00:00:00:01 -> bridge_ingress.forward(port=1)", "meta.vid=1 hdr.ethernet.dst=02:00:00:00:00:02 -> bridge_ingress.forward(port=2)")
	// It moves, there and back, and to a third port: the last counts.
	b.tell(8, [3]uint64{m1, 1, 5}, [3]uint64{m1, 1, 1}, [3]uint64{m1, 1, 3})
	b.until("dmac", "meta.vid=1 hdr.ethernet.dst=02:00:00:00:00:01 -> bridge_ingress.forward(port=3)", "meta.vid=1 hdr.ethernet.dst=02:00:00:00:00:02 -> bridge_ingress.forward(port=2)")
	// No more than three.
	b.tell(9, [3]uint64{m3, 2, 4}, [3]uint64{m4, 2, 4})
	b.until("smac", "meta.vid=1 hdr.ethernet.src=02:00:00:00:00:01 -> bridge_ingress.known(port=3)", "meta.vid=1 hdr.ethernet.src=02:00:00:00:00:02 -> bridge_ingress.known(port=2)",
		"meta.vid=2 hdr.ethernet.src=02:00:00:00:00:03 -> bridge_ingress.known(port=4)")
	// One was idle.
	idle := &p4v1.TableEntry{TableId: b.d.Info.Tables[2].ID, Match: []*p4v1.FieldMatch{
		{FieldId: 1, FieldMatchType: &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: []byte{0, 1}}}},
		{FieldId: 2, FieldMatchType: &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: []byte{2, 0, 0, 0, 0, 2}}}},
	}}
	b.f.Tell(1, &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_IdleTimeoutNotification{IdleTimeoutNotification: &p4v1.IdleTimeoutNotification{TableEntry: []*p4v1.TableEntry{idle}}}})
	b.until("dmac", "meta.vid=1 hdr.ethernet.dst=02:00:00:00:00:01 -> bridge_ingress.forward(port=3)", "meta.vid=2 hdr.ethernet.dst=02:00:00:00:00:03 -> bridge_ingress.forward(port=4)")
	// The switch reads acknowledgements behind writes, from another stream.
	acks := func() (n int) {
		for _, m := range b.sent() {
			if m.GetDigestAck() != nil {
				n++
			}
		}
		return n
	}
	ctltest.Eventually(t, "three acknowledgements", func() bool { return acks() >= 3 })
	if n := acks(); n != 3 {
		t.Errorf("%d acknowledgements", n)
	}
	// The device restarts: it learns anew.
	b.f.Restart(1)
	ctltest.Eventually(t, "aligned again", func() bool { s := b.c.Status()[0]; return s.Aligned && s.Loads == 2 })
	ctltest.Eventually(t, "a digest is asked for", subscribed)
	b.tell(1, [3]uint64{m2, 1, 2})
	b.until("dmac", "meta.vid=1 hdr.ethernet.dst=02:00:00:00:00:02 -> bridge_ingress.forward(port=2)")
	for _, want := range []string{"learnt 02:00:00:00:00:01 in VLAN 1 at port 1", "moved 02:00:00:00:00:01 in VLAN 1 at port 3", "3 addresses are known: no more are learnt", "forgotten 02:00:00:00:00:02 in VLAN 1 at port 2"} {
		ctltest.Eventually(t, want, func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return strings.Contains(strings.Join(b.news, "\n"), want)
		})
	}
}

// A new controller takes over what the one before it learnt, where the tables agree.
func TestLearnerTakesOver(t *testing.T) {
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	d := intent(t, at, "l2_bridge", "").Devices[0]
	s := open(t, d)
	l := &Learner{Idle: time.Second}
	if err := l.Claim(d); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"{table: smac, match: {vid: 1, src: 1}, action: known, params: {port: 1}, idle_timeout: 1s}",
		"{table: dmac, match: {vid: 1, dst: 1}, action: forward, params: {port: 2}}", // another port
		"{table: smac, match: {vid: 1, src: 2}, action: known, params: {port: 2}}",   // without a time, and without the other
		"{table: dmac, match: {vid: 1, dst: 3}, action: forward, params: {port: 3}}", // without the other
	} {
		e, err := ctl.ParseEntity(d.Info, p4v1.Update_INSERT, text)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Write(within(t), 0, &p4v1.Update{Type: p4v1.Update_INSERT, Entity: e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Begin(within(t), s); err != nil {
		t.Fatal(err)
	}
	b := &appBed{t: t, f: f, d: d}
	b.until("smac", "meta.vid=1 hdr.ethernet.src=00:00:00:00:00:01 -> bridge_ingress.known(port=1)", "meta.vid=1 hdr.ethernet.src=00:00:00:00:00:02 -> bridge_ingress.known(port=2)")
	b.until("dmac", "meta.vid=1 hdr.ethernet.dst=00:00:00:00:00:01 -> bridge_ingress.forward(port=1)", "meta.vid=1 hdr.ethernet.dst=00:00:00:00:00:02 -> bridge_ingress.forward(port=2)")
	if len(l.at) != 2 {
		t.Errorf("knows %v", l.at)
	}
	for _, e := range f.Devices[1].Entities {
		if x := e.GetTableEntry(); x != nil && x.TableId == l.smac.ID && x.IdleTimeoutNs != 1e9 {
			t.Errorf("%s has no idle timeout", d.Info.Text(e))
		}
	}
}

// Somebody asked for the digest before, with hours for an acknowledgement, and left without one. A device tells a message again only when that
// time is over: the learner's counts from then on.
func TestLearnerAfterAnother(t *testing.T) {
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	in := intent(t, at, "l2_bridge", "")
	d := in.Devices[0]
	s := open(t, d)
	if err := s.Subscribe(within(t), d.Info.Digests, &p4v1.DigestEntry_Config{MaxListSize: 1, AckTimeoutNs: int64(5 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	wait := func() time.Duration {
		f.Lock()
		defer f.Unlock()
		e := p4info.Entity{Kind: p4info.KindDigest, Object: d.Info.Digests[0].ID}
		return time.Duration(f.Devices[1].Entities[e.Key()].GetDigestEntry().GetConfig().GetAckTimeoutNs())
	}
	keep(t, in, &Learner{Idle: time.Minute})
	ctltest.Eventually(t, "a second for an acknowledgement", func() bool { return wait() == time.Second })
}

func TestAppsClaimTheirTables(t *testing.T) {
	bridge := intent(t, "127.0.0.1:1", "l2_bridge", "    entries: [{table: dmac, match: {vid: 1, dst: 1}, action: refuse}]").Devices[0]
	if err := (&Learner{}).Claim(bridge); err == nil || !strings.Contains(err.Error(), "is written by what runs here") {
		t.Errorf("%v", err)
	}
	if err := (&Router{Config: &RouterConfig{}}).Claim(bridge); err == nil || !strings.Contains(err.Error(), "is no router") {
		t.Errorf("%v", err)
	}
	router := intent(t, "127.0.0.1:1", "ipv4_router", "").Devices[0]
	if err := (&Learner{}).Claim(router); err == nil || !strings.Contains(err.Error(), "does not learn") {
		t.Errorf("%v", err)
	}
	withMember := intent(t, "127.0.0.1:1", "ipv4_router", "    members: [{profile: ecmp_selector, member: 1, action: choose, params: {next_hop: 1}}]").Devices[0]
	if err := (&Router{Config: &RouterConfig{}}).Claim(withMember); err == nil || !strings.Contains(err.Error(), "member 1") {
		t.Errorf("%v", err)
	}
	if err := (&Router{Config: &RouterConfig{}}).Claim(router); err != nil || len(router.Leave) != 5 {
		t.Errorf("%v %d", err, len(router.Leave))
	}
}

const routesText = `s1:
  interfaces:
    - {port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}
    - {port: 2, mac: 02:00:00:00:01:02, address: 10.0.2.1/24}
  routes:
    - {prefix: 10.9.0.0/16, via: 10.0.2.2}
    - {prefix: 0.0.0.0/0, via: [10.0.2.2, 10.0.1.9]}
  neighbors:
    - {address: 10.0.1.9, mac: 02:00:00:00:09:09}
`

func TestRoutesFile(t *testing.T) {
	r, err := parseRoutes("r", []byte(routesText))
	if err != nil || len(r["s1"].Routes) != 2 || len(r["s1"].Routes[1].Via) != 2 || r["s1"].Interfaces[1].MAC.String() != "02:00:00:00:01:02" {
		t.Errorf("%+v %v", r["s1"], err)
	}
	for _, c := range []struct{ text, want string }{
		{"s1: {}", "r:1: router s1: interfaces are missing"},
		{"s1: {interfaces: [{port: 1, mac: 02:00:00:00:01:01}]}", "port, mac and address are wanted"},
		{"s1: {interfaces: [{port: 1, mac: 03:00:00:00:01:01, address: 10.0.1.1/24}]}", "MAC address of one station"},
		{"s1: {interfaces: [{port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1}]}", "IPv4 prefix"},
		{"s1:\n  interfaces: [{port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}, {port: 2, mac: 02:00:00:00:01:02, address: 10.0.1.2/24}]", "r:2: interface: 10.0.1.2/24 is in another"},
		{"s1:\n  interfaces: [{port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}]\n  routes: [{prefix: 10.0.0.1/8, via: 10.0.1.2}]", "r:3: route: 10.0.0.1/8 has bits behind"},
		{"s1:\n  interfaces: [{port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}]\n  routes: [{prefix: 10.0.0.0/8, via: 10.0.2.2}]", "10.0.2.2 is in no interface's network"},
		{"s1:\n  interfaces: [{port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}]\n  routes: [{prefix: 10.0.1.0/24, via: 10.0.1.2}]", "an interface's own"},
		{"s1:\n  interfaces: [{port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}]\n  routes: [{prefix: 10.0.0.0/8, via: x}]", "IPv4 address"},
		{"s1:\n  interfaces: [{port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}]\n  neighbors: [{address: 10.0.2.2, mac: 02:00:00:00:01:01}]", "neighbor 10.0.2.2 is in no"},
		{"s1:\n  interfaces: [{port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}]\n  routes: [{prefix: 10.0.0.0/8}]", "prefix and via"},
		{"[]", "want a map"},
	} {
		if _, err := parseRoutes("r", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

// packetIn has the device send a frame to the controller.
func (b *appBed) packetIn(port, reason byte, frame []byte) {
	b.f.Tell(1, &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Packet{Packet: &p4v1.PacketIn{Payload: frame, Metadata: []*p4v1.PacketMetadata{
		{MetadataId: 1, Value: []byte{port}}, {MetadataId: 2, Value: []byte{0}}, {MetadataId: 3, Value: []byte{reason}},
	}}}})
}

// packetOut waits for the nth frame that the controller sent.
func (b *appBed) packetOut(n int) (port byte, frame []byte) {
	b.t.Helper()
	ctltest.Eventually(b.t, fmt.Sprintf("%d frames of the controller", n+1), func() bool {
		i := 0
		for _, m := range b.sent() {
			if p := m.GetPacket(); p != nil {
				if i == n {
					port, frame = p.Metadata[0].Value[0], p.Payload
				}
				i++
			}
		}
		return i > n
	})
	return port, frame
}

// ipFrame is an IPv4 frame with a payload.
func ipFrame(dst, src MAC, ttl, protocol byte, from, to string, payload []byte) []byte {
	f := append(append(append([]byte{}, dst[:]...), src[:]...), 8, 0, 0x45, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(20+len(payload)))
	f = append(f, 0, 0, 0, 0, ttl, protocol, 0, 0)
	f = append(f, netip.MustParseAddr(from).AsSlice()...)
	f = append(f, netip.MustParseAddr(to).AsSlice()...)
	hdr.IPv4(f[14:34]).UpdateChecksum()
	return append(f, payload...)
}

func TestRouter(t *testing.T) {
	routes, err := parseRoutes("r", []byte(routesText))
	if err != nil {
		t.Fatal(err)
	}
	b := newAppBed(t, "ipv4_router", "", func(report func(string)) ctl.App { return &Router{Config: routes["s1"], Report: report} })
	mac := func(n byte) MAC { return MAC{2, 0, 0, 0, 0, n} }
	r1, r2 := MAC{2, 0, 0, 0, 1, 1}, MAC{2, 0, 0, 0, 1, 2}
	base := []string{
		"hdr.ipv4.dst=10.0.1.0/24 -> router_ingress.punt()", "hdr.ipv4.dst=10.0.2.0/24 -> router_ingress.punt()",
		"hdr.ipv4.dst=10.0.1.1/32 -> router_ingress.punt()", "hdr.ipv4.dst=10.0.2.1/32 -> router_ingress.punt()",
		"hdr.ipv4.dst=10.0.1.9/32 -> router_ingress.set_next_hop(next_hop=1)",
	}
	b.until("ipv4_lpm", append(slices.Clone(base), "hdr.ipv4.dst=10.9.0.0/16 -> router_ingress.punt()", "* -> router_ingress.set_next_hop(next_hop=1)")...)
	b.until("next_hop", "meta.next_hop=1 -> router_ingress.forward(dst=02:00:00:00:09:09, src=02:00:00:00:01:01, port=1)")
	b.until("router_mac", "standard_metadata.ingress_port=1 hdr.ethernet.dst=02:00:00:00:01:01 -> NoAction()", "standard_metadata.ingress_port=2 hdr.ethernet.dst=02:00:00:00:01:02 -> NoAction()")
	b.until("port_mac", "standard_metadata.egress_port=1 -> router_egress.set_source(src=02:00:00:00:01:01)", "standard_metadata.egress_port=2 -> router_egress.set_source(src=02:00:00:00:01:02)")

	// It asks for the route's neighbour.
	addr := netip.MustParseAddr
	all := MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	want := arpFrame(1, r2, addr("10.0.2.1"), MAC{}, addr("10.0.2.2"))
	copy(want, all[:])
	if port, f := b.packetOut(0); port != 2 || hex.EncodeToString(f) != hex.EncodeToString(want) {
		t.Errorf("port %d: %x, want %x", port, f, want)
	}
	// Frames for it come, and wait; then it answers.
	payload := []byte("hello, world")
	data := ipFrame(r1, mac(1), 9, 17, "10.0.1.5", "10.9.1.1", payload)
	b.packetIn(1, reasonToCPU, data)
	b.packetIn(2, 3, arpFrame(2, mac(2), addr("10.0.2.2"), r2, addr("10.0.2.1")))
	if port, f := b.packetOut(1); port != 2 || hex.EncodeToString(f) != hex.EncodeToString(ipFrame(mac(2), r2, 8, 17, "10.0.1.5", "10.9.1.1", payload)) {
		t.Errorf("port %d: %x", port, f)
	}
	b.until("ipv4_lpm", append(slices.Clone(base), "hdr.ipv4.dst=10.0.2.2/32 -> router_ingress.set_next_hop(next_hop=2)",
		"hdr.ipv4.dst=10.9.0.0/16 -> router_ingress.set_next_hop(next_hop=2)", "* -> router_ingress.set_group()")...)
	b.until("ecmp", "* -> {router_ingress.choose(next_hop=2), router_ingress.choose(next_hop=1)}")
	// Asked for its address, it answers, and knows who asked.
	b.packetIn(1, 3, arpFrame(1, mac(5), addr("10.0.1.5"), MAC{}, addr("10.0.1.1")))
	if port, f := b.packetOut(2); port != 1 || hex.EncodeToString(f) != hex.EncodeToString(arpFrame(2, r1, addr("10.0.1.1"), mac(5), addr("10.0.1.5"))) {
		t.Errorf("port %d: %x", port, f)
	}
	b.until("next_hop", "meta.next_hop=1 -> router_ingress.forward(dst=02:00:00:00:09:09, src=02:00:00:00:01:01, port=1)",
		"meta.next_hop=2 -> router_ingress.forward(dst=02:00:00:00:00:02, src=02:00:00:00:01:02, port=2)",
		"meta.next_hop=3 -> router_ingress.forward(dst=02:00:00:00:00:05, src=02:00:00:00:01:01, port=1)")
	// Pinged.
	echo := func(kind byte, data string) []byte {
		m := append([]byte{kind, 0, 0, 0, 0, 1, 0, 2}, data...)
		binary.BigEndian.PutUint16(m[2:], hdr.Checksum(m, 0))
		return m
	}
	b.packetIn(1, reasonToCPU, ipFrame(r1, mac(5), 64, 1, "10.0.1.5", "10.0.2.1", echo(8, "abc")))
	if port, f := b.packetOut(3); port != 1 || hex.EncodeToString(f) != hex.EncodeToString(ipFrame(mac(5), r1, 64, 1, "10.0.2.1", "10.0.1.5", echo(0, "abc"))) {
		t.Errorf("port %d: %x", port, f)
	}
	// Too many hops: the sender is told, with the beginning of its packet.
	data = ipFrame(r1, mac(5), 1, 17, "10.0.1.5", "10.9.1.1", payload)
	b.packetIn(1, reasonNoTTL, data)
	exceeded := append([]byte{11, 0, 0, 0, 0, 0, 0, 0}, data[14:14+28]...)
	binary.BigEndian.PutUint16(exceeded[2:], hdr.Checksum(exceeded, 0))
	if port, f := b.packetOut(4); port != 1 || hex.EncodeToString(f) != hex.EncodeToString(ipFrame(mac(5), r1, 64, 1, "10.0.1.1", "10.0.1.5", exceeded)) {
		t.Errorf("port %d: %x", port, f)
	}
	// It moves to another address. Lies about other networks are not believed.
	b.packetIn(2, 3, arpFrame(1, mac(7), addr("10.0.1.5"), MAC{}, addr("10.0.1.1")))
	b.packetIn(1, 3, arpFrame(1, mac(6), addr("10.0.1.5"), MAC{}, addr("10.0.1.1")))
	b.until("next_hop", "meta.next_hop=1 -> router_ingress.forward(dst=02:00:00:00:09:09, src=02:00:00:00:01:01, port=1)",
		"meta.next_hop=2 -> router_ingress.forward(dst=02:00:00:00:00:02, src=02:00:00:00:01:02, port=2)",
		"meta.next_hop=3 -> router_ingress.forward(dst=02:00:00:00:00:06, src=02:00:00:00:01:01, port=1)")
	b.mu.Lock()
	if said := fmt.Sprint(b.news); strings.Contains(said, "00:07") || !strings.Contains(said, "10.0.1.5 is at 02:00:00:00:00:06, port 1") {
		t.Error(said)
	}
	b.mu.Unlock()
	// Nonsense does no harm.
	for n := range 40 {
		b.packetIn(1, reasonToCPU, data[:n])
		b.packetIn(1, 3, arpFrame(1, mac(5), addr("10.0.1.5"), MAC{}, addr("10.0.1.1"))[:n])
	}
	// Another controller of this device finds the neighbours.
	second := &Router{Config: routes["s1"]}
	if err := second.Claim(b.d); err != nil {
		t.Fatal(err)
	}
	s := open(t, b.d)
	b.f.Lock()
	before := map[string]*p4v1.Entity{}
	for k, e := range b.f.Devices[1].Entities {
		before[k] = proto.Clone(e).(*p4v1.Entity)
	}
	b.f.Unlock()
	if err := second.Begin(within(t), s); err != nil {
		t.Fatal(err)
	}
	b.f.Lock()
	defer b.f.Unlock()
	if len(before) != len(b.f.Devices[1].Entities) {
		t.Errorf("%d entities, before %d", len(b.f.Devices[1].Entities), len(before))
	}
	for k, e := range b.f.Devices[1].Entities {
		if !proto.Equal(e, before[k]) {
			t.Errorf("%s was %s", b.d.Info.Text(e), b.d.Info.Text(before[k]))
		}
	}
}

// A neighbour that does not answer any more is given up, and its route looks for it
// now and then.
func TestRouterGivesUp(t *testing.T) {
	routes, err := parseRoutes("r", []byte(routesText))
	if err != nil {
		t.Fatal(err)
	}
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	d := intent(t, at, "ipv4_router", "").Devices[0]
	s := open(t, d)
	r := &Router{Config: routes["s1"]}
	if err := r.Claim(d); err != nil {
		t.Fatal(err)
	}
	if err := r.Begin(within(t), s); err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	arp := func(a string, m byte) {
		i := r.Config.interfaceOf(addr(a))
		r.arp(s, i.Port, arpFrame(1, MAC{2, 0, 0, 0, 0, m}, addr(a), MAC{}, i.Address.Addr()))
		if err := r.update(within(t), s); err != nil {
			t.Fatal(err)
		}
	}
	arp("10.0.2.2", 2)
	arp("10.0.1.5", 5)
	b := &appBed{t: t, f: f, d: d}
	if n := len(b.texts("next_hop")); n != 3 {
		t.Fatalf("%d next hops", n)
	}
	for range reachable + requests + 1 {
		if err := r.Tick(within(t), s); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.texts("next_hop"); len(got) != 1 || !strings.Contains(got[0], "02:00:00:00:09:09") {
		t.Errorf("%q", got)
	}
	if r.neighbors[addr("10.0.1.5")] != nil || r.neighbors[addr("10.0.2.2")] == nil {
		t.Errorf("neighbors %v", r.neighbors)
	}
	arp("10.0.2.2", 3)
	if n := len(b.texts("next_hop")); n != 2 {
		t.Errorf("%d next hops", n)
	}
}

// FuzzRouterFrames: no frame harms the router.
func FuzzRouterFrames(f *testing.F) {
	routes, err := parseRoutes("r", []byte(routesText))
	if err != nil {
		f.Fatal(err)
	}
	d := intent(f, "127.0.0.1:1", "ipv4_router", "").Devices[0]
	addr := netip.MustParseAddr
	f.Add(byte(1), byte(3), arpFrame(1, MAC{2, 0, 0, 0, 0, 5}, addr("10.0.1.5"), MAC{}, addr("10.0.1.1")))
	f.Add(byte(1), byte(5), ipFrame(MAC{2}, MAC{4}, 64, 1, "10.0.1.5", "10.0.2.1", []byte{8, 0, 0, 0, 0, 0, 0, 0}))
	f.Add(byte(1), byte(4), ipFrame(MAC{2}, MAC{4}, 1, 17, "10.0.1.5", "10.9.0.1", []byte{1, 2, 3, 4}))
	f.Add(byte(2), byte(5), ipFrame(MAC{2}, MAC{4}, 1, 17, "10.0.2.5", "10.0.1.9", []byte{1, 2, 3, 4}))
	f.Fuzz(func(t *testing.T, port, reason byte, frame []byte) {
		r := &Router{Config: routes["s1"]}
		if err := r.Claim(d); err != nil {
			t.Fatal(err)
		}
		r.have, r.neighbors, r.budget = map[string]*p4v1.Entity{}, map[netip.Addr]*neighbor{}, 1
		r.neighbors[addr("10.0.1.9")] = &neighbor{mac: MAC{2}, known: true, id: 1}
		s := &ctl.Session{}
		if len(frame) >= 14 {
			r.arp(s, uint32(port), slices.Clone(frame))
			r.ipv4(s, uint32(port), uint32(reason), slices.Clone(frame))
			r.arp(s, uint32(port), slices.Clone(frame))
		}
		if _, err := r.entities(); err != nil {
			t.Fatal(err)
		}
	})
}

// The learning bridge and the router begin and end well on quillon's own server.
func TestAppsOnServer(t *testing.T) {
	at := ctltest.Engine(t)
	routes, err := parseRoutes("r", []byte(routesText))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		program string
		app     func() ctl.App
	}{
		{"l2_bridge", func() ctl.App { return &Learner{Idle: time.Second} }},
		{"ipv4_router", func() ctl.App { return &Router{Config: routes["s1"]} }},
	} {
		t.Run(x.program, func(t *testing.T) {
			in := intent(t, at, x.program, "")
			d := in.Devices[0]
			c := keep(t, in, x.app())
			s, err := ctl.Open(&ctl.Dialer{}, d.Target, ctl.Options{Clock: clock.NewWall(), Observe: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Ready(within(t)); err != nil {
				t.Fatal(err)
			}
			want := map[string]int{"l2_bridge": 1, "ipv4_router": 12}[x.program] // a digest; entries and a next hop
			ctltest.Eventually(t, "what the app wants", func() bool {
				n := 0
				diff := func() error {
					_, err := s.Scan(within(t), d.Info, ctl.Scope{All: true}, func(e *p4v1.Entity) error {
						if x := e.GetTableEntry(); x == nil || !x.IsDefaultAction {
							n++
						}
						return nil
					})
					return err
				}
				return diff() == nil && n == want
			})
			if st := c.Status(); st[0].Problem != "" {
				t.Errorf("%+v", st)
			}
		})
	}
}
