package afxdp

import (
	"fmt"
	"strings"
)

// Info is what was bound.
type Info struct {
	Interfaces []InterfaceInfo `json:"interfaces"`
	// Wire: frames cross in the kernel when no process takes them, also after
	// the process has died.
	Wire bool `json:"wire"`
	// Resumed: the wire of an earlier process was there and was taken over.
	Resumed bool `json:"resumed"`
	// SharedMemory: both interfaces use one UMEM a queue, frames are not copied.
	SharedMemory bool `json:"shared_memory"`
	// Bytes of packet memory.
	Memory int      `json:"memory"`
	Notes  []string `json:"notes,omitempty"`
}

// InterfaceInfo is what was bound on one interface.
type InterfaceInfo struct {
	Name   string `json:"name"`
	Index  int    `json:"index"`
	Driver string `json:"driver"`
	MTU    int    `json:"mtu"`
	// Mode is native or generic.
	Mode     string `json:"mode"`
	ZeroCopy bool   `json:"zero_copy"`
	// Queues that have a port, and the receive queues that have none.
	Queues   int   `json:"queues"`
	Unopened []int `json:"unopened,omitempty"`
	// MultiBuffer: frames may be longer than a chunk.
	MultiBuffer bool `json:"multi_buffer"`
	Chunk       int  `json:"chunk"`
	Ring        int  `json:"ring"`
	// Changed settings: interface, feature, value. Restored on Close.
	Changed []string `json:"changed,omitempty"`
}

// String is a line an interface, and one a note.
func (i Info) String() string {
	var b strings.Builder
	for _, x := range i.Interfaces {
		copying := "copy"
		if x.ZeroCopy {
			copying = "zero-copy"
		}
		fmt.Fprintf(&b, "%s: %s, %s XDP, %s, %d %s, MTU %d", x.Name, x.Driver, x.Mode, copying, x.Queues, plural(x.Queues, "queue"), x.MTU)
		if x.MultiBuffer {
			b.WriteString(", multi-buffer")
		}
		if len(x.Unopened) > 0 {
			fmt.Fprintf(&b, ", receive queues not opened: %v", x.Unopened)
		}
		b.WriteByte('\n')
		if len(x.Changed) > 0 {
			fmt.Fprintf(&b, "%s: set %s\n", x.Name, strings.Join(x.Changed, ", "))
		}
	}
	if i.Resumed {
		b.WriteString("took over the wire of an earlier process\n")
	}
	for _, n := range i.Notes {
		b.WriteString(n)
		b.WriteByte('\n')
	}
	return b.String()
}

func plural(n int, s string) string {
	if n == 1 {
		return s
	}
	return s + "s"
}
