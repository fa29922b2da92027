package p4

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4/stf"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port/afpacket"
	"github.com/quillon/quillon/p4src"
)

// The switches that the controller is tried on, each a process in a namespace with
// veth pairs for its ports: bmv2's, where it is on the PATH, and quillon's own.
const (
	bmv2    = "simple_switch_grpc"
	quillon = "quillon"
)

// lastPort is the highest port that a test's files use; the CPU port is bmv2's way.
const (
	lastPort = 5
	cpuPort  = 510
)

// bench is a switch with its wires, and a controller's session to it.
type bench struct {
	t       *testing.T
	dir     string
	space   *topo.Space
	args    []string
	process *exec.Cmd
	said    bytes.Buffer // what the process says
	address string
	ctx     context.Context
	dialer  *ctl.Dialer
	session *ctl.Session
	info    *p4info.Info

	ports map[uint32]*afpacket.Port
	send  map[uint32]chan []byte
	stop  chan struct{}
	reads sync.WaitGroup

	kernels int64 // packets that the kernel did not carry

	mu      sync.Mutex
	came    map[uint32][][]byte // by port, the CPU port's with the packet_in header
	arrived chan struct{}
}

// switchProgram finds or makes the program of a switch.
func switchProgram(t *testing.T, kind string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces, veth, packet sockets")
	}
	if kind == bmv2 {
		path, err := exec.LookPath(bmv2)
		if err != nil {
			t.Skipf("%s is not on the PATH: the controller is not tried on it", bmv2)
		}
		return path
	}
	name := filepath.Join(t.TempDir(), quillon)
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2", "-ldflags=-s -w", "-o", name, "github.com/quillon/quillon/cmd/quillon")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s%v", out, err)
	}
	return name
}

// newBench starts a switch.
func newBench(t *testing.T, kind, path string) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), address: "127.0.0.1:9559", ports: map[uint32]*afpacket.Port{}, stop: make(chan struct{}),
		came: map[uint32][][]byte{}, arrived: make(chan struct{}, 1), send: map[uint32]chan []byte{}}
	var args []string
	switch kind {
	case bmv2:
		args = []string{path, "--no-p4", "--device-id", "1"}
		for n := 1; n <= lastPort; n++ {
			args = append(args, "-i", fmt.Sprintf("%d@p%d", n, n))
		}
		args = append(args, "--", "--grpc-server-addr", b.address, "--cpu-port", fmt.Sprint(cpuPort))
	case quillon:
		args = []string{path, "run", b.spec(), "--p4runtime", b.address, "--insecure", "--control", b.dir + "/sock"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	b.ctx = ctx
	space, err := topo.NewSpace(false)
	if err != nil {
		t.Fatal(err)
	}
	b.space = space
	t.Cleanup(space.Close)
	for n := uint32(1); n <= lastPort; n++ {
		b.wire(n)
	}
	b.args = args
	b.start()
	t.Cleanup(func() {
		b.kill()
		if t.Failed() {
			text := b.said.String()
			t.Logf("%s:\n%s", args[0], text[max(0, len(text)-4000):])
		}
	})
	b.dialer = &ctl.Dialer{Transport: ctl.Transport{Dial: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = space.Do(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}}}
	b.session, err = ctl.Open(b.dialer, ctl.Target{Name: kind, Address: b.address, DeviceID: 1}, b.options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.session.Close)
	soon, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	if err := b.session.Await(soon); err != nil {
		t.Fatal(err, b.session.Status().Err)
	}
	return b
}

func (b *bench) options() ctl.Options {
	return ctl.Options{Clock: clock.NewWall(), Backoff: ctl.Backoff{First: 50 * time.Millisecond, Most: 200 * time.Millisecond}, Event: b.event}
}

// spec is a graph of one switch without a program.
func (b *bench) spec() string {
	var ports, links strings.Builder
	for n := 1; n <= lastPort; n++ {
		fmt.Fprintf(&ports, "  p%d: {kind: afpacket, args: {dev: p%d}}\n", n, n)
		fmt.Fprintf(&links, "  - p%d.out -> sw.%d\n  - sw.%d -> p%d.in\n", n, n, n, n)
	}
	name := filepath.Join(b.dir, "switch.yaml")
	text := "ports:\n" + ports.String() + "apps:\n  sw: {kind: p4}\nlinks:\n" + links.String()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
	return name
}

// wire makes a veth pair; its one end is the switch's, the other the test's.
func (b *bench) wire(n uint32) {
	b.t.Helper()
	err := b.space.Do(func() error {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
		if lo, err := netlink.LinkByName("lo"); err == nil {
			_ = netlink.LinkSetUp(lo)
		}
		la := netlink.NewLinkAttrs()
		la.Name = fmt.Sprintf("p%d", n)
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: fmt.Sprintf("v%d", n)}); err != nil {
			return err
		}
		for _, name := range []string{la.Name, fmt.Sprintf("v%d", n)} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		// Until the kernel has seen both ends up it drops what is sent.
		for _, name := range []string{la.Name, fmt.Sprintf("v%d", n)} {
			for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
				if l, err := netlink.LinkByName(name); err != nil {
					return err
				} else if l.Attrs().OperState == netlink.OperUp {
					break
				} else if time.Now().After(deadline) {
					return fmt.Errorf("%s does not come up", name)
				}
			}
		}
		p, err := afpacket.Open(afpacket.Config{Interface: fmt.Sprintf("v%d", n)})
		b.ports[n] = p
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	port, send := b.ports[n], make(chan []byte, 16)
	b.send[n] = send
	b.reads.Go(func() { b.serve(n, port, send) }) // not by the maps: more ports come meanwhile
	b.t.Cleanup(func() {
		if n == 1 {
			close(b.stop)
			b.reads.Wait()
			for _, p := range b.ports {
				if err := b.space.Do(p.Close); err != nil {
					b.t.Error(err)
				}
			}
		}
	})
}

