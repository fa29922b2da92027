package poll

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// file is a pipe as a port; nothing but its FD and Idle is asked for.
type file struct {
	port.Port
	r, w  int
	idles int
	err   error
}

func (f *file) FD() int { return f.r }
func (f *file) Idle() (clock.Duration, error) {
	f.idles++
	return time.Millisecond, f.err
}

// full is a file that has no memory to receive into.
type full struct{ *file }

func (full) CanReceive() bool { return false }

// holder has frames that are not in the kernel any more.
type holder struct{ *file }

func (holder) Holding() bool { return true }

// notFile has no FD.
type notFile struct{ port.Port }

func pipe(t *testing.T) *file {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(p[0]), unix.Close(p[1]) })
	return &file{r: p[0], w: p[1]}
}

func TestWait(t *testing.T) {
	var s Set
	a, b, gone := pipe(t), pipe(t), &file{r: -1}
	clk := clock.NewWall()
	ctx := context.Background()
	if ok, err := s.Wait(ctx, clk, 20*time.Millisecond, a, []port.Port{b, gone}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if a.idles < 2 || b.idles < 2 {
		t.Errorf("idled %d and %d times", a.idles, b.idles)
	}
	if _, err := unix.Write(b.w, []byte{1}); err != nil {
		t.Fatal(err)
	}
	for _, two := range [][2]File{{holder{a}, full{b}}, {full{b}, holder{a}}} {
		idles := b.idles
		if ok, err := s.Wait(ctx, clk, time.Hour, two[0], []port.Port{two[1]}); !ok || err != nil || b.idles != idles {
			t.Error("waits for what it has:", ok, err)
		}
	}
	others := []port.Port{gone, b}
	for _, own := range []File{full{b}, a} {
		start := clk.Now()
		if ok, err := s.Wait(ctx, clk, 20*time.Millisecond, own, []port.Port{full{b}}); !ok || err != nil || clk.Now().Sub(start) < 20*time.Millisecond {
			t.Error("a file that cannot receive wakes", ok, err)
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		start := clk.Now()
		if ok, err := s.Wait(ctx, clk, time.Minute, a, others); !ok || err != nil || clk.Now().Sub(start) > 30*time.Second {
			t.Error("a file that can be read does not wake", ok, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestEnds(t *testing.T) {
	var s Set
	a, b := pipe(t), pipe(t)
	clk := clock.NewWall()
	ctx, cancel := context.WithCancel(context.Background())
	if ok, err := s.Wait(ctx, clk, time.Minute, &file{r: -1}, nil); !ok || err != port.ErrClosed {
		t.Error("closed:", ok, err)
	}
	for _, others := range [][]port.Port{{b, notFile{}}, make([]port.Port, most)} {
		if ok, err := s.Wait(ctx, clk, time.Minute, a, others); ok || err != nil {
			t.Error("waited for what it cannot:", ok, err)
		}
	}
	b.err = errors.New("broken")
	if ok, err := s.Wait(ctx, clk, time.Minute, a, []port.Port{b}); !ok || err != b.err {
		t.Error("another's error:", ok, err)
	}
	cancel()
	if ok, err := s.Wait(ctx, clk, time.Minute, a, nil); !ok || err != context.Canceled {
		t.Error("cancelled:", ok, err)
	}
}
