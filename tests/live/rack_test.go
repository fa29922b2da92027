package live

import (
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/demo"
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
	"github.com/quillon/quillon/rack/rnic"
)

// programs are the builds to test, of QUILLON_PROGRAMS, or one of this tree, which is built once;
// quillon is the first.
var (
	programs []string
	quillon  string
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "quillon-live-")
		if err == nil {
			err = os.Setenv("STATE_DIRECTORY", dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		defer os.RemoveAll(dir)
		if list := os.Getenv("QUILLON_PROGRAMS"); list != "" {
			programs = filepath.SplitList(list)
			quillon = programs[0]
			return m.Run()
		}
		quillon = filepath.Join(dir, "quillon")
		programs = []string{quillon}
		build := exec.Command("go", "build", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2", "-ldflags=-s -w", "-o", quillon, "github.com/quillon/quillon/cmd/quillon")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
			return 2
		}
		return m.Run()
	}())
}

// Each client does one of these, over so many queue pairs.
const sessions = 2

// config is a rack under load.
type config struct {
	profile rnic.Profile
	conn    rnic.Conn
	works   []locks.Work // by client
	state   string       // of --state
}

// rack is clients, a memory server and a middlebox between them. The endpoints
// breathe on one goroutine, which owns all of them.
type rack struct {
	t   *testing.T
	cfg config
	clk clock.Clock
	top *topo.Topology
	box *demo.Process

	ports   []port.Port
	close   []func() error
	memory  *locks.Memory
	grant   locks.Grant
	clients []*locks.Client
	words   history.Log[history.Word, uint64]
	locks   history.Log[history.Lock, struct{}]
	seen    *watch // at the server
	trace   *trace

	done, broken atomic.Uint64
	breaks       []string     // what ended connections, and when; the endpoints' until they have ended
	absent       atomic.Int64 // since when the middlebox is to start again, and does not run yet; 0: it does
	stopping     atomic.Bool
	through      chan struct{} // closed when all clients are
	ended        chan error
	cancel       context.CancelFunc
}

// watch is the server's port. It looks at the requests that come.
type watch struct {
	port.Port
	port.MultiWaiter
	clk             clock.Clock
	words           locks.Region
	requests, wrote atomic.Uint64
	// Requests that no one can have sent who numbers as the server does, since they are
	// farther from its queue pair's newest than all clients together have under way. They
	// crossed untouched. A WRITE of nothing did not: no client sends one, but the next process
	// does, with a PSN of long ago too, to a server that was slow to answer. Nor did a request
	// that the server has had under that PSN before: a middlebox that was stopped in the middle of
	// a frame sends it when it goes on, and the client has sent it again meanwhile.
	strays atomic.Uint64
	stray  atomic.Pointer[string]        // the first
	newest map[uint32]uint32             // by queue pair: PSN
	had    map[[2]uint32][sha1.Size]byte // by queue pair and PSN: the request
	// The first request, and the first WRITE to the words, which no client
	// sends: since the test put zeros there.
	first, firstWrote atomic.Int64
}

// mostUnderWay is more than what all clients together have under way, and what is sent
// again of it.
const mostUnderWay = 128