// serve sends and receives at a port until the end: one goroutine has it.
func (b *bench) serve(n uint32, p *afpacket.Port, send <-chan []byte) {
	var in, out packet.Batch
	for {
		select {
		case <-b.stop:
			return
		case frame := <-send:
			x := p.Pool().Get()
			if x == nil || !x.SetBytes(frame) {
				b.t.Errorf("port %d: no buffer for a frame", n)
				return
			}
			out.Add(x)
		default:
		}
		if out.Len() > 0 { // what Tx does not take now it takes later
			if _, err := p.Tx(&out); err != nil {
				b.t.Errorf("port %d: %v", n, err)
				return
			}
		}
		if err := p.Wait(b.ctx, 2*time.Millisecond); err != nil {
			return
		}
		if _, err := p.Rx(&in); err != nil {
			return
		}
		for _, x := range in.Bufs() {
			b.keep(n, bytes.Clone(x.Bytes()))
		}
		in.PutAll()
	}
}

func (b *bench) keep(n uint32, frame []byte) {
	b.mu.Lock()
	b.came[n] = append(b.came[n], frame)
	b.mu.Unlock()
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

// event keeps packets to the controller as the files expect them: with the header.
func (b *bench) event(m *p4v1.StreamMessageResponse) {
	p := m.GetPacket()
	if p == nil || b.info == nil {
		return
	}
	list, err := b.info.PacketIn.Metadata(p.Metadata)
	if err != nil {
		b.t.Errorf("packet-in: %v", err)
		return
	}
	b.keep(cpuPort, append(b.info.PacketIn.Pack(nil, list), p.Payload...))
}

// start runs the switch's process.
func (b *bench) start() {
	b.t.Helper()
	cmd := exec.Command(b.args[0], b.args[1:]...)
	cmd.Dir = b.dir
	cmd.Stdout, cmd.Stderr = &b.said, &b.said
	if err := b.space.Do(cmd.Start); err != nil {
		b.t.Fatal(err)
	}
	b.process = cmd
}

// kill ends it.
func (b *bench) kill() {
	_ = b.process.Process.Kill()
	_ = b.process.Wait()
}

// files writes a program's P4Info and JSON into the bench's folder.
func (b *bench) files(name string) {
	b.t.Helper()
	for _, ext := range []string{".p4info.txtpb", ".json"} {
		text, err := p4src.Files.ReadFile(name + ext)
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.dir, name+ext), text, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}

// load gives the switch a program.
func (b *bench) load(name string) {
	b.t.Helper()
	b.files(name)
	m, err := ctl.ReadP4Info(filepath.Join(b.dir, name+".p4info.txtpb"))
	if err != nil {
		b.t.Fatal(err)
	}
	if b.info, err = p4info.New(m); err != nil {
		b.t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(b.dir, name+".json"))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.session.Load(b.ctx, ctl.NewPipeline(m, config)); err != nil {
		b.t.Fatal(err)
	}
}

// intent is a device with the program and some lists of an intent.
func (b *bench) intent(name, lists string) *ctl.Device {
	b.t.Helper()
	file := filepath.Join(b.dir, "intent.yaml")
	text := fmt.Sprintf("devices:\n  sw:\n    address: %s\n    p4info: %s.p4info.txtpb\n    config: %s.json\n%s", b.address, name, name, lists)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
	in, err := ctl.ReadIntent(file)
	if err != nil {
		b.t.Fatal(err)
	}
	return in.Devices[0]
}

// write makes one update of an entity as intents have it.
func (b *bench) write(op p4v1.Update_Type, text string) {
	b.t.Helper()
	e, err := ctl.ParseEntity(b.info, op, text)
	if err != nil {
		b.t.Fatalf("%s: %v", text, err)
	}
	if err := b.session.Write(b.ctx, p4v1.WriteRequest_CONTINUE_ON_ERROR, &p4v1.Update{Type: op, Entity: e}); err != nil {
		b.t.Fatalf("%s: %v", text, err)
	}
}

// counts are all cells of a counter.
func (b *bench) counts(names ...string) (packets, size int64) {
	b.t.Helper()
	ask, err := ctl.Queries(b.info, names...)
	if err != nil {
		b.t.Fatal(err)
	}
	_, err = b.session.Ask(b.ctx, b.info, ask, true, func(e *p4v1.Entity) error {
		packets += e.GetCounterEntry().GetData().GetPacketCount()
		size += e.GetCounterEntry().GetData().GetByteCount()
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return packets, size
}

// inject sends a frame into a port, the controller's into the CPU port.
func (b *bench) inject(n uint32, frame []byte) {
	b.t.Helper()
	if n == cpuPort {
		meta, payload, err := b.info.PacketOut.Unpack(frame)
		if err != nil {
			b.t.Fatal(err)
		}
		err = b.session.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{Payload: payload, Metadata: meta}}})
		if err != nil {
			b.t.Fatal(err)
		}
		return
	}
	if b.send[n] == nil {
		b.t.Fatalf("no wire at port %d", n)
	}
	b.send[n] <- frame
}

