package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/open"
)

// verdict is what quillon check says about a file.
type verdict struct {
	File  string `json:"file"`
	Error string `json:"error,omitempty"` // with line and column where these are known; empty: the spec is right
	Ports int    `json:"ports"`
	Apps  int    `json:"apps"`
	Links int    `json:"links"`
	// Missing are interfaces that are not on this machine. They are not errors here.
	Missing []string `json:"missing_interfaces,omitempty"`
	Notes   []string `json:"notes,omitempty"` // what run says of the spec at its start
}

func newCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check SPEC.yaml...",
		Short: "Say whether specs are right, without running them",
		Long: `Reads specs of quillon run as run does: names, arguments and links, and the files
that they name (programs, rules, deployments). Nothing is opened, no privilege is
needed, and the interfaces need not be there. Exit status 1: a spec is wrong.`,
		Example: "  quillon check rack.yaml\n  quillon check /etc/quillon/*.yaml",
		Args:    atLeast("SPEC.yaml"),
		RunE: func(cmd *cobra.Command, files []string) error {
			all, wrong := make([]verdict, 0, len(files)), 0
			var unread error
			for _, file := range files {
				x, err := checkSpec(file)
				if err != nil {
					unread = cmp.Or(unread, err)
					continue
				}
				if x.Error != "" {
					wrong++
				}
				all = append(all, x)
			}
			if err := show(cmd, all, func(w io.Writer) {
				for _, x := range all {
					x.text(w)
				}
			}); err != nil {
				return err
			}
			if unread != nil {
				return unread
			}
			if wrong > 0 {
				return failed{fmt.Errorf("wrong: %d of %s", wrong, count(len(all), "spec"))}
			}
			return nil
		},
	}
}

// checkSpec reads and checks a spec. It returns an error only if the file cannot be read.
func checkSpec(file string) (verdict, error) {
	x := verdict{File: file}
	s, err := readSpec(file, open.Kinds())
	if path, ok := errors.AsType[*fs.PathError](err); ok && path.Path == file {
		return x, err
	}
	if err != nil {
		x.Error = oneLine(err).Error()
		return x, nil
	}
	if _, err = graph.Diff(nil, s); err != nil {
		x.Error = file + ": " + oneLine(err).Error()
		return x, nil
	}
	x.Notes = specNotes(s)
	x.Ports, x.Apps, x.Links = len(s.Ports), len(s.Apps), len(s.Links)
	for _, p := range s.Ports {
		if dev := p.Args["dev"]; dev != "" && p.Kind != open.TAP && !slices.Contains(x.Missing, dev) {
			if _, err := open.Present(dev); errors.As(err, new(open.NoInterface)) {
				x.Missing = append(x.Missing, dev)
			}
		}
	}
	slices.Sort(x.Missing)
	return x, nil
}

// text prints one line about the spec, and one for each note.
func (x *verdict) text(w io.Writer) {
	if x.Error != "" {
		fmt.Fprintln(w, x.Error)
		return
	}
	fmt.Fprintf(w, "%s: right: %s, %s, %s\n", x.File, count(x.Ports, "port"), count(x.Apps, "app"), count(x.Links, "link"))
	notes := x.Notes
	if len(x.Missing) > 0 {
		notes = append(notes, "not on this machine: "+strings.Join(x.Missing, ", "))
	}
	for _, n := range notes {
		fmt.Fprintf(w, "%s: note: %s\n", x.File, n)
	}
}
