package xdp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/p4"
)

// star is interfaces on veth in a namespace of the test's thread: the near ends are a program's ports, from 1 on, and the test sends and receives at the far ends.
type star struct {
	testing.TB
	near    []int // interface indices
	sockets []int // of the far ends
}

func newStar(t testing.TB, ports int) *star {
	t.Helper()
	requireKernel(t)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil { // the thread ends with the test
		t.Skipf("no namespace of its own: %v", err)
	}
	s := &star{TB: t}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	must(err)
	t.Cleanup(func() { _ = pass.Close() })
	for i := range ports {
		far := fmt.Sprint("far", i)
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("near", i)}, PeerName: far})
		if err != nil {
			t.Skipf("no veth: %v", err)
		}
		for _, name := range []string{fmt.Sprint("near", i), far} {
			l, err := netlink.LinkByName(name)
			must(err)
			must(netlink.LinkSetUp(l))
		}
		s.near = append(s.near, indexOf(t, fmt.Sprint("near", i)))
		index := indexOf(t, far)
		l, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: index, Flags: link.XDPDriverMode}) // redirected frames arrive where a program is
		must(err)
		t.Cleanup(func() { _ = l.Close() })
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, all)
		must(err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		must(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}))
		must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000}))
		must(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
		s.sockets = append(s.sockets, fd)
	}
	return s
}

// arrive sends a frame into a port, and returns what comes out of all ports, of frames with the same last bytes: it waits 3 s for as many as are wanted, and a moment for others.
func (s *star) arrive(port int, frame []byte, want int) map[int]string {
	s.Helper()
	marker := frame[len(frame)-8:]
	if _, err := unix.Write(s.sockets[port-1], frame); err != nil {
		s.Fatal(err)
	}
	got := map[int]string{}
	for until, waits := time.Now().Add(3*time.Second), true; time.Now().Before(until); {
		if len(got) >= want && waits {
			until, waits = time.Now().Add(100*time.Millisecond), false
		}
		for i, fd := range s.sockets {
			b := make([]byte, 2048)
			aux := make([]byte, 64)
			n, m, _, from, err := unix.Recvmsg(fd, b, aux, 0)
			if err != nil || !bytes.HasSuffix(b[:n], marker) {
				continue
			}
			b = retagged(b[:n], aux[:m])
			if a, ok := from.(*unix.SockaddrLinklayer); ok && a.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			got[i+1] += fmt.Sprintf("%x", b)
		}
	}
	return got
}

// retagged puts a VLAN tag back into a frame, which the kernel has taken out of it (packet(7), PACKET_AUXDATA).
func retagged(frame, aux []byte) []byte {
	all, err := unix.ParseSocketControlMessage(aux)
	if err != nil || len(all) != 1 || binary.NativeEndian.Uint32(all[0].Data)&unix.TP_STATUS_VLAN_VALID == 0 {
		return frame
	}
	tag := binary.BigEndian.AppendUint16([]byte{0x81, 0}, binary.NativeEndian.Uint16(all[0].Data[16:]))
	return slices.Insert(frame, 12, tag...)
}

