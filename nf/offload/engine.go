package offload

// Engine is a Kernel at the ports of a graph. Its methods may be called from any goroutine.
type Engine interface {
	Kernel
	// Port is the number of a port of the graph, and the length of the longest frame that leaves by it; negative: the kernel runs none of its frames.
	Port(name string) (number, longest int)
	// Watched reports whether somebody looks at all frames, so that the kernel runs none.
	Watched() bool
	// Paths sets sums to what the first ways have had.
	Paths(sums []Counts) error
	// Outcomes are what has become of frames that came to the program, by name; those that left by it are Finished.
	Outcomes() (map[string]uint64, error)
	// Left says why ports are left out.
	Left() []string
	// Close takes the program off the ports.
	Close() error
}

// Finished is the outcome of frames that the kernel has run.
const Finished = "finished"

// MaxPaths is how many ways through the graph are counted.
const MaxPaths = 1024
