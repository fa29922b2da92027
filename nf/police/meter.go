package police

import "github.com/quillon/quillon/nf/clock"

// colour is the colour of a packet.
type colour uint8

const (
	green colour = iota
	yellow
	red
	numColours
)

var colourNames = [numColours]string{"green", "yellow", "red"}

// marker says how packets get their colours, by the two token buckets of RFC 2698 (two rates), or of RFC 2697
// (one rate, where the excess of the first bucket fills the other one).
type marker struct {
	cir          rate   `arg:"cir" need:"the committed rate, such as cir=10Mbit" help:"committed rate, as 10Mbit, 1.5Gbit or 100kpps; needed"`
	cbs          uint64 `arg:"cbs" unit:"1024" range:"1..2^30" default:"200 ms of the rate, at least 16k or 64 packets" help:"committed burst in bytes, or packets, as 9000, 64k or 2M"`
	pir          rate   `arg:"pir" default:"none" help:"peak rate, not below cir and in the same unit: two rates, three colours"`
	pbs          uint64 `arg:"pbs" unit:"1024" range:"1..2^30" default:"as cbs" help:"peak burst; without pir the excess burst"`
	single       bool
	roomC, roomP uint64 // of the committed bucket, and of the peak or excess one, in parts of tokens
}

// meter is the state of two buckets.
type meter struct {
	at   clock.Time
	c, p uint64 // tokens: committed; peak or excess
	// number is that of the Meter that the meter has borrowed from the kernel; 0: none. While there is one, its buckets
	// count, and the fields above may be old.
	number uint16
}

// fresh returns a meter whose buckets are full.
func (m *marker) fresh(now clock.Time) meter { return meter{at: now, c: m.roomC, p: m.roomP} }

// refill adds what has come until now. A now before the last one adds nothing.
func (m *marker) refill(x *meter, now clock.Time) {
	if now <= x.at {
		return
	}
	d := now.Sub(x.at)
	x.at = now
	rest := fill(&x.c, m.roomC, m.cir.earned(d))
	if !m.single {
		rest = m.pir.earned(d)
	}
	fill(&x.p, m.roomP, rest)
}

// full reports whether at now both buckets of a meter are full.
func (m *marker) full(x *meter, now clock.Time) bool {
	y := *x
	m.refill(&y, now)
	return y.c == m.roomC && y.p == m.roomP
}

// mark returns the colour of a packet of size bytes that came with colour was (green in colour-blind mode), and
// takes its tokens.
func (m *marker) mark(x *meter, now clock.Time, size int, was colour) colour {
	m.refill(x, now)
	c, p := m.cir.cost(size), m.pir.cost(size)
	if m.single {
		switch {
		case was == green && x.c >= c:
			x.c -= c
			return green
		case was != red && x.p >= c:
			x.p -= c
			return yellow
		}
		return red
	}
	switch {
	case was == red || x.p < p:
		return red
	case was == yellow || x.c < c:
		x.p -= p
		return yellow
	}
	x.p -= p
	x.c -= c
	return green
}
