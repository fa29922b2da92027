package figure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/sim"
)

// Params say how figures are rerun. A zero value means as published.
type Params struct {
	Seed uint64 `json:"seed"`
	// Quick runs few points for a short time.
	Quick bool `json:"quick,omitempty"`
	// Keys, Zipf (the exponent) and ObjectSize (bytes of an entry) describe
	// the store.
	Keys       int      `json:"keys,omitempty"`
	Zipf       *float64 `json:"zipf,omitempty"`
	ObjectSize int      `json:"object_size,omitempty"`
	// SteeredKeys bounds how many of the most popular keys are steered.
	SteeredKeys int `json:"steered_keys,omitempty"`
	// Search is how Clover's clients find tails: "library" (as published; the default) or
	// "headers" (this project's own).
	Search string `json:"search,omitempty"`
	// Hosts is the number of client hosts; Threads are the numbers of threads on each host.
	Hosts   int   `json:"hosts,omitempty"`
	Threads []int `json:"threads,omitempty"`
	// NIC is a file with a JSON object of the NIC parameters that differ from ConnectX-5's.
	NIC string `json:"nic,omitempty"`
	// Trace is a file with a load: a capture, whose endpoints are its IP addresses, or CSV (package traffic).
	Trace string `json:"trace,omitempty"`
	// Cause switches a cause of deviations that a reason of the figure names.
	Cause string `json:"cause,omitempty"`
	// Against is a CSV file with curves to compare with instead of the published ones: x, y, series, and in a
	// fourth column the panel, counted from 0, which may be left out for the first panel.
	Against string `json:"against,omitempty"`
}

// mostThreads is the most client threads that a host may have.
const mostThreads = 4096

// Check returns an error about a parameter that is out of its range.
func (p *Params) Check() error {
	for _, c := range []struct {
		name       string
		v          int
		least, top int
	}{
		{"keys", p.Keys, 1, 1 << 20},
		{"object-size", p.ObjectSize, 64, 4096},
		{"steered-keys", p.SteeredKeys, 1, 1 << 20},
		{"hosts", p.Hosts, 1, 64},
	} {
		if c.v != 0 && (c.v < c.least || c.v > c.top) {
			return fmt.Errorf("%s must be from %d to %d", c.name, c.least, c.top)
		}
	}
	if p.ObjectSize&(p.ObjectSize-1) != 0 {
		return errors.New("object-size must be a power of two")
	}
	if _, err := p.search(); err != nil {
		return err
	}
	if p.Zipf != nil && !(*p.Zipf >= 0 && *p.Zipf <= 10) {
		return errors.New("zipf must be from 0 to 10")
	}
	for _, n := range p.Threads {
		if n < 1 || n > mostThreads {
			return fmt.Errorf("threads must be from 1 to %d on each host", mostThreads)
		}
	}
	return nil
}

// search returns how Clover's clients find tails.
func (p *Params) search() (clover.Search, error) {
	if p.Search == "" {
		return clover.SearchLibrary, nil
	}
	return clover.SearchNamed(p.Search)
}

func (p *Params) altersSearch() bool {
	s, err := p.search()
	return err == nil && s != clover.SearchLibrary
}

// Figure is a figure that can be rerun.
type Figure struct {
	ID string
	// Calibration: constants of the models come from this figure.
	Calibration bool
	// Fitted names the curves that constants come from, if they are not all curves.
	Fitted []string
	data   string       // published/data.json
	panels map[int]bool // the quantities that are compared; nil: all
	// usual are the published parameters. Params that name them change nothing.
	usual Params
	// takes names the parameters that change the figure. With overThreads the numbers of threads are its
	// abscissa, so that choosing some of them is no change.
	takes       []string
	overThreads bool
	jobs        func(p *Published, par Params) ([]job, error)
	ratios      []ratio
	reasons     []reason
	// inputs are points that nothing was predicted for: constants come from them, they restate other points,
	// or the way to measure them was chosen after results were known.
	inputs []reason
	// causes are the values that Params.Cause may have.
	causes []string
	// lacks names the parts that are not run.
	lacks []string
	// strict: the tolerances are those of figures about boards.
	strict bool
}

func (f *Figure) tolerance() Tolerance {
	if f.strict {
		return strict
	}
	return usual
}

// job is a part of a figure that runs on its own.
type job struct {
	name string
	cost float64 // relative running time
	// run reports progress from 0 to 1.
	run func(ctx context.Context, progress func(done float64)) ([]Value, error)
}

