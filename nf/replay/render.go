package replay

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port/pcap"
)

const (
	// maxRuns and maxRunBytes bound the hexadecimal bytes that are shown of one packet.
	maxRuns     = 8
	maxRunBytes = 16
	// nearby is the number of equal bytes that divide two runs of differing bytes.
	nearby = 4
)

var newline = []byte("\n")

// unit returns the smallest difference of time that p's file can express, in ns, and at least 1.
func unit(r *pcap.Reader, p *pcap.Packet) clock.Time {
	u := clock.Time(1)
	if resol := r.Interfaces()[p.Interface].Resol; resol < 9 {
		for range 9 - resol {
			u *= 10
		}
	}
	return u
}

// stamp returns a time in seconds since the epoch.
func stamp(t clock.Time) string { return fmt.Sprintf("%d.%09d", t/1e9, t%1e9) }

// interfaceOf returns number and name of p's interface.
func interfaceOf(r *pcap.Reader, p *pcap.Packet) string {
	return strings.TrimSuffix(fmt.Sprintf("%d %s", p.Interface, r.Interfaces()[p.Interface].Name), " ")
}

func quoted(comments [][]byte) string {
	if len(comments) == 0 {
		return "none"
	}
	var s []string
	for _, c := range comments {
		s = append(s, fmt.Sprintf("%q", c))
	}
	return strings.Join(s, " ")
}

// summary returns a frame's fields, one line for each header.
func summary(b []byte) []string {
	var lines []string
	last := ""
	for _, f := range Decode(b) {
		layer, name, _ := strings.Cut(f.Name, ".")
		if layer != last || len(lines) == 0 {
			lines = append(lines, layer)
			last = layer
		}
		if name != "" {
			lines[len(lines)-1] += " " + name
		}
		lines[len(lines)-1] += " " + f.Value
	}
	return lines
}

// table has a row for each difference of two packets.
type table [][3]string

func (t *table) row(name, a, b string) { *t = append(*t, [3]string{name, a, b}) }

// frames adds the fields, and then the bytes, in which x and y differ.
func (t *table) frames(x, y []byte) {
	if len(x) != len(y) {
		t.row("length", fmt.Sprint(len(x)), fmt.Sprint(len(y)))
	}
	fx, fy := Decode(x), Decode(y)
	inY := make(map[string]string, len(fy))
	for _, f := range fy {
		inY[f.Name] = f.Value
	}
	inX := make(map[string]bool, len(fx))
	for _, f := range fx {
		inX[f.Name] = true
		v, ok := inY[f.Name]
		if !ok {
			v = "-"
		}
		if v != f.Value {
			t.row(f.Name, f.Value, v)
		}
	}
	for _, f := range fy {
		if !inX[f.Name] {
			t.row(f.Name, "-", f.Value)
		}
	}
	rs := runs(x, y)
	for _, r := range rs[:min(len(rs), maxRuns)] {
		name := fmt.Sprintf("bytes %d-%d", r.from, r.to-1)
		if r.to == r.from+1 {
			name = fmt.Sprintf("byte %d", r.from)
		}
		t.row(name, hexOf(x, r), hexOf(y, r))
	}
	if more := len(rs) - maxRuns; more > 0 {
		t.row(fmt.Sprintf("%d more runs of bytes", more), "", "")
	}
}

type span struct{ from, to int }

// runs returns the runs of bytes in which x and y differ.
func runs(x, y []byte) []span {
	var rs []span
	for i := range max(len(x), len(y)) {
		if i < len(x) && i < len(y) && x[i] == y[i] {
			continue
		}
		if n := len(rs); n > 0 && i < rs[n-1].to+nearby {
			rs[n-1].to = i + 1
			continue
		}
		rs = append(rs, span{i, i + 1})
	}
	return rs
}

func hexOf(b []byte, r span) string {
	from, to := min(r.from, len(b)), min(r.to, len(b))
	if from == to {
		return "-"
	}
	if to-from > maxRunBytes {
		return fmt.Sprintf("% x ...", b[from:from+maxRunBytes])
	}
	return fmt.Sprintf("% x", b[from:to])
}

// lines formats the table; a and b name its columns.
func (t table) lines(a, b string) []string {
	var w [2]int
	for _, r := range t {
		for i := range w {
			w[i] = max(w[i], utf8.RuneCountInString(r[i]))
		}
	}
	var lines []string
	for _, r := range t {
		s := fmt.Sprintf("%-*s  %s %-*s  %s %s", w[0], r[0], a, w[1], r[1], b, r[2])
		if r[1] == "" && r[2] == "" {
			s = r[0]
		}
		lines = append(lines, strings.TrimRight(s, " "))
	}
	return lines
}
