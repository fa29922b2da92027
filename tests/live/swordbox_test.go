package live

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// loads are counters and locks, as rxe and as ConnectX clients have them. An
// rxe client may try again without end, a ConnectX one seven times; so the
// former may try soon.
func loads() map[string]config {
	rxe, cx := rnic.DefaultConn(), rnic.DefaultConn()
	rxe.Timeout, cx.Timeout = 10, 16
	counters, spins := []locks.Work{locks.Count, locks.CASCount, locks.Count}, []locks.Work{locks.Spin, locks.Spin, locks.Spin}
	return map[string]config{
		"counters/rxe":      {profile: rnic.RXE, conn: rxe, works: counters},
		"counters/connectx": {profile: rnic.ConnectX, conn: cx, works: counters},
		"locks/rxe":         {profile: rnic.RXE, conn: rxe, works: spins},
		"locks/connectx":    {profile: rnic.ConnectX, conn: cx, works: spins},
	}
}

// rounds is how often each fault happens in a run: QUILLON_ROUNDS, or a few times.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("QUILLON_ROUNDS")); err == nil {
		return n
	}
	return 2
}

// laps are how long something took, each time.
type laps []time.Duration

func (l laps) String() string {
	slices.Sort(l)
	for i := range l {
		l[i] = l[i].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("%v to %v, median %v", l[0], l[len(l)-1], l[len(l)/2])
}

// restart ends the box and starts the next one. It says how long it took from
// the exec of the new process until that said that it runs, until the first
// request came to the server and until the first atomic came as a WRITE; and
// until then from the end of the old one.
type restart struct{ runs, first, replaced, away laps }

func (s *restart) do(r *rack, end func()) {
	r.t.Helper()
	dead := r.clk.Now()
	r.absent.Store(int64(dead))
	r.trace.note(dead, "the middlebox is to end")
	end()
	r.trace.note(r.clk.Now(), "the middlebox has ended")
	r.wait(5 * time.Millisecond) // what was on its way
	r.seen.first.Store(0)
	r.seen.firstWrote.Store(0)
	at := r.start()
	r.running()
	r.absent.Store(0)
	runs := r.clk.Now().Sub(at)
	if starved := r.starved(); runs-starved > mostAbsent {
		r.t.Errorf("the next process ran after %v, of which it waited %v for a processor", runs, starved)
	}
	s.runs = append(s.runs, runs)
	r.replaces(200)
	s.first = append(s.first, clock.Time(r.seen.first.Load()).Sub(at))
	s.replaced = append(s.replaced, clock.Time(r.seen.firstWrote.Load()).Sub(at))
	s.away = append(s.away, clock.Time(r.seen.firstWrote.Load()).Sub(dead))
}

func (s *restart) log(t *testing.T) {
	t.Logf("from exec until it said that it runs %v; until the first request at the server %v; until the first replaced atomic %v, from the end of the old process %v",
		s.runs, s.first, s.replaced, s.away)
}

func each(t *testing.T, run func(t *testing.T, c config)) {
	for name, c := range loads() {
		t.Run(name, func(t *testing.T) {
			c.state = filepath.Join(t.TempDir(), "state")
			run(t, c)
		})
	}
}

// A clean stop hands the connections over to the next process: no client sees
// anything of it but time that passes. That process finds the wire, or, every second
// time, none.
func TestHandOver(t *testing.T) {
	each(t, func(t *testing.T, c config) {
		r := raise(t, c)
		var took restart
		for round := range rounds() {
			r.replaces(200)
			r.recorded(6)
			took.do(r, func() {
				if err := r.box.Stop(); err != nil {
					t.Fatal(err)
				}
				r.says("connections that cannot do without swordbox are handed over")
				if round%2 == 0 {
					return
				}
				if out := r.ask("detach", r.top.Inline[0], r.top.Inline[1]); !strings.Contains(out, "are free") {
					t.Error(out)
				}
			})
			r.says("6 connections taken over")
			if caps := r.caps(); caps&(1<<unix.CAP_DAC_OVERRIDE) != 0 || caps == 0 {
				t.Errorf("capabilities %#x are not those that are kept", caps)
			}
		}
		took.log(t)
		r.finish()
		if n := r.broken.Load(); n != 0 {
			t.Errorf("%d connections broke", n)
		}
	})
}

// Other arguments under way are a hand-over within the process; with mode=off
// connections that cannot do without the box go on, and the box stays, until
// their clients are told.
func TestSet(t *testing.T) {
	c := loads()["counters/rxe"] // they try without end, however long the machine gives the box no processor
	c.state = "none"
	r := raise(t, c)
	r.replaces(200)
	r.recorded(6)
	set := func(arg string) {
		t.Helper()
		if out := r.ask("set", "swordbox", arg); !strings.Contains(out, arg) {
			t.Fatal(out)
		}
		done := r.done.Load() + 200
		r.until("operations to go on", func() bool { return r.done.Load() >= done })
	}
	for _, arg := range []string{"mode=mux", "mode=off", "mode=replace", "mode=off", "conns=600", "mode=replace", "window=2048"} {
		set(arg)
	}
	r.replaces(200)
	if out := r.ask("set", "swordbox", "conns=512"); !strings.Contains(out, "6 connections are left of conns=600, window=2048, for 1 servers: give no less") {
		t.Error(out)
	}
	set("mode=off")
	r.wait(20 * time.Millisecond) // what was on its way
	was := r.seen.wrote.Load()
	done := r.done.Load() + 500
	r.until("operations to go on", func() bool { return r.done.Load() >= done })
	if n := r.seen.wrote.Load() - was; n != 0 {
		t.Errorf("%d atomics were replaced with mode=off", n)
	}
	without := filepath.Join(t.TempDir(), "without.yaml")
	spec := fmt.Sprintf("ports:\n  a: {kind: afxdp, args: {dev: %s, pair: b}}\n  b: {kind: afxdp, args: {dev: %s, pair: a}}\nlinks: [a.out -> b.in, b.out -> a.in]\n", r.top.Inline[0], r.top.Inline[1])
	if err := os.WriteFile(without, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := r.ask("apply", without); !strings.Contains(out, "6 connections cannot do without it: set mode=off and wait") {
		t.Error(out)
	}
	if n := r.broken.Load(); n != 0 {
		t.Errorf("%d connections broke", n)
	}
	set("mode=end")
	r.until("all clients to be told", func() bool { return r.broken.Load() == 6 })
	r.finish()
	if n := r.broken.Load(); n != 6 {
		t.Errorf("%d connections broke, want the 6 that were shared", n)
	}
}

// The next process goes on after a crash, too, as it does after a clean stop: nobody is
// told anything, and nothing that was acknowledged is lost or done twice.
func TestKilled(t *testing.T) {
	each(t, func(t *testing.T, c config) {
		r := raise(t, c)
		var took restart
		for range rounds() {
			r.replaces(200)
			r.recorded(6)
			took.do(r, r.kill)
			r.says("6 connections taken over")
		}
		took.log(t)
		r.finish()
		if n := r.broken.Load(); n != 0 {
			t.Errorf("%d connections broke", n)
		}
	})
}

// A state that is damaged is good for nothing but to tell who must be told.
func TestDamaged(t *testing.T) {
	c := loads()["counters/connectx"]
	c.state = filepath.Join(t.TempDir(), "state")
	r := raise(t, c)
	r.replaces(200)
	r.recorded(6)
	if err := r.box.Stop(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(c.state)
	if err != nil {
		t.Fatal(err)
	}
	b[4096+8] ^= 1 // which version it is of
	if err := os.WriteFile(c.state, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.running()
	r.replaces(200)
	r.says("another version of this program: 6 connections are lost")
	r.finish()
	if n, log := r.broken.Load(), r.box.Log(); n != 6 {
		t.Errorf("%d connections broke; middlebox: %s", n, log)
	}
}

// While no process is there nothing crosses of connections that cannot do without it, also where a bridge joins the
// interfaces; and no process starts that does not know of them.
func TestClosed(t *testing.T) {
	for _, how := range []string{"killed", "stopped, in a bridge"} {
		t.Run(how, func(t *testing.T) {
			c := loads()["counters/rxe"]
			c.state = "none"
			r := raise(t, c)
			r.replaces(200)
			r.recorded(6)
			r.says("--state none: when this process ends")
			if how == "killed" {
				r.kill()
			} else {
				if err := r.top.Switch.Do(func() error { return joins("jb", r.top.Inline) }); err != nil {
					t.Fatal(err)
				}
				if err := r.box.Stop(); err != nil {
					t.Fatal(err)
				}
				r.says("--state none: connections that cannot do without swordbox are lost")
			}
			closed := func() {
				t.Helper()
				r.wait(20 * time.Millisecond) // what was on its way
				was := r.seen.requests.Load()
				r.wait(200 * time.Millisecond)
				if n := r.seen.requests.Load(); n != was {
					t.Errorf("%d requests crossed without a process", n-was)
				}
			}
			closed()
			for _, nf := range []string{"swordbox,mode=replace,replace=learnt,writable=assume", "wire"} {
				r.exec([]string{quillon, "run", "--inline", r.top.Inline[0] + "," + r.top.Inline[1], "--nf", nf})
				r.until("the process to end", func() bool {
					select {
					case <-r.box.Done():
						return true
					default:
						return false
					}
				})
				if log := r.box.Log(); !strings.Contains(log, "12 queue pairs behind m1 and n0 cannot do without a process that was here") ||
					!strings.Contains(log, "and then: quillon detach m1 n0") || strings.Count(log, "\n") != 1 {
					t.Errorf("middlebox: %s", log)
				}
				closed()
			}
			if out := r.ask("detach", r.top.Inline[0], r.top.Inline[1]); !strings.Contains(out, "are free") {
				t.Error(out)
			}
			r.start()
			r.running()
		})
	}
}

// joins makes a bridge of two interfaces of the calling thread's namespace.
func joins(name string, ports [2]string) error {
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	err := errors.Join(netlink.LinkAdd(br), netlink.LinkSetUp(br))
	for _, p := range ports {
		if l, e := netlink.LinkByName(p); e != nil || err != nil {
			err = errors.Join(err, e)
		} else {
			err = netlink.LinkSetMaster(l, br)
		}
	}
	return err
}

// A process that does not run for a while is a network that is slow.
func TestStalled(t *testing.T) {
	each(t, func(t *testing.T, c config) {
		r := raise(t, c)
		for range rounds() {
			r.replaces(200)
			if err := r.box.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			r.wait(400 * time.Millisecond) // longer than giveup=
			if err := r.box.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		r.replaces(200)
		r.finish()
		if n := r.broken.Load(); n != 0 {
			t.Errorf("%d connections broke", n)
		}
	})
}
