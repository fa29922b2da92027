package figure

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"iter"
)

// files are the files of the directory published, compressed: gzip -9nc published/FILE > packed/FILE.gz
//
//go:embed packed/*.json.gz
var files embed.FS

// The scales of an axis.
const (
	Linear   = "linear"
	Log      = "log"
	Category = "category"
)

// Axis says what a coordinate means.
type Axis struct {
	Label string `json:"label"`
	Unit  string `json:"unit"`
	Scale string `json:"scale"`
}

func (a Axis) String() string {
	if a.Unit == "" {
		return a.Label
	}
	return a.Label + ", " + a.Unit
}

// Published is the data of one published figure.
type Published struct {
	Document   string         `json:"document"`
	Caption    string         `json:"caption"`
	X          Axis           `json:"x"`
	Quantities []Quantity     `json:"quantities"`
	Parameters map[string]any `json:"parameters"`
	Remarks    []string       `json:"remarks"`
	// LeftOut are published points that are not measurements.
	LeftOut []struct {
		Series string `json:"series"`
		X      any    `json:"x"`
		Why    string `json:"why"`
	} `json:"left_out"`
	// Measured: the figure is not published; its values were measured on quillon itself.
	Measured bool `json:"measured"`
	// own: the curves are from a file of the user.
	own      bool
	ReadFrom string `json:"read_from"`
	Sources  []struct {
		Repo   string `json:"repo"`
		Commit string `json:"commit"`
		Path   string `json:"path"`
	} `json:"sources"`
}

// Quantity is one ordinate with its curves.
type Quantity struct {
	Axis
	Series []Series `json:"series"`
}

// Series is a curve.
type Series struct {
	Name   string  `json:"name"`
	Points []coord `json:"points"`
	Errors []coord `json:"errors"` // standard deviations
}

// runs yields the published points of all curves, each with its place in its curve. With quick these are the first, the
// middle and the last one of a curve.
func (q *Quantity) runs(quick bool) iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		for _, s := range q.Series {
			for i, at := range s.Points {
				if (!quick || few(i, len(s.Points))) && !yield(i, Value{Series: s.Name, X: at.x, Name: at.name, Y: at.y}) {
					return
				}
			}
		}
	}
}

func few(i, n int) bool { return i == 0 || i == n/2 || i == n-1 }

// coord is [x, y]; x is a number, or a name on an axis of categories.
type coord struct {
	x    float64
	name string
	y    float64
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *coord) UnmarshalJSON(b []byte) error {
	var x any
	pair := [2]any{&x, &c.y}
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	switch x := x.(type) {
	case float64:
		c.x = x
	case string:
		c.name = x
	default:
		return fmt.Errorf("figure: x is %T", x)
	}
	return nil
}

// load reads published/name.json.
func load(name string) (*Published, error) {
	b, err := files.ReadFile("packed/" + name + ".json.gz")
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(z)
	d.DisallowUnknownFields()
	p := new(Published)
	if err := d.Decode(p); err != nil {
		return nil, fmt.Errorf("figure: published/%s.json: %w", name, err)
	}
	return p, nil
}

// empty reports whether the figure has no points.
func (p *Published) empty() bool {
	for _, q := range p.Quantities {
		for _, s := range q.Series {
			if len(s.Points) > 0 {
				return false
			}
		}
	}
	return true
}

// at returns a published value: of quantity q, the series with this name, and x, which is a number or a
// category.
func (p *Published) at(name string, x any) (float64, bool) {
	for _, s := range p.Quantities[0].Series {
		if s.Name != name {
			continue
		}
		for _, c := range s.Points {
			if c.is(x) {
				return c.y, true
			}
		}
	}
	return 0, false
}

func (c coord) is(x any) bool {
	switch x := x.(type) {
	case string:
		return c.name == x
	case int:
		return c.name == "" && c.x == float64(x)
	case float64:
		return c.name == "" && c.x == x
	}
	return false
}

// PublishedAt returns a published value of a figure's first quantity: of a series at x, which is a number or
// a category.
func PublishedAt(name, series string, x any) (float64, bool) {
	p, err := load(name)
	if err != nil || len(p.Quantities) == 0 {
		return 0, false
	}
	return p.at(series, x)
}
