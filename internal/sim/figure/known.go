package figure

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Miss is a point or a ratio that was missed.
type Miss struct {
	Figure, Panel, Series, X string
	// Ratio is the simulated value, divided by the published one.
	Ratio float64
}

// Misses returns the points and ratios that were missed, and the ratios whose errors cancel.
func (r *Result) Misses() (list []Miss) {
	add := func(panel, series, x string, c *Comparison) {
		if c.Verdict == Missed || c.Verdict == Cancels {
			list = append(list, Miss{r.Figure, panel, series, x, math.Round(1e4**c.Ours / *c.Published) / 1e4})
		}
	}
	for q := range r.Panels {
		for i := range r.Panels[q].Curves {
			c := &r.Panels[q].Curves[i]
			for k := range c.Points {
				add(strconv.Itoa(q), c.Name, c.Points[k].label(), &c.Points[k].Comparison)
			}
		}
	}
	for i := range r.Ratios {
		add("ratio", r.Ratios[i].Claim, "", &r.Ratios[i].Comparison)
	}
	return list
}

// WriteMisses writes misses as lines of CSV.
func WriteMisses(w io.Writer, list []Miss) error {
	c := csv.NewWriter(w)
	for _, m := range list {
		if err := c.Write([]string{m.Figure, m.Panel, m.Series, m.X, strconv.FormatFloat(m.Ratio, 'f', -1, 64)}); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

// ReadMisses reads what WriteMisses wrote; it ignores lines that begin with #.
func ReadMisses(r io.Reader) (list []Miss, err error) {
	c := csv.NewReader(r)
	c.FieldsPerRecord, c.Comment = 5, '#'
	for {
		row, err := c.Read()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		v, err := strconv.ParseFloat(row[4], 64)
		if err != nil || !(v >= 0) {
			line, _ := c.FieldPos(4)
			return nil, fmt.Errorf("line %d: %q is no ratio", line, row[4])
		}
		list = append(list, Miss{row[0], row[1], row[2], row[3], v})
	}
}

// knownWithin is how far the ratio of a miss may be from the known one, as a share of the larger of the two.
const knownWithin = 0.05

// Unknown returns the misses that are not in known, or are there with another ratio. gone are those in known,
// of figures of results that were run in full, that were not missed.
func Unknown(results []*Result, known []Miss) (unknown, gone []Miss) {
	type place [4]string
	of := func(m *Miss) place { return place{m.Figure, m.Panel, m.Series, m.X} }
	have, ran := map[place]float64{}, map[string]bool{}
	for i := range known {
		have[of(&known[i])] = known[i].Ratio
	}
	seen := map[place]bool{}
	for _, r := range results {
		ran[r.Figure] = !r.partial()
		for _, m := range r.Misses() {
			seen[of(&m)] = true
			if v, ok := have[of(&m)]; !ok || math.Abs(m.Ratio-v) > knownWithin*math.Max(v, m.Ratio) {
				unknown = append(unknown, m)
			}
		}
	}
	for i := range known {
		if m := &known[i]; ran[m.Figure] && !seen[of(m)] {
			gone = append(gone, *m)
		}
	}
	return unknown, gone
}
