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

	"github.com/quillon/quillon/internal/rack/clover"
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
	// Hosts is the number of client hosts, Threads those on each.
	Hosts   int   `json:"hosts,omitempty"`
	Threads []int `json:"threads,omitempty"`
	// NIC is a JSON object of NIC parameters that are not ConnectX-5's.
	NIC string `json:"nic,omitempty"`
	// Trace is a file with a load: a capture, whose endpoints are IP addresses, or
	// CSV (package traffic).
	Trace string `json:"trace,omitempty"`
	// Cause switches a cause of deviations, which a figure's reasons name.
	Cause string `json:"cause,omitempty"`
	// Against is a CSV file with curves to compare with in the place of the published ones: x, y,
	// series, and in a fourth column the panel, from 0, if it is not the first.
	Against string `json:"against,omitempty"`
}

// mostThreads is how many client threads a host may have.
const mostThreads = 256

// Check says which parameter cannot be.
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

// search is that of Clover's clients.
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

// Figure is one that can be rerun.
type Figure struct {
	ID string
	// Calibration: the model's constants come from it.
	Calibration bool
	// Fitted names curves that constants come from, where not all do.
	Fitted []string
	data   string       // published/data.json
	panels map[int]bool // quantities that are compared; nil = all
	// usual are the published parameters: asking for them changes nothing.
	usual Params
	// takes names the parameters that change it. Where overThreads, those
	// are its abscissa: asking for some of them changes nothing.
	takes       []string
	overThreads bool
	jobs        func(p *Published, par Params) ([]job, error)
	ratios      []ratio
	reasons     []reason
	// inputs are points that nothing was predicted for: constants come from them,
	// they restate others, or what is measured was chosen after results.
	inputs []reason
	// causes are those that Params.Cause may switch.
	causes []string
	// lacks says which part is not run.
	lacks []string
	// strict: tolerances are those of boards.
	strict bool
}

func (f *Figure) tolerance() Tolerance {
	if f.strict {
		return strict
	}
	return usual
}

// job is a part of a figure that is run for itself.
type job struct {
	name string
	cost float64 // relative running time
	// run reports progress from 0 to 1.
	run func(ctx context.Context, progress func(done float64)) ([]Value, error)
}

// ref names a value of a figure; without a series it is the number x itself.
type ref struct {
	panel  int
	series string
	x      any // number or category
}

// value is what side takes from the point; nil when there is none.
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

// ratio is a claim: the value at of over the value at to.
type ratio struct {
	claim  string
	of, to ref
}

// eval is the ratio of what side takes from the points; nil when one is not
// there.
func (c *ratio) eval(r *Result, side func(*Point) *float64) *float64 {
	a, b := c.of.value(r, side), c.to.value(r, side)
	if a == nil || b == nil || *b == 0 {
		return nil
	}
	v := round(*a / *b)
	return &v
}

// reason names points of a figure and says what is known of them. It excuses
// nothing: without a cause, a point outside the tolerance is missed, and the text
// is what is believed about it.
type reason struct {
	panel  int
	series string // of the points; "" = every series; the claim, if ratio
	ratio  bool
	// from and to bound x; to = 0 means no bound. names are categories.
	from, to float64
	names    []string
	text     string
	// cause names the experiment that shows why: Params.Cause switches it, and
	// with it the points move into the tolerance (TestCauses runs it).
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

// Caption says what the figure shows.
func (f *Figure) Caption() string {
	p, err := load(f.data)
	if err != nil {
		return err.Error()
	}
	return p.Caption
}

// Own reports whether nothing was published: an experiment of this project's own.
func (f *Figure) Own() bool {
	p, err := load(f.data)
	return err == nil && p.empty()
}

// Document is where the figure is from.
func (f *Figure) Document() string {
	p, err := load(f.data)
	if err != nil {
		return err.Error()
	}
	return p.Document
}

// Find finds figures by their IDs.
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

// Progress is how far a run is.
type Progress struct {
	Figure string
	Step   string  // a part that is being run
	Done   float64 // of the figure, 0 to 1
}

// Run reruns f. Jobs run on all processors; what they measure does not depend
// on that. show may be nil; it is called from one goroutine at a time.
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

// altered lists the parameters of par that are not the published ones, and takes out of it those that are.
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
	// The long ones first, so that the processors end together.
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
