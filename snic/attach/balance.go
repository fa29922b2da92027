package attach

import (
	"math"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/pool"
)

// Buckets is the number of groups into which a DAG's flows are divided.
const Buckets = 128

// MaxBoards is the largest number of boards of a switch, one at each port.
const MaxBoards = 16

const (
	again   = 100 * time.Millisecond // time after which boards that refused are asked again
	every   = 20 * time.Millisecond  // interval between looks at the load
	settle  = 300 * time.Millisecond // time until the boards' reports show a change
	calm    = time.Second            // how long a board must not be needed before it ends
	drain   = 100 * time.Millisecond // longest time of a frame on its way to a board and back
	stuck   = 10 * time.Second       // time for which a DAG stays whose state is too large to move
	unused  = time.Second            // time without frames after which another DAG may have the region
	scarce  = 16                     // a board can do little more if it can do less than this part (1/scarce) of its load
	spacing = 64                     // a group without frames has this part (1/spacing) of a mean group's weight
)

// DAG is what a Balancer knows of a DAG.
type DAG struct {
	State bool // a task has state, so the DAG runs at one board at a time
	Stays bool // boards are not asked to run it
}

// Mode says what happens to a DAG's frames.
type Mode uint8

const (
	Wait    Mode = iota // frames wait
	Go                  // each frame goes to the board of its group
	Nowhere             // no board runs the DAG
)

func (m Mode) String() string { return [...]string{"wait", "go", "nowhere"}[m] }

// Table says where a DAG's frames go.
type Table struct {
	Mode   Mode
	To     [Buckets]uint8 // in mode Go: board of each group
	Boards uint32         // bits of the boards that run the DAG
	// Stay is how long frames of the DAG were at each board lately, as the board reported. If a flow moves
	// after a shorter pause, its frames may overtake each other.
	Stay [MaxBoards]clock.Duration
}

// Assignment is a board that runs a DAG, and its load.
type Assignment struct {
	Board int     `json:"board"`
	Rate  float64 `json:"rate"` // bits a second that the board is sent
}

// assignment is an Assignment, perhaps before it has a board.
type assignment struct {
	used  bool
	board int // -1: none yet
	ends  clock.Time
	rate  float64
}

// service is the Balancer's state of a DAG.
type service struct {
	DAG
	Table
	assigned [MaxBoards]assignment
	bytes    [Buckets]uint64 // since the last look
	rate     [Buckets]float64
	total    float64
	fresh    bool // frames came since the last look
	heard    clock.Time
	alone    clock.Time // until then no board is asked
	settled  clock.Time // until then no group moves
	tight    clock.Time // when the load last left no board to spare
	state    []byte     // state that came back from its last board
	owed     bool       // it has to be launched even without frames, because its state is here
	refused  bool       // no board could run it
	not      int        // board that must not run it, plus 1; 0: none
	changed  bool
}

// Balancer makes the decisions of a switch.
type Balancer struct {
	dags  []service
	looks clock.Time // time of the next look
	since clock.Time
	acted [MaxBoards]clock.Time
	order []int // used by relieve
	// Launched, Moved and Lost count launches asked for, groups that moved, and states that were lost.
	Launched, Moved, Lost uint64
}

// NewBalancer makes a Balancer for these DAGs, in the order of the deployment.
func NewBalancer(now clock.Time, dags []DAG) *Balancer {
	b := &Balancer{dags: make([]service, len(dags)), looks: now.Add(every), since: now}
	for i := range b.dags {
		d := &b.dags[i]
		d.DAG, d.changed, d.heard = dags[i], true, now
		if d.Stays {
			d.Mode = Nowhere
		}
	}
	return b
}

// Count adds bytes to the load of a DAG's groups.
func (b *Balancer) Count(dag int, bytes *[Buckets]uint64) {
	d := &b.dags[dag]
	d.fresh = true
	for i, n := range bytes {
		d.bytes[i] += n
	}
}

// Changed calls f for each DAG whose table has changed since the last call.
func (b *Balancer) Changed(f func(dag int, t *Table)) {
	for i := range b.dags {
		if d := &b.dags[i]; d.changed {
			d.changed = false
			f(i, &d.Table)
		}
	}
}