// Times after which as many clients wait for the locks of popular keys as ever will, and for which these are measured.
const (
	queuesFull     = 6 * time.Millisecond
	queuesMeasured = 3 * time.Millisecond
)

// storeJob makes the job of one run of a store on the rack.
func storeJob[C, M any, PC interface {
	*C
	Load() *sim.StoreLoad
}, PM interface {
	*M
	Check() error
}](par Params, name string, c C, run func(context.Context, C) (M, error), values func(*M) []Value) job {
	l := PC(&c).Load()
	l.Seed = par.Seed
	if l.Measure == 0 {
		l.Warmup, l.Measure = 500*time.Microsecond, 2*time.Millisecond
	}
	if par.Quick {
		l.Warmup, l.Measure = 200*time.Microsecond, 500*time.Microsecond
	}
	return job{name: name, cost: float64(l.Clients) * (l.Warmup + l.Measure).Seconds(), run: func(ctx context.Context, progress func(float64)) (_ []Value, err error) {
		l.Progress = progress
		if l.NIC, err = par.nic(); err != nil {
			return nil, err
		}
		m, err := run(ctx, c)
		if err == nil {
			err = PM(&m).Check()
		}
		return values(&m), err
	}}
}

// ref names a value of a figure; without a series it is the number x itself.
type ref struct {
	panel  int
	series string
	x      any // number or category
}

// value returns what side returns for the point; nil if there is no such point.
func (e ref) value(r *Result, side func(*Point) *float64) *float64 {
	if e.series == "" {
		v := e.x.(float64)
		return &v
	}
	if p := r.find(e.panel, e.series, e.x); p != nil {
		return side(p)
	}
	return nil
}

// ratio is a claim of the authors: the value of, divided by the value to.
type ratio struct {
	claim  string
	of, to ref
}

// eval returns the ratio of what side returns for the two points; nil if one of them is missing.
func (c *ratio) eval(r *Result, side func(*Point) *float64) *float64 {
	a, b := c.of.value(r, side), c.to.value(r, side)
	if a == nil || b == nil || *b == 0 {
		return nil
	}
	v := round(*a / *b)
	return &v
}

// reason names points of a figure and says what is known about their deviation. A reason excuses nothing:
// without a cause, a point outside the tolerance counts as missed, and the text says what is believed about
// it.
type reason struct {
	panel  int
	series string // of the points, "": of every series; with ratio, the claim
	ratio  bool
	// from and to are bounds of x; to = 0: no upper bound. names are categories.
	from, to float64
	names    []string
	text     string
	// cause names the experiment that shows the reason to be right: when Params.Cause switches it, the points
	// move into the tolerance (TestCauses runs it).
	cause string
}

func (re *reason) point(panel int, series string, p *Point) bool {
	if re.ratio || re.panel != panel || re.series != "" && re.series != series {
		return false
	}
	if len(re.names) > 0 {
		return slices.Contains(re.names, p.Name)
	}
	return p.X >= re.from && (re.to == 0 || p.X <= re.to)
}

// Caption returns what the figure shows.
func (f *Figure) Caption() string {
	p, err := load(f.data)
	if err != nil {
		return err.Error()
	}
	return p.Caption
}

// Own reports whether the figure is an experiment of this project, for which nothing was published.
func (f *Figure) Own() bool {
	p, err := load(f.data)
	return err == nil && p.empty()
}

// Document returns the publication that the figure is from.
func (f *Figure) Document() string {
	p, err := load(f.data)
	if err != nil {
		return err.Error()
	}
	return p.Document
}

// Find returns the figures with these IDs; "fig" or "fig-" before an ID is ignored.
func Find(ids ...string) ([]*Figure, error) {
	var fs []*Figure
	for _, id := range ids {
		var f *Figure
		for _, c := range All() {
			if c.ID == strings.TrimPrefix(strings.TrimPrefix(strings.ToLower(id), "fig"), "-") {
				f = c
			}
		}
		if f == nil {
			return nil, fmt.Errorf("no figure %q; quillon sim --list has them", id)
		}
		fs = append(fs, f)
	}
	return fs, nil
}

// Progress says how far a run is.
type Progress struct {
	Figure string
	Step   string  // the part that is being run
	Done   float64 // of the figure, 0 to 1
}

