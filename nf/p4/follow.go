package p4

import (
	"slices"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// A Switch may have a follower: another executor that runs the program with tables of its own, kept equal to
// the Switch's. Every change is made in the Switch, which tells the follower at once. Whoever reads the
// Switch's counts gets the sum with the follower's.

// Follow tells f all entries and meters, and from that time on each change; nil ends following. The Switch
// takes over the counts of the follower that it had before. Only executors in package xdp of this module can be
// followers.
func (s *Switch) Follow(f ir.Follower) {
	s.takeOver()
	s.follow = f
	if f == nil {
		return
	}
	for i, own := range s.registers {
		if both, filled := f.Registers(i); both != nil {
			if !filled {
				copy(both, own)
			}
			s.registers[i] = both[:len(own)]
		}
	}
	s.shareMeters(f)
	for _, p := range s.profiles {
		for _, m := range p.members {
			s.tellMember(p, m)
		}
		for _, g := range p.groups {
			s.tellGroup(p, g)
		}
	}
	for _, t := range s.tables {
		for i := range t.rows {
			if t.rows[i].live {
				s.tellRow(t, uint32(i))
			}
		}
		s.tellDefault(t)
	}
	for g := range s.groups {
		s.tellMulticast(uint32(g))
	}
	for i := range s.vsets {
		s.tellValueSet(i, &s.vsets[i])
	}
}

// takeOver adds the counts of the follower to the Switch's own counts.
func (s *Switch) takeOver() {
	if s.follow == nil {
		return
	}
	for i, cells := range s.counters {
		for j := range cells {
			n := s.follow.Count(i, j)
			cells[j].Packets, cells[j].Bytes = cells[j].Packets+n.Packets, cells[j].Bytes+n.Bytes
		}
	}
	for i, both := range s.registers {
		if shared, _ := s.follow.Registers(i); shared != nil {
			s.registers[i] = slices.Clone(both)
		}
	}
	s.takeMeters()
	for _, t := range s.tables {
		for i := range t.rows {
			if !t.rows[i].live {
				continue
			}
			if t.def.Counters {
				t.count[i] = s.both(t, i, t.count[i])
			}
			if t.def.Timeout {
				s.tellHit(t, uint32(i))
			}
		}
		if t.def.Counters {
			t.defCount = s.both(t, defaultRow, t.defCount)
		}
	}
}

// shareMeters has the meters in the follower's memory.
func (s *Switch) shareMeters(f ir.Follower) {
	for i, own := range s.meters {
		if both := f.Meters(i); both != nil {
			copy(both, own)
			s.meters[i] = both[:len(own)]
		}
	}
	for _, t := range s.tables {
		if !t.def.Meters {
			continue
		}
		both, n := f.EntryMeters(t.def.index), len(t.defMeter)
		rest := len(both) - n // of the default entry
		if both == nil || len(t.meter) > rest {
			continue
		}
		copy(both, t.meter)
		copy(both[rest:], t.defMeter)
		t.meter, t.defMeter = both[:len(t.meter):rest], both[rest:]
	}
}

// takeMeters has the meters in the Switch's own memory.
func (s *Switch) takeMeters() {
	for i, both := range s.meters {
		if s.follow.Meters(i) != nil {
			s.meters[i] = slices.Clone(both)
		}
	}
	for _, t := range s.tables {
		t.meter, t.defMeter = slices.Clone(t.meter), slices.Clone(t.defMeter)
	}
}

// shown returns an entry as a follower gets it.
func (t *table) shown(e uint32) ir.Row {
	r := &t.rows[e]
	x := ir.Row{Key: t.key(e), Prefix: int(r.prefix), Action: int(r.act), Data: t.entryData(e), Member: r.member, Group: r.group}
	if t.set != nil {
		x.Mask, x.Order = t.set.Mask(e), t.set.Order(e)
	}
	return x
}

// tellRow tells the follower that an entry is new or has changed.
func (s *common) tellRow(t *table, e uint32) {
	if s.follow != nil {
		s.follow.Put(t.def.index, e, t.shown(e))
	}
}

// TellRow tells the follower of a Switch once more of an entry, by the number of its table in the program and by its row, if it is there.
func TellRow(s *Switch, table int, row uint32) {
	if t := s.tables[table]; int(row) < len(t.rows) && t.rows[row].live {
		s.tellRow(t, row)
	}
}

// tellGone tells the follower that an entry is being deleted.
func (s *common) tellGone(t *table, e uint32) {
	if s.follow != nil {
		s.follow.Delete(t.def.index, e, t.shown(e))
	}
}

func (s *common) tellDefault(t *table) {
	if s.follow == nil {
		return
	}
	r := ir.Row{Action: -1, Data: t.actData, Member: t.member, Group: t.group}
	if t.act != nil {
		r.Action = t.act.index
	}
	s.follow.Default(t.def.index, r)
}

// tellMember tells the follower that a member is new or has changed.
func (s *common) tellMember(p *profile, m *member) {
	if s.follow != nil {
		s.follow.Member(p.def.index, m.at, m.act.index, m.data)
	}
}

// tellGroup tells the follower that a group is new, or that other members get its frames.
func (s *common) tellGroup(p *profile, g *group) {
	if s.follow == nil {
		return
	}
	live, end := make([]ir.Share, 0, len(g.live)), uint64(0)
	for _, x := range g.live {
		live = append(live, ir.Share{Member: x.at, Weight: x.end - end})
		end = x.end
	}
	s.follow.Group(p.def.index, g.at, true, live)
}

// tellValueSet tells the follower the members of a value set.
func (s *common) tellValueSet(i int, vs *valueSet) {
	if s.follow == nil {
		return
	}
	var all []ir.SetMember
	for _, m := range vs.members {
		x := ir.SetMember{Value: m.value, Mask: m.mask}
		for _, r := range m.ranges {
			x.Ranges = append(x.Ranges, ir.SetRange{Shift: int(r.shift), Bits: r.bits, Low: r.low, High: r.high})
		}
		all = append(all, x)
	}
	s.follow.ValueSet(i, all)
}

// tellMulticast tells the follower which replicas of a multicast group serve.
func (s *replication) tellMulticast(group uint32) {
	if s.follow == nil {
		return
	}
	var to []ir.Replica
	for i := range s.groups[group] {
		r := s.serving(&s.groups[group][i])
		to = append(to, ir.Replica{Port: r.Port, Rid: r.Rid})
	}
	s.follow.Multicast(group, to)
}

// defaultRow stands for the default entry in a follower's counts.
const defaultRow = -1

// both returns c with the follower's count for an entry added.
func (s *common) both(t *table, row int, c Count) Count {
	if s.follow != nil {
		x := s.follow.EntryCount(t.def.index, row)
		c.Packets, c.Bytes = c.Packets+x.Packets, c.Bytes+x.Bytes
	}
	return c
}

// freshEntry makes the follower count from 0 for an entry.
func (s *common) freshEntry(t *table, row int) {
	if s.follow != nil {
		s.follow.ResetEntryCount(t.def.index, row)
	}
}

// tellHit asks the follower whether it has hit an entry, and sets the entry's last hit to the present time if
// it has.
func (s *common) tellHit(t *table, e uint32) {
	if s.follow != nil && s.follow.Hit(t.def.index, e) {
		t.uses[e].hit = s.now
	}
}

// Config returns the settings of the switch, with default values filled in.
func (s *Switch) Config() Config { return s.cfg }
