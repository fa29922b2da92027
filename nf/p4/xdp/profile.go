package xdp

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Action profiles. An entry that runs a member or a group has isMember or isGroup and a number in the place of its action. Members and groups have numbers of their
// own in the kernel. A word for each member's number leads to a record, which has the form of an entry. A word for each group's number leads to a block: the number of
// shares, and for each share a member's number. Both words hold 1 + what they lead to; 0 in a group's word means that the group does not fit into a block.
const (
	isGroup  = 1 << 29
	isMember = 1 << 30
)

// Bounds of action profiles. maxShares is the highest number of shares of a group in the kernel: the sum of its members' weights.
const (
	maxShares   = 256
	blockSize   = 4 * (2 + maxShares)
	someMembers = 1024 // of a profile that may have any number
	maxGroups   = 4096
)

// profileShape is the size of the maps of an action profile: how many members and groups it has numbers and records, or blocks, for.
type profileShape struct{ words, members, groups int }

func profileShapeOf(p *ir.Profile) profileShape {
	n := p.Size
	if n == 0 {
		n = someMembers
	}
	s := profileShape{words: entryData/8 + p.DataWords, members: n + spare(n)}
	if p.Hash != nil {
		n = min(n, maxGroups)
		s.groups = n + spare(n)
	}
	return s
}

func fitsProfile(p *ir.Profile) bool {
	s := profileShapeOf(p)
	return p.Size <= maxRecords/2 && p.DataWords <= maxDataWords && 8*s.words*s.members <= maxMemory
}

// profileMaps holds the kernel's maps of an action profile.
type profileMaps struct {
	profileShape
	members, records, groups, blocks *shared

	memberNumbers, recs, groupNumbers, blks *rest
	memberAt, groupAt                       map[uint32]uint32   // numbers, by the Switch's places
	shares                                  map[uint32][]uint32 // of a group, by its place: members' numbers
}

// profiles are the action profiles of an Executor.
type profiles struct {
	x        *Executor
	profiles []*profileMaps
}

func (f *profiles) addProfile(p *ir.Profile) (err error) {
	x := f.x
	m := &profileMaps{memberAt: map[uint32]uint32{}, groupAt: map[uint32]uint32{}, shares: map[uint32][]uint32{}}
	f.profiles = append(f.profiles, m)
	if !fitsProfile(p) {
		return nil
	}
	s := profileShapeOf(p)
	m.profileShape = s
	m.memberNumbers, m.recs, m.groupNumbers, m.blks = x.graces.rest(s.members), x.graces.rest(s.members), x.graces.rest(s.groups), x.graces.rest(s.groups)
	for _, one := range []struct {
		to   **shared
		name string
		size int
	}{{&m.members, "p4_members", 4 * s.members}, {&m.records, "p4_actions", 8 * s.words * s.members}, {&m.groups, "p4_groups", 4 * s.groups}, {&m.blocks, "p4_blocks", blockSize * s.groups}} {
		if *one.to, err = x.newShared(one.name, one.size); err != nil {
			return err
		}
	}
	return nil
}

func (m *descriptors) ofProfiles(all []*profileMaps) {
	for _, p := range all {
		m.members, m.actions = append(m.members, sharedFD(p.members)), append(m.actions, sharedFD(p.records))
		m.groups, m.blocks = append(m.groups, sharedFD(p.groups)), append(m.blocks, sharedFD(p.blocks))
	}
}

// runs returns what an entry runs, as the program reads it: 0 is nothing.
func (f *profiles) runs(t *ir.Table, r *ir.Row) (uint32, error) {
	if r.Action >= 0 || t.Profile == nil || r.Member|r.Group == 0 {
		return uint32(r.Action + 1), nil
	}
	m := f.profiles[t.Profile.Index]
	if n, ok := m.memberAt[r.Member]; ok {
		return isMember | n, nil
	}
	if n, ok := m.groupAt[r.Group]; ok {
		return isGroup | n, nil
	}
	return 0, fmt.Errorf("its member or group of action profile %s is not in the kernel", t.Profile.Name)
}

// stopProfile stops the tables of an action profile.
func (f *profiles) stopProfile(profile int, why error) {
	x := f.x
	for i := range x.tree.Tables {
		if p := x.tree.Tables[i].Profile; p != nil && p.Index == profile && !x.tables[i].skip {
			x.end(i, fmt.Errorf("action profile %s: %w", p.Name, why))
		}
	}
}

// Member implements ir.Follower.
func (f *profiles) Member(profile int, at uint32, action int, data []uint64) {
	m := f.profiles[profile]
	if m.records == nil {
		return
	}
	f.x.changes++
	n, there := m.memberAt[at]
	if action < 0 {
		if there {
			m.recs.leave(*m.members.half(int(n)) - 1)
			m.memberNumbers.leave(n)
			delete(m.memberAt, at)
		}
		return
	}
	r, err := m.recs.take()
	if err == nil && !there {
		n, err = m.memberNumbers.take()
	}
	if err != nil {
		f.stopProfile(profile, err)
		return
	}
	for w, v := range nativeWords(value(m.words-entryData/8, 0, uint32(action+1), 0, data)) {
		m.records.store(int(r)*m.words+w, v)
	}
	if there {
		m.recs.leave(*m.members.half(int(n)) - 1)
	}
	storeHalf(m.members, int(n), r+1)
	m.memberAt[at] = n
}

