//go:build !amd64

package prefetch

// Line does nothing on this processor.
func Line(uintptr) {}
