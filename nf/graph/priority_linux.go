package graph

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// shortSlice is the shortest slice that the kernel gives (since 6.12; before, it does not look at it), in
// nanoseconds. A thread that wakes takes the processor at once from one whose slice is longer, which else
// may go on until its own is over: milliseconds, whatever the nice values.
const shortSlice = 100_000

// settle gives the calling thread, to which the goroutine is locked, its processor and its priority as worker n,
// and returns what undoes it. A thread that may have no other priority keeps its own.
func (c *Config) settle(n int) (restore func(), err error) {
	unpin, reset := func() {}, func() {}
	restore = func() {
		unpin()
		reset()
	}
	if len(c.CPUs) > 0 {
		cpu := c.CPUs[n%len(c.CPUs)]
		var was, want unix.CPUSet
		want.Set(cpu)
		err := unix.SchedGetaffinity(0, &was)
		if err == nil {
			err = unix.SchedSetaffinity(0, &want)
		}
		if err != nil {
			return restore, fmt.Errorf("pin worker %d to processor %d: %w", n, cpu, err)
		}
		unpin = func() { _ = unix.SchedSetaffinity(0, &was) }
	}
	if c.Nice >= 0 && c.Realtime == 0 {
		return restore, nil
	}
	now := unix.SchedAttr{Policy: unix.SCHED_NORMAL, Nice: int32(c.Nice), Runtime: shortSlice}
	if c.Realtime > 0 {
		now = unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: uint32(c.Realtime)}
	}
	if was, err := unix.SchedGetAttr(0, 0); err == nil && unix.SchedSetAttr(0, &now, 0) == nil {
		if was.Policy == unix.SCHED_NORMAL {
			was.Runtime = 0 // the usual slice, which is what it says
		}
		reset = func() { _ = unix.SchedSetAttr(0, was, 0) }
	}
	return restore, nil
}
