package snic

import (
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/nsh"
	"github.com/quillon/quillon/nf/packet"
)

// leavePath takes the service header off a frame, of which hdr.Walk found l, and
// what is in front of it if a whole frame follows. reasonOffPath: it did.
func leavePath(x *packet.Buf, l *hdr.Layers) graph.Reason {
	if nsh.Check(x.Bytes(), l.Net) != nsh.Good {
		return reasonBadNSH
	}
	if h := hdr.NSH(x.Bytes()[l.Net:]); h.OAM() || h.SI() == 0 || nsh.Strip(x, l.Net) != nsh.Good {
		return reasonBadNSH
	}
	return reasonOffPath
}
