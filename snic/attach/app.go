package attach

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/mat"
)

// ports is the number of ports for hosts and uplinks. Boards have MaxBoards further ports.
const ports = 16

const (
	reasonSwitched graph.Reason = iota
	reasonShort
	reasonControl
	reasonNobody
	reasonUnserved
	reasonNoBoard
	reasonNoRoom
	reasonTooLong
	reasonBadBoard
	reasonUnasked
	reasonAnswered
	reasonStopped
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonSwitched: {Name: "switched", Help: "no rule sends it to tasks, forwarded"},
	reasonShort:    {Name: "short", Help: "too short for its Ethernet header or VLAN tags, forwarded"},
	reasonControl:  {Name: "control", Help: "to the control core"},
	reasonNobody:   {Name: "nobody", Help: "dropped: a rule says so"},
	reasonUnserved: {Name: "endpoint", Help: "no board runs its tasks: the endpoint does their work, forwarded"},
	reasonNoBoard:  {Name: "no-board", Help: "dropped: no board runs its tasks"},
	reasonNoRoom:   {Name: "hold-full", Help: "dropped: no board runs its tasks yet, and as many frames wait as may (hold=)"},
	reasonTooLong:  {Name: "board-mtu", Help: "dropped: with 22 bytes more it is too long for the boards' ports (board-mtu=)"},
	reasonBadBoard: {Name: "bad-board", Help: "dropped: by a board's port, and not an answer of that board"},
	reasonUnasked:  {Name: "unasked", Help: "dropped: from a board, of a DAG that does not run there"},
	reasonAnswered: {Name: "from-board", Help: "a board has run its tasks, forwarded"},
	reasonStopped:  {Name: "stopped", Help: "dropped: it waited when the app was taken out"},
}

const (
	ctrSent counter.ID = iota
	ctrAnswered
	ctrHeld
	ctrTurned
	ctrForced
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrSent:     {Name: "to-boards", Help: "frames sent to boards"},
	ctrAnswered: {Name: "from-boards", Help: "frames that boards sent back"},
	ctrHeld:     {Name: "waiting", Help: "frames that wait for a board"},
	ctrTurned:   {Name: "groups-moved", Help: "groups of flows that go to another board, moved in a pause of theirs"},
	ctrForced:   {Name: "groups-forced", Help: "groups of flows that had no pause: frames of them may have overtaken others"},
}

const (
	patience = 20 * time.Millisecond // how long a group waits for a pause before it moves without one
	echo     = time.Second           // how long answers of a board are accepted for a DAG that no longer runs there
	poll     = 50 * time.Microsecond // interval between ticks while frames wait
	longest  = time.Second           // longest time that a frame waits
	burst    = 2 * packet.MaxBatch   // largest number of frames that one tick releases
	none     = 0xFF                  // no board
	mtu      = 1500
	answer   = 1 << 4 // bit of the service index that marks an answer: see package snic
	inPool   = 0x20   // upper bits of the service index of a frame that goes to a board
	outerLen = hdr.EthernetLen + hdr.NSHLen
)

const doc = `Frames from port p0 leave by p1, those from p1 by p0, and so with p2 and p3 and all others. On the way a rule may
send them to a board that is attached: board 0 of the pool at port b0, board 1 at b1, and so on. The boards are
apps of kind snic with pool-port=, on this host or others, and have the same deployment. This app decides which board
launches what, and spreads flows over the boards that run their DAG; DAGs with state are at one board at a time. See
quillon run --pool: the switch needs it, too, and has a number of its own.

It learns no MAC addresses: by which port a frame leaves depends only on the port that it came in by. So no frame is
flooded, and hosts at different pairs reach each other through what their uplinks lead to.

  apps:
    tor:
      kind: attach
      args:
        boards: "2"
        deployment: |
          regions: {count: 4, area: 1}
          tasks: {fw: {kind: firewall, args: {default: allow}}}
          tenants: {alice: {}}
          dags: [{uid: 7, tenant: alice, run: fw}]
          rules: [{match: "src:10.0.0.0/8", dag: 7}]

While no board runs a DAG its frames wait (hold=), a second at most; when none can, they cross unprocessed if endpoints can do the work of
all of its tasks (endpoint: true), and are dropped otherwise. A board that dies is noticed after a second; so much is
lost of what goes there.`

