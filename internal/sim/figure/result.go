package figure

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strconv"
)

// Tolerance is how far a point and a ratio may be from the published one, as a share of that.
type Tolerance struct {
	Point float64 `json:"point"`
	Ratio float64 `json:"ratio"`
}

var (
	usual = Tolerance{0.25, 0.20}
	// strict is for figures about boards: a larger deviation there has a cause.
	strict = Tolerance{0.15, 0.15}
)

// Verdict says how a simulated value compares with the published one.
type Verdict string

// Verdicts.
const (
	// Within: inside the tolerance.
	Within Verdict = "within"
	// Explained: outside, and an experiment shows why.
	Explained Verdict = "explained"
	// Missed: outside, whatever a reason says about it.
	Missed Verdict = "missed"
	// Cancels: the ratio is inside the tolerance, but its points are outside theirs.
	Cancels Verdict = "cancels"
	// Input: the value is an input to the models, so nothing was predicted.
	Input Verdict = "input"
	// NotCompared: nothing was published for the point, the point was not run, or the run had other
	// parameters than the published ones.
	NotCompared Verdict = ""
)

// Comparison is a published value and the simulated one.
type Comparison struct {
	Published *float64 `json:"published,omitempty"`
	Ours      *float64 `json:"ours,omitempty"`
	// Error is Ours / Published - 1.
	Error   *float64 `json:"error,omitempty"`
	Verdict Verdict  `json:"verdict,omitempty"`
	// Reason is an index into the Result's Reasons, counted from 1; 0: none.
	Reason int `json:"reason,omitempty"`
}

// Point is one abscissa of a curve.
type Point struct {
	X    float64 `json:"x"`
	Name string  `json:"name,omitempty"` // the category
	// Deviation is the standard deviation of the published value.
	Deviation float64 `json:"deviation,omitempty"`
	Comparison
}

// label returns the abscissa as text.
func (p *Point) label() string {
	if p.Name != "" {
		return p.Name
	}
	return strconv.FormatFloat(p.X, 'f', -1, 64)
}

// Curve is a series of points by ascending x.
type Curve struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// simulated reports whether any point of the curve was run.
func (c *Curve) simulated() bool {
	return slices.ContainsFunc(c.Points, func(p Point) bool { return p.Ours != nil })
}

// Panel is one ordinate with its curves.
type Panel struct {
	Y      Axis    `json:"y"`
	Curves []Curve `json:"curves"`
}

// Ratio is a claim that the authors make from the figure's values.
type Ratio struct {
	Claim string `json:"claim"`
	Comparison
}

// Count counts values by verdict.
type Count struct {
	Within    int `json:"within"`
	Explained int `json:"explained"`
	Missed    int `json:"missed"`
	// Cancels are ratios of two errors that cancel. They count as not held.
	Cancels int `json:"cancels,omitempty"`
	// Inputs are not predictions, and are in none of the other counts.
	Inputs int `json:"inputs,omitempty"`
}

func (c Count) total() int { return c.Within + c.Explained + c.Missed + c.Cancels }

func (c *Count) add(v Verdict) {
	switch v {
	case Within:
		c.Within++
	case Explained:
		c.Explained++
	case Missed:
		c.Missed++
	case Cancels:
		c.Cancels++
	case Input:
		c.Inputs++
	}
}