// TestFlood: a bridge's flood leaves by all ports but the one that it came in by, in the kernel, as it came and with a tag. Frames whose copies
// differ, or leave by a port that the kernel does not send to, are the engine's.
func TestFlood(t *testing.T) {
	s := newStar(t, 4)
	prog, tree, err := p4.LoadTree(read(t, bridge))
	if err != nil {
		t.Fatal(err)
	}
	sw, err := p4.NewSwitch(prog, p4.Config{})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{To: map[uint32]Target{}}
	var all []p4.Replica
	for i, index := range s.near {
		o.From = append(o.From, Source{index, uint32(1 + i)})
		o.To[uint32(1+i)] = Target{index, []int{1518, 1518, 1518, 64}[i]}
		all = append(all, p4.Replica{Port: uint32(1 + i)})
	}
	x, err := New(tree, sw.Config(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, index := range s.near {
		l, err := link.AttachXDP(link.XDPOptions{Program: x.Program(), Interface: index, Flags: link.XDPDriverMode})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	x.Begin(sw, 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	key := func(fields ...[]byte) p4.Entry {
		e := p4.Entry{}
		for _, f := range fields {
			e.Key = append(e.Key, p4.Match{Value: f})
		}
		return e
	}
	insert := func(table string, e p4.Entry, action string, args ...[]byte) {
		t.Helper()
		e.Action = p4.Action{Name: action, Args: args}
		_, err := sw.Insert(table, e)
		must(err)
	}
	for i := range byte(4) {
		insert("bridge_ingress.smac", key([]byte{1}, []byte{2, 0, 0, 0, 0, 1 + i}), "bridge_ingress.known", []byte{1 + i})
	}
	must(sw.SetMulticast(1, all))
	n := 0
	flood := func(what string, from int, to []int, changed func(frame string) string) {
		t.Helper()
		n++
		frame := frameOf(t, fmt.Sprintf("ffffffffffff 02000000000%d 0800", from)+strings.Repeat("00", 40)+fmt.Sprintf("c0de%04x%08x", n, n*7919))
		want := map[int]string{}
		for _, p := range to {
			want[p] = changed(fmt.Sprintf("%x", frame))
		}
		if got := s.arrive(from, frame, len(want)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: from port %d\n got %v\nwant %v", what, from, got, want)
		}
	}
	same := func(f string) string { return f }
	tagged := func(f string) string { return f[:24] + "81000001" + f[24:] }
	finished := func(what string, want uint64) {
		t.Helper()
		if got, given, _, err := x.sums(); err != nil || got != want {
			outcomes, _ := x.Outcomes()
			t.Errorf("%s: %d frames finished, %d given, %v; want %d: %v", what, got, given, err, want, slices.DeleteFunc(outcomes, func(o Outcome) bool { return o.Frames == 0 }))
		}
	}
	others := func(from int) (to []int) {
		for p := 1; p <= 4; p++ {
			if p != from {
				to = append(to, p)
			}
		}
		return to
	}
	for from := 1; from <= 4; from++ {
		flood("all ports", from, others(from), same)
	}
	finished("all ports", 4)
	must(sw.SetMulticast(1, all[:2]))
	flood("two ports", 1, []int{2}, same)
	flood("two ports", 3, []int{1, 2}, same)
	finished("two ports", 6)
	must(sw.SetMulticast(1, all))
	for p := byte(1); p <= 3; p++ {
		insert("bridge_egress.vlan_egress", key([]byte{p}, []byte{1}, []byte{0}), "bridge_egress.tag")
	}
	flood("with a tag", 4, []int{1, 2, 3}, tagged)
	finished("with a tag", 7)
	flood("copies that differ", 1, nil, same) // nobody is behind the program here
	finished("copies that differ", 7)
	insert("bridge_egress.vlan_egress", key([]byte{4}, []byte{1}, []byte{0}), "bridge_egress.tag")
	flood("longer than one of its ports sends", 1, nil, same)
	finished("longer than one of its ports sends", 7)
	x.Links(map[uint32]bool{2: true})
	flood("a port without a link", 4, []int{1, 2, 3}, tagged) // the port has a link in truth
	finished("a port without a link", 8)
	must(sw.SetMulticast(1, all[1:2]))
	flood("only a port without a link", 4, nil, same)
	finished("only a port without a link", 8)
	x.Links(nil)
	must(sw.SetMulticast(1, append(slices.Clone(all), p4.Replica{Port: 9})))
	flood("a port that is none of the kernel's", 4, nil, same)
	must(sw.SetMulticast(1, nil))
	flood("no ports", 4, nil, same)
	finished("no ports", 9)
}

// TestCopies: frames leave by those of a group's ports whose copies are not dropped, as the copies are, and all of them in the kernel.
func TestCopies(t *testing.T) {
	w := newTwin(t, pairs(t, "copies"))
	w.both(func(sw *p4.Switch) error {
		_, err := sw.Insert("e", p4.Entry{Key: []p4.Match{{Value: []byte{9}}}, Action: p4.Action{Name: "gone"}})
		return err
	})
	const gone = 9
	group := func(what string, from uint32, to ...p4.Replica) {
		t.Helper()
		w.both(func(sw *p4.Switch) error { return sw.SetMulticast(1, to) })
		before := w.kernel
		w.frame(from, append([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 41}, make([]byte, 54)...))
		if w.kernel != before+1 {
			t.Errorf("%s: the frame was given to the engine: %v", what, w.engine)
		}
	}
	one, two, three := p4.Replica{Port: 1}, p4.Replica{Port: 2, Rid: 1}, p4.Replica{Port: 3, Rid: 2}
	back, away := p4.Replica{Port: 1, Rid: gone}, p4.Replica{Port: 4, Rid: gone}
	group("three ports", 5, one, two, three)
	group("one of them the frame's own", 1, one, two, three)
	group("the first is dropped", 1, back, two, three)
	group("the last is dropped", 1, two, three, back)
	group("one is left", 5, away, two)
	group("one is left, in front", 5, two, away)
	group("all are dropped", 1, away, back)
	group("one is dropped that would leave by a closed port", 5, one, two, p4.Replica{Port: closedPorts[1], Rid: gone})
	group("one port, three times", 5, two, two, two)
	group("nobody", 1)
	two.Backups = []p4.Replica{{Port: 6}}
	group("backups", 5, one, two)
	w.both(func(sw *p4.Switch) error { sw.SetLink(2, false); return nil })
	w.frame(5, make([]byte, 64))
	all := make([]p4.Replica, maxReplicas+1)
	for i := range all {
		all[i].Port = uint32(50 + i)
	}
	group("as many as there is room for", 40, all[:maxReplicas]...)
	if w.engine[whyDiffer] != 0 || w.copies < 3 {
		t.Errorf("%d copies, %v", w.copies, w.engine)
	}
	kernel := w.kernel
	for what, to := range map[string][]p4.Replica{"one more": all, "some ports only": {one, two, away}, "a closed port": {one, {Port: closedPorts[1]}}} {
		w.both(func(sw *p4.Switch) error { return sw.SetMulticast(1, to) })
		w.frame(5, make([]byte, 64))
		if w.kernel != kernel {
			t.Errorf("%s: the frame stayed in the kernel", what)
			kernel = w.kernel
		}
	}
	// More sets of ports than there is room for at one time.
	for i := range maxSets + 8 {
		group("other ports", 40, p4.Replica{Port: 1}, p4.Replica{Port: uint32(100 + i%(maxSets+4))})
	}
	w.counts()
}

// TestListsRest: the number of a group's list is not another list's before a grace period.
func TestListsRest(t *testing.T) {
	w := newTwin(t, pairs(t, "copies"))
	left := map[uint32]int{} // how many grace periods there had been
	was, graces := uint32(0), 0
	for i := range uint16(maxLists + 3000) {
		if err := w.sw.SetMulticast(1, []p4.Replica{{Port: 1, Rid: i}}); err != nil {
			t.Fatal(err)
		}
		n := *w.x.groups.half(1)
		if since, there := left[n]; there && since == w.x.graces.n {
			t.Fatalf("change %d: list %d is another one's in the grace period in which it was left", i, n)
		}
		if was != 0 {
			left[was] = graces
		}
		was, graces = n, w.x.graces.n
	}
	if len(w.x.Stopped()) > 0 || was == enginesOwn {
		t.Errorf("stopped: %v", w.x.Stopped())
	}
}
