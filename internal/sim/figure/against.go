package figure

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// mostRows bounds the rows of a file of curves.
const mostRows = 100_000

// against returns a copy of p with the curves of a CSV file in place of the published ones. If the first line
// begins with "x", it names the columns.
func (p *Published) against(path string) (*Published, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	own := *p
	own.Document, own.Remarks, own.LeftOut, own.own = path, nil, nil, true
	own.Quantities = make([]Quantity, len(p.Quantities))
	for i := range p.Quantities {
		own.Quantities[i].Axis = p.Quantities[i].Axis
	}
	r := csv.NewReader(f)
	r.FieldsPerRecord, r.TrimLeadingSpace, r.Comment = -1, true, '#'
	for n := 1; ; n++ {
		row, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if n == 1 && strings.EqualFold(strings.TrimSpace(row[0]), "x") {
			continue
		}
		if n > mostRows {
			return nil, fmt.Errorf("%s: more than %d rows", path, mostRows)
		}
		line, _ := r.FieldPos(0)
		if err := own.row(p, row); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, line, err)
		}
	}
	rows := 0
	for i := range own.Quantities {
		for _, s := range own.Quantities[i].Series {
			slices.SortStableFunc(s.Points, func(a, b coord) int { return cmp.Compare(a.x, b.x) })
			rows += len(s.Points)
		}
	}
	if rows == 0 {
		return nil, fmt.Errorf("%s: no rows", path)
	}
	return &own, nil
}

// row adds a point to p, which belongs to a curve of figure: x, y, series, and perhaps the panel.
func (p *Published) row(figure *Published, row []string) error {
	if len(row) < 3 || len(row) > 4 {
		return fmt.Errorf("%d columns; there are x, y, series and, if need be, panel", len(row))
	}
	q := 0
	if len(row) == 4 {
		var err error
		if q, err = strconv.Atoi(strings.TrimSpace(row[3])); err != nil || q < 0 || q >= len(p.Quantities) {
			return fmt.Errorf("panel %q; the figure has 0 to %d", row[3], len(p.Quantities)-1)
		}
	}
	at := coord{name: strings.TrimSpace(row[0])}
	if p.X.Scale != Category {
		var err error
		if at.x, err = strconv.ParseFloat(at.name, 64); err != nil || math.IsNaN(at.x) || math.IsInf(at.x, 0) {
			return fmt.Errorf("x is %q, which is no number", row[0])
		}
		at.name = ""
	} else if at.name == "" {
		return errors.New("x is empty")
	}
	var err error
	if at.y, err = strconv.ParseFloat(strings.TrimSpace(row[1]), 64); err != nil || !(at.y > 0) || math.IsInf(at.y, 0) {
		return fmt.Errorf("y is %q; it must be a number above 0", row[1])
	}
	name := strings.TrimSpace(row[2])
	var names []string
	known := false
	for _, s := range figure.Quantities[q].Series {
		names = append(names, s.Name)
		known = known || s.Name == name
	}
	if !known {
		return fmt.Errorf("series %q; the figure has: %s", name, strings.Join(names, ", "))
	}
	to := &p.Quantities[q]
	for i := range to.Series {
		s := &to.Series[i]
		if s.Name != name {
			continue
		}
		for _, c := range s.Points {
			if c.x == at.x && c.name == at.name {
				return fmt.Errorf("series %q has x = %s twice", name, row[0])
			}
		}
		s.Points = append(s.Points, at)
		return nil
	}
	to.Series = append(to.Series, Series{Name: name, Points: []coord{at}})
	return nil
}