// Result is a figure that was rerun.
type Result struct {
	Figure   string `json:"figure"`
	Document string `json:"document"`
	Caption  string `json:"caption"`
	// Calibration: constants of the models come from this figure.
	Calibration bool `json:"calibration,omitempty"`
	// Fitted names the curves that constants come from, if they are not all curves.
	Fitted     []string       `json:"fitted,omitempty"`
	X          Axis           `json:"x"`
	Published  map[string]any `json:"published_parameters"`
	Parameters Params         `json:"parameters"`
	// Experiment is the cause that Params.Cause switched.
	Experiment string `json:"experiment,omitempty"`
	// Altered lists the parameters that differ from the published ones. If there are any, nothing is
	// compared, unless Against is set.
	Altered []string `json:"altered,omitempty"`
	// LeftOut names the parts that were not run, and says why.
	LeftOut []string `json:"left_out,omitempty"`
	Panels  []Panel  `json:"panels"`
	Ratios  []Ratio  `json:"ratios,omitempty"`
	// Tolerance is the deviation up to which a value is within.
	Tolerance Tolerance `json:"tolerance"`
	Points    Count     `json:"points"`
	Claims    Count     `json:"claims"`
	Reasons   []string  `json:"reasons,omitempty"`
	Remarks   []string  `json:"remarks,omitempty"`
	// Against is the file whose curves replace the published ones.
	Against string `json:"against,omitempty"`
	// Measured: the values called published were measured on quillon itself.
	Measured bool `json:"measured,omitempty"`
	// Inputs say which points are not predictions, and why.
	Inputs []string `json:"inputs,omitempty"`
	own    bool     // nothing was published
}

// WriteJSON writes r; the same Result gives the same bytes.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// theirs returns how the values are called that the simulated ones are compared with.
func (r *Result) theirs() string {
	switch {
	case r.Against != "":
		return "yours"
	case r.Measured:
		return "measured"
	}
	return "published"
}

// newResult returns a Result that has the published values only.
func newResult(f *Figure, p *Published, par Params) *Result {
	r := &Result{Figure: f.ID, Document: p.Document, Caption: p.Caption, Calibration: f.Calibration, Fitted: f.Fitted, Tolerance: f.tolerance(), Experiment: par.Cause, Against: par.Against, Measured: p.Measured, own: p.empty(),
		X: p.X, Published: p.Parameters, Parameters: par, Remarks: p.Remarks}
	for i := range f.inputs {
		if par.Against != "" {
			break
		}
		if t := f.inputs[i].text; !slices.Contains(r.Inputs, t) {
			r.Inputs = append(r.Inputs, t)
		}
	}
	for _, l := range p.LeftOut {
		r.Remarks = append(r.Remarks, fmt.Sprintf("Not compared: %s at %v: %s.", l.Series, l.X, l.Why))
	}
	for q, src := range p.Quantities {
		panel := Panel{Y: src.Axis}
		for _, s := range src.Series {
			c := Curve{Name: s.Name}
			for i, at := range s.Points {
				pt := Point{X: at.x, Name: at.name}
				if at.name != "" {
					pt.X = float64(i)
				}
				y := at.y
				pt.Published = &y
				for _, e := range s.Errors {
					if e.x == at.x && e.name == at.name {
						pt.Deviation = e.y
					}
				}
				c.Points = append(c.Points, pt)
			}
			panel.Curves = append(panel.Curves, c)
		}
		if len(f.panels) == 0 || f.panels[q] {
			r.Panels = append(r.Panels, panel)
		}
	}
	// Categories are numbered by their order of appearance over all curves.
	if p.X.Scale == Category {
		order := map[string]float64{}
		for i := range r.Panels {
			for _, s := range r.Panels[i].Curves {
				for _, pt := range s.Points {
					if _, ok := order[pt.Name]; !ok {
						order[pt.Name] = float64(len(order))
					}
				}
			}
		}
		numeric := true
		for n := range order {
			if _, err := strconv.ParseFloat(n, 64); err != nil {
				numeric = false
			}
		}
		if numeric { // shares in percent are sorted by size
			names := make([]string, 0, len(order))
			for n := range order {
				names = append(names, n)
			}
			sort.Slice(names, func(i, j int) bool { return number(names[i]) < number(names[j]) })
			for i, n := range names {
				order[n] = float64(i)
			}
		}
		for i := range r.Panels {
			for j := range r.Panels[i].Curves {
				for k := range r.Panels[i].Curves[j].Points {
					pt := &r.Panels[i].Curves[j].Points[k]
					pt.X = order[pt.Name]
				}
			}
		}
	}
	return r
}

