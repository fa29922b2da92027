package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Boot is a real clock like Wall, which also counts the time for which the machine is suspended (CLOCK_BOOTTIME). Whoever
// gives up a thing after some time, and must not do so late, needs it.
type Boot struct{ zero Time }

// bootTime returns the nanoseconds since the machine was started; tests replace it.
var bootTime = func() Time {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // it does not fail
	return Time(t.Nano())
}

// NewBoot starts such a clock.
func NewBoot() *Boot { return &Boot{Time(time.Now().UnixNano()) - bootTime()} }

// Now implements Clock.
func (b *Boot) Now() Time { return b.zero + bootTime() }
