package afxdp

import (
	"fmt"

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
		if err := renew(d, d.spec); err != nil {
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
