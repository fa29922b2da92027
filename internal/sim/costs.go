package sim

// CoreCosts are times of a worker's processor.
type CoreCosts struct {
	// Breath is a breath with whatever in it, Group each DAG of a batch, Frame each frame that runs where it came in; in a task that does nothing.
	Breath, Group, Frame Time
	// Hand is each frame that is handed to another worker, in the place of Frame, and Take each that was handed to this one.
	Hand, Take Time
	// Line is a line of the cache that another core wrote last. Of these HandLines are waited for by who hands a frame over, and TakeLines by who takes
	// it, less what processors fetch ahead.
	Line                 Time
	HandLines, TakeLines float64
	Tasks                map[string]TaskCost
}

// TaskCost is the cost of a task: of a batch, and of each frame, and in which part of that it has its turn at a shard of its state, which is one line.
type TaskCost struct{ Push, Frame, Held Time }

// MeasuredCores are the costs of a core of an AMD EPYC at which two processors are near each other.
//
// All but Line are of one core: go test -run XXX -bench Core ./snic, 2026-11-28, the least of laps.
func MeasuredCores() CoreCosts {
	const ns = Nanosecond
	return CoreCosts{
		Breath: 486 * ns, Group: 89 * ns, Frame: 49 * ns,
		Hand: 63 * ns, Take: 52 * ns,
		Line: 50 * ns, HandLines: 1.1, TakeLines: 0.3,
		Tasks: map[string]TaskCost{
			"fw":  {250 * ns, 80 * ns, 50 * ns},
			"nat": {250 * ns, 154 * ns, 123 * ns},
			"vx":  {212 * ns, 30 * ns, 0},
		},
	}
}
