package police

import "github.com/quillon/quillon/nf/port"

// failing says what becomes of frames while no worker takes them.
type failing uint8

const (
	failOpen failing = iota
	failWait
	failClosed
)

// Wants implements graph.Wanter.
func (f failing) Wants() port.Filter {
	return port.Filter{All: true, Waits: f == failWait, Closed: f == failClosed}
}
