package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/ctl/store/etcd"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/internal/etcdtest"
	"github.com/quillon/quillon/nf/clock"
)

const (
	storeSwitches = 50
	storeEntries  = 200 // of each switch
)

// network is switches in memory, each a server of its own, an etcd, and controllers, which are processes.
type network struct {
	t        *testing.T
	dir, url string
	etcd     *etcdtest.Cluster
	switches []*counted
	clock    clock.Clock
}

// counted is a switch that counts its writes.
type counted struct {
	at   string
	stop func()

	mu     sync.Mutex
	server *ctltest.Server
	tops   ctl.ElectionID // the highest election id that has written
	late   int            // writes that were done under a lower id than tops, so for a former leader
	failed int            // updates that the device itself refused
	done   map[string]int // updates that were done, by the entry's key and parameter
}

// serve starts the switch without entries.
func (s *counted) serve(t *testing.T, like *ctltest.Server) {
	f := like.Like(1)
	f.Done = func(r *p4v1.WriteRequest, updates int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		e := ctl.ElectionID{High: r.ElectionId.GetHigh(), Low: r.ElectionId.GetLow()}
		if s.tops.Less(e) {
			s.tops = e
		}
		if e.Less(s.tops) {
			s.late++
		}
		s.failed += len(r.Updates) - updates
		for _, u := range r.Updates {
			if u.Type == p4v1.Update_DELETE {
				s.done["deleted"]++
				continue
			}
			s.done[entityKey(u.Entity)]++
		}
	}
	s.mu.Lock()
	s.server = f
	s.mu.Unlock()
	s.at, s.stop = f.Start(t, s.at, nil)
}

// entityKey is an entry's key and its action's parameter.
func entityKey(e *p4v1.Entity) string {
	return fmt.Sprintf("%x %x", p4info.Key(e), e.GetTableEntry().GetAction().GetAction().GetParams()[0].GetValue())
}

