package afxdp

import (
	"fmt"
	"strings"
)

// Info describes what Open or OpenPair bound.
type Info struct {
	Interfaces []InterfaceInfo `json:"interfaces"`
	// Wire says that frames cross in the kernel while no worker takes them, also after
	// the process has died.
	Wire bool `json:"wire"`
	// Resumed says that the wire of an earlier process was taken over.
	Resumed bool `json:"resumed"`
	// SharedMemory says that both interfaces use one UMEM per queue, so that frames are not copied.
	SharedMemory bool `json:"shared_memory"`
	// Memory is the size of the packet memory in bytes.
	Memory int      `json:"memory"`
	Notes  []string `json:"notes,omitempty"`
}

// InterfaceInfo describes what was bound on one interface.
type InterfaceInfo struct {
	Name   string `json:"name"`
	Index  int    `json:"index"`
	Driver string `json:"driver"`
	MTU    int    `json:"mtu"`
	// Mode is "native" or "generic".
	Mode     string `json:"mode"`
	ZeroCopy bool   `json:"zero_copy"`
	// Queues is the number of queues that have a port; Unopened lists the receive queues that have none.
	Queues   int   `json:"queues"`
	Unopened []int `json:"unopened,omitempty"`
	// MultiBuffer says that frames may be longer than a chunk.
	MultiBuffer bool `json:"multi_buffer"`
	Chunk       int  `json:"chunk"`
	Ring        int  `json:"ring"`
	// Changed lists the settings that were changed, each as "interface feature value". Close restores them.
	Changed []string `json:"changed,omitempty"`
}

// String returns one line for each interface, up to two for its settings, and one for each note.
func (i Info) String() string { return i.text(true) }

// Brief returns what String does, but only the number of the changed settings.
func (i Info) Brief() string { return i.text(false) }

func (i Info) text(settings bool) string {
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
		if n := len(x.Changed); n > 0 && !settings {
			fmt.Fprintf(&b, ", %d %s changed until the end", n, plural(n, "setting"))
		}
		b.WriteByte('\n')
		if settings {
			x.settings(&b)
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

// settings writes the changed settings: one line for the interface itself and one for its
// peer, each with the features of the same value together.
func (x *InterfaceInfo) settings(b *strings.Builder) {
	var names []string
	features := map[[2]string][]string{} // by interface and value
	values := map[string][]string{}
	for _, c := range x.Changed {
		name, rest, _ := strings.Cut(c, " ")
		feature, value, _ := strings.Cut(rest, " ")
		at := [2]string{name, value}
		if values[name] == nil {
			names = append(names, name)
		}
		if features[at] == nil {
			values[name] = append(values[name], value)
		}
		features[at] = append(features[at], feature)
	}
	for _, name := range names {
		fmt.Fprintf(b, "%s: ", x.Name)
		if name != x.Name {
			fmt.Fprintf(b, "its peer %s: ", name)
		}
		for i, value := range values[name] {
			if i > 0 {
				b.WriteString("; ")
			}
			fmt.Fprintf(b, "set %s: %s", value, strings.Join(features[[2]string{name, value}], ", "))
		}
		b.WriteByte('\n')
	}
}

func plural(n int, s string) string {
	if n == 1 {
		return s
	}
	return s + "s"
}