func number(s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// Value is one measured value.
type Value struct {
	Panel  int
	Series string
	X      float64
	Name   string // the category; then X is not used
	Y      float64
}

// name is what progress calls a point.
func (v Value) name() string { return v.Series + ", " + (&Point{X: v.X, Name: v.Name}).label() }

// of is v alone, with another ordinate.
func (v Value) of(y float64) []Value {
	v.Y = y
	return []Value{v}
}

func (v Value) coord() coord { return coord{x: v.X, name: v.Name, y: v.Y} }

// put adds v to the point that it belongs to, or adds a point.
func (r *Result) put(v Value) error {
	if v.Panel < 0 || v.Panel >= len(r.Panels) {
		return fmt.Errorf("figure %s: no panel %d", r.Figure, v.Panel)
	}
	if math.IsNaN(v.Y) || math.IsInf(v.Y, 0) {
		return fmt.Errorf("figure %s: %s at %s%v is %v", r.Figure, v.Series, v.Name, v.X, v.Y)
	}
	y := round(v.Y)
	p := &r.Panels[v.Panel]
	var c *Curve
	for i := range p.Curves {
		if p.Curves[i].Name == v.Series {
			c = &p.Curves[i]
		}
	}
	if c == nil {
		p.Curves = append(p.Curves, Curve{Name: v.Series})
		c = &p.Curves[len(p.Curves)-1]
	}
	for i := range c.Points {
		if pt := &c.Points[i]; pt.Name == v.Name && (v.Name != "" || pt.X == v.X) {
			pt.Ours = &y
			return nil
		}
	}
	x := v.X
	if v.Name != "" {
		x = r.category(v.Panel, v.Name)
	}
	c.Points = append(c.Points, Point{X: x, Name: v.Name, Comparison: Comparison{Ours: &y}})
	sort.SliceStable(c.Points, func(i, j int) bool { return c.Points[i].X < c.Points[j].X })
	return nil
}

// category returns the abscissa of a category, which may be new.
func (r *Result) category(panel int, name string) float64 {
	next := 0.0
	for _, c := range r.Panels[panel].Curves {
		for _, pt := range c.Points {
			if pt.Name == name {
				return pt.X
			}
			next = max(next, pt.X+1)
		}
	}
	return next
}

// round keeps six significant digits.
func round(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	return v
}

// find returns the point of a curve at x (a number or a category), nil if there is none.
func (r *Result) find(panel int, series string, x any) *Point {
	if panel >= len(r.Panels) {
		return nil
	}
	for _, c := range r.Panels[panel].Curves {
		if c.Name != series {
			continue
		}
		for i := range c.Points {
			p := &c.Points[i]
			if (coord{x: p.X, name: p.Name}).is(x) {
				return p
			}
		}
	}
	return nil
}

// compare computes c's error and verdict.
func (c *Comparison) compare(tolerance float64) {
	if c.Published == nil || c.Ours == nil || *c.Published == 0 {
		return
	}
	e := *c.Ours / *c.Published - 1
	rounded := math.Round(e*1e4) / 1e4
	c.Error = &rounded
	c.Verdict = Missed
	if math.Abs(e) <= tolerance {
		c.Verdict = Within
	}
}

// judge gives every point and every ratio its verdict and its reason.
func (r *Result) judge(f *Figure) {
	for _, cl := range f.ratios {
		r.Ratios = append(r.Ratios, Ratio{Claim: cl.claim, Comparison: Comparison{
			Published: cl.eval(r, func(p *Point) *float64 { return p.Published }),
			Ours:      cl.eval(r, func(p *Point) *float64 { return p.Ours }),
		}})
	}
	if len(r.Altered) > 0 && r.Against == "" {
		return
	}
	used := map[string]int{} // the number of each reason
	explain := func(c *Comparison, applies func(*reason) bool) {
		if c.Verdict != Missed && c.Verdict != Cancels || r.Against != "" {
			return
		}
		for i := range f.reasons {
			re := &f.reasons[i]
			if !applies(re) || r.Experiment != "" && re.cause == r.Experiment {
				continue
			}
			text := re.text
			if re.cause != "" {
				text += " (--cause " + re.cause + ")"
			}
			if used[text] == 0 {
				r.Reasons = append(r.Reasons, text)
				used[text] = len(r.Reasons)
			}
			c.Reason = used[text]
			if re.cause != "" {
				c.Verdict = Explained
			}
			return
		}
	}
	for q := range r.Panels {
		for i := range r.Panels[q].Curves {
			cu := &r.Panels[q].Curves[i]
			for k := range cu.Points {
				pt := &cu.Points[k]
				pt.compare(r.Tolerance.Point)
				if pt.Verdict != NotCompared && r.Against == "" && f.input(q, cu.Name, pt) {
					pt.Verdict = Input
				}
				explain(&pt.Comparison, func(re *reason) bool { return re.point(q, cu.Name, pt) })
				r.Points.add(pt.Verdict)
			}
		}
	}
	for i := range r.Ratios {
		ra := &r.Ratios[i]
		ra.compare(r.Tolerance.Ratio)
		of, to := f.ratios[i].of.point(r), f.ratios[i].to.point(r)
		switch {
		case ra.Verdict == NotCompared:
		case of != nil && of.Verdict == Input && (to == nil || to.Verdict == Input), r.Against == "" && f.inputRatio(ra.Claim):
			ra.Verdict = Input
		case ra.Verdict == Within && (of.outside() || to.outside()):
			ra.Verdict = Cancels
		}
		explain(&ra.Comparison, func(re *reason) bool { return re.ratio && re.series == ra.Claim })
		r.Claims.add(ra.Verdict)
	}
}

// unpublish removes the published points, because they are of other parameters.
func (r *Result) unpublish() {
	for i := range r.Panels {
		p := &r.Panels[i]
		for j := range p.Curves {
			p.Curves[j].Points = nil
		}
	}
}

// trim removes curves without points.
func (r *Result) trim() {
	for i := range r.Panels {
		p := &r.Panels[i]
		p.Curves = slices.DeleteFunc(p.Curves, func(c Curve) bool { return len(c.Points) == 0 })
	}
}

// outside reports whether p is outside its tolerance.
func (p *Point) outside() bool {
	return p != nil && (p.Verdict == Missed || p.Verdict == Explained)
}

// point returns the point that e names; nil if e is a number.
func (e ref) point(r *Result) *Point {
	if e.series == "" {
		return nil
	}
	return r.find(e.panel, e.series, e.x)
}

// NoPrediction reports whether all of the figure is input.
func (f *Figure) NoPrediction() bool {
	return f.Calibration || slices.ContainsFunc(f.inputs, func(re reason) bool {
		return re.series == "" && re.from == 0 && re.to == 0 && len(re.names) == 0
	})
}

// Inputs say which curves and points are not predictions.
func (f *Figure) Inputs() (texts []string) {
	texts = append(texts, f.Fitted...)
	for i := range f.inputs {
		if t := f.inputs[i].text; !slices.Contains(texts, t) {
			texts = append(texts, t)
		}
	}
	return texts
}

// inputRatio reports whether a ratio is an input though one of its points may be none: a choice that was made after results
// moves it.
func (f *Figure) inputRatio(claim string) bool {
	return slices.ContainsFunc(f.inputs, func(re reason) bool { return re.ratio && re.series == claim })
}

// input reports whether a point is an input, for which nothing was predicted.
func (f *Figure) input(panel int, series string, p *Point) bool {
	if f.Calibration || slices.Contains(f.Fitted, series) {
		return true
	}
	return slices.ContainsFunc(f.inputs, func(re reason) bool { return re.point(panel, series, p) })
}
