package main

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// keptCaps are what a running middlebox still needs: to change the filter of
// its XDP programs, and to take them off and the settings back at the end, also
// those of a veth peer in another network namespace.
const keptCaps = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON

// niceCap is what workers need beside, to have their threads go before others.
const niceCap = 1 << unix.CAP_SYS_NICE

// dropCaps gives all but some capabilities up, in every thread and for good. A
// binary that is linked with cgo cannot do that for all its threads; the error
// is unix.ENOTSUP then, and nothing has changed.
func dropCaps(kept uint64) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	var keep [2]unix.CapUserData
	for i := range keep {
		mask := uint32(kept >> (32 * i))
		keep[i].Permitted = have[i].Permitted & mask
		keep[i].Effective = have[i].Permitted & mask
	}
	// With this no program that is executed gets more, whatever the bounding set
	// says.
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("no new privileges: %w", e)
	}
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&keep[0])), 0)
	if e != 0 {
		return fmt.Errorf("capabilities: %w", e)
	}
	return nil
}
