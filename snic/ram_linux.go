package snic

import (
	"bytes"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// ram is memory of the machine, outside of Go's: what is not accessed takes none, and the
// collector does not count it as a reason to let garbage grow.
type ram struct{ bytes []byte }

// newRAM is so many bytes of zeros. They are unmapped when nobody has the ram any more: who
// has a part of them keeps it.
func newRAM(size int64) (*ram, error) {
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	r := &ram{b}
	runtime.AddCleanup(r, func(b []byte) { _ = unix.Munmap(b) }, b)
	return r, nil
}

// drop gives the machine back what was taken, beside the caller: then it holds zeros.
func (r *ram) drop() {
	go func() { _ = unix.Madvise(r.bytes, unix.MADV_DONTNEED) }()
}

// processMemory is how many bytes of the machine's memory this process has. 0: it is not known.
func processMemory() int64 {
	text, _ := os.ReadFile("/proc/self/statm")
	if f := bytes.Fields(text); len(f) > 1 {
		n, _ := strconv.ParseInt(string(f[1]), 10, 64)
		return n * int64(os.Getpagesize())
	}
	return 0
}
