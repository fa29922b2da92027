package afxdp

import (
	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/internal/xsk/offload"
)

// recordBeyond returns what is on record for the other end of a veth, if that is in the calling thread's network namespace: what the
// instance there has changed. bare says that the interface itself has no XDP program.
func recordBeyond(index int) (theirs offload.Record, bare bool) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return theirs, false
	}
	if other := offload.OtherEnd(l); other != nil {
		theirs = recordOf(other.Attrs().Index)
	}
	xdp := l.Attrs().Xdp
	return theirs, xdp == nil || !xdp.Attached
}

// recordOf returns what is on record for an interface of the calling thread's network namespace: in the file, and in the state of a
// wire. What cannot be read is left out.
func recordOf(index int) (w offload.Record) {
	file, err := offload.RecordFile(index)
	if err != nil {
		return w
	}
	inFile := func() {
		if x, err := offload.ReadRecord(file); err == nil && file != "" {
			w.Owe(x)
		}
	}
	inFile()
	if a, err := xsk.AttachedTo(index); err == nil && a != nil {
		if a.Name == xsk.WireProgram {
			if st, err := a.State(); err == nil {
				w.Owe(st.Restore())
				_ = st.Close()
			}
		}
		_ = a.Close()
	}
	inFile() // a wire that is taken off has its record written there before
	return w
}
