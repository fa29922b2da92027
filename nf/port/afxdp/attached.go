package afxdp

import (
	"errors"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/xsk"
)

// Attachment is one of the package's XDP programs, on an interface or on both of a pair.
type Attachment struct {
	Interfaces []string `json:"interfaces"` // by their names
	Mode       string   `json:"mode"`       // native or generic, of the first interface
	Wire       bool     `json:"wire"`       // of a pair: frames cross without a process, too
}

// Attachments are the package's programs in the calling thread's network namespace, by their first
// interface. It takes CAP_BPF, or root.
func Attachments() (all []Attachment, err error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	of := map[uint32]int{} // by the program's ID, the place in all
	for _, l := range links {
		a, err := xsk.AttachedTo(l.Attrs().Index)
		if errors.As(err, new(netlink.LinkNotFoundError)) || err == nil && a == nil {
			continue // it went meanwhile, or has none
		}
		if err != nil {
			return nil, explain(err)
		}
		if i, ok := of[a.ID]; ok {
			all[i].Interfaces = append(all[i].Interfaces, l.Attrs().Name)
		} else if a.Name == xsk.WireProgram || a.Name == xsk.PortProgram || a.Name == FrontProgram || a.Name == FlowsProgram {
			of[a.ID] = len(all)
			all = append(all, Attachment{Interfaces: []string{l.Attrs().Name}, Mode: a.Mode.String(), Wire: a.Name == xsk.WireProgram})
		}
		if err := a.Close(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
