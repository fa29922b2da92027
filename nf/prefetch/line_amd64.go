package prefetch

// Line asks for the line of the cache that the address is in. It never faults: nothing
// need be there.
func Line(address uintptr)

// Lines is Line for two addresses.
func Lines(a, b uintptr)
