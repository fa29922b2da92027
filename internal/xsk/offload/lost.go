package offload

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/nf/clock"
)

// errHidden says that no file and no process leads to a network namespace.
var errHidden = errors.New("its network namespace was not found")

const (
	lostFirst = time.Second
	lostMost  = 30 * time.Second
)

// lost is the other end of a veth whose network namespace was not found. A search for the namespace looks at all processes and
// threads of the machine. The time between two searches therefore doubles from lostFirst to lostMost.
type lost struct {
	index, nsid int   // of the other end, as this end's namespace has them
	err         error // of the last search; nil: it was found
	row         int   // searches in a row without success
	next        clock.Time
}

// again returns the error of the last search for the other end of l if it is too early for the next one.
func (x *lost) again(l netlink.Link, now clock.Time) error {
	if x.err == nil || x.index != l.Attrs().ParentIndex || x.nsid != l.Attrs().NetNsID || now >= x.next {
		return nil
	}
	return x.err
}

// note stores how a search for the other end of l has ended.
func (x *lost) note(l netlink.Link, err error, now clock.Time) {
	if !errors.Is(err, errHidden) {
		*x = lost{}
		return
	}
	if x.index != l.Attrs().ParentIndex || x.nsid != l.Attrs().NetNsID {
		x.row = 0
	}
	x.index, x.nsid, x.err = l.Attrs().ParentIndex, l.Attrs().NetNsID, err
	x.next = now.Add(min(lostFirst<<min(x.row, 5), lostMost))
	x.row++
}
