package graph

import "syscall"

// prefer gives the calling thread a nice value below 0, and returns what gives it its
// own again. Without the right to do so nothing happens.
func prefer(nice int) (restore func()) {
	tid := syscall.Gettid()
	// The system call yields 20 less the nice value.
	was, err := syscall.Getpriority(syscall.PRIO_PROCESS, tid)
	if nice >= 0 || err != nil || syscall.Setpriority(syscall.PRIO_PROCESS, tid, nice) != nil {
		return func() {}
	}
	return func() { _ = syscall.Setpriority(syscall.PRIO_PROCESS, tid, 20-was) }
}
