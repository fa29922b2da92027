package pool

// Topology describes how boards are joined.
type Topology struct {
	boards   int
	ring     bool
	attached bool
}

// Intermediate returns the topology of boards between endpoints and the switch, with one uplink each. If
// ring, there is also a cable from each board to the next by number, and from the last to the first.
func Intermediate(boards int, ring bool) Topology { return Topology{boards: boards, ring: ring} }

// SwitchAttached returns the topology of boards at a switch that decides what runs where. The number of
// the switch is boards.
func SwitchAttached(boards int) Topology { return Topology{boards: boards, attached: true} }

// Hops returns the number of cables between two boards.
func (t Topology) Hops(a, b int) int {
	const overSwitch = 2
	switch {
	case a == b:
		return 0
	case t.attached && (a == t.boards || b == t.boards):
		return 1
	case t.ring && a < t.boards && b < t.boards:
		d := max(a, b) - min(a, b)
		return min(d, t.boards-d, overSwitch)
	}
	return overSwitch
}

// nodes returns the number of nodes: boards, and the switch if it takes part.
func (t Topology) nodes() int {
	if t.attached {
		return t.boards + 1
	}
	return t.boards
}

// Switch returns the number of the switch that takes part, or -1.
func (t Topology) Switch() int {
	if t.attached {
		return t.boards
	}
	return -1
}
