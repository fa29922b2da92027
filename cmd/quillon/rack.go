package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/rack/store"
)

func newRackCmd() *cobra.Command {
	var all []*cobra.Command
	for _, k := range store.Kinds() {
		all = append(all, group(k.Name, "Start endpoints of "+k.Name+": "+k.Summary,
			fmt.Sprintf("  sudo quillon rack %s memory --port eth1 --me 10.0.0.9\n  quillon rack %[1]s client --server mem --seconds 1", k.Name),
			newRackMemoryCmd(k), newRackClientCmd(k)))
	}
	all = append(all, newRackCloverCmd())
	return group("rack", "Start memory nodes, servers and clients of disaggregated stores",
		"  sudo quillon rack rcuckoo memory --port eth1 --me 10.0.0.9 --keys 10000", all...)
}

// memorySpec are the flags that say what a memory node holds.
type memorySpec struct{ store.Spec }

// add declares the flags.
func (m *memorySpec) add(cmd *cobra.Command, k *store.Kind) {
	f := cmd.Flags()
	f.SortFlags = false
	if len(k.Works) > 0 {
		f.IntVar(&m.Keys, "words", 8, "shared words")
		f.StringVar(&m.Work, "work", k.Works[0], "what sessions do: "+strings.Join(k.Works, ", "))
	} else {
		f.IntVar(&m.Keys, "keys", 10_000, "keys that there are, from 1 on")
		f.IntVar(&m.Value, "value", 0, "bytes of a value; 0: 8")
	}
	f.IntVar(&m.Clients, "clients", 64, "clients that there is room for")
	if k.EachSession {
		f.IntVar(&m.Sessions, "most-sessions", 1024, "sessions of all of them together")
	}
}

// check refuses values that the store cannot have. The error names the flags as add declares them.
func (m *memorySpec) check(k *store.Kind) error {
	if m.Clients == 0 {
		return fmt.Errorf("--clients 0: want 1 to %d", 1<<12)
	}
	if err := k.Check(&m.Spec); err != nil {
		text := "--" + err.Error()
		if len(k.Works) > 0 {
			text = strings.Replace(text, "--keys", "--words", 1)
		}
		return errors.New(strings.Replace(text, "--sessions", "--most-sessions", 1))
	}
	return nil
}
