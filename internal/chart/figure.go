package chart

import (
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Figure is a picture of panels, with a title and keys above them and a line below.
type Figure struct {
	Width, Height vg.Length
	Title, Foot   string
	Keys          []Key
	Panels        []Panel
}

// Panel is a plot and its keys, in a part of the figure's body: from 0, left and bottom, to 1.
type Panel struct {
	X0, X1, Y0, Y1 float64
	Keys           []Key
	Plot           *Plot
}

// Row are plots side by side, of the same width.
func Row(plots ...*Plot) (row []Panel) {
	for i, p := range plots {
		row = append(row, Panel{X0: float64(i) / float64(len(plots)), X1: float64(i+1) / float64(len(plots)), Y1: 1, Plot: p})
	}
	return row
}

// Style is how a line looks.
type Style struct {
	Shade  color.Color
	Width  float64 // points; 0: 1.6, 1.1 when it is dashed
	Dashed bool
	Bare   bool // without marks
	Open   bool // its marks are hollow
	Dots   bool // marks alone
	Shape  Shape
}

// Shape is of marks.
type Shape uint8

// Shapes of marks. A Cross is larger than the others: it strikes them out.
const (
	Circle Shape = iota
	Square
	Triangle
	Cross
)

// Key says what a style means; Area: it is a colour that is filled.
type Key struct {
	Text string
	Style
	Area bool
}

const margin = vg.Length(14)

// Save writes the figure to prefix.png and prefix.svg; the same figure gives the same bytes.
func (f *Figure) Save(prefix string) error { return Save(prefix, f.Width, f.Height, f.draw) }

func (f *Figure) draw(c draw.Canvas) {
	left, right := c.Min.X+margin, c.Max.X-margin
	head := Text(13)
	head.Font.Weight = Bold
	c.FillText(fitting(head, f.Title, right-left), vg.Point{X: left, Y: c.Max.Y - vg.Points(9)}, f.Title)
	foot := Text(8)
	foot.YAlign = draw.YBottom
	c.FillText(fitting(foot, f.Foot, right-left), vg.Point{X: left, Y: c.Min.Y + vg.Points(7)}, f.Foot)
	top := drawKeys(c, f.Keys, left, right, c.Max.Y-vg.Points(32))
	body := draw.Crop(c, vg.Points(10), -margin, vg.Points(22), top-c.Max.Y)
	w, h := body.Max.X-body.Min.X, body.Max.Y-body.Min.Y
	for _, p := range f.Panels {
		part := draw.Crop(body, vg.Length(p.X0)*w+vg.Points(4), vg.Length(p.X1-1)*w-vg.Points(6), vg.Length(p.Y0)*h, vg.Length(p.Y1-1)*h)
		if len(p.Keys) > 0 {
			top := drawKeys(part, p.Keys, part.Min.X, part.Max.X, part.Max.Y)
			part = draw.Crop(part, 0, 0, 0, top-part.Max.Y)
		}
		p.Plot.draw(part)
	}
}

// fitting is a style in which a line is no wider than width.
func fitting(s draw.TextStyle, line string, width vg.Length) draw.TextStyle {
	if w := s.Width(line); w > width {
		s.Font.Size *= width / w
	}
	return s
}

// drawKeys draws keys from the left, in as many lines as they take, and returns where they end.
func drawKeys(c draw.Canvas, keys []Key, left, right, y vg.Length) vg.Length {
	if len(keys) == 0 {
		return y
	}
	text := Text(9)
	x := left
	for _, k := range keys {
		sample := vg.Points(22)
		if k.Area {
			sample = vg.Points(9)
		}
		if x > left && x+sample+vg.Points(5)+text.Width(k.Text) > right {
			x, y = left, y-vg.Points(13)
		}
		if k.Area {
			fill(c, k.Shade, x, x+sample, y-vg.Points(9), y)
		} else {
			at := y - vg.Points(5)
			c.StrokeLines(k.line(), []vg.Point{{X: x, Y: at}, {X: x + sample, Y: at}})
			k.mark(c, vg.Point{X: x + sample/2, Y: at})
		}
		c.FillText(text, vg.Point{X: x + sample + vg.Points(5), Y: y}, k.Text)
		x += sample + vg.Points(5) + text.Width(k.Text) + vg.Points(16)
	}
	return y - vg.Points(24)
}

func fill(c draw.Canvas, shade color.Color, x0, x1, y0, y1 vg.Length) {
	c.FillPolygon(shade, []vg.Point{{X: x0, Y: y0}, {X: x0, Y: y1}, {X: x1, Y: y1}, {X: x1, Y: y0}})
}

func (s *Style) line() draw.LineStyle {
	l := draw.LineStyle{Color: s.Shade, Width: vg.Points(1.6)}
	if s.Dashed {
		l.Width, l.Dashes = vg.Points(1.1), []vg.Length{vg.Points(4), vg.Points(3)}
	}
	if s.Width > 0 {
		l.Width = vg.Points(s.Width)
	}
	return l
}

func (s *Style) mark(c draw.Canvas, at vg.Point) {
	if s.Bare {
		return
	}
	const radius = vg.Length(2.6)
	p := s.Shape.path(at, radius)
	if s.Shape == Cross {
		c.SetLineStyle(draw.LineStyle{Color: s.Shade, Width: vg.Points(1.1)})
		c.Stroke(p)
		return
	}
	if s.Open {
		c.SetColor(color.White)
		c.Fill(p)
		c.SetLineStyle(draw.LineStyle{Color: s.Shade, Width: vg.Points(1.1)})
		c.Stroke(p)
		return
	}
	c.SetColor(s.Shade)
	c.Fill(p)
}

func (s Shape) path(at vg.Point, radius vg.Length) (p vg.Path) {
	polygon := func(points ...vg.Length) {
		for i := 0; i < len(points); i += 2 {
			to := vg.Point{X: at.X + points[i]*radius, Y: at.Y + points[i+1]*radius}
			if i == 0 {
				p.Move(to)
			} else {
				p.Line(to)
			}
		}
		p.Close()
	}
	switch s {
	case Square:
		polygon(-0.95, -0.95, 0.95, -0.95, 0.95, 0.95, -0.95, 0.95)
	case Triangle:
		polygon(-1.2, -0.9, 1.2, -0.9, 0, 1.3)
	case Cross:
		const arm = 1.7
		p.Move(vg.Point{X: at.X - arm*radius, Y: at.Y - arm*radius})
		p.Line(vg.Point{X: at.X + arm*radius, Y: at.Y + arm*radius})
		p.Move(vg.Point{X: at.X - arm*radius, Y: at.Y + arm*radius})
		p.Line(vg.Point{X: at.X + arm*radius, Y: at.Y - arm*radius})
	default:
		p.Move(vg.Point{X: at.X + radius, Y: at.Y})
		p.Arc(at, radius, 0, 2*math.Pi)
		p.Close()
	}
	return p
}

// Point is a value, with the least and the most of several where they differ.
type Point struct{ X, Y, Low, High float64 }

// Line is a curve.
type Line struct {
	Style
	Points []Point
}

func (l Line) draw(c draw.Canvas, tx, ty func(float64) vg.Length) {
	var at []vg.Point
	for _, v := range l.Points {
		at = append(at, vg.Point{X: tx(v.X), Y: ty(v.Y)})
		if v.Low < v.High {
			c.StrokeLines(draw.LineStyle{Color: l.Shade, Width: vg.Points(0.8)}, []vg.Point{{X: tx(v.X), Y: ty(v.Low)}, {X: tx(v.X), Y: ty(v.High)}})
		}
	}
	if !l.Dots {
		c.StrokeLines(l.line(), at)
	}
	for _, a := range at {
		l.mark(c, a)
	}
}

// Area is filled from 0 to a value, for each step of X to the next.
type Area struct {
	Shade color.Color
	X, Y  []float64 // one X more than Y
}

func (a Area) draw(c draw.Canvas, tx, ty func(float64) vg.Length) {
	top := []vg.Point{{X: tx(a.X[0]), Y: ty(0)}}
	for i, y := range a.Y {
		top = append(top, vg.Point{X: tx(a.X[i]), Y: ty(y)}, vg.Point{X: tx(a.X[i+1]), Y: ty(y)})
	}
	c.FillPolygon(a.Shade, append(top, vg.Point{X: tx(a.X[len(a.Y)]), Y: ty(0)}))
}

// Bar is a bar with a text on top, and above it, when there is one, a note in small letters. NaN: there is none.
type Bar struct {
	X, Y       float64
	Shade      color.Color
	Text, Note string
}

func (b Bar) draw(c draw.Canvas, tx, ty func(float64) vg.Length) {
	if math.IsNaN(b.Y) {
		return
	}
	const width = 0.62 // of the distance between two bars
	half := (tx(1) - tx(0)) * width / 2
	fill(c, b.Shade, tx(b.X)-half, tx(b.X)+half, ty(0), ty(b.Y))
	style := Text(10)
	style.XAlign, style.YAlign = draw.XCenter, draw.YBottom
	at := vg.Point{X: tx(b.X), Y: ty(b.Y) + vg.Points(3)}
	if b.Note != "" {
		style.Font.Size = vg.Points(8)
		c.FillText(style, at, b.Note)
		at.Y += vg.Points(11)
		style.Font.Size = vg.Points(10)
	}
	style.Font.Weight = Bold
	c.FillText(style, at, b.Text)
}

// FromZero sets an axis that holds high with some room, in about so many round steps, and labels the steps.
func FromZero(a *Axis, high, room float64, steps float64, label func(float64) string) {
	if high <= 0 {
		high = 1
	}
	a.Min, a.Max = 0, high*room
	a.Ticks = nil
	step := RoundStep(a.Max / steps)
	for n := 0; float64(n)*step <= a.Max; n++ {
		a.Ticks = append(a.Ticks, Tick{Value: float64(n) * step, Label: label(float64(n) * step)})
	}
}

// Number labels a step.
func Number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// Categories names places of an axis, from the first to the last place of what is drawn.
func Categories(a *Axis, first, last float64, at []float64, names []string) {
	a.Ticks = nil
	for i := range at {
		a.Ticks = append(a.Ticks, Tick{Value: at[i], Label: names[i]})
	}
	a.Min, a.Max = first-0.6, last+0.6
}
