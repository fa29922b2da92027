package figure

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteTable writes every point and ratio beside the published one, the reasons for what is outside the
// tolerance, and a summary.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", r.Figure, r.Caption)
	if r.Calibration {
		b.WriteString("input: the model's constants come from this figure\n")
	}
	if len(r.Fitted) > 0 {
		fmt.Fprintf(&b, "input, since constants come from it: %s\n", strings.Join(r.Fitted, ", "))
	}
	for _, l := range r.Inputs {
		fmt.Fprintf(&b, "input: %s\n", l)
	}
	if r.Experiment != "" {
		fmt.Fprintf(&b, "an experiment, with this cause switched: %s\n", r.Experiment)
	}
	if len(r.Altered) > 0 && r.Against != "" {
		fmt.Fprintf(&b, "other parameters than the published ones: %s\n", strings.Join(r.Altered, ", "))
	} else if len(r.Altered) > 0 {
		fmt.Fprintf(&b, "not the published parameters, so nothing is compared: %s\n", strings.Join(r.Altered, ", "))
	}
	theirs := r.theirs()
	if r.Against != "" {
		fmt.Fprintf(&b, "compared with %s\n", r.Against)
	}
	for _, l := range r.LeftOut {
		fmt.Fprintf(&b, "left out: %s\n", l)
	}
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	row := func(what string, c *Comparison) {
		fmt.Fprintf(t, "%s\t%9s\t%9s\t%9s\t%s\n", what, value(c.Published), value(c.Ours), percent(c.Error), c.mark())
	}
	for i := range r.Panels {
		p := &r.Panels[i]
		fmt.Fprintf(t, "\n%s\t%9s\t%9s\t%9s\t\n", p.Y, theirs, "ours", "error")
		for j := range p.Curves {
			c := &p.Curves[j]
			for k := range c.Points {
				pt := &c.Points[k]
				if pt.Ours == nil && r.partial() {
					continue
				}
				row(fmt.Sprintf("%s, %s", c.Name, pt.label()), &pt.Comparison)
			}
		}
	}
	alone := len(r.Altered) > 0 && r.Against == ""
	if !alone && slices.ContainsFunc(r.Ratios, func(ra Ratio) bool { return ra.Ours != nil || !r.partial() }) {
		fmt.Fprintf(t, "\n%s\t%9s\t%9s\t%9s\t\n", "ratios", theirs, "ours", "error")
		for i := range r.Ratios {
			if ra := &r.Ratios[i]; ra.Ours != nil || !r.partial() {
				row(ra.Claim, &ra.Comparison)
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	b.WriteByte('\n')
	for i, re := range r.Reasons {
		fmt.Fprintf(&b, "[%d] %s\n", i+1, re)
	}
	for _, re := range r.Remarks {
		if !alone {
			fmt.Fprintf(&b, "Note: %s\n", re)
		}
	}
	fmt.Fprintln(&b, r.Summary())
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// Summary says in one line how many points and ratios are inside the tolerance.
func (r *Result) Summary() string {
	if len(r.Altered) > 0 && r.Against == "" {
		return fmt.Sprintf("%s: not compared (%s)", r.Figure, strings.Join(r.Altered, ", "))
	}
	s := fmt.Sprintf("%s: %d of %d points within %.0f %%", r.Figure, r.Points.Within, r.Points.total(), 100*r.Tolerance.Point)
	if r.Points.total() == 0 && r.Points.Inputs > 0 {
		return fmt.Sprintf("%s: no prediction: %d of %d points, which are inputs, come out within %.0f %%", r.Figure, r.restated(), r.Points.Inputs, 100*r.Tolerance.Point)
	}
	if r.own {
		return fmt.Sprintf("%s: an experiment that no paper has: nothing is compared", r.Figure)
	}
	if n := r.Claims.total(); n > 0 {
		s += fmt.Sprintf(", %d of %d ratios within %.0f %%", r.Claims.Within, n, 100*r.Tolerance.Ratio)
	}
	if n := r.Claims.Cancels; n > 0 {
		s += fmt.Sprintf(" (%d more by errors that cancel)", n)
	}
	if n := r.Points.Explained + r.Claims.Explained; n > 0 {
		s += fmt.Sprintf("; %d outside by a cause that an experiment shows", n)
	}
	if n := r.missed(); n > 0 {
		s += fmt.Sprintf("; %d missed", n)
	}
	if n := r.Points.Inputs + r.Claims.Inputs; n > 0 {
		s += fmt.Sprintf("; %d inputs", n)
	}
	return s
}

// restated returns how many points that are inputs come out as published.
func (r *Result) restated() (n int) {
	for _, p := range r.Panels {
		for _, c := range p.Curves {
			for _, pt := range c.Points {
				if pt.Verdict == Input && math.Abs(*pt.Error) <= r.Tolerance.Point {
					n++
				}
			}
		}
	}
	return n
}

// missed returns how many points and ratios are not held without an experiment that shows why.
func (r *Result) missed() int {
	return r.Points.Missed + r.Points.Cancels + r.Claims.Missed + r.Claims.Cancels
}

// OK reports whether nothing was missed.
func (r *Result) OK() bool { return r.missed() == 0 }

// mark returns what the table shows beside c.
func (c *Comparison) mark() string {
	switch {
	case c.Verdict == Missed && c.Reason > 0:
		return fmt.Sprintf("missed [%d]", c.Reason)
	case c.Verdict == Missed:
		return "missed"
	case c.Verdict == Cancels:
		return "errors cancel"
	case c.Verdict == Explained:
		return fmt.Sprintf("[%d]", c.Reason)
	case c.Verdict == Input && c.Error != nil:
		return "input"
	}
	return ""
}

// value formats a number with three significant digits, or with all digits before the point if these are
// more.
func value(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v == 0:
		return "0"
	case math.Abs(*v) >= 100:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	case math.Abs(*v) < 0.01:
		return strconv.FormatFloat(*v, 'e', 1, 64)
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(*v))))
	return strconv.FormatFloat(*v, 'f', digits, 64)
}

func percent(e *float64) string {
	if e == nil {
		return "-"
	}
	return fmt.Sprintf("%+.0f %%", 100**e)
}

// partial reports whether only some of the points were run, or other ones than published.
func (r *Result) partial() bool {
	return r.Parameters.Quick || r.Against != "" || len(r.Altered) > 0 || len(r.Parameters.Threads) > 0
}
