package clock

import (
	"fmt"
	"os"
	"strings"
	"sync"
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

// Kernel returns CLOCK_MONOTONIC in ns as the machine has it, which XDP programs read (bpf_ktime_get_ns). In a time namespace
// (time_namespaces(7)) a process is told another time.
func Kernel() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it does not fail
	return t.Nano() - namespaceOffset()
}

// namespaceOffset returns by how many ns CLOCK_MONOTONIC of this process is ahead of the machine's.
var namespaceOffset = sync.OnceValue(func() int64 {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // the kernel has no time namespaces
	}
	return offsetIn(string(text))
})

func offsetIn(text string) int64 {
	for line := range strings.Lines(text) {
		var name string
		var s, ns int64
		if n, _ := fmt.Sscan(line, &name, &s, &ns); n == 3 && name == "monotonic" {
			return s*int64(time.Second) + ns
		}
	}
	return 0
}