// intent writes an intent in which all entries have the port port.
func (n *network) intent(port int) string {
	var b strings.Builder
	b.WriteString("devices:\n")
	for i, s := range n.switches {
		fmt.Fprintf(&b, "  s%d:\n    address: %s\n    p4info: l2_bridge.p4info.txtpb\n    config: l2_bridge.json\n    entries:\n", i+1, s.at)
		for e := range storeEntries {
			fmt.Fprintf(&b, "      - {table: dmac, match: {vid: 1, dst: 02:00:00:00:%02x:%02x}, action: forward, params: {port: %d}}\n", e>>8, e&255, port)
		}
	}
	file := filepath.Join(n.dir, "net.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return file
}

// ctl runs a quillon ctl command and returns its output.
func (n *network) ctl(args ...string) string {
	n.t.Helper()
	out, err := exec.Command("quillon", append([]string{"ctl"}, args...)...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("quillon ctl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// at reports how many entries of all switches have the port port. A switch has no other entries than those of
// intent.
func (n *network) at(port int) int {
	time.Sleep(10 * time.Millisecond) // each look takes time from the controllers
	all := 0
	for _, s := range n.switches {
		s.mu.Lock()
		f := s.server
		s.mu.Unlock()
		f.Lock()
		if len(f.Devices[1].Entities) > storeEntries {
			n.t.Errorf("a switch has %d entries", len(f.Devices[1].Entities))
		}
		for _, e := range f.Devices[1].Entities {
			if p := e.GetTableEntry().GetAction().GetAction().GetParams(); len(p) == 1 && bytes.Equal(p[0].Value, []byte{byte(port)}) {
				all++
			}
		}
		f.Unlock()
	}
	return all
}

// converge waits until all entries have the port, and logs how long that took since a time.
func (n *network) converge(what string, port int, since clock.Time) {
	n.t.Helper()
	ctltest.Eventually(n.t, what, func() bool { return n.at(port) == storeSwitches*storeEntries })
	n.t.Logf("%s: %d entries of %d switches after %v", what, storeSwitches*storeEntries, storeSwitches, n.clock.Now().Sub(since).Round(time.Millisecond))
}

// part waits until some entries, but not all, have the port.
func (n *network) part(port int) {
	n.t.Helper()
	ctltest.Eventually(n.t, "some entries are there", func() bool { return n.at(port) > storeSwitches*storeEntries/10 })
}

// status is the answer of quillon ctl status, also while its exit status is not 0.
func (n *network) status() (st etcd.Status) {
	n.t.Helper()
	out, _ := exec.Command("quillon", "ctl", "status", "--json", "--store", n.url).Output()
	if err := json.Unmarshal(out, &st); err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	return st
}

// ctlProcess is a controller in a process of its own.
type ctlProcess struct {
	*exec.Cmd
	said *bytes.Buffer
}

// controller starts a controller.
func (n *network) controller() *ctlProcess {
	n.t.Helper()
	p := &ctlProcess{exec.Command("quillon", "ctl", "run", "--store", n.url, "--batch", "50"), &bytes.Buffer{}}
	p.Stderr = p.said
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if n.t.Failed() {
			n.t.Logf("controller %d said:\n%s", p.Process.Pid, p.said.Bytes())
		}
	})
	return p
}

// leader finds the controller that leads, and removes it from all.
func (n *network) leader(all *[]*ctlProcess) *ctlProcess {
	n.t.Helper()
	var found *ctlProcess
	ctltest.Eventually(n.t, "one leads and says so", func() bool {
		st := n.status()
		for i, p := range *all {
			if st.Running && strings.HasSuffix(st.Leader, fmt.Sprintf("process %d", p.Process.Pid)) {
				*all = append((*all)[:i:i], (*all)[i+1:]...)
				found = p
				return true
			}
		}
		return false
	})
	return found
}

// standBy waits until want controllers stand by.
func (n *network) standBy(want int) {
	n.t.Helper()
	ctltest.Eventually(n.t, fmt.Sprintf("%d stand by", want), func() bool { return len(n.status().Standby) == want })
}

// restart makes a switch die and come back without entries.
func (s *counted) restart(t *testing.T) {
	s.stop()
	s.serve(t, s.server)
}

func newNetwork(t *testing.T, etcd ...string) *network {
	c := etcdtest.Start(t, 3, "http", etcd...)
	n := &network{t: t, dir: t.TempDir(), url: c.URL("net1"), etcd: c, clock: clock.NewWall()}
	for _, f := range []string{"l2_bridge.p4info.txtpb", "l2_bridge.json"} {
		b, err := os.ReadFile("../../p4src/" + f)
		if err == nil {
			err = os.WriteFile(filepath.Join(n.dir, f), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	like := ctltest.New()
	for range storeSwitches {
		s := &counted{at: "127.0.0.1:0", done: map[string]int{}}
		s.serve(t, like)
		n.switches = append(n.switches, s)
	}
	return n
}

// TestControllersMayDie has 50 switches with 10,000 entries, three controllers and an etcd of three members.
// A switch, the leading controller, and a member of etcd die in turn, and then all at once. In the end all
// switches have the newest revision. Each entry was written once for each revision, and once more for each
// death of its switch, always by the controller that led then.
func TestControllersMayDie(t *testing.T) {
	t.Run("etcd with its defaults", func(t *testing.T) {
		mayDie(t, newNetwork(t, "--heartbeat-interval", "100", "--election-timeout", "1000"))
	})
	t.Run("etcd that elects twice as fast", func(t *testing.T) { mayDie(t, newNetwork(t)) })
}

func mayDie(t *testing.T, n *network) {
	all := []*ctlProcess{n.controller(), n.controller(), n.controller()}
	n.standBy(2)
	apply := func(port int) clock.Time {
		n.ctl("apply", n.intent(port), "--store", n.url)
		return n.clock.Now()
	}
	n.converge("the first revision", 1, apply(1))
	want := map[int]int{} // by switch: how often it has lost all entries
	lose := func(i int) clock.Time {
		n.switches[i].restart(t)
		want[i]++
		return n.clock.Now()
	}
	n.converge("a switch died", 1, lose(0))

	// The leader dies while it applies a revision.
	dead := n.leader(&all)
	apply(2)
	n.part(2)
	_ = dead.Process.Kill()
	n.converge("the leader died, a tenth or more into a revision", 2, n.clock.Now())
	all = append(all, n.controller())
	n.standBy(2)

	// The member of etcd that leads the other members dies.
	m := n.etcd.Leader(t)
	m.Kill()
	died := n.clock.Now()
	lose(1)
	n.converge("the member of etcd that led died, and a switch", 2, died)
	n.converge("a revision, with two members of etcd", 3, apply(3))
	m.Start(t)
	n.etcd.Ready(t)
	n.standBy(2)

	// A member of etcd that follows dies.
	m = n.etcd.Follower(t)
	m.Kill()
	died = n.clock.Now()
	lose(2)
	n.converge("a member of etcd that follows died, and a switch", 3, died)

	// A member of etcd, the leader and a switch die, one right after the other.
	m.Start(t)
	n.etcd.Ready(t)
	n.standBy(2)
	dead = n.leader(&all)
	n.etcd.Follower(t).Kill()
	_ = dead.Process.Kill()
	n.converge("a member of etcd that follows, the leader, and a switch died", 3, lose(4))
	all = append(all, n.controller())
	n.standBy(2)

	// The leader is frozen while it applies a revision, and goes on after another controller has led.
	frozen := n.leader(&all)
	apply(4)
	n.part(4)
	_ = frozen.Process.Signal(syscall.SIGSTOP)
	n.converge("the leader was frozen, a tenth or more into a revision", 4, n.clock.Now())
	_ = frozen.Process.Signal(syscall.SIGCONT)
	n.standBy(2)
	all = append(all, frozen)

	// The leader is stopped.
	stopped := n.leader(&all)
	_ = stopped.Process.Signal(syscall.SIGTERM)
	stop := n.clock.Now()
	lose(3)
	n.converge("the leader was stopped, and a switch died", 4, stop)
	if err := stopped.Wait(); err != nil {
		t.Errorf("the leader was stopped: %v", err)
	}

	ctltest.Eventually(t, "the status is that of the newest revision", func() bool {
		return exec.Command("quillon", "ctl", "status", "--store", n.url).Run() == nil
	})
	st := n.status()
	if st.Newest != 4 || st.Revision != 4 || len(st.Devices) != storeSwitches || len(st.Standby) != 1 {
		t.Errorf("revision %d of %d, %d devices, %d stand by", st.Revision, st.Newest, len(st.Devices), len(st.Standby))
	}
	n.counts(want)
}

// counts checks how often each entry was written.
func (n *network) counts(losses map[int]int) {
	total := 0
	for i, s := range n.switches {
		s.mu.Lock()
		if s.late > 0 || s.failed > 0 || s.done["deleted"] > 0 {
			n.t.Errorf("s%d: %d writes of a former leader were done, %d updates failed, %d were deletions", i+1, s.late, s.failed, s.done["deleted"])
		}
		updates := 0
		for _, times := range s.done {
			updates += times
		}
		s.mu.Unlock()
		total += updates
		if wantUpdates := (4 + losses[i]) * storeEntries; updates != wantUpdates || len(s.done) != 4*storeEntries {
			n.t.Errorf("s%d: %d updates of %d entries, want %d of %d", i+1, updates, len(s.done), wantUpdates, 4*storeEntries)
		}
	}
	n.t.Logf("%d updates were done, none twice, none for a former leader", total)
}
