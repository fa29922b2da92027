package attach

import (
	"encoding/hex"
	"errors"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/pool"
)

// Number is the switch's number in the pool: that behind those that boards may have.
const Number = snic.MaxPeers - 1

// Topology is that of a switch's Node.
func Topology() pool.Topology { return pool.SwitchAttached(Number) }

// View is what a switch shows.
type View struct {
	Boards []BoardView `json:"boards"`
	DAGs   []DAGView   `json:"dags"`
	// Launched, Moved and Lost count launches asked for, groups of flows that moved, and states that were lost.
	Launched uint64 `json:"launched"`
	Moved    uint64 `json:"moved"`
	Lost     uint64 `json:"lost"`
}

// BoardView is an attached board.
type BoardView struct {
	Board   int     `json:"board"`
	Up      bool    `json:"up"`
	Same    bool    `json:"same"` // it has the switch's deployment
	Leaving bool    `json:"leaving,omitempty"`
	Regions int     `json:"regions"` // free
	Load    float64 `json:"load"`    // bits a second
}

// DAGView is a DAG.
type DAGView struct {
	UID         uint32       `json:"uid"`
	State       string       `json:"state"` // wait, go, nowhere
	Assignments []Assignment `json:"places,omitempty"`
}

// Joining joins the app, which runs in workers, with its Node and its Balancer. All of its methods are called by those who
// may use the Node.
type Joining struct {
	mac      [6]byte
	balancer *Balancer
	number   uint64 // of the deployment
	dags     []DAG
	uids     []uint32
	boards   [MaxBoards]board
	count    int
	tables   []told
	view     *View
}

// told is a table that the app is to have.
type told struct {
	dag int
	Table
}

// NewJoining is for a switch whose frames to boards come from that address.
func NewJoining(mac [6]byte) *Joining { return &Joining{mac: mac} }

// On takes an event of the Node.
func (j *Joining) On(n *pool.Node, now clock.Time, e pool.Event) {
	if j.balancer != nil {
		j.balancer.On(now, n, e)
	}
}

// Page takes a message of a Pager: a switch keeps no pages.
func (*Joining) Page(clock.Time, []byte) {}

// CarryPages implements nothing, as above.
func (*Joining) CarryPages(pool.Carrier) {}

// Remains says what of others is here: nothing.
func (*Joining) Remains(*pool.Node) (what []string, stuck bool) { return nil, false }

// Exchange has the Node hear what the app has counted, and the app what was decided: do has the Node used, and visit the
// app of each worker, between two of its breaths. It reports whether something is under way, for which it is to be called
// again soon.
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

// read takes what a worker has counted.
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

// decide tells the Node of the switch, and takes what is decided. An app that is new is told all.
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