func (w *watch) Rx(b *packet.Batch) (int, error) {
	n, err := w.Port.Rx(b)
	for _, x := range b.Bufs()[b.Len()-n:] {
		var f hdr.Frame
		if hdr.Parse(x.Bytes(), &f) != hdr.IsRoCE || f.Op.Info().Flags&hdr.IsRequest == 0 {
			continue
		}
		w.requests.Add(1)
		h := f.BTHOf(x.Bytes())
		last, ok := w.newest[h.DestQP()]
		at, request := [2]uint32{h.DestQP(), h.PSN()}, sha1.Sum(x.Bytes()[f.BTH:f.End])
		switch {
		case f.Op == hdr.WriteOnly && f.RETHOf(x.Bytes()).DMALength() == 0:
		case ok && max(hdr.PSNDiff(h.PSN(), last), -hdr.PSNDiff(h.PSN(), last)) > mostUnderWay:
			if w.had[at] == request {
				break
			}
			said := fmt.Sprintf("%v to %#x with PSN %#x, which is %d from the newest", f.Op, at[0], at[1], hdr.PSNDiff(at[1], last))
			w.stray.CompareAndSwap(nil, &said)
			w.strays.Add(1)
		default:
			w.newest[h.DestQP()] = h.PSN()
			w.had[at] = request
		}
		w.first.CompareAndSwap(0, int64(w.clk.Now()))
		if f.Op == hdr.WriteOnly && f.RETHOf(x.Bytes()).RKey() == w.words.RKey {
			w.wrote.Add(1)
			w.firstWrote.CompareAndSwap(0, int64(w.clk.Now()))
		}
	}
	return n, err
}

