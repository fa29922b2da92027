package bed

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Trial is a load of locks and counters, and what may go wrong meanwhile. The
// zero value of a field takes the default that is given with it.
type Trial struct {
	Work         locks.Work
	Clients      int // 0 = 3
	Sessions     int // queue pairs a client; 0 = 2
	Ops          int // of a session; 0 = 12
	Outstanding  int // 0 = 8
	Words        int // 0 = 3
	MTU          int // 0 = 256
	ReleaseByCAS bool
	Profile      rnic.Profile
	Conn         rnic.Conn
	Box          *Box
	Faults       fault.Mix // Links nil: all of the bed
}

// Result is what a run came to.
type Result struct {
	locks.Stats
	Outcome
	Words *history.Log[history.Word, uint64]
	Locks *history.Log[history.Lock, struct{}]
}

// Outcome is what is said of every run.
type Outcome struct {
	Took   time.Duration // virtual
	Struck int           // frames that a fault befell
}

// run plays a load on a bed, and checks everything.
func (o *Outcome) run(c Config, l interface {
	load
	serve(*rnic.PD) error
	app(*Bed, *Client) (host.App, error)
}) error {
	c.Serve, c.App = l.serve, l.app
	b, err := New(c)
	if err != nil {
		return err
	}
	err = drive(b, l)
	o.Took, o.Struck = b.Clock.Now().Sub(b.start), b.Struck()
	return errors.Join(l.check(b, err), b.Close())
}

// or makes d of a zero.
func or(v *int, d int) {
	if *v == 0 {
		*v = d
	}
}

// defaults fills in what is zero.
func (t Trial) defaults() Trial {
	or(&t.Clients, 3)
	or(&t.Sessions, 2)
	or(&t.Ops, 12)
	or(&t.Outstanding, 8)
	or(&t.Words, 3)
	or(&t.MTU, 256)
	t.Faults.Links = links(t.Faults.Links, t.Clients)
	return t
}

// links are all cables of a bed, unless others are given. Those that everything
// goes through count twice.
func links(given []string, clients int) []string {
	if given != nil {
		return given
	}
	for i := range clients {
		given = append(given, fmt.Sprintf("c%d", i))
	}
	return append(given, "in", "s0", "in", "s0")
}

// longest is how long a run may take, in virtual time: some queue pairs' lives.
const longest = time.Second

// Run does the load under a schedule and checks everything: what the sessions
// saw, both histories with the memory's final content, the locks that are left,
// and the box's books.
func (t Trial) Run(seed uint64, s fault.Schedule) (*Result, error) {
	t = t.defaults()
	l, err := t.load(seed, 0, 0)
	if err != nil {
		return nil, err
	}
	return l.res, l.res.run(Config{Clients: t.Clients, Sessions: t.Sessions, MTU: t.MTU, Profile: t.Profile, Conn: t.Conn, Box: t.Box, Schedule: s, Seed: seed}, l)
}

// load is what some of a bed's clients do to memory of the server's.
type load interface {
	// wrong is the first thing that happened and must not.
	wrong() error
	// done reports whether all clients that live are through.
	done(*Bed) bool
	// check adds the verdict to an error of the run.
	check(*Bed, error) error
}

// drive runs until all loads are through, and nobody will die any more.
func drive(b *Bed, loads ...load) error {
	wrong := func() error {
		for _, l := range loads {
			if err := l.wrong(); err != nil {
				return err
			}
		}
		return nil
	}
	err := b.Run(func() bool {
		if wrong() != nil {
			return true
		}
		return !b.More() && !slices.ContainsFunc(loads, func(l load) bool { return !l.done(b) })
	}, longest)
	if e := wrong(); e != nil {
		return e
	}
	if err == nil {
		err = b.Settle(time.Millisecond)
	}
	return err
}

// locksLoad is a Trial's part of a bed: clients from the one with number first on.
type locksLoad struct {
	Trial
	seed    uint64
	first   int
	memory  *locks.Memory
	grant   locks.Grant
	clients []*locks.Client // of all lives
	res     *Result
}

// load makes the memory, which will be served from va on.
func (t Trial) load(seed uint64, first int, va uint64) (*locksLoad, error) {
	m, err := locks.NewMemory(locks.Layout{Words: t.Words, Block: 3 * t.MTU, Scratch: 8 * t.MTU, Sessions: t.Clients * t.Sessions, VA: va})
	return &locksLoad{
		Trial: t, seed: seed, first: first, memory: m,
		res: &Result{Words: new(history.Log[history.Word, uint64]), Locks: new(history.Log[history.Lock, struct{}])},
	}, err
}

func (l *locksLoad) serve(pd *rnic.PD) (err error) {
	l.grant, err = l.memory.Serve(pd)
	return err
}

