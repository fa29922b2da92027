//go:build !amd64

package prefetch

import "unsafe"

// Line does nothing on this processor.
func Line(unsafe.Pointer) {}
