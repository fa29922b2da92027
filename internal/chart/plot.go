package chart

import (
	"image/color"
	"math"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Plot has an axis below and one on the left, a line across for each of the left one's steps, and what is drawn between the axes.
// Gonum's package plot has one, too, and brings twelve fonts, of which figures use two: four megabytes.
type Plot struct {
	Title    string
	X, Y     Axis
	drawings []Drawing
}

// Axis is one of a plot: Norm says where values are on it.
type Axis struct {
	Label    string
	Min, Max float64
	Log      bool // logarithmic
	Ticks    []Tick
	Bare     bool // its ticks are not drawn, only their labels; those of the left axis never are
}

// Tick is a step of an axis. One without a label is half as long.
type Tick struct {
	Value float64
	Label string
}

// Drawing is what a plot shows: a Line, an Area, a Bar. x and y say where values are on c.
type Drawing interface {
	draw(c draw.Canvas, x, y func(float64) vg.Length)
}

// New is an empty plot, to which what is drawn is added.
func New(title, x, y string) *Plot { return &Plot{Title: title, X: Axis{Label: x}, Y: Axis{Label: y}} }

// Add adds drawings, in front of those that were added before.
func (p *Plot) Add(d ...Drawing) { p.drawings = append(p.drawings, d...) }

// Norm is where a value is between the axis' ends: from 0 to 1.
func (a *Axis) Norm(v float64) float64 {
	if a.Log {
		return math.Log(v/a.Min) / math.Log(a.Max/a.Min)
	}
	return (v - a.Min) / (a.Max - a.Min)
}

// has reports whether a value is on the axis.
func (a *Axis) has(v float64) bool {
	n := a.Norm(v)
	return n > -1e-9 && n < 1+1e-9
}

// Distances of a plot, and the widths of its lines.
const (
	underTitle   = vg.Length(10)
	besideYAxis  = vg.Length(4)
	lengthOfTick = vg.Length(4)
	widthOfAxis  = vg.Length(0.5)
	widthOfGrid  = vg.Length(0.25)
)

// room is the largest width and height of the axis' labels, and how much of length is between the axis' ends when no label gets out of
// the end: along says how long a label is in that direction.
func (a *Axis) room(s draw.TextStyle, length vg.Length, along func(width, height vg.Length) vg.Length) (width, height, inner vg.Length) {
	inner = length
	for _, t := range a.Ticks {
		if t.Label == "" {
			continue
		}
		w, h := s.Width(t.Label), s.Height(t.Label)
		width, height = max(width, w), max(height, h)
		if n := vg.Length(a.Norm(t.Value)); n > 0 && a.has(t.Value) {
			inner = min(inner, (length-along(w, h)/2)/n)
		}
	}
	return width, height, inner
}

// draw draws the plot and all of its drawings on c.
func (p *Plot) draw(c draw.Canvas) {
	fill(c, color.White, c.Min.X, c.Max.X, c.Min.Y, c.Max.Y)
	if p.Title != "" {
		s := Text(12)
		s.Font.Weight, s.XAlign = Bold, draw.XCenter
		c.FillText(s, vg.Point{X: c.Center().X, Y: c.Max.Y + s.FontExtents().Descent}, p.Title)
		c.Max.Y -= s.Height(p.Title) + underTitle
	}
	small := Text(9)
	line, descent := small.Height("0"), small.FontExtents().Descent
	left, below := besideYAxis, widthOfAxis/2
	if p.Y.Label != "" {
		left += line + descent
	}
	if p.X.Label != "" {
		below += line
	}
	if !p.X.Bare {
		below += lengthOfTick
	}
	widest, _, _ := p.Y.room(small, 0, func(_, h vg.Length) vg.Length { return h })
	_, tallest, across := p.X.room(small, c.Max.X-c.Min.X-left-widest-small.Width(" "), func(w, _ vg.Length) vg.Length { return w })
	left += widest + small.Width(" ")
	below += tallest
	_, _, up := p.Y.room(small, c.Max.Y-c.Min.Y-below, func(_, h vg.Length) vg.Length { return h })
	inner := draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: c.Min.X + left, Y: c.Min.Y + below}}}
	inner.Max = inner.Min.Add(vg.Point{X: across, Y: up})

	p.drawX(inner, c.Min.Y, tallest, small)
	p.drawY(inner, c.Min.X, widest, small)
	x := func(v float64) vg.Length { return inner.X(p.X.Norm(v)) }
	y := func(v float64) vg.Length { return inner.Y(p.Y.Norm(v)) }
	for _, d := range p.drawings {
		d.draw(inner, x, y)
	}
}

// drawX draws the axis below c, and its labels, of which the tallest is so tall, from bottom on.
func (p *Plot) drawX(c draw.Canvas, bottom, tallest vg.Length, s draw.TextStyle) {
	s.XAlign = draw.XCenter
	descent := s.FontExtents().Descent
	if p.X.Label != "" {
		s.YAlign = draw.YBottom
		c.FillText(s, vg.Point{X: c.Center().X, Y: bottom + descent}, p.X.Label)
		bottom += s.Height(p.X.Label)
	}
	s.YAlign = draw.YTop
	at := c.Min.Y - widthOfAxis/2
	style := draw.LineStyle{Color: color.Black, Width: widthOfAxis}
	for _, t := range p.X.Ticks {
		if !p.X.has(t.Value) {
			continue
		}
		x, from := c.X(p.X.Norm(t.Value)), at-lengthOfTick
		if t.Label == "" {
			from += lengthOfTick / 2
		} else {
			c.FillText(s, vg.Point{X: x, Y: bottom + tallest + descent}, t.Label)
		}
		if !p.X.Bare {
			c.StrokeLine2(style, x, from, x, at)
		}
	}
	style.Color = Ink
	c.StrokeLine2(style, c.Min.X, at, c.Max.X, at)
}

// drawY draws the labels on the left of c, of which the widest is so wide, from left on, and the lines across.
func (p *Plot) drawY(c draw.Canvas, left, widest vg.Length, s draw.TextStyle) {
	descent := s.FontExtents().Descent
	if p.Y.Label != "" {
		turned := s
		turned.XAlign, turned.YAlign, turned.Rotation = draw.XCenter, draw.YBottom, math.Pi/2
		height := s.Height(p.Y.Label)
		c.FillText(turned, vg.Point{X: left + height - descent, Y: c.Center().Y}, p.Y.Label)
		left += height + descent
	}
	s.XAlign, s.YAlign = draw.XRight, draw.YCenter
	for _, t := range p.Y.Ticks {
		if t.Label == "" || !p.Y.has(t.Value) {
			continue
		}
		y := c.Y(p.Y.Norm(t.Value))
		c.FillText(s, vg.Point{X: left + widest, Y: y + descent}, t.Label)
		c.StrokeLine2(draw.LineStyle{Color: Faint, Width: widthOfGrid}, c.Min.X, y, c.Max.X, y)
	}
}
