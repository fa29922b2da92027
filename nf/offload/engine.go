package offload

// Engine is a Kernel whose program stands at the ports of a graph. Its own methods may be called from any goroutine.
type Engine interface {
	Kernel
	// Port returns the number of the graph's port name, and the length in bytes of the longest frame that may leave
	// by it. A negative number means that the kernel runs no frames of the port.
	Port(name string) (number, longest int)
	// Watched reports whether frames of some port must not be run, because somebody captures them or because
	// frames sent to a port do not arrive.
	Watched() bool
	// Paths sets sums[i] to what the kernel has counted for path i (Dir.Path).
	Paths(sums []Counts) error
	// Outcomes returns how many frames that reached the program had each outcome, by its name. Finished is one of them.
	Outcomes() (map[string]uint64, error)
	// Left returns, for each port without the program, a text that says why.
	Left() []string
	// Close removes the program from the ports.
	Close() error
}

// Finished is the outcome of frames that the program has run: no worker has seen them.
const Finished = "finished"

// MaxPaths is the number of ways through the graph that have counters of their own.
const MaxPaths = 1024