// Kind declares attach. functions are those that the boards' tasks may run.
func Kind(functions ...graph.Kind) *graph.Kind {
	k := &graph.Kind{
		Name:     "attach",
		Summary:  "a switch that SuperNIC boards are attached to: steers flows to them, balances, decides what they launch",
		Doc:      doc,
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		New: func(_ graph.Env, args graph.Args) (graph.App, error) {
			return newApp(args, functions)
		},
	}
	for p := range ports {
		k.In = append(k.In, fmt.Sprintf("p%d", p))
	}
	for p := range MaxBoards {
		k.In = append(k.In, fmt.Sprintf("b%d", p))
	}
	k.Out = k.In
	return k
}

// course is how a worker steers the frames of a DAG.
type course struct {
	uid   uint32
	pass  bool // endpoints can do the work of all of its tasks
	table Table
	next  [Buckets]uint8      // board that a group is to move to; none
	last  [Buckets]clock.Time // when a group's last frame came
	bytes [Buckets]uint64     // bytes of each group since Joining last read them
	some  bool                // bytes are not all 0
	moves clock.Time          // when the first frame came of a group that is to move; 0: none came yet
	until [MaxBoards]clock.Time
	queue hold.Queue
}

// note lies beside a frame that waits.
type note struct {
	since clock.Time
	out   uint8
	group uint8
}

// board is what the app knows of the board at a port.
type board struct {
	up  bool
	mac [6]byte
}

// app is the app of one worker.
type app struct {
	deployment *dag.Deployment
	dags       []DAG
	mat        *mat.Table
	rules      []mat.Rule
	courses    []course
	byUID      map[uint32]int32
	waiting    []int32 // indexes of courses with frames that wait
	shelf      hold.Shelf[note]
	count      int // number of boards
	mtu        int
	gap        clock.Duration
	mac        [6]byte
	boards     [MaxBoards]board
	met        bool // Joining has read this app, and has given it its tables
	view       *View
	sent, answered, turned,
	forced uint64
}

type settings struct {
	deployment string        `arg:"deployment" need:"see quillon nf describe attach" help:"YAML, that of the boards: regions, tasks, tenants, dags; and rules"`
	boards     int           `arg:"boards" range:"1..16" help:"ports that boards are at: b0 to one less than that"`
	mtu        int           `arg:"board-mtu" unit:"1024" range:"576..2^16" default:"1500" help:"of these ports: 22 more than that of the others lets all frames through"`
	hold       int           `arg:"hold" unit:"1024" range:"1..2^16" default:"1024" help:"frames that wait for a board at most, of each worker"`
	gap        time.Duration `arg:"gap" range:"0..20ms" help:"pause of a group of flows in which it may move to another board: longer than frames are at a board"`
	flows      int           `arg:"flows" unit:"1024" range:"4..2^26" default:"131072" help:"flows whose rule is remembered"`
}

var arguments = arg.Declare("attach", settings{boards: 2, mtu: mtu, hold: 1024, gap: 500 * time.Microsecond, flows: 1 << 17})

func newApp(args graph.Args, functions []graph.Kind) (*app, error) {
	given, r := arguments.Read(args)
	if err := r.Err(); err != nil {
		return nil, err
	}
	p := &app{count: given.boards, mtu: given.mtu, gap: given.gap}
	s, err := dag.Parse([]byte(given.deployment))
	if err == nil {
		p.deployment, err = snic.Check(s, functions, nil)
	}
	if err != nil {
		return nil, err
	}
	p.shelf = hold.New[note](given.hold, 1)
	users := make([]int, len(p.deployment.Tasks))
	for _, d := range p.deployment.DAGs {
		for _, t := range d.Tasks {
			users[t]++
		}
	}
	for _, d := range p.deployment.DAGs {
		l, known := course{uid: d.UID, pass: true}, DAG{Stays: d.UID >= 1<<24}
		for _, n := range d.Tasks {
			t := &p.deployment.Tasks[n]
			l.pass = l.pass && t.Endpoint
			known.State = known.State || t.State
			known.Stays = known.Stays || !t.Remote || t.State && users[n] > 1
		}
		p.courses, p.dags = append(p.courses, l), append(p.dags, known)
	}
	p.byUID, p.waiting = make(map[uint32]int32, len(p.courses)), make([]int32, 0, len(p.courses))
	for i := range p.courses {
		p.byUID[p.courses[i].uid] = int32(i)
		for k := range Buckets {
			p.courses[i].next[k] = none
		}
	}
	p.mat = mat.New(given.flows)
	p.mat.Set(p.deployment.Rules)
	p.rules = p.mat.Rules()
	return p, nil
}