// Run reruns f. Jobs run on all processors, which does not change what they measure. show may be nil; it is
// called by one goroutine at a time.
func (f *Figure) Run(ctx context.Context, par Params, show func(Progress)) (*Result, error) {
	p, err := load(f.data)
	if err != nil {
		return nil, err
	}
	if par.Against != "" {
		if p, err = p.against(par.Against); err != nil {
			return nil, fmt.Errorf("figure %s: --against %w", f.ID, err)
		}
	}
	altered, err := f.altered(&par)
	if err != nil {
		return nil, err
	}
	r := newResult(f, p, par)
	r.LeftOut, r.Altered = f.lacks, altered
	if len(altered) > 0 && par.Against == "" {
		r.unpublish()
	}
	if _, err := par.nic(); err != nil {
		return nil, fmt.Errorf("figure %s: %w", f.ID, err)
	}
	jobs, err := f.jobs(p, par)
	if err != nil {
		return nil, fmt.Errorf("figure %s: %w", f.ID, err)
	}
	values, err := runJobs(ctx, f.ID, jobs, show)
	if err != nil {
		return nil, err
	}
	for _, vs := range values {
		for _, v := range vs {
			if err := r.put(v); err != nil {
				return nil, err
			}
		}
	}
	r.trim()
	r.judge(f)
	return r, nil
}

// altered lists the parameters of par that differ from the published ones, and clears those that do not.
func (f *Figure) altered(par *Params) ([]string, error) {
	u := &f.usual
	if u.Zipf != nil && par.Zipf != nil && *par.Zipf == *u.Zipf {
		par.Zipf = nil
	}
	for _, n := range []struct {
		usual int
		v     *int
	}{{u.Keys, &par.Keys}, {u.ObjectSize, &par.ObjectSize}, {u.Hosts, &par.Hosts}} {
		if *n.v == n.usual {
			*n.v = 0
		}
	}
	if !f.overThreads && len(u.Threads) > 0 && slices.Equal(u.Threads, par.Threads) {
		par.Threads = nil
	}

	var list []string
	if par.Cause != "" {
		if !slices.Contains(f.causes, par.Cause) {
			return nil, fmt.Errorf("figure %s has no cause %q; it has: %s", f.ID, par.Cause, cmp.Or(strings.Join(f.causes, ", "), "none"))
		}
	}
	for _, a := range []struct {
		name string
		set  bool
		v    any
	}{
		{"keys", par.Keys != 0, par.Keys},
		{"zipf", par.Zipf != nil, par.Zipf},
		{"object-size", par.ObjectSize != 0, par.ObjectSize},
		{"steered-keys", par.SteeredKeys != 0, par.SteeredKeys},
		{"search", par.altersSearch(), par.Search},
		{"hosts", par.Hosts != 0, par.Hosts},
		{"threads", len(par.Threads) != 0, par.Threads},
		{"nic", par.NIC != "", par.NIC},
		{"trace", par.Trace != "", par.Trace},
	} {
		if !a.set {
			continue
		}
		if !slices.Contains(f.takes, a.name) {
			return nil, fmt.Errorf("figure %s does not depend on --%s", f.ID, a.name)
		}
		if a.name == "threads" && f.overThreads {
			continue
		}
		if z, ok := a.v.(*float64); ok {
			a.v = *z
		}
		list = append(list, fmt.Sprintf("%s %v", a.name, a.v))
	}
	return list, nil
}

// runJobs runs jobs on all processors and returns their values in the order of
// the jobs.
func runJobs(ctx context.Context, id string, jobs []job, show func(Progress)) ([][]Value, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu    sync.Mutex
		next  int
		done  = make([]float64, len(jobs))
		out   = make([][]Value, len(jobs))
		total float64
		wg    sync.WaitGroup
	)
	for _, j := range jobs {
		total += j.cost
	}
	// The long jobs come first, so that the processors end at about the same time.
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(jobs[b].cost, jobs[a].cost) })
	tell := func(i int, share float64) {
		mu.Lock()
		defer mu.Unlock()
		done[i] = math.Max(done[i], math.Min(share, 1))
		if show == nil {
			return
		}
		sum := 0.0
		for k, d := range done {
			sum += d * jobs[k].cost
		}
		show(Progress{Figure: id, Step: jobs[i].name, Done: sum / total})
	}
	for range min(len(jobs), runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				n := next
				next++
				mu.Unlock()
				if n >= len(order) {
					return
				}
				i := order[n]
				vs, err := jobs[i].run(ctx, func(share float64) { tell(i, share) })
				if err != nil {
					cancel(fmt.Errorf("figure %s, %s: %w", id, jobs[i].name, err))
					return
				}
				out[i] = vs
				tell(i, 1)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return out, nil
}
