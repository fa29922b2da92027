package rxe

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
)

// The cables on which faults happen, as schedules name them: before and behind
// the middlebox.
var cables = [2]string{"clients", "server"}

// mishaps is a random schedule for both sides of the middlebox, with faults of
// some frames at most among the first that pass.
func mishaps(seed uint64, frames, within int) fault.Schedule {
	return fault.Random(seed, fault.Mix{Links: cables[:], Frames: frames, Within: within, Late: 5 * time.Millisecond})
}

// isOpcode reports whether byte at of a frame is the BTH's opcode. Linux 6.1 reads far beyond a frame with an opcode that it
// does not know (rxe_icrc_hdr), and its kernel ends.
func isOpcode(frame []byte, at int) bool {
	var f hdr.Frame
	return hdr.Parse(frame, &f) == hdr.IsRoCE && at == int(f.BTH)
}

// strike lets the faults of a schedule happen, to frames counted from now, until end is
// called. Two at a time would double every frame.
func (r *rack) strike(t *testing.T, s fault.Schedule) (end func()) {
	t.Helper()
	if r.struck {
		t.Fatal("faults of another run have not ended")
	}
	r.struck = true
	var ports []port.Port
	open := func(name string) (port.Port, error) {
		p, err := afpacket.Open(afpacket.Config{Interface: name})
		if err == nil {
			ports = append(ports, p)
		}
		return p, err
	}
	var wires [2]*fault.Wire
	err := r.space.Do(func() error {
		for i, at := range sides {
			outer, err := open(at.outer[0])
			if err != nil {
				return err
			}
			inner, err := open(at.inner[0])
			if err != nil {
				return err
			}
			if err := errors.Join(join(at.near, at.detour), join(at.outer[1], at.bridge)); err != nil {
				return err
			}
			if i == 0 {
				wires[i] = fault.NewWire(cables[i], outer, inner, s)
			} else {
				wires[i] = fault.NewWire(cables[i], inner, outer, s)
			}
			wires[i].Spare = isOpcode
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- host.Spin(ctx, clock.NewWall(), wires[0], wires[1]) }()
	return func() {
		t.Helper()
		cancel()
		err := <-ended
		r.struck = false
		t.Logf("%d faults of %d struck:\n%s", wires[0].Struck+wires[1].Struck, len(s), s)
		for _, p := range ports {
			err = errors.Join(err, p.Close())
		}
		err = errors.Join(err, r.space.Do(func() (err error) {
			for _, at := range sides {
				err = errors.Join(err, join(at.outer[1], ""), join(at.near, at.bridge))
			}
			return err
		}))
		if err != nil {
			t.Error(err)
		}
	}
}
