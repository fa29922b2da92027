// Package chart is how figures look: ink, fonts, round steps, and the files
// that a figure is written to.
package chart

import (
	"image/color"
	"io"
	"math"
	"os"
	"sync"

	"codeberg.org/go-fonts/liberation/liberationsansbold"
	"codeberg.org/go-fonts/liberation/liberationsansregular"
	"golang.org/x/image/font/opentype"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours of text and axes, and of grids.
var (
	Ink   = color.NRGBA{0x22, 0x2B, 0x36, 0xFF}
	Faint = color.NRGBA{0xE3, 0xE6, 0xEA, 0xFF}
)

// Colours of the three ways to run Clover. They differ in lightness as well,
// so that they can be told apart in grey.
var (
	Off       = color.NRGBA{0x9A, 0xA3, 0xAE, 0xFF}
	Write     = color.NRGBA{0x3B, 0x82, 0xC4, 0xFF}
	ReadWrite = color.NRGBA{0x0B, 0x6E, 0x4F, 0xFF}
)

// Bold is the weight's number in golang.org/x/image/font.
const Bold = 3

const dpi = 144

// fonts are the figures' typeface, regular and bold.
var fonts = sync.OnceValue(func() *font.Cache {
	faces := font.Collection{{Font: sans(0)}, {Font: sans(0)}}
	faces[1].Font.Weight = Bold
	for i, ttf := range [][]byte{liberationsansregular.TTF, liberationsansbold.TTF} {
		face, err := opentype.Parse(ttf)
		if err != nil {
			panic(err)
		}
		faces[i].Face = face
	}
	return font.NewCache(faces)
})

func sans(size float64) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(size)}
}

// Text is a style of text in ink.
func Text(size float64) draw.TextStyle {
	return draw.TextStyle{Font: sans(size), Color: Ink, Handler: text.Plain{Fonts: fonts()}, YAlign: draw.YTop}
}

// RoundStep is 1, 2 or 5 times a power of ten, at least v.
func RoundStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*p >= v {
			return m * p
		}
	}
	return 10 * p
}

// Save writes a figure to prefix.png and prefix.svg.
func Save(prefix string, width, height vg.Length, paint func(draw.Canvas)) error {
	png := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(dpi))}
	svg := vgsvg.New(width, height)
	for _, f := range []struct {
		name   string
		canvas vg.CanvasSizer
		from   io.WriterTo
	}{{prefix + ".png", png, png}, {prefix + ".svg", svg, svg}} {
		c := draw.New(f.canvas)
		c.SetColor(color.White)
		c.Fill(c.Rectangle.Path())
		paint(c)
		if err := save(f.name, f.from); err != nil {
			return err
		}
	}
	return nil
}

func save(name string, from io.WriterTo) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err := from.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