// Assignments returns the boards that run a DAG.
func (b *Balancer) Assignments(dag int) (all []Assignment) {
	for i := range b.dags[dag].assigned {
		if p := &b.dags[dag].assigned[i]; p.used && p.board >= 0 {
			all = append(all, Assignment{p.board, p.rate})
		}
	}
	return all
}

// id returns the number of a want: of the DAG's k-th assignment.
func id(dag, k int) int { return dag*MaxBoards + k }

// want asks for one more board for a DAG.
func (b *Balancer) want(now clock.Time, n *pool.Node, dag int, rate float64) bool {
	d := &b.dags[dag]
	for k := range d.assigned {
		p := &d.assigned[k]
		if p.used {
			continue
		}
		if n.Want(now, id(dag, k), dag, rate, d.not-1) != nil {
			return false
		}
		*p = assignment{used: true, board: -1, ends: clock.Never}
		b.Launched++
		return true
	}
	return false
}

// On handles an event of the Node.
func (b *Balancer) On(now clock.Time, n *pool.Node, e pool.Event) {
	if e.Kind == pool.PeerUp {
		for i := range b.dags {
			b.dags[i].alone = 0
		}
	}
	dag := e.Want / MaxBoards
	if e.Kind >= pool.PeerUp || e.Want < 0 || dag >= len(b.dags) {
		return
	}
	d := &b.dags[dag]
	p := &d.assigned[e.Want%MaxBoards]
	if !p.used {
		return
	}
	switch e.Kind {
	case pool.Redirect:
		p.board, d.state, d.owed, d.refused, d.not = e.Peer, nil, false, false, 0
		d.settled = now.Add(settle)
		if e.Reason == pool.TooMuch {
			d.settled = now.Add(stuck)
		}
		d.assign()
		b.even(n, dag)
	case pool.Pause:
		if p.board < 0 {
			n.Hand(now, e.Want, d.state)
		}
	case pool.Unredirect:
		p.board = -1
		if e.State != nil {
			d.state = slices.Clone(e.State)
		} else if d.State {
			d.state = nil
		}
		d.assign()
	case pool.Return:
		n.Stay(now, e.Want)
	case pool.Resume:
		*p = assignment{}
		if e.State != nil {
			d.state = e.State
		}
		if e.Lost {
			b.Lost++
		}
		d.owed, d.alone = d.State, 0
		d.assign()
	case pool.NoPeer:
		*p = assignment{}
		if e.Reason == pool.TooMuch {
			d.state, d.owed = nil, false
			b.Lost++
		}
		d.alone, d.settled, d.not = now.Add(again), max(d.settled, now.Add(settle)), 0
		d.refused = true
		d.assign()
		b.make(now, n, dag)
	}
}

// make ends the assignments of one DAG that had no frames for some time, because DAG dag found no region.
func (b *Balancer) make(now clock.Time, n *pool.Node, dag int) {
	for i := range b.dags {
		d := &b.dags[i]
		if i == dag || d.State || d.fresh || now < d.heard.Add(unused) || d.Boards == 0 {
			continue
		}
		for k := range d.assigned {
			if d.assigned[k].used {
				n.Unwant(now, id(i, k))
				d.assigned[k] = assignment{}
			}
		}
		d.assign()
		return
	}
}

// assign gives a new board to each group whose board does not run the DAG any more.
func (d *service) assign() {
	d.changed = true
	var at []uint8
	d.Boards = 0
	for k := range d.assigned {
		p := &d.assigned[k]
		if p.used && p.board >= 0 {
			d.Boards |= 1 << p.board
			if p.ends == clock.Never {
				at = append(at, uint8(p.board))
			}
		}
	}
	if len(at) == 0 {
		d.Mode = Wait
		if d.refused || d.Stays {
			d.Mode = Nowhere
		}
		return
	}
	was := d.Mode
	d.Mode = Go
	next := 0
	for i := range d.To {
		if was != Go || !slices.Contains(at, d.To[i]) {
			d.To[i] = at[next%len(at)]
			next++
		}
	}
	d.weigh()
}

// weigh computes the load of each assigned board.
func (d *service) weigh() {
	for k := range d.assigned {
		p := &d.assigned[k]
		p.rate = 0
		for i, to := range d.To {
			if p.used && p.board == int(to) && d.Mode == Go {
				p.rate += d.rate[i]
			}
		}
	}
}

