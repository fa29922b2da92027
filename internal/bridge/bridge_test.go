package bridge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/netnstest"
)

// sh runs a command in the thread's namespace.
func sh(t *testing.T, line string) string {
	t.Helper()
	f := strings.Fields(line)
	out, err := exec.Command(f[0], f[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// world makes br0 with two ports; p0 is configured in unusual ways, with
// VLANs where the kernel's bridge has them.
func world(t *testing.T) {
	t.Helper()
	for _, line := range []string{
		"ip link add br0 type bridge",
		"ip link add p0 mtu 3000 address 02:00:00:00:00:01 type veth peer name h0 mtu 3000",
		"ip link add p1 address 02:00:00:00:00:02 type veth peer name h1",
		"ip link set p0 master br0",
		"ip link set p1 master br0",
		"ip link set p0 up", "ip link set h0 up", "ip link set p1 up", "ip link set h1 up", "ip link set br0 up",
		"bridge link set dev p0 cost 77 priority 9 hairpin on learning off mcast_flood off isolated on",
		"ethtool -K p0 tx off",
	} {
		sh(t, line)
	}
	vlan := ""
	if out, err := exec.Command("ip", "link", "set", "br0", "type", "bridge", "vlan_filtering", "1").CombinedOutput(); err != nil {
		t.Logf("without VLANs: this kernel's bridge has no VLAN filtering (%s)", strings.TrimSpace(string(out)))
	} else {
		vlan = " vlan 10"
		sh(t, "bridge vlan add dev p0 vid 10 pvid untagged")
		sh(t, "bridge vlan add dev p0 vid 20-22")
		sh(t, "bridge vlan del dev p0 vid 1")
	}
	// The kernel notices carriers in its own time.
	for try := 0; ; try++ {
		down := 0
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			if l.Attrs().Name != "lo" && l.Attrs().OperState != netlink.OperUp {
				down++
			}
		}
		if down == 0 {
			break
		}
		if try == 2000 {
			t.Fatalf("%d interfaces do not come up", down)
		}
		sh(t, "true")
	}
	sh(t, "bridge fdb add 02:aa:00:00:00:01 dev p0 master static"+vlan)
	sh(t, "bridge fdb add 02:aa:00:00:00:02 dev p0 master static sticky"+vlan)
	vid := strings.Replace(vlan, "vlan", "vid", 1)
	sh(t, "ip link set br0 type bridge mcast_igmp_version 3 mcast_mld_version 2")
	for _, group := range []string{"239.1.1.1 permanent", "239.1.1.2 permanent src 10.0.0.1", "ff05::99 permanent", "03:00:5e:00:00:aa permanent", "239.1.1.4 temp"} {
		sh(t, "bridge mdb add dev br0 port p0 grp "+group+vid)
	}
	// With sources, which older tools do not know.
	br, p0 := index(t, "br0"), index(t, "p0")
	for i, e := range []MDBEntry{
		{Include: true, Sources: [][]byte{{10, 0, 0, 5}, {10, 0, 0, 6}}, Protocol: 100},
		{Sources: [][]byte{{10, 0, 0, 7}}, Protocol: unix.RTPROT_STATIC},
	} {
		e.Entry = make([]byte, mdbEntryLen)
		e.Entry[mdbState] = mdbPermanent
		if vlan != "" {
			binary.NativeEndian.PutUint16(e.Entry[6:], 10)
		}
		copy(e.Entry[mdbAddr:], []byte{239, 1, 2, byte(i)})
		binary.BigEndian.PutUint16(e.Entry[mdbProto:], unix.ETH_P_IP)
		if err := e.set(br, p0); err != nil {
			t.Fatal(e, err)
		}
	}
}

func index(t *testing.T, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().Index
}

// snapshot is everything about br0 and its ports that must come back.
func snapshot(t *testing.T) map[string]any {
	t.Helper()
	br, err := netlink.LinkByName("br0")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{"bridge mac": br.Attrs().HardwareAddr.String(), "bridge mtu": br.Attrs().MTU}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		a := l.Attrs()
		// Whether it runs the kernel finds out later, up to a second.
		out["link "+a.Name] = []any{a.MasterIndex, a.Promisc, (a.Flags &^ net.FlagRunning).String()}
		if a.MasterIndex != br.Attrs().Index {
			continue
		}
		s, err := read(br, l)
		if err != nil {
			t.Fatal(err)
		}
		out["port "+a.Name] = s
	}
	return out
}

func TestInsertAndRemoveRestoreExactly(t *testing.T) {
	netnstest.Enter(t)
	world(t)
	dir := t.TempDir()
	before := snapshot(t)
	groups := fmt.Sprint(before["port p0"].(Settings).MDB)
	for _, g := range []string{"03:00:5e:00:00:aa", "239.1.1.1", "239.1.1.2", "239.1.2.0", "239.1.2.1", "ff05::99"} {
		if !strings.Contains(groups, g) {
			t.Errorf("group %s is not in %s", g, groups)
		}
	}
	if strings.Contains(groups, "239.1.1.4") {
		t.Errorf("a group for a time is taken for a permanent one: %s", groups)
	}
	s, err := Insert(Config{Bridge: "br0", Port: "p0", StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	during := snapshot(t)
	if _, still := during["port p0"]; still {
		t.Error("p0 is still a port of br0")
	}
	was, is := before["port p0"].(Settings), during["port "+s.Outer].(Settings)
	was.Offload, is.Offload = nil, nil
	if d := cmp.Diff(was, is); d != "" {
		t.Errorf("%s is not what p0 was (-p0 +%s):\n%s", s.Outer, s.Outer, d)
	}
	for _, k := range []string{"bridge mac", "bridge mtu"} {
		if before[k] != during[k] {
			t.Errorf("%s changed from %v to %v", k, before[k], during[k])
		}
	}
	features := sh(t, "ethtool -k "+s.Outer)
	for _, want := range []string{"tx-checksumming: off", "tcp-segmentation-offload: off", "generic-receive-offload: on"} {
		if !strings.Contains(features, want) {
			t.Errorf("%s: not %q", s.Outer, want)
		}
	}
	// What a middlebox that was killed leaves behind.
	sh(t, "ip link set p0 promisc on")
	sh(t, "ethtool -K p0 gro on")
	sh(t, "ip link set p0 mtu 2000")

	if s, err = Load(dir, "p0"); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir, s); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(before, snapshot(t)); d != "" {
		t.Errorf("not restored (-before +after):\n%s", d)
	}
	if left, _ := List(dir); len(left) != 0 {
		t.Errorf("state left: %v", left)
	}
}

func TestFailureAtEveryStepRollsBack(t *testing.T) {
	netnstest.Enter(t)
	world(t)
	dir := t.TempDir()
	before := snapshot(t)
	broken := errors.New("broken")
	for fail := 1; ; fail++ {
		n := 0
		var at string
		s, err := Insert(Config{Bridge: "br0", Port: "p0", StateDir: dir, afterStep: func(step string) error {
			if n++; n == fail {
				at = step
				return broken
			}
			return nil
		}})
		if err == nil {
			if fail < 5 {
				t.Errorf("only %d steps", fail)
			}
			if err := Remove(dir, s); err != nil {
				t.Error(err)
			}
			break
		}
		if !errors.Is(err, broken) || s != nil {
			t.Errorf("after %q: splice %v, error %v", at, s, err)
		}
		if d := cmp.Diff(before, snapshot(t)); d != "" {
			t.Errorf("failure after %q was not undone (-before +after):\n%s", at, d)
		}
		if left, _ := List(dir); len(left) != 0 {
			t.Errorf("failure after %q left a state file", at)
		}
	}
}

func TestRemoveFinishesWhatACrashLeft(t *testing.T) {
	netnstest.Enter(t)
	world(t)
	before := snapshot(t)
	for crash := 1; crash <= 6; crash++ {
		dir := t.TempDir()
		n := 0
		func() {
			defer func() { _ = recover() }()
			_, _ = Insert(Config{Bridge: "br0", Port: "p0", StateDir: dir, afterStep: func(string) error {
				if n++; n == crash {
					panic("crash")
				}
				return nil
			}})
		}()
		s, err := Load(dir, "p0")
		if err != nil {
			t.Errorf("crash %d: %v", crash, err)
			continue
		}
		if err := Remove(dir, s); err != nil {
			t.Errorf("crash %d: %v", crash, err)
		}
		if d := cmp.Diff(before, snapshot(t)); d != "" {
			t.Errorf("crash %d (-before +after):\n%s", crash, d)
		}
	}
}

func TestRemoveWithoutThePortOrTheBridge(t *testing.T) {
	for _, gone := range []string{"p0", "br0"} {
		netnstest.Enter(t)
		world(t)
		dir := t.TempDir()
		s, err := Insert(Config{Bridge: "br0", Port: "p0", StateDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		sh(t, "ip link del "+gone)
		if err := Remove(dir, s); err == nil || !strings.Contains(err.Error(), gone) {
			t.Errorf("without %s: %v", gone, err)
		}
		if _, err := netlink.LinkByName(s.Outer); err == nil {
			t.Errorf("without %s: %s is still there", gone, s.Outer)
		}
	}
}

// A bridge that is down takes no groups: nothing is begun then, and they are not lost.
func TestDownWithGroups(t *testing.T) {
	netnstest.Enter(t)
	world(t)
	dir := t.TempDir()
	up := snapshot(t)
	refused := func(do func() error) {
		t.Helper()
		sh(t, "ip link set br0 down")
		before := snapshot(t)
		if err := do(); err == nil || !strings.Contains(err.Error(), "br0 is down, and p0 has multicast groups") {
			t.Error(err)
		}
		if d := cmp.Diff(before, snapshot(t)); d != "" {
			t.Errorf("(-before +after):\n%s", d)
		}
		sh(t, "ip link set br0 up")
	}
	insert := func() (s *Splice, err error) { return Insert(Config{Bridge: "br0", Port: "p0", StateDir: dir}) }
	refused(func() error {
		_, err := insert()
		return err
	})
	s, err := insert()
	if err != nil {
		t.Fatal(err)
	}
	refused(func() error { return Remove(dir, s) })
	if err := Remove(dir, s); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(up, snapshot(t)); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
}

func TestRefusals(t *testing.T) {
	netnstest.Enter(t)
	world(t)
	dir := t.TempDir()
	before := snapshot(t)
	for _, c := range []struct{ bridge, port, want string }{
		{"br9", "p0", "no interface is called br9"},
		{"p1", "p0", "not a bridge"},
		{"br0", "p9", "no interface is called p9"},
		{"br0", "h0", "its ports are p0, p1"},
	} {
		_, err := Insert(Config{Bridge: c.bridge, Port: c.port, StateDir: dir})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.bridge, c.port, err, c.want)
		}
	}
	s, err := Insert(Config{Bridge: "br0", Port: "p0", StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Insert(Config{Bridge: "br0", Port: "p0", StateDir: dir}); err == nil || !strings.Contains(err.Error(), "p0 is spliced already") {
		t.Errorf("spliced twice: %v", err)
	}
	other := *s
	other.Namespace = "net:[1]"
	if err := Remove(dir, &other); err == nil || !strings.Contains(err.Error(), "another network namespace") {
		t.Errorf("other namespace: %v", err)
	}
	if err := Remove(dir, s); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(before, snapshot(t)); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
}

// TestStateIsWhole: a state file is there with all its text or not at all, and who
// comes second is told.
func TestStateIsWhole(t *testing.T) {
	netnstest.Enter(t)
	disk := t.TempDir() // a small one, that only this thread sees
	filler, dir := filepath.Join(disk, "filler"), filepath.Join(disk, "state")
	ns, err := Namespace()
	if err != nil {
		t.Fatal(err)
	}
	s := &Splice{Bridge: "br0", Port: "p0", Namespace: ns}
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", disk, "tmpfs", 0, "size=64k"), os.WriteFile(filler, make([]byte, 64<<10), 0o600)); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(disk, unix.MNT_DETACH)
	failed := save(dir, s)
	left, err := os.ReadDir(dir)
	if !errors.Is(failed, unix.ENOSPC) || err != nil || len(left) != 0 {
		t.Errorf("a full disk: %v; left %v, %v", failed, left, err)
	}
	if err := errors.Join(os.Remove(filler), save(dir, s)); err != nil {
		t.Error(err)
	}
	if err := save(dir, s); err == nil || !strings.Contains(err.Error(), "spliced already") {
		t.Errorf("a second time: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	if got, err := Load(dir, "p0"); err != nil || got.Bridge != "br0" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestRemoveWhatCannotBe: a setting that is refused does not keep the port out, nor
// the others from being set.
func TestRemoveWhatCannotBe(t *testing.T) {
	netnstest.Enter(t)
	world(t)
	dir := t.TempDir()
	before := snapshot(t)
	s, err := Insert(Config{Bridge: "br0", Port: "p0", StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	s.Before.MTU = 1 << 20
	s.Before.Attrs[nl.IFLA_BRPORT_COST] = []byte{255, 255, 255, 255}
	s.Before.FDB = append([]FDBEntry{{MAC: "02:00:00:00:00:09", State: netlink.NUD_FAILED}}, s.Before.FDB...)
	err = Remove(dir, s)
	for _, want := range []string{"p0 is in br0", "MTU 1048576", "attribute 3", "02:00:00:00:00:09"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	sh(t, "bridge link set dev p0 cost 77")
	if d := cmp.Diff(before, snapshot(t)); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
	if left, err := List(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestNotToBeAsked: when the kernel cannot be asked what there is, nothing counts as
// gone, and what is known is kept.
func TestNotToBeAsked(t *testing.T) {
	netnstest.Enter(t)
	world(t)
	dir := t.TempDir()
	before := snapshot(t)
	s, err := Insert(Config{Bridge: "br0", Port: "p0", StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	during := snapshot(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Error(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Error(err)
	}
	failed := Remove(dir, s)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Error(err)
	}
	if failed == nil || strings.Contains(failed.Error(), "gone") {
		t.Errorf("without a socket: %v", failed)
	}
	if d := cmp.Diff(during, snapshot(t)); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
	if s, err = Load(dir, "p0"); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir, s); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(before, snapshot(t)); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
}

func TestNamesFit(t *testing.T) {
	for _, c := range []struct{ name, suffix, want string }{
		{"eth0", "-b", "eth0-b"},
		{"enp175s0f1np1ab", "-q", "enp175s0f1np1-q"},
	} {
		if got := ifname(c.name, c.suffix); got != c.want {
			t.Errorf("%s%s: %s", c.name, c.suffix, got)
		}
	}
}
