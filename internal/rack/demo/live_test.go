package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
	"github.com/quillon/quillon/tor/clover"
	"github.com/quillon/quillon/tor/swordbox"
)

// middlebox makes this test binary a middlebox that takes the arguments of quillon run.
const middlebox = "QUILLON_DEMO_TEST_MIDDLEBOX"

// limit is the limit of the middlebox's heartbeat; empty: the default.
const limit = "QUILLON_DEMO_TEST_LIMIT"

// state is the file with the state that outlives the middlebox; empty: there is none.
const state = "QUILLON_DEMO_TEST_STATE"

func command() Command {
	return Command{Path: "/proc/self/exe", Args: []string{"middlebox"}, Env: []string{middlebox + "=1"}}
}

// patient is a middlebox that no frame passes by when the machine pauses it.
func patient() Command {
	c := command()
	c.Env = append(c.Env, limit+"=20s")
	return c
}

func TestMain(m *testing.M) {
	if os.Getenv(middlebox) == "" {
		os.Exit(m.Run())
	}
	if err := runInline(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func runInline(args []string) (err error) {
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	inline := f.String("inline", "", "")
	nf := f.String("nf", "", "")
	control := f.String("control", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	a, b, _ := strings.Cut(*inline, ",")
	kind, rest, _ := strings.Cut(*nf, ",")
	nfArgs := graph.Args{}
	for _, pair := range strings.Split(rest, ",") {
		k, v, _ := strings.Cut(pair, "=")
		nfArgs[k] = v
	}
	clk := clock.NewWall()
	opt := afxdp.Options{Clock: clk, Filter: &port.Filter{RoCE: true, Guarded: true, Bound: kind == "swordbox"}}
	if s := os.Getenv(limit); s != "" {
		if opt.Stale, err = time.ParseDuration(s); err != nil {
			return err
		}
	}
	pair, err := afxdp.OpenPair(afxdp.PairConfig{A: a, B: b, Options: opt})
	if err != nil {
		return err
	}
	fmt.Print(pair.Info())
	inst, err := graph.New(graph.Config{
		Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{a: {Kind: "afxdp"}, b: {Kind: "afxdp"}},
			Apps:  map[string]graph.AppSpec{kind: {Kind: kind, Args: nfArgs}},
			Links: []string{a + ".out -> " + kind + ".a", kind + ".b -> " + b + ".in", b + ".out -> " + kind + ".b", kind + ".a -> " + a + ".in"},
		},
		Kinds: append(graph.Builtin(), *clover.Kind(), *swordbox.Kind()),
		Ports: map[string][]port.Port{a: {pair.A[0]}, b: {pair.B[0]}},
		Clock: clk, Memory: stateMemory(),
	})
	if err != nil {
		return errors.Join(err, pair.Close())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, err := admin.Listen(ctx, admin.Config{Name: "demo", Path: *control, Instance: inst})
	if err != nil {
		return errors.Join(err, pair.Close())
	}
	err = inst.Run(ctx)
	return errors.Join(err, s.Close(), pair.Close())
}

func TestInNamespaces(t *testing.T) {
	for try := 1; ; try++ {
		r, err := InNamespaces(t.Context(), clock.NewWall(), small(), patient(), func(clock.Time, Progress) {})
		if errors.Is(err, port.ErrNotSupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		holds(t, r)
		// Other work on the machine can keep the middlebox from steering.
		if err = gains(r); err == nil {
			return
		}
		var table strings.Builder
		r.WriteTable(&table)
		t.Logf("%v\n%s", err, table.String())
		if try == tries {
			t.Error(err)
			return
		}
	}
}

// stateMemory maps the file that the environment names, if it names one. The memory outlives the process.
func stateMemory() func(string, int) ([]byte, error) {
	name := os.Getenv(state)
	if name == "" {
		return nil
	}
	return func(_ string, size int) ([]byte, error) {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := f.Truncate(int64(size)); err != nil {
			return nil, err
		}
		return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
}