// stays notes how long frames are at the boards, as they report.
func (d *service) stays(n *pool.Node, dag int) {
	for k := range d.assigned {
		p := &d.assigned[k]
		if !p.used || p.board < 0 {
			continue
		}
		for _, h := range n.View(p.board).Info.Chains {
			if h.Chain == dag && d.Stay[p.board] != clock.Duration(h.Stay) {
				d.Stay[p.board], d.changed = clock.Duration(h.Stay), true
			}
		}
	}
}

// left returns how much more of a DAG a board could do, in bits a second, as it reported. The second result
// is false if it reported nothing of this DAG.
func left(n *pool.Node, dag, board int) (float64, bool) {
	for _, h := range n.View(board).Info.Chains {
		if h.Chain == dag {
			return h.Left, true
		}
	}
	return 0, false
}

// even divides a DAG's groups among its boards in proportion to what these can do, and moves only as many
// groups as this takes. It returns how many it moved.
func (b *Balancer) even(n *pool.Node, dag int) (moved int) {
	d := &b.dags[dag]
	var at []int // indexes of assignments
	var could [MaxBoards]float64
	all, unlimited := 0.0, false
	for k := range d.assigned {
		p := &d.assigned[k]
		if !p.used || p.board < 0 || p.ends != clock.Never {
			continue
		}
		at = append(at, k)
		if more, known := left(n, dag, p.board); known {
			could[k] = p.rate + more
		}
		all += could[k]
	}
	for _, k := range at {
		unlimited = unlimited || could[k] == 0 || could[k] > 1e15
	}
	if len(at) < 2 || d.State {
		return 0
	}
	floor := d.total/Buckets/spacing + 1
	sum := d.total + floor*Buckets
	var has [MaxBoards]float64 // load of each assignment beyond its part
	for _, k := range at {
		part := 1 / float64(len(at)) // if a board has reported nothing yet, all get the same part
		if !unlimited && all > 0 {
			part = could[k] / all
		}
		has[k] = -sum * part
		for i, to := range d.To {
			if int(to) == d.assigned[k].board {
				has[k] += d.rate[i] + floor
			}
		}
	}
	for range Buckets {
		from, to := at[0], at[0]
		for _, k := range at {
			if has[k] > has[from] {
				from = k
			}
			if has[k] < has[to] {
				to = k
			}
		}
		best, most := -1, 0.0
		for i := range d.To {
			if r := d.rate[i] + floor; int(d.To[i]) == d.assigned[from].board && r > most && r <= min(has[from], -has[to]) {
				best, most = i, r
			}
		}
		if best < 0 {
			break
		}
		d.To[best] = uint8(d.assigned[to].board)
		has[from] -= most
		has[to] += most
		moved++
	}
	if moved > 0 {
		d.changed = true
		b.Moved += uint64(moved)
		d.weigh()
	}
	return moved
}

// Advance does what is due: it launches DAGs for which frames have come, and looks at the load from time to
// time. The caller must call it about every 10 ms.
func (b *Balancer) Advance(now clock.Time, n *pool.Node) {
	for i := range b.dags {
		d := &b.dags[i]
		if d.fresh || d.owed {
			if !d.Stays && now >= d.alone && !d.asked() {
				b.want(now, n, i, d.total)
			}
		}
	}
	if now >= b.looks {
		b.look(now, n)
	}
}

// asked reports whether a DAG has a board, or whether one was asked for.
func (d *service) asked() bool {
	return slices.ContainsFunc(d.assigned[:], func(p assignment) bool { return p.used && p.ends == clock.Never })
}