// until waits until ok, which is tried after each frame and every 5 ms.
func (b *bench) until(what string, ok func() bool) bool {
	b.t.Helper()
	limit := time.After(60 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-b.arrived:
		case <-tick.C:
		case <-limit:
			b.t.Errorf("never came: %s", what)
			return false
		}
	}
	return true
}

func (b *bench) got(n uint32) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.came[n])
}

// entryText is an STF entry as intents have it; the keys of exact fields that the
// file leaves out are 0.
func (b *bench) entryText(s *stf.Statement) string {
	t, err := p4info.ByName(b.info.Tables, "table", s.Name)
	if err != nil {
		b.t.Fatal(err)
	}
	var match, params [][2]string
	named := map[string]bool{}
	for _, f := range s.Key {
		v := "0x" + f.Value.Value.Text(16)
		switch {
		case f.Value.Prefix >= 0:
			v += fmt.Sprintf("/%d", f.Value.Prefix)
		case f.Value.With != nil:
			v += "&&&0x" + f.Value.With.Text(16)
		case f.Value.High != nil:
			v += "..0x" + f.Value.High.Text(16)
		}
		i := slices.IndexFunc(t.Fields, func(x p4info.Field) bool {
			return x.Name == f.Name || x.Name == f.Name+".$valid$"
		})
		if i < 0 {
			b.t.Fatalf("table %s has no field %s", t.Name, f.Name)
		}
		match = append(match, [2]string{t.Fields[i].Name, v})
		named[t.Fields[i].Name] = true
	}
	for _, f := range t.Fields {
		if !named[f.Name] && p4info.MatchName(f.Match) == "exact" {
			match = append(match, [2]string{f.Name, "0"})
		}
	}
	for _, a := range s.Args {
		params = append(params, [2]string{a.Name, "0x" + a.Value.Text(16)})
	}
	priority := 0
	if t.Priority {
		priority = max(1, int(s.Priority))
	}
	return ctl.EntryText(t.Name, match, priority, false, s.Action, params)
}

