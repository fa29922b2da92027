package pool

// Topology is how boards are joined.
type Topology struct {
	boards   int
	ring     bool
	attached bool
}

// Intermediate: boards between endpoints and the switch, one uplink each, and if
// ring, in order of their numbers, a cable from each to the next and from the last
// to the first.
func Intermediate(boards int, ring bool) Topology { return Topology{boards: boards, ring: ring} }

// SwitchAttached: boards at the switch, which has the number above theirs and
// decides what runs where.
func SwitchAttached(boards int) Topology { return Topology{boards: boards, attached: true} }

// Hops is how many cables are between two boards.
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

// nodes is how many take part.
func (t Topology) nodes() int {
	if t.attached {
		return t.boards + 1
	}
	return t.boards
}

// Switch is the number of the switch that balances, or -1.
func (t Topology) Switch() int {
	if t.attached {
		return t.boards
	}
	return -1
}