// raise builds a rack and starts the load.
func raise(t *testing.T, cfg config) *rack {
	t.Helper()
	ownJournals(t)
	r := &rack{t: t, cfg: cfg, clk: clock.NewWall(), ended: make(chan error, 1), through: make(chan struct{}), trace: newTrace()}
	var err error
	r.top, err = topo.New(topo.Config{Compute: len(cfg.works)})
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.down)
	r.start()
	var nodes []host.Worker
	type machine struct {
		addr topo.Addr
		nic  *rnic.NIC
		pd   *rnic.PD
		cq   *rnic.CQ
	}
	up := func(n *topo.Node, number int) (machine, port.Port) {
		var dev *afxdp.Device
		if err := n.Space.Do(func() (err error) {
			dev, err = afxdp.Open(afxdp.Config{Name: n.Name, Interface: topo.Interface, Options: afxdp.Options{Clock: r.clk}})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		r.close = append(r.close, func() error { return n.Space.Do(dev.Close) })
		p := port.Port(dev.Ports[0])
		m := machine{addr: n.Addr}
		if m.nic, err = rnic.New(rnic.Config{MAC: n.Addr.MAC, IP: n.Addr.IP, Profile: cfg.profile, LinkMTU: r.top.MTU, Pool: p.Pool(),
			FirstQPN: uint32(0x100*number + 0x11), Seed: uint64(number)}); err != nil {
			t.Fatal(err)
		}
		m.pd, m.cq = m.nic.AllocPD(), m.nic.CreateCQ(1024)
		return m, p
	}
	all := len(cfg.works) * sessions
	layout := locks.Layout{Words: 8, Block: 256, Scratch: 8192, Sessions: all}
	if r.memory, err = locks.NewMemory(layout); err != nil {
		t.Fatal(err)
	}
	var server machine
	for i := range r.top.Nodes {
		if n := &r.top.Nodes[i]; n.Role == topo.Memory {
			var p port.Port
			server, p = up(n, 200)
			r.seen = &watch{Port: r.trace.wrap(n.Name, r.clk, p), MultiWaiter: p.(port.MultiWaiter), clk: r.clk, newest: map[uint32]uint32{}, had: map[[2]uint32][sha1.Size]byte{}}
			if r.grant, err = r.memory.Serve(server.pd); err != nil {
				t.Fatal(err)
			}
			r.seen.words = r.grant.Words
			nodes = append(nodes, host.NewNode(r.seen, server.nic, nil))
			r.ports = append(r.ports, p)
		}
	}
	type pair struct{ client, server *rnic.QP }
	pairs := make([]pair, all)
	for i, work := range cfg.works {
		m, p := up(&r.top.Nodes[i], i+1)
		dial := func(_ clock.Time, session int) (*rnic.QP, locks.Grant, error) {
			if old := pairs[session]; old.client != nil {
				old.client.Destroy()
				old.server.Destroy()
			}
			a := rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic
			q, err := m.nic.CreateQP(rnic.QPInit{PD: m.pd, SendCQ: m.cq, RecvCQ: m.cq, Access: a})
			if err != nil {
				return nil, r.grant, err
			}
			s, err := server.nic.CreateQP(rnic.QPInit{PD: server.pd, SendCQ: server.cq, RecvCQ: server.cq, Access: a})
			if err != nil {
				return nil, r.grant, err
			}
			pairs[session] = pair{q, s}
			k := cfg.conn
			there, here := m.nic.RandomPSN(), server.nic.RandomPSN()
			k.RemoteMAC, k.RemoteIP, k.DestQPN, k.SQPSN, k.RQPSN = server.addr.MAC, server.addr.IP, s.QPN, there, here
			if err := q.Connect(k); err != nil {
				return nil, r.grant, err
			}
			k.RemoteMAC, k.RemoteIP, k.DestQPN, k.SQPSN, k.RQPSN = m.addr.MAC, m.addr.IP, q.QPN, here, there
			return q, r.grant, s.Connect(k)
		}
		c, err := locks.New(locks.Config{
			Layout: layout, Work: work, First: i * sessions, Own: sessions, Ops: 1 << 30, Outstanding: 4, ReleaseByCAS: true,
			Seed: 7, CQ: m.cq, Dial: dial, WordLog: &r.words, LockLog: &r.locks, Broke: r.broke,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.clients = append(r.clients, c)
		r.ports = append(r.ports, p)
		nodes = append(nodes, host.NewNode(r.trace.wrap(r.top.Nodes[i].Name, r.clk, p), m.nic, c))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.cancel = cancel
	go func() { r.ended <- r.breathe(ctx, nodes) }()
	return r
}

// broke keeps what ended a connection. Statuses are those of rack/rnic, as numbers.
func (r *rack) broke(now clock.Time, session int, s rnic.Status) {
	r.breaks = append(r.breaks, fmt.Sprintf("%v connection %d: status %d", now.Sub(0), session, s))
}

// mostAbsent is how long clients wait for a middlebox that starts again, by their clock, and how long
// it may take to start but for the time that it waits for a processor: half of what a client's
// patience is.
const mostAbsent = time.Second

// breathe drives the endpoints, and waits for all their ports together. While the middlebox is
// absent for longer than mostAbsent their clock stands still: how long a process waits for a processor
// on a busy machine says nothing of it. Whether that was the cause says restart.do.
func (r *rack) breathe(ctx context.Context, nodes []host.Worker) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stopped, through := false, false
	var behind clock.Duration // of the wall clock
	last := r.clk.Now()
	for idle := 0; ctx.Err() == nil; {
		wall := r.clk.Now()
		if since := clock.Time(r.absent.Load()); since != 0 {
			behind += max(0, wall.Sub(max(last, since.Add(mostAbsent))))
		}
		last = wall
		now, moved, next := wall.Add(-behind), 0, clock.Never
		for _, w := range nodes {
			n, err := w.Breath(now)
			if err != nil {
				return err
			}
			moved += n
			next = min(next, w.Deadline())
		}
		var done, broken uint64
		all := true
		for _, c := range r.clients {
			if err := c.Err(); err != nil {
				return err
			}
			if !stopped && r.stopping.Load() {
				c.Stop()
			}
			s := c.Stats()
			done += s.Done
			broken += s.Broken
			all = all && c.Done()
		}
		stopped = r.stopping.Load()
		r.done.Store(done)
		r.broken.Store(broken)
		if all && !through {
			through = true
			close(r.through)
		}
		if moved > 0 {
			idle = 0
			continue
		}
		if idle++; idle < 16 {
			continue
		}
		d := 2 * time.Millisecond
		if next != clock.Never {
			d = min(d, next.Sub(now))
		}
		if d > 0 {
			if _, err := r.ports[0].(port.MultiWaiter).WaitAny(ctx, r.ports[1:], d); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
	return nil
}

// ownJournals gives a test's programs a directory of their own for journals: all middleboxes of the tests have one name, and a journal ends the
// connections that it names and that the state does not know.
func ownJournals(t *testing.T) {
	t.Helper()
	t.Setenv("STATE_DIRECTORY", t.TempDir())
}

// start starts the middlebox, and returns when that was.
func (r *rack) start() clock.Time {
	r.t.Helper()
	args := []string{quillon, "run", "--inline", r.top.Inline[0] + "," + r.top.Inline[1], "--nf", "swordbox,mode=replace,replace=learnt,writable=assume"}
	if r.cfg.state != "" {
		args = append(args, "--state", r.cfg.state)
	}
	return r.exec(args)
}

// exec starts the middlebox with these arguments, the program first, and returns when that was.
func (r *rack) exec(args []string) clock.Time {
	r.t.Helper()
	at := r.clk.Now()
	r.trace.note(at, "the middlebox starts")
	var err error
	if r.box, err = demo.StartProcess(r.top.Switch, demo.Command{Path: args[0], Args: args, Nice: -10}); err != nil {
		r.t.Fatal(err)
	}
	return at
}

// running waits until the middlebox says that it runs.
func (r *rack) running() {
	r.t.Helper()
	r.until("the middlebox to run", func() bool {
		select {
		case <-r.box.Done():
			r.t.Fatal(r.box.Err())
		default:
		}
		return strings.Contains(r.box.Log(), "running as ")
	})
	r.trace.note(r.clk.Now(), "the middlebox runs")
}

// begins waits until the middlebox runs, or has ended, and reports whether it runs.
func (r *rack) begins() (runs bool) {
	r.t.Helper()
	r.until("the middlebox to run, or to end", func() bool {
		select {
		case <-r.box.Done():
			return true
		default:
		}
		runs = strings.Contains(r.box.Log(), "running as ")
		return runs
	})
	return runs
}

// container starts a process in a network namespace of its own, for nsenter(1), and returns its number. The process ends with the test.
func (r *rack) container() string {
	r.t.Helper()
	c := exec.Command("unshare", "-n", "sleep", "3600")
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	pid := strconv.Itoa(c.Process.Pid)
	r.until("a namespace", func() bool { // which is there when the process is no longer unshare's
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		return string(name) == "sleep\n"
	})
	return pid
}

// says waits until the middlebox has said all of words: it says so beside its work.
func (r *rack) says(words ...string) {
	r.t.Helper()
	r.until(fmt.Sprintf("the middlebox to say %q", words), func() bool {
		log := r.box.Log()
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(log, w) })
	})
}

// until waits for something.
func (r *rack) until(what string, f func() bool) {
	r.t.Helper()
	for start := r.clk.Now(); !f(); r.wait(time.Millisecond) {
		select {
		case err := <-r.ended:
			r.ended <- err
			r.t.Fatalf("the endpoints ended: %v", err)
		default:
		}
		if late := r.clk.Now().Sub(start) > 20*time.Second; late && r.seen == nil {
			r.t.Fatalf("waited too long for %s; middlebox: %s", what, r.box.Log())
		} else if late {
			r.t.Fatalf("waited too long for %s; %d operations, %d broken, %d requests at the server, %d replaced; middlebox: %s\n%s", what,
				r.done.Load(), r.broken.Load(), r.seen.requests.Load(), r.seen.wrote.Load(), r.box.Log(), r.ask("report", "swordbox"))
		}
	}
}

func (r *rack) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.t.Context().Done():
		r.t.Fatal(r.t.Context().Err())
	}
}

// replaces waits until n more atomics went as WRITEs and n more operations
// are done.
func (r *rack) replaces(n uint64) {
	r.t.Helper()
	done, wrote := r.done.Load()+n, r.seen.wrote.Load()+n
	r.until("atomics to be replaced", func() bool { return r.done.Load() >= done && r.seen.wrote.Load() >= wrote })
}

// recorded waits until the two ends of n connections count differently.
func (r *rack) recorded(n int) {
	r.t.Helper()
	r.until("connections to be shared", func() bool {
		return strings.Contains(r.ask("report", "swordbox"), fmt.Sprintf("\"recorded\": %d", n))
	})
}

// kill ends the middlebox in the middle of whatever it does.
func (r *rack) kill() {
	r.t.Helper()
	if err := r.box.Signal(syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	<-r.box.Done()
}

// starved is how long the middlebox's threads were ready to run and waited for a processor.
func (r *rack) starved() (all time.Duration) {
	r.t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", r.box.PID()))
	if err != nil || len(names) == 0 {
		r.t.Fatal("no thread of the middlebox is known", err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		var ran, waited int64 // in nanoseconds
		if _, err := fmt.Sscan(string(b), &ran, &waited); err != nil {
			r.t.Fatalf("%s: %q", name, b)
		}
		all += time.Duration(waited)
	}
	return all
}

// caps are the middlebox's effective capabilities.
func (r *rack) caps() (caps uint64) {
	r.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.box.PID()))
	if err != nil {
		r.t.Fatal(err)
	}
	_, of, _ := strings.Cut(string(status), "CapEff:")
	if _, err := fmt.Sscanf(of, "%x", &caps); err != nil {
		r.t.Fatal(err)
	}
	return caps
}

// ask runs a command about the instance in its namespace.
func (r *rack) ask(args ...string) string {
	r.t.Helper()
	var out []byte
	err := r.top.Switch.Do(func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		out, err = exec.CommandContext(ctx, quillon, args...).CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Sprintf("%s%v", out, err)
	}
	return string(out)
}

// finish ends the load and checks everything: what clients saw, the histories
// with the memory's final content, and that all locks are free.
func (r *rack) finish() {
	r.t.Helper()
	r.stopping.Store(true)
	r.until("the clients to end", func() bool {
		select {
		case <-r.through:
			return true
		default:
			return false
		}
	})
	r.cancel()
	err := <-r.ended
	r.ended <- nil
	if err != nil {
		r.t.Error(err)
	}
	now, reader := r.clk.Now(), r.words.NewClient()
	for _, a := range r.memory.Addrs() {
		id := r.words.Call(reader, now, history.Word{Op: rnic.OpRead, Addr: a})
		r.words.Return(id, now, r.memory.Word(a))
	}
	start := r.clk.Now()
	if err := errors.Join(history.Check(history.Words(nil), &r.words, 0), history.Check(history.Locks(), &r.locks, 0)); err != nil {
		r.t.Error(err)
	}
	r.t.Logf("%d operations (%d of histories, checked in %v), %d connections broke; %d requests at the server, %d replaced", r.done.Load(),
		len(r.words.Ops())+len(r.locks.Ops()), r.clk.Now().Sub(start).Round(time.Millisecond), r.broken.Load(), r.seen.requests.Load(), r.seen.wrote.Load())
	if n := r.seen.strays.Load(); n != 0 {
		r.t.Errorf("%d requests came to the server with the PSNs of their clients: they crossed untouched; the first: %s", n, *r.seen.stray.Load())
	}
	for _, a := range r.memory.Addrs() {
		if v := r.memory.Word(a); r.cfg.works[0] == locks.Spin && v != 0 {
			r.t.Errorf("lock %#x is still held as %#x", a, v)
		}
	}
}

// down takes everything down.
func (r *rack) down() {
	if r.cancel != nil {
		r.cancel()
		<-r.ended
	}
	for _, f := range r.close {
		if err := f(); err != nil {
			r.t.Error(err)
		}
	}
	if r.box != nil {
		select {
		case <-r.box.Done():
		default:
			if err := r.box.Stop(); err != nil {
				r.t.Error(err)
			}
		}
		if r.t.Failed() {
			r.t.Logf("what happened:\n%sconnections that broke:\n%s\nmiddlebox: %s", r.trace.events.String(), strings.Join(r.breaks, "\n"), r.box.Log())
			r.trace.save(r.t, r.words.Ops())
		}
	}
	if err := r.top.Close(); err != nil {
		r.t.Error(err)
	}
}