// Wants implements graph.Wanter: the app wants all frames, and none may cross without it.
func (*app) Wants() port.Filter { return port.Filter{All: true, Closed: true} }

// Held implements graph.Holder.
func (p *app) Held() int { return p.shelf.Len() }

// Report implements graph.Reporter.
func (p *app) Report() any { return p.view }

// Push implements graph.App.
func (p *app) Push(c *graph.Ctx, in int, frames *packet.Batch) {
	if in >= ports {
		for _, x := range frames.Bufs() {
			p.fromBoard(c, in-ports, x)
		}
		p.show(c)
		return
	}
	for _, x := range frames.Bufs() {
		p.fromHost(c, in, x)
	}
	p.show(c)
}

// show sets the counters.
func (p *app) show(c *graph.Ctx) {
	c.Set(ctrSent, p.sent)
	c.Set(ctrAnswered, p.answered)
	c.Set(ctrHeld, uint64(p.shelf.Len()))
	c.Set(ctrTurned, p.turned)
	c.Set(ctrForced, p.forced)
}

// fromHost handles a frame from a host or an uplink.
func (p *app) fromHost(c *graph.Ctx, in int, x *packet.Buf) {
	var l hdr.Layers
	if !hdr.Walk(x.Bytes(), &l) {
		c.Mark(x, packet.Forwarded, reasonShort)
		c.Emit(in^1, x)
		return
	}
	f := p.mat.Lookup(x.Bytes(), uint16(in), in&1 == 0, &l)
	road := mat.Switch
	if f.Rule >= 0 {
		road = p.rules[f.Rule].Road
	}
	switch road {
	case mat.Switch:
		c.Mark(x, packet.Forwarded, reasonSwitched)
		c.Emit(in^1, x)
		return
	case mat.Control:
		c.Punt(x, reasonControl)
		return
	case mat.Refuse:
		c.Drop(x, reasonNobody)
		return
	}
	n := p.rules[f.Rule].DAG
	d := &p.courses[n]
	group := group(f.Hash)
	d.bytes[group] += uint64(x.Len())
	d.some = true
	switch {
	case d.table.Mode == Nowhere:
		p.unserved(c, d, in^1, x)
	case d.table.Mode == Wait || !d.queue.Empty():
		first := d.queue.Empty()
		if p.shelf.Put(&d.queue, x, 0, note{c.Now(), uint8(in ^ 1), group}) == 0 {
			c.Drop(x, reasonNoRoom)
			return
		}
		if first {
			p.waiting = append(p.waiting, int32(n))
		}
		c.Wake(c.Now().Add(poll))
	default:
		p.steer(c, d, group, in^1, x)
	}
}

// group returns the group of a flow with this hash.
func group(hash uint64) uint8 { return uint8((hash ^ hash>>32) % Buckets) }

// unserved handles a frame whose tasks no board runs.
func (p *app) unserved(c *graph.Ctx, d *course, out int, x *packet.Buf) {
	if !d.pass {
		c.Drop(x, reasonNoBoard)
		return
	}
	c.Mark(x, packet.Forwarded, reasonUnserved)
	c.Emit(out, x)
}

// steer sends a frame to the board of its group.
func (p *app) steer(c *graph.Ctx, d *course, group uint8, out int, x *packet.Buf) {
	now := c.Now()
	if next := d.next[group]; next != none {
		if d.moves == 0 {
			d.moves = now
		}
		paused := now >= d.last[group].Add(max(p.gap, 2*d.table.Stay[d.table.To[group]%MaxBoards]))
		if paused || now >= d.moves.Add(patience) {
			d.table.To[group], d.next[group] = next, none
			p.turned++
			if !paused {
				p.forced++
			}
		}
	}
	d.last[group] = now
	to := &p.boards[d.table.To[group]%MaxBoards]
	if !to.up {
		c.Drop(x, reasonNoBoard)
		return
	}
	if x.Len()+outerLen > p.mtu+hdr.EthernetLen {
		c.Drop(x, reasonTooLong)
		return
	}
	h, ok := x.Prepend(outerLen)
	if !ok {
		c.Drop(x, reasonTooLong)
		return
	}
	copy(h, to.mac[:])
	copy(h[6:], p.mac[:])
	binary.BigEndian.PutUint16(h[12:], hdr.EtherNSH)
	hdr.NSH(h[hdr.EthernetLen:]).Encode(&hdr.NSHFields{TTL: 63, NextProtocol: hdr.NSHNextEthernet, SPI: d.uid, SI: inPool | uint8(out)})
	p.sent++
	c.Emit(ports+int(d.table.To[group]), x)
}

