package fusee

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Impossible settings are refused in one line.
func TestRefuses(t *testing.T) {
	for _, l := range []Layout{
		{Nodes: 17}, {Nodes: 2, Replicas: 3}, {Nodes: 6, Replicas: 6}, {Subtables: 3}, {Groups: 3}, {Groups: -2}, {Unit: 100}, {Block: 300}, {Blocks: -1}, {Blocks: 1 << 40},
	} {
		if _, err := NewCluster(l); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", l, err)
		}
	}
	if _, err := NewMemory(Layout{}, 1); err == nil {
		t.Error("a node that is none")
	}
	if _, err := NewMaster(MasterConfig{}); err == nil {
		t.Error("a master of nothing")
	}
	dial := func(clock.Time, int, int) (*rnic.QP, Grant, error) { return nil, Grant{}, errors.New("no") }
	alloc := func(clock.Time, uint16, int, int) (int, error) { return 0, nil }
	next := func(clock.Time, int) (Op, bool) { return Op{}, false }
	good := Config{Sessions: 1, ID: 1, CQ: new(rnic.CQ), Dial: dial, Alloc: alloc, Next: next}
	for name, change := range map[string]func(*Config){
		"no sessions": func(c *Config) { c.Sessions = 0 }, "no number": func(c *Config) { c.ID = 0 }, "number": func(c *Config) { c.ID, c.Sessions = 65535, 2 },
		"no queue": func(c *Config) { c.CQ = nil }, "no dial": func(c *Config) { c.Dial = nil }, "cache": func(c *Config) { c.Cache = 1 << 30 },
		"share": func(c *Config) { c.MissRate = 2 }, "time": func(c *Config) { c.FailAfter = -1 }, "geometry": func(c *Config) { c.Nodes = -1 },
	} {
		c := good
		change(&c)
		if _, err := NewClient(c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// one runs the operations of one session, one after another.
func one(t *testing.T, l Layout, change func(*Config), ops ...Op) (*scramble, []Result) {
	x := newScramble(t, l, 1)
	var all []Result
	c := x.client(1, 1, func(*Client, int) (op Op, ok bool) {
		if len(ops) == 0 {
			return op, false
		}
		op, ops = ops[0], ops[1:]
		return op, true
	})
	c.cfg.Done = func(r *Result) {
		k := *r
		k.Got = append([]byte{}, r.Got...)
		all = append(all, k)
	}
	if change != nil {
		change(&c.cfg)
	}
	x.run(0, 0, 0)
	return x, all
}

// Impossible operations are refused; the others have the right results.
func TestOperations(t *testing.T) {
	long := make([]byte, MaxKey+1)
	l := Layout{Nodes: 2, Replicas: 2, Subtables: 1, Groups: 2, Block: 1 << 14, Blocks: 3}
	x, rs := one(t, l, nil,
		Op{Kind: Read}, Op{Kind: Read, Key: long}, Op{Kind: Insert, Key: long[:4], Value: make([]byte, 1<<14)}, Op{Kind: Recover, Dead: 1}, Op{Kind: Recover}, Op{Kind: 9, Key: long[:1]},
		Op{Kind: Update, Key: long[:MaxKey], Value: []byte("a")}, Op{Kind: Insert, Key: long[:MaxKey], Value: []byte("b")}, Op{Kind: Read, Key: long[:MaxKey]},
		Op{Kind: Update, Key: long[:MaxKey], Value: []byte("cc")}, Op{Kind: Insert, Key: long[:MaxKey], Value: []byte("d")}, Op{Kind: Read, Key: long[:MaxKey]}, Op{Kind: Read, Key: long[:MaxKey]},
		Op{Kind: Delete, Key: long[:MaxKey]}, Op{Kind: Read, Key: long[:MaxKey]},
	)
	if len(rs) != 15 {
		t.Fatalf("%d results", len(rs))
	}
	for i, want := range []error{ErrKey, ErrKey, ErrValue, ErrOwner, ErrOwner} {
		if !errors.Is(rs[i].Err, want) {
			t.Errorf("%d: %v, not %v", i, rs[i].Err, want)
		}
	}
	if rs[5].Err == nil {
		t.Error("an operation that is none")
	}
	for i, want := range []string{"false ", "false ", "true b", "true ", "true cc", "true cc", "true cc", "true ", "false "} {
		if got := fmt.Sprintf("%v %s", rs[6+i].Found, rs[6+i].Got); got != want || rs[6+i].Err != nil {
			t.Errorf("%d: %q, not %q, %v", 6+i, got, want, rs[6+i].Err)
		}
	}
	if _, err := x.store.Check(); err != nil {
		t.Error(err)
	}
}

// A full index, and full memory, refuse new values and keep the old ones.
func TestFull(t *testing.T) {
	var ops []Op
	for i := range 200 {
		ops = append(ops, Op{Kind: Insert, Key: []byte(fmt.Sprint(i)), Value: []byte("v")})
	}
	x, rs := one(t, Layout{Subtables: 1, Groups: 2}, nil, ops...)
	full := 0
	for _, r := range rs {
		if errors.Is(r.Err, ErrFull) {
			full++
		} else if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	values, err := x.store.Check()
	if err != nil || len(values)+full != 200 || len(values) < x.store.layout().Capacity()*3/4 || x.store.Count() != len(values) {
		t.Errorf("%d values, %d refused, %v", len(values), full, err)
	}
	x, rs = one(t, Layout{Subtables: 1, Groups: 64, Block: 1024, Blocks: 2}, nil, ops[:20]...)
	for i, r := range rs {
		if (i < 8) != (r.Err == nil) || i >= 8 && !errors.Is(r.Err, ErrNoMemory) {
			t.Errorf("%d: %v", i, r.Err)
		}
	}
	if values, err := x.store.Check(); err != nil || len(values) != 8 {
		t.Errorf("%d values, %v", len(values), err)
	}
}

// Memory of replaced values is used again later.
func TestUsedAnew(t *testing.T) {
	ops := []Op{{Kind: Insert, Key: []byte("k"), Value: []byte("v")}}
	for i := range 60 {
		ops = append(ops, Op{Kind: Update, Key: []byte("k"), Value: []byte(fmt.Sprint(i))})
	}
	x, rs := one(t, Layout{Nodes: 2, Replicas: 2, Subtables: 1, Groups: 2, Block: 1024, Blocks: 1}, nil, ops...)
	for i, r := range rs {
		if r.Err != nil {
			t.Fatalf("%d: %v", i, r.Err)
		}
	}
	if values, err := x.store.Check(); err != nil || string(values["k"]) != "59" || x.clients[0].stats.Collected < 40 {
		t.Errorf("%q, %v, %+v", values, err, x.clients[0].stats)
	}
}

// A client with another geometry does no operation.
func TestWrongGeometry(t *testing.T) {
	_, rs := one(t, Layout{Subtables: 1, Groups: 4}, func(c *Config) { c.Subtables = 2 }, Op{Kind: Read, Key: []byte("k")}, Op{Kind: Read, Key: []byte("k")})
	if len(rs) != 2 || rs[0].Err == nil || rs[1].Err == nil || strings.Contains(rs[0].Err.Error(), "\n") {
		t.Errorf("%v", rs)
	}
}

// If a node does not answer, and no master takes it out, operations end with an error after a time.
func TestNoNode(t *testing.T) {
	var errs []error
	x, _ := one(t, Layout{Subtables: 1, Groups: 4}, func(c *Config) {
		c.Done = func(r *Result) { errs = append(errs, r.Err) }
		c.Dial = func(clock.Time, int, int) (*rnic.QP, Grant, error) { return nil, Grant{}, errors.New("no") }
		c.Suspect, c.FailAfter = nil, 8000
	}, Op{Kind: Read, Key: []byte("k")}, Op{Kind: Insert, Key: []byte("k")})
	for i := 0; i < 8 && len(errs) < 2; i++ {
		x.now = x.now.Add(onesided.RedialAfter)
		x.run(0, 0, 0)
	}
	if len(errs) != 2 || !errors.Is(errs[0], ErrGone) || !errors.Is(errs[1], ErrGone) {
		t.Errorf("%v", errs)
	}
}

// If a master publishes no view, or takes no node out, operations end with an error after a time, too.
func TestNoMaster(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"view": func(c *Config) { c.View = func(clock.Time) View { return View{Alive: 1} } },
		"node": func(c *Config) {
			c.View = nil
			c.Dial = func(clock.Time, int, int) (*rnic.QP, Grant, error) { return nil, Grant{}, errors.New("no") }
		},
	} {
		var errs []error
		x, _ := one(t, Layout{Subtables: 1, Groups: 4}, func(c *Config) {
			c.Done = func(r *Result) { errs = append(errs, r.Err) }
			change(c)
		}, Op{Kind: Update, Key: []byte("k")})
		for i := 0; i < 16*4+10 && len(errs) == 0; i++ {
			x.now = x.now.Add(onesided.RedialAfter)
			x.run(0, 0, 0)
		}
		if len(errs) != 1 || !errors.Is(errs[0], ErrGone) {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// Keys' buckets are in their halves of the table, and slots return the fields that they were made of.
func TestLayout(t *testing.T) {
	l, err := Layout{Groups: 6}.complete()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		h := l.hash([]byte(fmt.Sprint(i)))
		for b, at := range h.bucket {
			if at/bucketSize%3 > 1 || at/groupSize/3 != b || at+combined > l.subtableSize() || h.sub >= l.Subtables {
				t.Fatalf("%+v", h)
			}
		}
	}
	a := address{11, 63 << 34 & (1<<46 - 1) &^ 63}
	w := makeSlot(0xAB, 63, a)
	if w.fp() != 0xAB || w.units() != 63 || w.at() != a || w.free() || !w.tomb().free() || (w|tentative).tomb() != w.tomb() || w.tomb().at() != a {
		t.Errorf("%#x", uint64(w))
	}
}

// Memory that was given up is used again after its time, and not before.
func TestGrace(t *testing.T) {
	var s onesided.Slab[address]
	s.Leave(1000, s.Use(2, address{0, 512}))
	if _, ok := s.Take(1000+4999, 2, 5000); ok {
		t.Error("too early")
	}
	if p, ok := s.Take(1000+5000, 2, 5000); !ok || p.At.off != 512 {
		t.Errorf("%+v, %v", p, ok)
	}
}
