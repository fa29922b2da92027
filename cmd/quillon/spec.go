package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/quillon/quillon/nf/graph"
)

// parseNF reads KIND[,arg=value...]; what follows the kind and has no "=" is
// an error.
func parseNF(s string) (kind string, args graph.Args, err error) {
	kind, rest, more := strings.Cut(s, ",")
	if kind == "" || strings.Contains(kind, "=") {
		return "", nil, fmt.Errorf("--nf %q: write KIND,arg=value,...", s)
	}
	args = graph.Args{}
	for more {
		var pair string
		pair, rest, more = strings.Cut(rest, ",")
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return "", nil, fmt.Errorf("--nf %s: %q is not of the form arg=value", s, pair)
		}
		if _, twice := args[k]; twice {
			return "", nil, fmt.Errorf("--nf %s: %s is given twice", s, k)
		}
		args[k] = v
	}
	return kind, args, nil
}

// chain adds the apps of the --nf flags to s, one behind the other between
// side a (portA) and side b (portB), both directions. An app's inputs and
// outputs are called after the side that they face.
func chain(s *graph.Spec, portA, portB string, nfs []string) error {
	if len(nfs) == 0 {
		return errors.New("no network function given: add --nf KIND,arg=value,... (quillon nf list shows the kinds)")
	}
	s.Apps = map[string]graph.AppSpec{}
	// left sends to and receives from what is on side a of the next app.
	left := struct{ out, in string }{portA + ".out", portA + ".in"}
	for _, nf := range nfs {
		kind, args, err := parseNF(nf)
		if err != nil {
			return err
		}
		k, err := kindByName(kind)
		if err != nil {
			return err
		}
		if !twoSided(k) {
			return fmt.Errorf("%s does not sit between two ports (inputs %s; outputs %s): write a spec for it", kind, strings.Join(k.In, ", "), strings.Join(k.Out, ", "))
		}
		name := kind
		for n := 2; taken(s, name); n++ {
			name = fmt.Sprintf("%s-%d", kind, n)
		}
		s.Apps[name] = graph.AppSpec{Kind: kind, Args: args}
		s.Links = append(s.Links, left.out+" -> "+name+".a", name+".a -> "+left.in)
		left.out, left.in = name+".b", name+".b"
	}
	s.Links = append(s.Links, left.out+" -> "+portB+".in", portB+".out -> "+left.in)
	return nil
}

func twoSided(k graph.Kind) bool {
	return strings.Join(k.In, " ") == "a b" && strings.Join(k.Out, " ") == "a b"
}

func taken(s *graph.Spec, name string) bool {
	_, app := s.Apps[name]
	_, port := s.Ports[name]
	return app || port
}

// inlineSpec is the graph of run --inline: two interfaces and what is between.
func inlineSpec(inline string, nfs []string) (*graph.Spec, error) {
	devA, devB, ok := strings.Cut(inline, ",")
	if !ok || devA == "" || devB == "" || strings.Contains(devB, ",") {
		return nil, fmt.Errorf("--inline %q: name two interfaces, as in --inline eth1,eth2", inline)
	}
	if devA == devB {
		return nil, fmt.Errorf("--inline %s: the two interfaces must differ", inline)
	}
	a, b := portName(devA), portName(devB)
	if a == b {
		a, b = "a", "b"
	}
	s := &graph.Spec{Ports: map[string]graph.PortSpec{
		a: {Kind: kindAFXDP, Args: graph.Args{"dev": devA, "pair": b}},
		b: {Kind: kindAFXDP, Args: graph.Args{"dev": devB, "pair": a}},
	}}
	if err := chain(s, a, b, nfs); err != nil {
		return nil, err
	}
	return s, s.Validate(kinds(), portKinds())
}

// portName is the interface's name as a Spec can have it.
func portName(dev string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-') {
			return r
		}
		return '_'
	}, dev)
}

// readSpec reads and checks a Spec file.
func readSpec(file string) (*graph.Spec, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s, err := graph.ParseSpec(text)
	if err == nil {
		err = s.Validate(kinds(), portKinds())
	}
	var bad *graph.SpecError
	if errors.As(err, &bad) {
		if bad.Line == 0 {
			return nil, fmt.Errorf("%s: %s", file, bad.Msg)
		}
		return nil, fmt.Errorf("%s:%d:%d: %s", file, bad.Line, bad.Column, bad.Msg)
	}
	return s, err
}
