package p4

import "github.com/quillon/quillon/nf/p4/internal/ir"

// param is a parameter of an action. Its value begins at word at of the entry's data.
type param struct{ at, bits int }

// action is a compiled action.
type action struct {
	ActionInfo
	index  int
	params []param
	words  int // number of words of its data
	code   []step
}

// step is a primitive to run, or a jump. A jump with a test is taken when the test fails.
type step struct {
	run  func(k *packetState)
	test testFn
	jump int
}

// run runs the action with the data of an entry.
func (a *action) run(k *packetState, data []uint64) {
	k.args = data
	execute(k, a.code)
}

// maxJumps is the highest number of jumps in one run of an action. Loops in P4 have bounds; those of a JSON
// file may have none.
const maxJumps = 1 << 16

func execute(k *packetState, code []step) {
	jumps := 0
	for pc := 0; pc < len(code); {
		s := &code[pc]
		switch {
		case s.run != nil:
			s.run(k)
			pc++
		case s.test != nil && s.test(k):
			pc++
		default:
			if jumps++; jumps > maxJumps {
				k.failed, k.exit = LoopLimit, true
				return
			}
			pc = s.jump
		}
	}
}

// nodeKind is a kind of node of a pipeline.
type nodeKind uint8

const (
	nodeTable nodeKind = iota
	nodeTest
	nodeAction
)

// node is a table, a condition or an action of a pipeline.
type node struct {
	kind  nodeKind
	name  string
	about fragment
	table int // index of the table
	test  testFn
	yes   int // next node; of an action, always
	no    int
	act   *action
	data  []uint64
}

// apply runs a pipeline from node at to its end.
func (s *Switch) apply(k *packetState, at int) {
	for at != noNode && !k.exit {
		n := &s.prog.nodes[at]
		switch n.kind {
		case nodeTable:
			at = s.applyTable(k, s.tables[n.table])
		case nodeTest:
			yes := n.test(k)
			s.event(EventCondition, at, b2u(yes))
			at = n.no
			if yes {
				at = n.yes
			}
		default:
			s.runAction(k, n.act, n.data)
			at = n.yes
		}
	}
	k.exit = false
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// applyTable looks up a table, runs the action that it found, and returns the next node.
func (s *Switch) applyTable(k *packetState, t *table) int {
	d := t.def
	e := t.lookup(k)
	if e == none {
		if len(d.keys) > 0 {
			k.missed = true
			if s.trace != nil {
				if t.n == 0 {
					t.readKey(k)
				}
				s.trace(Event{Kind: EventMiss, Object: d.index, Copy: s.copied, Data: t.probe})
			}
		}
		if d.Counters {
			t.defCount.Packets++
			t.defCount.Bytes += uint64(k.arrived)
		}
		if d.Meters && t.defMeter[ir.MeterOn] > 0 {
			m := s.prog.meters[d.meter]
			m.target.set(k, s.color(m, t.defMeter, k.arrived))
		}
		act, data := t.act, t.actData
		if d.profile >= 0 && (t.member|t.group) != 0 {
			act, data = s.profiles[d.profile].pick(k, t.member, t.group)
		}
		if act == nil {
			if s.trace != nil && len(d.keys) > 0 {
				s.event(EventNoAction, d.index, 0)
			}
			if d.branches {
				return d.miss
			}
			return d.baseMiss
		}
		s.runAction(k, act, data)
		if d.branches {
			return d.miss
		}
		return d.next[act.index]
	}
	k.missed = false
	if s.trace != nil {
		s.trace(Event{Kind: EventHit, Object: d.index, Value: uint64(e), Copy: s.copied, Data: t.probe})
	}
	r := &t.rows[e]
	if d.Counters {
		c := &t.count[e]
		c.Packets++
		c.Bytes += uint64(k.arrived)
	}
	if d.Timeout {
		t.uses[e].hit = s.now
	}
	if d.Meters {
		m := s.prog.meters[d.meter]
		m.target.set(k, s.color(m, m.at(t.meter, int(e)), k.arrived))
	}
	var act *action
	var data []uint64
	if r.act >= 0 {
		act, data = s.prog.actions[r.act], t.entryData(e)
	} else {
		act, data = s.profiles[d.profile].pick(k, r.member, r.group)
	}
	if act == nil { // a group without members
		s.event(EventNoAction, d.index, 0)
		if d.branches {
			return d.hit
		}
		return d.baseMiss
	}
	s.runAction(k, act, data)
	if d.branches {
		return d.hit
	}
	return d.next[act.index]
}

func (s *Switch) runAction(k *packetState, act *action, data []uint64) {
	if s.trace != nil {
		s.trace(Event{Kind: EventAction, Object: act.index, Copy: s.copied, Data: data})
	}
	act.run(k, data)
}