// runSTF runs a file: the statements by P4Runtime, the packets on the wires.
func (b *bench) runSTF(file string) {
	t := b.t
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	statements, err := stf.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	b.came = map[uint32][][]byte{}
	b.kernels = 0
	b.mu.Unlock()
	type expected struct {
		line int
		s    *stf.Statement
	}
	want := map[uint32][]expected{}
	labels := map[string]string{} // entries by their names
	nodes := map[string][2]string{}
	for i := range statements {
		s := &statements[i]
		where := fmt.Sprintf("%s:%d", file, s.Line)
		switch s.Op {
		case stf.Add:
			text := b.entryText(s)
			b.write(p4v1.Update_INSERT, text)
			if s.Label != "" {
				labels[s.Label] = text
			}
		case stf.SetDefault:
			var params [][2]string
			for _, a := range s.Args {
				params = append(params, [2]string{a.Name, "0x" + a.Value.Text(16)})
			}
			b.write(p4v1.Update_MODIFY, ctl.EntryText(s.Name, nil, 0, true, s.Action, params))
		case stf.RemoveAll:
			b.removeAll()
		case stf.Command:
			n := func(i int) string { return s.Numbers[i].String() }
			switch s.Command {
			case "mc_mgrp_create":
			case "mc_node_create":
				ports := make([]string, 0, len(s.Numbers)-1)
				for _, p := range s.Numbers[1:] {
					ports = append(ports, fmt.Sprintf("{port: %s, instance: %s}", p, n(0)))
				}
				nodes[fmt.Sprint(len(nodes))] = [2]string{n(0), strings.Join(ports, ", ")}
			case "mc_node_associate":
				b.write(p4v1.Update_INSERT, fmt.Sprintf("{group: %s, ports: [%s]}", n(0), nodes[n(1)][1]))
			case "mirroring_add":
				b.write(p4v1.Update_INSERT, fmt.Sprintf("{session: %s, ports: [%s]}", n(0), n(1)))
			case "meter_set_rates":
				b.write(p4v1.Update_MODIFY, fmt.Sprintf("{meter: %s, index: %s, cir: %d, cburst: %d, pir: %d, pburst: %d}", s.Name, n(0),
					int64(s.Rates[0].PerMicrosecond*1e6), s.Rates[0].Burst, int64(s.Rates[1].PerMicrosecond*1e6), s.Rates[1].Burst))
			default:
				t.Fatalf("%s: %s has no way in P4Runtime", where, s.Command)
			}
		case stf.Packet:
			frame, err := hex.DecodeString(s.Data)
			if err != nil {
				t.Fatal(err)
			}
			if len(frame) < 18 && len(frame) >= 14 && frame[12] == 0x81 && frame[13] == 0 {
				b.kernels++
				t.Logf("%s: the kernel does not carry a VLAN tag that ends early: left out", where)
				continue
			}
			before, _ := b.counts("verdicts")
			b.inject(s.Port, frame)
			if !b.until(where+": the packet in the counter verdicts", func() bool { n, _ := b.counts("verdicts"); return n > before }) {
				return
			}
		case stf.Expect:
			want[s.Port] = append(want[s.Port], expected{s.Line, s})
			if !b.until(where+": a frame at its port", func() bool { return b.got(s.Port) >= len(want[s.Port]) }) {
				return
			}
		case stf.NoPacket: // an unexpected frame is found at the end
		case stf.Wait: // a meter fills up again, in this switch's own time
			over := time.After(time.Second)
			<-over
		case stf.CheckCounter:
			b.checkCounter(where, s, labels)
		case stf.CheckRegister:
			b.checkRegister(where, s)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, frames := range b.came {
		for i, frame := range frames {
			text := hex.EncodeToString(frame)
			if i >= len(want[n]) {
				t.Errorf("%s: a frame at port %d that nothing expects: %s", file, n, text)
				continue
			}
			w := want[n][i].s
			if !fits(text, strings.ToLower(w.Data), w.Exact) {
				t.Errorf("%s:%d: port %d:\n got %s\nwant %s", file, w.Line, n, text, w.Data)
			}
		}
	}
}

// fits compares digits; * in want is any.
func fits(got, want string, exact bool) bool {
	if len(got) < len(want) || exact && len(got) != len(want) {
		return false
	}
	for i := range want {
		if want[i] != '*' && want[i] != got[i] {
			return false
		}
	}
	return true
}

func compare(a int64, cond string, b int64) bool {
	switch cond {
	case "==":
		return a == b
	case "!=":
		return a != b
	case "<":
		return a < b
	case "<=":
		return a <= b
	case ">":
		return a > b
	}
	return a >= b
}

// checkCounter waits for a counter, as frames may still be under way.
func (b *bench) checkCounter(where string, s *stf.Statement, labels map[string]string) {
	b.t.Helper()
	var packets, size int64
	read := func() {
		if s.Check.Entry == "" {
			packets, size = b.counts(s.Name, fmt.Sprint(s.Check.Index))
			return
		}
		e, err := ctl.ParseEntity(b.info, p4v1.Update_INSERT, labels[s.Check.Entry])
		if err != nil {
			b.t.Fatal(err)
		}
		x := e.GetTableEntry()
		x.Action = nil
		err = b.session.Read(b.ctx, func(e *p4v1.Entity) error {
			packets, size = e.GetDirectCounterEntry().GetData().GetPacketCount(), e.GetDirectCounterEntry().GetData().GetByteCount()
			return nil
		}, &p4v1.Entity{Entity: &p4v1.Entity_DirectCounterEntry{DirectCounterEntry: &p4v1.DirectCounterEntry{TableEntry: x}}})
		if err != nil {
			b.t.Fatal(err)
		}
	}
	limit := time.Now().Add(20 * time.Second)
	for {
		read()
		v := packets
		if s.Check.Bytes {
			v = size
		}
		if v += b.kernels; compare(v, s.Check.Cond, s.Check.Value.Int64()) {
			return
		}
		if v -= b.kernels; compare(v, s.Check.Cond, s.Check.Value.Int64()) {
			return
		}
		if time.Now().After(limit) {
			b.t.Errorf("%s: counter %s is %d packets, %d bytes", where, s.Name, packets, size)
			return
		}
	}
}

func (b *bench) checkRegister(where string, s *stf.Statement) {
	b.t.Helper()
	ask, err := ctl.Queries(b.info, s.Name, fmt.Sprint(s.Check.Index))
	if err != nil {
		b.t.Fatal(err)
	}
	var got string
	unread, err := b.session.Ask(b.ctx, b.info, ask, true, func(e *p4v1.Entity) error {
		got = hex.EncodeToString(e.GetRegisterEntry().GetData().GetBitstring())
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if len(unread) > 0 {
		b.t.Logf("%s: the switch does not show registers: not checked", where)
		return
	}
	want := strings.TrimLeft(s.Check.Value.Text(16), "0")
	if (strings.TrimLeft(got, "0") == want) != (s.Check.Cond == "==") {
		b.t.Errorf("%s: register %s is 0x%s", where, s.Name, got)
	}
}

// removeAll deletes all entries of tables.
func (b *bench) removeAll() {
	b.t.Helper()
	ask, err := ctl.Queries(b.info, "entries")
	if err != nil {
		b.t.Fatal(err)
	}
	var gone []*p4v1.Update
	_, err = b.session.Ask(b.ctx, b.info, ask, false, func(e *p4v1.Entity) error {
		if t := e.GetTableEntry(); !t.IsDefaultAction {
			gone = append(gone, &p4v1.Update{Type: p4v1.Update_DELETE, Entity: e})
		}
		return nil
	})
	if err == nil && len(gone) > 0 {
		err = b.session.Write(b.ctx, p4v1.WriteRequest_CONTINUE_ON_ERROR, gone...)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// TestOnSwitches tries the controller on real switches: every program of p4src with
// its tests by P4Runtime and on wires, dumps, the learning bridge and the router.
func TestOnSwitches(t *testing.T) {
	for _, kind := range []string{bmv2, quillon} {
		t.Run(kind, func(t *testing.T) {
			path := switchProgram(t, kind)
			t.Run("programs", func(t *testing.T) { tryPrograms(t, newBench(t, kind, path)) })
			t.Run("bridge", func(t *testing.T) { tryLearning(t, newBench(t, kind, path)) })
			t.Run("router", func(t *testing.T) { tryRouting(t, newBench(t, kind, path)) })
			t.Run("restart", func(t *testing.T) { tryRestart(t, newBench(t, kind, path)) })
		})
	}
}

// tryPrograms runs the files of all programs, one after the other on one switch.
func tryPrograms(t *testing.T, b *bench) {
	for _, name := range p4src.Programs() {
		files, err := filepath.Glob(name + "/*.stf")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has %d tests, %v", name, len(files), err)
		}
		for _, file := range files {
			t.Run(file, func(t *testing.T) {
				defer func(old *testing.T) { b.t = old }(b.t)
				b.t = t
				b.load(name)
				b.runSTF(file)
				if file == files[0] && len(b.info.Registers) == 0 { // a million cells take their time
					b.dumpAndRestore(name)
				}
			})
		}
	}
}

// dumpAndRestore saves what the switch holds, empties it, and restores it: the same
// is there again.
func (b *bench) dumpAndRestore(name string) {
	t := b.t
	t.Helper()
	file := filepath.Join(b.dir, "dump.yaml")
	if _, err := b.session.Save(b.ctx, file, filepath.Join(b.dir, "dump.p4info.txtpb"), filepath.Join(b.dir, "dump.json")); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	in, err := ctl.ReadIntent(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, first)
	}
	d := in.Devices[0]
	b.load(name)
	for n := range 2 {
		diff, err := b.session.Compare(b.ctx, d, ctl.CompareValues)
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 && len(diff.Changes) > 0 {
			for _, c := range diff.Changes {
				t.Log(c.Text(b.info))
			}
			t.Errorf("%d changes are left after a restore of\n%s", len(diff.Changes), first)
		}
		o, err := b.session.Apply(b.ctx, diff, ctl.Limits{Updates: 7})
		if err != nil || o.Err() != nil {
			t.Fatal(errors.Join(err, o.Err()))
		}
	}
	if _, err := b.session.Save(b.ctx, file, filepath.Join(b.dir, "dump.p4info.txtpb"), filepath.Join(b.dir, "dump.json")); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(file); err != nil || !bytes.Equal(first, again) {
		t.Errorf("%v: restored:\n%s\nof\n%s", err, again, first)
	}
}
