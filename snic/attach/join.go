package attach

import (
	"encoding/hex"
	"errors"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/pool"
)

// Number is the switch's number in the pool, behind the numbers of boards.
const Number = snic.MaxPeers - 1

// Topology returns the topology of a switch's Node.
func Topology() pool.Topology { return pool.SwitchAttached(Number) }

// View is the state that a switch shows.
type View struct {
	Boards []BoardView `json:"boards"`
	DAGs   []DAGView   `json:"dags"`
	// Launched, Moved and Lost count launches asked for, groups of flows that moved, and states that were lost.
	Launched uint64 `json:"launched"`
	Moved    uint64 `json:"moved"`
	Lost     uint64 `json:"lost"`
}

// BoardView is the state of an attached board.
type BoardView struct {
	Board   int     `json:"board"`
	Up      bool    `json:"up"`
	Same    bool    `json:"same"` // it has the switch's deployment
	Leaving bool    `json:"leaving,omitempty"`
	Regions int     `json:"regions"` // number of free regions
	Load    float64 `json:"load"`    // bits a second
}

// DAGView is the state of a DAG.
type DAGView struct {
	UID         uint32       `json:"uid"`
	State       string       `json:"state"` // wait, go, nowhere
	Assignments []Assignment `json:"places,omitempty"`
}

// Joining connects the app, which runs in workers, with its Node and its Balancer. Only code that may use the
// Node calls its methods.
type Joining struct {
	mac      [6]byte
	balancer *Balancer
	number   uint64 // dag.Deployment.Number of the deployment
	dags     []DAG
	uids     []uint32
	boards   [MaxBoards]board
	count    int
	tables   []told
	view     *View
}

// told is a table that the app is to get.
type told struct {
	dag int
	Table
}

// NewJoining makes a Joining. The switch's frames to boards have the source address mac.
func NewJoining(mac [6]byte) *Joining { return &Joining{mac: mac} }

// On handles an event of the Node.
func (j *Joining) On(n *pool.Node, now clock.Time, e pool.Event) {
	if j.balancer != nil {
		j.balancer.On(now, n, e)
	}
}

// Page ignores a message of a Pager, because a switch keeps no pages.
func (*Joining) Page(clock.Time, []byte) {}

// CarryPages does nothing, because a switch keeps no pages.
func (*Joining) CarryPages(pool.Carrier) {}

// Remains reports what of other boards is here: nothing.
func (*Joining) Remains(*pool.Node) (what []string, stuck bool) { return nil, false }

// Exchange gives the Node what the app has counted, and the app what was decided. do calls its function with
// the Node. visit calls its function with the app of each worker, between two breaths of this worker.
// Exchange reports whether something is under way, so that it must be called again soon.
func (j *Joining) Exchange(do func(func(n *pool.Node, now clock.Time)), visit func(func(graph.App)) error) (bool, error) {
	var at clock.Time
	do(func(n *pool.Node, now clock.Time) { at = now })
	fresh := false
	if err := visit(func(a graph.App) {
		p, ok := a.(*app)
		if !ok {
			return
		}
		fresh = fresh || !p.met
		j.read(p)
	}); err != nil {
		return false, err
	}
	var err error
	do(func(n *pool.Node, now clock.Time) { at, err = now, j.decide(n, now, fresh) })
	if err != nil || j.balancer == nil {
		return false, err
	}
	err = visit(func(a graph.App) {
		if p, ok := a.(*app); ok {
			p.met = true
			p.mac, p.boards, p.view = j.mac, j.boards, j.view
			for i := range j.tables {
				if t := &j.tables[i]; t.dag < len(p.courses) {
					p.turn(at, t.dag, &t.Table)
				}
			}
		}
	})
	open := len(j.tables) > 0
	j.tables = j.tables[:0]
	for i := range j.balancer.dags {
		d := &j.balancer.dags[i]
		open = open || d.Mode == Wait && (d.fresh || d.asked())
	}
	return open, err
}

// read takes the bytes that a worker has counted.
func (j *Joining) read(p *app) {
	if number := p.deployment.Number(); !p.met && (j.balancer == nil || number != j.number) {
		j.number, j.dags, j.count, j.balancer = number, p.dags, p.count, nil
		j.uids = j.uids[:0]
		for i := range p.courses {
			j.uids = append(j.uids, p.courses[i].uid)
		}
	}
	for i := range p.courses {
		if d := &p.courses[i]; d.some {
			if j.balancer != nil {
				j.balancer.Count(i, &d.bytes)
				d.bytes, d.some = [Buckets]uint64{}, false
			}
		}
	}
}

// decide gives the switch's data to the Node, and collects the new tables. If fresh, an app is new, and all
// tables are collected.
func (j *Joining) decide(n *pool.Node, now clock.Time, fresh bool) error {
	if j.number == 0 {
		return errors.New("attach: the app is not there")
	}
	if j.balancer == nil {
		chains := make([]pool.Chain, len(j.dags))
		for i := range chains {
			chains[i] = pool.Chain{Stateful: true, Hand: true}
		}
		if err := n.Deploy(now, j.number, chains); err != nil {
			return err
		}
		j.balancer = NewBalancer(now, j.dags)
	}
	n.Tell(now, pool.Info{Addr: hex.EncodeToString(j.mac[:])})
	j.balancer.Advance(now, n)
	v := &View{Launched: j.balancer.Launched, Moved: j.balancer.Moved, Lost: j.balancer.Lost}
	for i := range MaxBoards {
		p := n.View(i)
		mac, err := hex.DecodeString(p.Info.Addr)
		j.boards[i] = board{up: i < j.count && p.Alive && err == nil && len(mac) == len(j.mac)}
		copy(j.boards[i].mac[:], mac)
		if i < j.count {
			v.Boards = append(v.Boards, BoardView{i, j.boards[i].up, p.Info.Deployment == j.number, p.Info.Leaving, len(p.Info.Regions), p.Info.Load})
		}
	}
	for i := range j.balancer.dags {
		d := &j.balancer.dags[i]
		d.changed = d.changed || fresh
		v.DAGs = append(v.DAGs, DAGView{j.uids[i], d.Mode.String(), j.balancer.Assignments(i)})
	}
	j.balancer.Changed(func(dag int, t *Table) { j.tables = append(j.tables, told{dag, *t}) })
	j.view = v
	return nil
}
