package prefetch

import "unsafe"

// Line asks for the line of the cache that p is in. It never faults: p need not be
// valid.
//
//go:noescape
func Line(p unsafe.Pointer)