// fromBoard handles an answer of a board.
func (p *app) fromBoard(c *graph.Ctx, at int, x *packet.Buf) {
	b := x.Bytes()
	is := &p.boards[at]
	if at >= p.count || !is.up || len(b) < outerLen+hdr.EthernetLen || [6]byte(b[:6]) != p.mac || [6]byte(b[6:12]) != is.mac || binary.BigEndian.Uint16(b[12:]) != hdr.EtherNSH {
		c.Drop(x, reasonBadBoard)
		return
	}
	h := hdr.NSH(b[hdr.EthernetLen:])
	if h.Version() != 0 || h.OAM() || h.HeaderLen() != hdr.NSHLen || h.NextProtocol() != hdr.NSHNextEthernet || h.SI()&^(ports-1) != inPool|answer {
		c.Drop(x, reasonBadBoard)
		return
	}
	out := int(h.SI() & (ports - 1))
	if !p.runs(c.Now(), h.SPI(), at) {
		c.Drop(x, reasonUnasked)
		return
	}
	x.SetFrame(int(x.Off())+outerLen, len(b)-outerLen)
	p.answered++
	c.Mark(x, packet.Rewritten, reasonAnswered)
	c.Emit(out, x)
}

// runs reports whether the board at port at may answer for a DAG.
func (p *app) runs(now clock.Time, uid uint32, at int) bool {
	i, ok := p.byUID[uid]
	if !ok {
		return false
	}
	d := &p.courses[i]
	return d.table.Boards&(1<<at) != 0 || now < d.until[at]
}

// Tick implements graph.Ticker: waiting frames go on when their DAG has a board, or when they have waited
// long enough.
func (p *app) Tick(c *graph.Ctx) clock.Time {
	left := burst
	still := p.waiting[:0]
	for _, i := range p.waiting {
		d := &p.courses[i]
		for ; !d.queue.Empty() && left > 0; left-- {
			late := c.Now() >= p.shelf.Note(d.queue.First()).since.Add(longest)
			if d.table.Mode == Wait && !late {
				break
			}
			x, n := p.shelf.Take(c, &d.queue, 0)
			if d.table.Mode == Go {
				p.steer(c, d, n.group, int(n.out), x)
			} else {
				p.unserved(c, d, int(n.out), x)
			}
		}
		if !d.queue.Empty() {
			still = append(still, i)
		}
	}
	p.waiting = still
	p.show(c)
	if p.shelf.Len() == 0 {
		return clock.Never
	}
	return c.Now().Add(poll)
}

// Stop implements graph.Holder.
func (p *app) Stop(c *graph.Ctx) {
	for i := range p.courses {
		p.shelf.Drop(c, &p.courses[i].queue, 0, reasonStopped)
	}
}

// turn puts a table in force. A group moves in a pause if the board that it was at still runs the DAG, and
// else at once.
func (p *app) turn(now clock.Time, n int, t *Table) {
	d := &p.courses[n]
	was := d.table
	d.table.Mode, d.table.Boards, d.table.Stay = t.Mode, t.Boards, t.Stay
	for b := range MaxBoards {
		if was.Boards&^t.Boards&(1<<b) != 0 {
			d.until[b] = now.Add(echo)
		}
	}
	if t.Mode != Go {
		return
	}
	since := d.moves
	d.moves = 0
	for i, to := range t.To {
		if d.next[i] == to {
			d.moves = since // the time for which it has waited for a pause goes on
			continue
		}
		d.next[i] = none
		if at := was.To[i]; at != to && was.Mode == Go && t.Boards&(1<<at) != 0 {
			d.next[i] = to
		} else {
			d.table.To[i] = to
		}
	}
}
