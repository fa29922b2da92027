//go:build !amd64

package prefetch

// Line does nothing on this processor.
func Line(uintptr) {}

// Lines does nothing either.
func Lines(_, _ uintptr) {}
