package xdp

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The state of a frame is that of its processor. The kernel runs one frame after the other there, because a bottom half is not interrupted by another one. Real-time
// kernels promise that only with CONFIG_PREEMPT_RT_NEEDS_BH_LOCK, since they have that option: since 6.18. Nothing in /sys says whether it is set.

// interleaves returns an error if a processor of this kernel may begin a frame in the middle of another one.
func interleaves() error {
	realtime, err := os.ReadFile("/sys/kernel/realtime") // real-time kernels have it
	if err != nil {
		return nil
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("which kernel it is: %w", err)
	}
	return interleavesAt(string(realtime), unix.ByteSliceToString(u.Release[:]))
}

// interleavesAt is interleaves of a kernel with this /sys/kernel/realtime and release.
func interleavesAt(realtime, release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); realtime[:min(1, len(realtime))] != "1" || err == nil && (major < 6 || major == 6 && minor < 18) {
		return nil
	}
	return errors.New("a real-time kernel of 6.18 or newer may begin a frame in the middle of another one, which P4 in the kernel cannot bear")
}