func (l *locksLoad) app(b *Bed, c *Client) (host.App, error) {
	x, err := locks.New(locks.Config{
		Layout: l.memory.Layout, Work: l.Work, First: (c.Number - l.first) * l.Sessions, Own: l.Sessions, Life: c.Life,
		Ops: l.Ops, Outstanding: l.Outstanding, MTU: l.MTU, ReleaseByCAS: l.ReleaseByCAS, Seed: l.seed, CQ: c.CQ,
		Dial: func(_ clock.Time, session int) (*rnic.QP, locks.Grant, error) {
			qp, err := b.Dial(c, l.first*l.Sessions+session)
			return qp, l.grant, err
		},
		Dead:    func(session, life int) bool { return b.Dead(l.first+session/l.Sessions, life) },
		WordLog: l.res.Words, LockLog: l.res.Locks,
	})
	l.clients = append(l.clients, x)
	return x, err
}

func (l *locksLoad) wrong() error {
	for _, c := range l.clients {
		if err := c.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (l *locksLoad) done(b *Bed) bool {
	for i := range l.Clients {
		if !b.Down(l.first+i) && !b.clients[l.first+i].App.(*locks.Client).Done() {
			return false
		}
	}
	return true
}

func (l *locksLoad) check(b *Bed, err error) error {
	t, res, memory := l.Trial, l.res, l.memory
	all, deaths := t.Clients*t.Sessions, 0
	for i := range t.Clients {
		deaths += b.Deaths(l.first + i)
	}
	for _, c := range l.clients {
		onesided.Add(&res.Stats, c.Stats())
	}
	through := err == nil
	// The memory's own word is the last of the history.
	now, reader := b.Clock.Now(), res.Words.NewClient()
	for _, a := range memory.Addrs() {
		id := res.Words.Call(reader, now, history.Word{Op: rnic.OpRead, Addr: a})
		res.Words.Return(id, now, memory.Word(a))
	}
	err = errors.Join(err, history.Check(words(b.cfg.Seed), res.Words, 0), history.Check(history.Locks(), res.Locks, 0))
	for _, a := range memory.Addrs() {
		left := memory.Word(a)
		switch {
		case left == 0 || !through:
		case t.Work == locks.Spin:
			if session, life := locks.OwnerOf(left); session < 0 || session >= all || !b.Dead(l.first+session/t.Sessions, life) {
				err = errors.Join(err, fmt.Errorf("lock %#x is still held as %#x, by a session that has ended", a, left))
			}
		case t.Work == locks.Table && deaths == 0 && res.Stuck == 0:
			err = errors.Join(err, fmt.Errorf("locks %#x of word %#x are still held", left, a))
		}
	}
	return err
}

// Try runs the trial under the random schedule of a seed. When that fails it
// fails the test, with the seed, the fewest faults that still make it fail, and a
// page that shows the history. It reports whether the run passed; a history that
// the checker cannot decide did not, and is logged.
func (t Trial) Try(tb testing.TB, seed uint64) (_ *Result, ok bool) {
	tb.Helper()
	r, err := t.try(tb, seed)
	return r, err == nil
}

func (t Trial) try(tb testing.TB, seed uint64) (*Result, error) {
	tb.Helper()
	t = t.defaults()
	return attempt(tb, t.Work.String(), seed, t.Faults, t.Run, func(res *Result, err error) {
		show(tb, words(seed), res.Words, err)
		show(tb, history.Locks(), res.Locks, err)
	})
}

// attempt does a run under the random schedule of a seed. When it goes wrong it is done again with the fewest faults with
// which it does, the test fails, and show shows what happened. That there is no verdict is logged.
func attempt[R any](tb testing.TB, what string, seed uint64, mix fault.Mix, run func(uint64, fault.Schedule) (*R, error), show func(*R, error)) (*R, error) {
	tb.Helper()
	s := fault.Random(seed, mix)
	res, err := run(seed, s)
	switch {
	case err == nil:
		return res, nil
	case errors.Is(err, history.ErrUndecided):
		tb.Logf("%s, seed %d: %v", what, seed, err)
		return res, err
	}
	s = fault.Shrink(s, 200, func(s fault.Schedule) bool {
		r, e := run(seed, s)
		if e == nil || errors.Is(e, history.ErrUndecided) {
			return false
		}
		res, err = r, e
		return true
	})
	tb.Errorf("%s, seed %d, faults that matter:\n%v%v", what, seed, s, err)
	if res != nil {
		show(res, err)
	}
	return res, err
}

// show prints where a page about err is.
func show[I, O any](tb testing.TB, m history.Model[I, O], l *history.Log[I, O], err error) {
	tb.Helper()
	name, e := history.VisualizeFile(m, l, err, "quillon-history-*.html")
	if e != nil {
		tb.Errorf("the history cannot be shown: %v", e)
	}
	if name != "" {
		tb.Logf("the history: %s", name)
	}
	if bad, ok := errors.AsType[*history.NotLinearizable](err); ok && bad.Model == m.Name && os.Getenv("QUILLON_HISTORY") != "" {
		tb.Log(history.Text(m, l, bad.Object))
	}
}