// look measures the load, and acts if there are too many boards or too few.
func (b *Balancer) look(now clock.Time, n *pool.Node) {
	took := now.Sub(b.since).Seconds()
	b.looks, b.since = now.Add(every), now
	for i := range b.dags {
		d := &b.dags[i]
		if d.fresh {
			d.heard = now
		}
		if d.fresh || d.total > 0 {
			d.total = 0
			for k := range d.rate {
				if d.rate[k] = (d.rate[k] + float64(d.bytes[k])*8/took) / 2; d.rate[k] < 1 {
					d.rate[k] = 0
				}
				d.total += d.rate[k]
			}
			d.fresh, d.bytes = false, [Buckets]uint64{}
			d.weigh()
			for k := range d.assigned {
				if d.assigned[k].used {
					n.Traffic(id(i, k), d.assigned[k].rate)
				}
			}
		}
		for k := range d.assigned {
			if p := &d.assigned[k]; p.used && now >= p.ends {
				n.Unwant(now, id(i, k))
				*p = assignment{}
				d.assign()
			}
		}
		b.shrink(now, n, i)
		d.stays(n, i)
	}
	b.relieve(now, n)
}

// relieve finds boards that can do little more of a DAG, and moves load away from them: first the DAG with
// most load, and one DAG of a board at a time.
func (b *Balancer) relieve(now clock.Time, n *pool.Node) {
	b.order = b.order[:0]
	for i := range b.dags {
		d := &b.dags[i]
		for k := range d.assigned {
			p := &d.assigned[k]
			if !p.used || p.board < 0 || p.board >= MaxBoards || p.rate == 0 || p.ends != clock.Never {
				continue
			}
			if more, known := left(n, i, p.board); known && more < p.rate/scarce {
				d.tight = now
				if now >= d.settled && now >= b.acted[p.board] {
					b.order = append(b.order, id(i, k))
				}
			}
		}
	}
	rate := func(id int) float64 { return b.dags[id/MaxBoards].assigned[id%MaxBoards].rate }
	slices.SortFunc(b.order, func(x, y int) int {
		if rate(x) != rate(y) {
			return int(math.Copysign(1, rate(y)-rate(x)))
		}
		return x - y
	})
	for _, x := range b.order {
		board := b.dags[x/MaxBoards].assigned[x%MaxBoards].board
		if now >= b.acted[board] && now >= b.dags[x/MaxBoards].settled && b.unload(now, n, x/MaxBoards, x%MaxBoards) {
			b.acted[board] = now.Add(settle)
		}
	}
}

// unload moves a part of a DAG, or all of it, away from one of its boards. It reports whether it found a way.
func (b *Balancer) unload(now clock.Time, n *pool.Node, dag, k int) bool {
	d := &b.dags[dag]
	p := &d.assigned[k]
	d.settled = now.Add(settle)
	if d.State {
		v := n.View(p.board).Info
		for i := range MaxBoards {
			if o := n.View(i); i != p.board && o.Alive && !o.Info.Leaving && len(o.Info.Regions) > 0 && o.Info.Load+p.rate < v.Load {
				d.not = p.board + 1
				return n.Fetch(now, id(dag, k))
			}
		}
		return false
	}
	for j := range d.assigned {
		o := &d.assigned[j]
		if more, known := left(n, dag, o.board&(MaxBoards-1)); j != k && o.used && o.board >= 0 && o.ends == clock.Never && known && more > o.rate/scarce {
			if b.even(n, dag) > 0 {
				return true
			}
		}
		if o.used && o.board < 0 {
			return false // a board was asked for
		}
	}
	if now < d.alone {
		return false
	}
	return b.want(now, n, dag, 0)
}

// shrink ends the least used board of a DAG if the other boards could have done all for some time.
func (b *Balancer) shrink(now clock.Time, n *pool.Node, dag int) {
	d := &b.dags[dag]
	least, boards, room := -1, 0, 0.0
	for k := range d.assigned {
		p := &d.assigned[k]
		if !p.used || p.ends != clock.Never {
			continue
		}
		more, known := left(n, dag, p.board&(MaxBoards-1))
		if p.board < 0 || !known {
			return
		}
		boards++
		room += more
		if least < 0 || p.rate < d.assigned[least].rate {
			least = k
		}
	}
	if boards < 2 {
		d.tight = now
		return
	}
	p := &d.assigned[least]
	if more, _ := left(n, dag, p.board); room-more < 2*p.rate+(d.total-p.rate)/4 {
		d.tight = now
	}
	if now < d.tight.Add(calm) || now < d.settled {
		return
	}
	d.tight, d.settled = now, now.Add(settle)
	p.ends = now.Add(drain)
	d.assign()
	b.even(n, dag)
}
