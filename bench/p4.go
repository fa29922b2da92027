package main

import (
	"fmt"
	"io"
	"os/exec"

	"github.com/quillon/quillon/internal/bench"
	"github.com/quillon/quillon/nf/clock"
)

// load is a program with its entries and frames, for both switches.
type load struct{ *bench.Load }

// bytes is the mean length of its frames.
func (l load) bytes() float64 {
	total := 0
	for _, f := range l.Laps {
		total += len(f.Bytes)
	}
	return float64(total) / float64(len(l.Laps))
}

// against holds the engine against another switch: both forwarded the same
// frames, in turns.
type against struct {
	Program string        `json:"program"`
	Rival   string        `json:"rival"`
	Medium  string        `json:"medium"` // files or veth
	Bytes   float64       `json:"bytes_per_packet"`
	Rounds  int           `json:"rounds"`
	Quillon bench.Figures `json:"quillon"`
	Other   bench.Figures `json:"other"`
	Ratio   float64       `json:"ratio"`
	// PassThrough is a graph without a program on the same veths.
	PassThrough *bench.Figures `json:"pass_through,omitempty"`
	Skipped     string         `json:"skipped,omitempty"`
}

// duels holds the engine against a switch, with so many routes of ipv4_router; progress is written what is measured.
func duels(progress io.Writer, rival string, rounds, routes int) (all []against, err error) {
	for _, name := range []string{rival, rival + "_CLI"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("-against %s: %s is not on the PATH", rival, name)
		}
	}
	router, err := bench.RouterLoad(routes)
	if err != nil {
		return nil, fmt.Errorf("ipv4_router: %w", err)
	}
	steer, err := bench.SteerLoad()
	if err != nil {
		return nil, fmt.Errorf("swordbox_steer: %w", err)
	}
	clk := clock.NewWall()
	for _, medium := range []struct {
		name string
		duel func(l load, rival string, clk clock.Clock) (*duel, error)
	}{{"files", load.onFiles}, {"veth", load.onVeth}} {
		for _, l := range []load{{router}, {steer}} {
			fmt.Fprintf(progress, "%s against %s, %s...\n", l.Program, rival, medium.name)
			a := against{Program: l.Program, Rival: rival, Medium: medium.name, Rounds: rounds}
			d, err := medium.duel(l, rival, clk)
			if err == nil {
				err = a.measure(d, clk)
			}
			if bench.Missing(err) {
				a.Skipped, err = err.Error(), nil
			}
			if err != nil {
				return nil, fmt.Errorf("%s against %s, %s: %w", l.Program, rival, medium.name, err)
			}
			all = append(all, a)
		}
	}
	return all, nil
}

// duel is a prepared comparison.
type duel struct {
	bytes              float64   // mean length of a frame
	ours, theirs, pass bench.Run // pass may be nil
	close              func()
}

func (a *against) measure(d *duel, clk clock.Clock) error {
	defer d.close()
	a.Bytes = d.bytes
	var ours, theirs, pass bench.Side
	for n := -1; n < a.Rounds; n++ { // the first is to warm up
		for _, s := range []struct {
			*bench.Side
			bench.Run
		}{{&ours, d.ours}, {&theirs, d.theirs}, {&pass, d.pass}} {
			if s.Run == nil {
				continue
			}
			if err := s.Side.Round(s.Run, clk, n >= 0); err != nil {
				return err
			}
		}
	}
	a.Quillon, a.Other = ours.Figures(d.bytes), theirs.Figures(d.bytes)
	a.Ratio = a.Other.NsPerPacket.Median / a.Quillon.NsPerPacket.Median
	if d.pass != nil {
		f := pass.Figures(d.bytes)
		a.PassThrough = &f
	}
	return nil
}

func table(w io.Writer, all []against) {
	fmt.Fprintf(w, "\tbytes\tns/packet\tmin\tmax\tMpps\tratio\n")
	for _, a := range all {
		if a.Skipped != "" {
			fmt.Fprintf(w, "%s, %s\tleft out: %s\n", a.Program, a.Medium, a.Skipped)
			continue
		}
		row := func(who string, f bench.Figures) {
			fmt.Fprintf(w, "%s, %s: %s\t%.0f\t%.1f\t%.1f\t%.1f\t%.3f\t%.1f\n", a.Program, a.Medium, who, a.Bytes,
				f.NsPerPacket.Median, f.NsPerPacket.Min, f.NsPerPacket.Max, f.Mpps, a.Other.NsPerPacket.Median/f.NsPerPacket.Median)
		}
		row("quillon", a.Quillon)
		row(a.Rival, a.Other)
		if a.PassThrough != nil {
			row("no program", *a.PassThrough)
		}
	}
}
