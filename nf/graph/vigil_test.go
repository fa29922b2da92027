package graph

import (
	"errors"
	"runtime"
	"testing"
	"time"
)

// looked is an instance whose worker has not answered, and its thread as told.
func looked(t *testing.T, limit time.Duration) (*vigil, *thread) {
	t.Helper()
	w := &worker{live: true}
	w.thread.Store(1)
	now := &thread{}
	v := (&Instance{current: current{workers: []*worker{w}}}).vigil(limit/10, limit)
	v.read = func(int) (thread, bool) { return *now, true }
	return v, now
}

// A worker is stuck when its thread computes, or sleeps, for the limit without a breath; not when
// it gets no processor, however long that takes, and not while a debugger holds it.
func TestVigil(t *testing.T) {
	const limit = 10 * time.Second
	for _, c := range []struct {
		name string
		next func(n int, t *thread) // before look n
		at   int                    // the look that finds it stuck; 0: none does
		want string
	}{
		{"it computes", func(_ int, t *thread) { t.cpu += time.Second }, 11, computes},
		{"it computes on a machine that is busy", func(n int, t *thread) {
			if n%50 == 0 {
				t.cpu += time.Second
			}
		}, 500, computes},
		{"it gets no processor", func(int, *thread) {}, 0, ""},
		{"it sleeps", func(_ int, t *thread) { t.asleep = true }, 11, sleeps},
		{"it sleeps now and then", func(n int, t *thread) { t.asleep = n%5 != 0 }, 0, ""},
		{"it sleeps and works", func(n int, t *thread) {
			if t.asleep = true; n%9 == 0 && n < 90 {
				t.cpu += 10 * time.Millisecond
			}
		}, 91, sleeps},
		{"a debugger holds it", func(_ int, t *thread) { t.stopped = true }, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, th := looked(t, limit)
			for n := 1; n <= 2000; n++ {
				c.next(n, th)
				_, s := v.look()
				if s == nil {
					continue
				}
				if n != c.at || s.Doing != c.want {
					t.Errorf("look %d of %d: %v", n, c.at, s)
				}
				return
			}
			if c.at != 0 {
				t.Error("it is not found stuck")
			}
		})
	}
}

// What was computed before a breath does not count after it.
func TestVigilBreath(t *testing.T) {
	v, th := looked(t, 10*time.Second)
	for range 50 {
		for range 9 {
			th.cpu += time.Second
			if waits, s := v.look(); s != nil || waits != 1 {
				t.Fatalf("%d wait, %v", waits, s)
			}
		}
		v.of[0].readMail(false)
		if waits, s := v.look(); s != nil || waits != 0 {
			t.Fatalf("after a breath %d wait, %v", waits, s)
		}
	}
}

// A worker that a change holds until another one comes is not blamed for that one.
func TestVigilBlames(t *testing.T) {
	v, th := looked(t, time.Second)
	w := &worker{mover: mover{index: 1}, live: true}
	w.ctx.node = &node{name: "slow", kind: &Kind{Name: "dummy"}}
	v.of = append(v.of, watched{worker: w})
	th.asleep = true
	for range 100 {
		if _, s := v.look(); s != nil {
			if s.Worker != 1 || s.App != "slow" || s.Kind != "dummy" {
				t.Error(s)
			}
			return
		}
	}
	t.Error("nobody is stuck")
}

// The kernel tells of a thread what it does.
func TestReadThread(t *testing.T) {
	id := make(chan int)
	end := make(chan struct{})
	defer close(end)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		id <- threadID()
		for {
			select {
			case <-end:
				return
			default:
			}
		}
	}()
	n := <-id
	for late := time.After(60 * time.Second); ; {
		if th, ok := readThread(n); ok && th.cpu >= 20*time.Millisecond && !th.stopped {
			break
		}
		select {
		case <-late:
			t.Fatal("it has not computed")
		default:
		}
	}
	if _, ok := readThread(1 << 30); ok {
		t.Error("there is no such thread")
	}
}

// Without workers that run nobody is waited for.
func TestBreatheNobody(t *testing.T) {
	i := &Instance{current: current{workers: []*worker{{}}}}
	if err := i.Breathe(time.Second, time.Minute); err != nil {
		t.Error(err)
	}
	i.workers[0].live = true
	i.workers[0].thread.Store(1 << 30)
	var s *Stuck
	if err := i.Breathe(time.Hour, time.Millisecond); !errors.As(err, &s) || s.Doing != silent {
		t.Error(err)
	}
}
