package sim

import "math"

// CoreCosts are times of a worker's processor. Those of a frame are for frames of 60 bytes.
type CoreCosts struct {
	// Breath is a breath with whatever in it, of a board with two workers; of one with one worker it takes Alone less, and of one with more
	// Another more for each.
	Breath, Alone, Another Time
	// Group is each DAG that a batch has frames of, Frame each frame that runs where it came in, in a task that does nothing.
	Group, Frame Time
	// Hand is each frame that is handed to another worker, in the place of Frame, and Take each that was handed to this one; HandLines and TakeLines are
	// what that takes more when the other worker is on another processor.
	Hand, Take, HandLines, TakeLines Time
	// Line is a line of the cache that another processor wrote last.
	Line Time
	// Turn is how much of a task's frame is taking and giving a turn, with its line at hand: a board with one worker does not.
	Turn Time
	// Tasks are by their names in deployments.
	Tasks map[string]TaskCost
}

// TaskCost is what a task takes: for a batch, and for each frame, by how many flows the processor has: 128, 512, 1,024 and 2,048. They fill its
// caches. All of that but Outside is while the frame has its turn at a shard of the task's state, if the task has one.
type TaskCost struct {
	Push, Outside Time
	Frame         [4]Time
	State         bool
}

// costFlows are those of TaskCost.Frame.
var costFlows = [4]float64{128, 512, 1024, 2048}

// frame is a frame's cost among so many flows: between two measured numbers by their logarithms.
func (c *TaskCost) frame(flows int) Time {
	n := math.Min(math.Max(float64(flows), costFlows[0]), costFlows[3])
	i := 0
	for i < 2 && n > costFlows[i+1] {
		i++
	}
	part := math.Log(n/costFlows[i]) / math.Log(costFlows[i+1]/costFlows[i])
	return c.Frame[i] + Time(part*float64(c.Frame[i+1]-c.Frame[i]))
}

// breath is a breath of a board with so many workers.
func (c *CoreCosts) breath(workers int) Time {
	if workers == 1 {
		return c.Breath - c.Alone
	}
	return c.Breath + Time(workers-2)*c.Another
}

// NearCores are costs of one core of an AMD EPYC (virtual, Go 1.26, without a profile): go test -run XXX -bench Core ./snic, 2026-11-28, the least of
// laps of a quarter of a millisecond to one, median of five runs, while the machine had a load of 15 to 20. Breath, Group, Frame and Push are the linear terms of
// batches of 1, 16 and 64 frames of two workers' boards, of which one worker runs; Alone is by boards of one worker, Another by boards of up to 16. Outside is by
// samples of the processor's clock in the same benchmark: of the firewall's time 68 % are in find, of NAPT's 84 % in outward. Lines are those of two processors as near each
// other as they get (TASKS/hand-apart less TASKS/hand, and line).
//
// No constant is from a run in which two workers ran through tasks at the same time.
func NearCores() CoreCosts {
	const ns = Nanosecond
	return CoreCosts{
		Breath: 610 * ns, Alone: 123 * ns, Another: 7500,
		Group: 90 * ns, Frame: 51 * ns,
		Hand: 60 * ns, Take: 50 * ns, HandLines: 36 * ns, TakeLines: 6 * ns,
		Line: 25 * ns, Turn: 5 * ns,
		Tasks: map[string]TaskCost{
			"fw":  {Push: 60 * ns, Outside: 22 * ns, Frame: [4]Time{59 * ns, 60 * ns, 68 * ns, 93 * ns}, State: true},
			"nat": {Push: 100 * ns, Outside: 27 * ns, Frame: [4]Time{80 * ns, 100 * ns, 167 * ns, 159 * ns}, State: true},
			"vx":  {Push: 80 * ns, Frame: [4]Time{43 * ns, 43 * ns, 43 * ns, 43 * ns}},
		},
	}
}

// FarCores are the same on processors far from each other, where the host puts them for seconds to minutes.
func FarCores() CoreCosts {
	c := NearCores()
	c.HandLines, c.TakeLines, c.Line = 164*Nanosecond, 22*Nanosecond, 149*Nanosecond
	return c
}