// Group implements ir.Follower.
func (f *profiles) Group(profile int, at uint32, there bool, live []ir.Share) {
	m := f.profiles[profile]
	if m.blocks == nil {
		return
	}
	n, known := m.groupAt[at]
	if !there {
		f.x.changes++
		if known {
			m.leaveBlock(n)
			m.groupNumbers.leave(n)
			delete(m.groupAt, at)
			delete(m.shares, at)
		}
		return
	}
	all, fits := m.list(live)
	if known && fits && slices.Equal(all, m.shares[at]) && *m.groups.half(int(n)) != 0 {
		return
	}
	f.x.changes++
	err := error(nil)
	if !known {
		if n, err = m.groupNumbers.take(); err == nil {
			storeHalf(m.groups, int(n), 0)
			m.groupAt[at] = n
		}
	}
	b, word := uint32(0), uint32(0)
	if err == nil && fits {
		b, err = m.blks.take()
		word = b + 1
	}
	if err != nil {
		f.stopProfile(profile, err)
		return
	}
	if fits {
		block := m.blocks.mem[int(b)*blockSize:]
		binary.NativeEndian.PutUint32(block, uint32(len(all)))
		for i, member := range all {
			binary.NativeEndian.PutUint32(block[4*(1+i):], member)
		}
	}
	m.leaveBlock(n)
	storeHalf(m.groups, int(n), word)
	m.shares[at] = all
}

// leaveBlock takes back a group's block, if the group has one.
func (m *profileMaps) leaveBlock(n uint32) {
	if b := *m.groups.half(int(n)); b != 0 {
		m.blks.leave(b - 1)
	}
}

// list returns the members' numbers of all shares; fits is false if they are too many, or if a member is not in the kernel.
func (m *profileMaps) list(live []ir.Share) (all []uint32, fits bool) {
	sum := uint64(0)
	for _, s := range live {
		n, there := m.memberAt[s.Member]
		if sum += s.Weight; sum > maxShares || !there {
			return nil, false
		}
		all = append(all, slices.Repeat([]uint32{n}, int(s.Weight))...)
	}
	return all, true
}

// choose puts the action of a member, or of a member of a group, in the place of what the entry at rEntry runs, which is in R1. Frames of a group without members go
// on at node none.
func (g *pipes) choose(t *ir.Table, none int) {
	if t.Profile == nil {
		return
	}
	i, s := t.Profile.Index, profileShapeOf(t.Profile)
	action, member, known := g.fresh(), g.fresh(), g.fresh()
	missing := func() { g.pass(whyStopped) }
	// follow leaves in rEntry what the word of number R1 leads to.
	follow := func(words, to, numbers, size int, lost string) {
		g.whenImm(asm.JGE, asm.R1, numbers, lost)
		g.calc(asm.LSh, asm.R1, 2)
		g.address(asm.R2, words)
		g.with(asm.Add, asm.R2, asm.R1)
		g.get32(asm.R1, asm.R2, 0)
		g.whenImm(asm.JEq, asm.R1, 0, lost)
		g.calc(asm.Sub, asm.R1, 1)
		g.whenImm(asm.JGE, asm.R1, numbers, lost)
		g.calc(asm.Mul, asm.R1, size)
		g.address(rEntry, to)
		g.with(asm.Add, rEntry, asm.R1)
	}
	lost := g.fresh()
	g.whenImm(asm.JLT, asm.R1, isGroup, action)
	if t.Profile.Hash != nil {
		large := g.fresh()
		g.whenImm(asm.JGE, asm.R1, isMember, member)
		g.calc(asm.And, asm.R1, isGroup-1)
		follow(g.maps.groups[i], g.maps.blocks[i], s.groups, blockSize, large)
		g.get32(asm.R1, rEntry, 0)
		g.whenImm(asm.JEq, asm.R1, 0, g.nodeLabel(none))
		g.part(func() {
			g.hashOf(t.Profile.Hash)
			g.with(asm.Mov, asm.R1, asm.R4)
			g.get32(asm.R2, rEntry, 0)
			g.with(asm.Mod, asm.R1, asm.R2)
			g.whenImm(asm.JGE, asm.R1, maxShares, lost)
			g.calc(asm.LSh, asm.R1, 2)
			g.with(asm.Add, rEntry, asm.R1)
			g.get32(asm.R1, rEntry, 4)
			g.jump(known)
		})
		g.label(large)
		g.pass(fmt.Sprintf("its group has more than %d shares", maxShares))
		g.label(member)
	}
	g.calc(asm.And, asm.R1, isGroup-1)
	g.label(known)
	follow(g.maps.members[i], g.maps.actions[i], s.members, 8*s.words, lost)
	g.get32(asm.R1, rEntry, entryAct)
	g.jump(action)
	g.label(lost)
	missing()
	g.label(action)
}
