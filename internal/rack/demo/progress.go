package demo

import (
	"fmt"
	"time"
)

// Progress is what a run is doing.
type Progress struct {
	Phase    string // the mode of the middlebox; "" before and after
	Step     string // what is done in the phase: warm-up, measuring, ...
	OpsPerS  float64
	FirstTry float64
	Left     time.Duration // of the whole run, by plan
}

func (p Progress) String() string {
	head := p.Step
	if p.Phase != "" {
		head = titles[p.Phase] + ", " + p.Step
	}
	if p.OpsPerS == 0 {
		return head
	}
	return fmt.Sprintf("%-34s %10s op/s  first try %6.2f %%  %3.0f s left",
		head, thousands(p.OpsPerS), 100*p.FirstTry, p.Left.Round(time.Second).Seconds())
}
