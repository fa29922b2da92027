package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
)

// tellLinks returns a function that tells an instance, and the P4 programs in it, which ports' links are up
// or down. The function does not wait for workers, because one may be stuck. Programs are told every time,
// because an app may have been built anew.
func tellLinks(ctx context.Context, inst *graph.Instance) func(up map[string]bool) {
	news := make(chan map[string]bool, 1)
	go func() {
		for {
			select {
			case up := <-news:
				_ = inst.LeadLinks() // an error means that the instance is closed
				tellPrograms(inst, up)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(up map[string]bool) {
		inst.SetLinks(up)
		select {
		case <-news: // replaces news that was not read yet
		default:
		}
		news <- up
	}
}

var p4Kind = p4.Kind().Name

// tellPrograms tells each app of kind p4 which of its numbered outputs lead to ports whose link is down.
func tellPrograms(inst *graph.Instance, up map[string]bool) {
	spec := inst.Spec()
	for name, app := range spec.Apps {
		if app.Kind != p4Kind {
			continue
		}
		down := map[uint32]bool{}
		for _, l := range spec.Links {
			from, to, _ := strings.Cut(l, " -> ")
			out, mine := strings.CutPrefix(from, name+".")
			number, err := strconv.ParseUint(out, 10, 32)
			port, in := strings.CutSuffix(to, ".in")
			if is, known := up[port]; mine && in && err == nil && known && !is {
				down[uint32(number)] = true
			}
		}
		_ = inst.Visit(name, 0, func(a graph.App) {
			if x, ok := a.(*p4.App); ok {
				x.SetLinks(down)
			}
		}) // an error means that the app was just taken out
	}
}
