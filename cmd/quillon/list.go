package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/bridge"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// listWithin is how long quillon list waits for each answer of an instance.
const listWithin = 2 * time.Second

// listedInstance is an instance as quillon list shows it.
type listedInstance struct {
	Name      string    `json:"name"`
	State     string    `json:"state"` // runs, starting, or silent: it does not answer
	PID       int       `json:"pid,omitempty"`
	Version   string    `json:"version,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Namespace string    `json:"network_namespace,omitempty"`
	// Elsewhere: the instance is in another network namespace than this command.
	Elsewhere  bool     `json:"elsewhere,omitempty"`
	Interfaces []string `json:"interfaces"`
	Apps       []string `json:"apps"` // names of the apps, sorted
	Troubles   []string `json:"troubles"`
}

// leftover is an XDP program or a splice of quillon at whose interfaces no instance runs.
type leftover struct {
	Interfaces []string `json:"interfaces"`
	What       string   `json:"what"`
	Undo       string   `json:"undo"` // the command that removes it
}

// listing is what quillon list prints.
type listing struct {
	Instances []listedInstance `json:"instances"`
	Left      []leftover       `json:"left"`
	Notes     []string         `json:"notes,omitempty"`
}

func newListCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List what runs on this machine, and what was left by what does not",
		Long: `Lists the instances of this user that run, since when, on which interfaces and with
which functions, and what does not go as it should; and, in this network namespace,
the wires and splices that no instance is at, with the command that takes each away.
Exit status 1: an instance does not answer.`,
		Example: "  quillon list\n  quillon list --json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := takeStock()
			if err != nil {
				return err
			}
			if err := show(cmd, l, l.text); err != nil {
				return err
			}
			for _, x := range l.Instances {
				if x.State == "silent" {
					return failed{fmt.Errorf("instance %s has not answered within %v", x.Name, listWithin)}
				}
			}
			return nil
		},
	}
}

// takeStock asks all instances and looks at all interfaces.
func takeStock() (l listing, err error) {
	here, err := bridge.Namespace()
	if err != nil {
		return l, err
	}
	l.Instances, l.Left = []listedInstance{}, []leftover{}
	found := instances()
	taken := map[string]bool{} // interfaces of this namespace at which an instance runs
	for _, name := range slices.Sorted(maps.Keys(found)) {
		x := ask(name, found[name])
		x.Elsewhere = x.Namespace != "" && x.Namespace != here
		if !x.Elsewhere {
			for _, dev := range x.Interfaces {
				taken[dev] = true
			}
		}
		l.Instances = append(l.Instances, x)
	}
	if slices.ContainsFunc(l.Instances, func(x listedInstance) bool { return x.State != "runs" && !x.Elsewhere }) {
		l.Notes = append(l.Notes, "while an instance does not say where it is, what was left on interfaces is not told")
		return l, nil
	}
	at, err := afxdp.Attachments()
	switch {
	case errors.Is(err, unix.EPERM):
		l.Notes = append(l.Notes, "what was left on interfaces is shown to root")
	case err != nil:
		return l, err
	}
	splices, err := bridge.List(defaultStateDir)
	if err != nil && !errors.Is(err, unix.EACCES) {
		return l, err
	}
	l.left(taken, at, slices.DeleteFunc(splices, func(s *bridge.Splice) bool { return s.Namespace != here }))
	return l, nil
}

// ask asks an instance about itself, and closes c.
func ask(name string, c *admin.Client) listedInstance {
	defer c.Close()
	c.Within = listWithin
	x := listedInstance{Name: name, State: "silent", PID: c.PID(), Interfaces: []string{}, Apps: []string{}, Troubles: []string{}}
	var p process
	text, err := c.Process()
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return x
	}
	x.PID, x.Version, x.Since, x.Namespace, x.Troubles = p.PID, p.Version, p.Since, p.Namespace, append(x.Troubles, p.Troubles...)
	g, err := c.Graph()
	if errors.As(err, new(*admin.Error)) {
		x.State = "starting"
		return x
	}
	if err != nil {
		return x
	}
	x.State = "runs"
	for _, port := range slices.Sorted(maps.Keys(g.Spec.Ports)) {
		p := g.Spec.Ports[port]
		x.Interfaces = append(x.Interfaces, cmp.Or(p.Args["dev"], port+" ("+p.Kind+")"))
	}
	x.Apps = slices.AppendSeq(x.Apps, maps.Keys(g.Spec.Apps))
	slices.Sort(x.Apps)
	return x
}

// left adds the programs and splices at whose interfaces no instance runs.
func (l *listing) left(taken map[string]bool, at []afxdp.Attachment, splices []*bridge.Splice) {
	spliced := map[string]bool{}
	for _, s := range splices {
		spliced[s.Inner], spliced[s.Port] = true, true
		if !taken[s.Inner] && !taken[s.Port] {
			l.Left = append(l.Left, leftover{[]string{s.Inner, s.Port}, "a splice of " + s.Bridge + ": frames cross in the kernel", "quillon bridge remove " + s.Bridge + " " + s.Port})
		}
	}
	for _, a := range at {
		if slices.ContainsFunc(a.Interfaces, func(dev string) bool { return taken[dev] || spliced[dev] }) {
			continue
		}
		x := leftover{Interfaces: a.Interfaces, What: "an XDP program of a process that has ended"}
		switch {
		case a.Wire && len(a.Interfaces) == 2:
			x.What = "a wire: frames cross in the kernel"
		case a.Headless:
			x.What = "a P4 program that runs headless: its frames go on with the entries that it had"
		case a.Shut:
			x.What = "the program of a closed P4 app: all frames are dropped"
		}
		devs := a.Interfaces
		if a.Wire && len(devs) == 1 {
			devs = []string{devs[0], devs[0]}
		}
		x.Undo = "quillon detach " + strings.Join(devs, " ")
		l.Left = append(l.Left, x)
	}
}

// text prints the listing for people.
func (l *listing) text(w io.Writer) {
	if len(l.Instances) == 0 {
		fmt.Fprintln(w, "no instance of this user runs; start one with quillon run")
	} else {
		fmt.Fprintln(w, "NAME\tSTATE\tFOR\tPROCESS\tINTERFACES\tFUNCTIONS")
	}
	now := clock.NewWall().Now()
	for _, x := range l.Instances {
		age := ""
		if !x.Since.IsZero() {
			age = now.Sub(clock.Time(x.Since.UnixNano())).Round(time.Second).String()
		}
		where := strings.Join(x.Interfaces, ",")
		if x.Elsewhere {
			where += " in " + x.Namespace
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", x.Name, x.State, age, x.PID, where, strings.Join(x.Apps, ","))
	}
	for _, x := range l.Instances {
		for _, t := range x.Troubles {
			fmt.Fprintf(w, "%s: %s\n", x.Name, t)
		}
	}
	for _, x := range l.Left {
		fmt.Fprintf(w, "%s: %s, and no instance runs there; to take it away: %s\n", strings.Join(x.Interfaces, ","), x.What, x.Undo)
	}
	for _, n := range l.Notes {
		fmt.Fprintln(w, "note: "+n)
	}
}
