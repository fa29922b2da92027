package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/open"
	"github.com/quillon/quillon/nf/replay"
)

// chain returns the graph of the --nf flags, between ports a and b.
func chain(nfs []string) (*graph.Spec, error) {
	if len(nfs) == 0 {
		return nil, errors.New("no network function given: add --nf KIND,arg=value,... (quillon nf list shows the kinds)")
	}
	for _, nf := range nfs {
		kind, _, _ := strings.Cut(nf, ",")
		if _, err := kindByName(kind); err != nil {
			return nil, fmt.Errorf("--nf %s: %w", nf, err)
		}
	}
	spec, err := replay.Chain(kinds(), nfs...)
	if err == nil {
		// The apps check their arguments here.
		_, err = graph.Wants(spec, kinds())
	}
	if err != nil {
		return nil, fmt.Errorf("--nf: %w", specError("", err))
	}
	return spec, nil
}

// inlineSpec returns the graph of run --inline: two interfaces and the functions between them.
func inlineSpec(inline string, nfs []string, kind string, more graph.Args) (*graph.Spec, error) {
	devA, devB, ok := strings.Cut(inline, ",")
	if !ok || devA == "" || devB == "" || strings.Contains(devB, ",") {
		return nil, fmt.Errorf("--inline %q: name two interfaces, as in --inline eth1,eth2", inline)
	}
	if devA == devB {
		return nil, fmt.Errorf("--inline %s: the two interfaces must differ", inline)
	}
	s, err := chain(nfs)
	if err != nil {
		return nil, err
	}
	for _, p := range [][3]string{{"a", devA, "b"}, {"b", devB, "a"}} {
		args := graph.Args{"dev": p[1]}
		if kind == open.AFXDP {
			args["pair"] = p[2]
		}
		maps.Copy(args, more)
		s.Ports[p[0]] = graph.PortSpec{Kind: kind, Args: args}
	}
	return s, nil
}

// readSpec reads and checks a Spec file. If ports is nil, it does not check the kinds of ports. Files that
// the Spec names are relative to the Spec's directory.
func readSpec(file string, ports []graph.PortKind) (*graph.Spec, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s, err := graph.ParseSpec(text)
	if bad, ok := errors.AsType[*graph.SpecError](err); ok && bad.Msg == `unknown field "devices"` {
		bad.Msg += ": an intent, which quillon ctl apply takes"
	}
	if err == nil {
		var dir string
		dir, err = filepath.Abs(filepath.Dir(file))
		s.Beside(kinds(), dir)
	}
	if err == nil && len(s.Ports)+len(s.Apps)+len(s.Links) == 0 {
		return nil, fmt.Errorf("%s: ports, apps and links are missing", file)
	}
	if err == nil {
		err = s.Validate(kinds(), ports)
	}
	if err == nil {
		_, err = graph.Wants(s, kinds())
	}
	if err == nil && ports != nil {
		if err := open.Valid(s); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return s, specError(file, err)
}

// specNotes are what to know of a spec that is right: outputs that lead nowhere, and what its apps say of their arguments.
func specNotes(s *graph.Spec) (notes []string) {
	for _, out := range s.Unlinked(kinds()) {
		notes = append(notes, out+" is linked to nothing: frames that come out of it are dropped")
	}
	return append(notes, s.Notes(kinds())...)
}

// specError adds the file's name and the place in it to an error about a spec.
func specError(file string, err error) error {
	var bad *graph.SpecError
	switch {
	case !errors.As(err, &bad):
		return err
	case file == "":
		return errors.New(bad.Msg)
	case bad.Line == 0:
		return fmt.Errorf("%s: %s", file, bad.Msg)
	}
	return fmt.Errorf("%s:%d:%d: %s", file, bad.Line, bad.Column, bad.Msg)
}

// addNFFlag declares --nf, which may be given several times.
func addNFFlag(cmd *cobra.Command, nfs *[]string) {
	cmd.Flags().StringArrayVar(nfs, "nf", nil, "a network function, as `KIND,arg=value,...`; again for the next in the chain")
	_ = cmd.RegisterFlagCompletionFunc("nf", func(c *cobra.Command, _ []string, s string) ([]string, cobra.ShellCompDirective) {
		return completeKinds(c, nil, s)
	})
}
