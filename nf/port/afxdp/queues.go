package afxdp

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/port"
)

// outgrown is an error that wraps port.ErrOutgrown if the interface has more receive queues than when it was opened. The new
// ones have no socket: their frames cross in the kernel, or are dropped, as the filter says of frames that no worker takes.
// Linux' veth gives new queues only a program that is attached later, so that the program is put in its own place
// when their number has risen. The caller has d.mu.
func outgrown(d *device) error {
	rx, err := d.offloads.Queues()
	if err != nil { // a driver without such numbers, or the interface is gone
		return nil
	}
	if rx > max(d.rx, d.grown) {
		if err := attachAgain(d); err != nil {
			return err
		}
	}
	d.grown = rx
	if rx <= d.rx {
		return nil
	}
	return fmt.Errorf("%s has %d receive queues now and had %d when this instance began; no app sees what comes in on the others (ethtool -L %s rx %d): %w",
		d.name, rx, d.rx, d.name, d.rx, port.ErrOutgrown)
}

// attachAgain makes the program that is attached run on all receive queues. The kernel ignores the request to put a program in its
// own place. The interface's own program therefore gives way to an equal one, and a Front to the interface's own program for a moment,
// in which the graph gets all frames. The caller has d.mu.
func attachAgain(d *device) error {
	first, own := d.shown(), d.prog.Prog
	if d.link0 != nil && d.front != nil {
		first = d.front.Program
	}
	if first == own {
		return renew(d, d.spec)
	}
	put := func(next, was *ebpf.Program) error {
		if d.link0 != nil {
			return d.link0.Update(next)
		}
		if err := xsk.Swap(d.index, next, was, d.mode); err != nil {
			return err
		}
		d.top = next
		return nil
	}
	err := offload.Within(d.ns, func() error {
		if err := put(own, first); err != nil {
			return err
		}
		return put(first, own)
	})
	if err != nil {
		return fmt.Errorf("attach to %s: %w", d.name, err)
	}
	return nil
}
