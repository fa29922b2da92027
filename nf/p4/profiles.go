package p4

import (
	"fmt"
	"math"
	"slices"
)

// actionProfiles are the action profiles with their members and groups, and the ports that are down, which groups avoid.
// Who controls the switch changes them; entries take members and groups from here.
type actionProfiles struct {
	profiles []*profile
	down     map[uint32]bool // ports
}

func (s *actionProfiles) profile(name string) (*profile, error) {
	i, err := named(s.profiles, "action profile", name, func(p *profile) string { return p.def.Name })
	if err != nil {
		return nil, err
	}
	return s.profiles[i], nil
}

// SetMember adds a member to an action profile, or gives it another action.
func (s *actionProfiles) SetMember(profile string, id uint32, a Action) error {
	p, err := s.profile(profile)
	if err != nil {
		return err
	}
	if id == 0 {
		return invalid("action profile %s: 0 is no member", profile)
	}
	data := make([]uint64, p.def.dw)
	act, err := findAction("action profile "+profile, p.def.actions, a, data)
	if err != nil {
		return err
	}
	m := p.members[id]
	if m == nil {
		if p.def.Size > 0 && len(p.members) >= p.def.Size {
			return fmt.Errorf("action profile %s with %d members is %w", profile, len(p.members), ErrFull)
		}
		m = &member{id: id}
		p.members[id] = m
		m.at = p.memberAt.put(m)
	}
	m.act, m.data = act, data
	return nil
}

// Member is the action of a member.
func (s *actionProfiles) Member(profile string, id uint32) (Action, error) {
	p, err := s.profile(profile)
	if err != nil {
		return Action{}, err
	}
	m := p.members[id]
	if m == nil {
		return Action{}, fmt.Errorf("member %d of %s: %w", id, profile, ErrNotFound)
	}
	return describeAction(m.act, m.data), nil
}

// Members are the ids of a profile's members, ascending.
func (s *actionProfiles) Members(profile string) ([]uint32, error) {
	p, err := s.profile(profile)
	if err != nil {
		return nil, err
	}
	return sortedIDs(p.members), nil
}

func sortedIDs[V any](m map[uint32]V) []uint32 {
	ids := make([]uint32, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// DeleteMember removes a member that no entry and no group uses.
func (s *actionProfiles) DeleteMember(profile string, id uint32) error {
	p, err := s.profile(profile)
	if err != nil {
		return err
	}
	m := p.members[id]
	if m == nil {
		return fmt.Errorf("member %d of %s: %w", id, profile, ErrNotFound)
	}
	if m.uses > 0 {
		return fmt.Errorf("member %d of %s is %w", id, profile, ErrInUse)
	}
	delete(p.members, id)
	p.memberAt.drop(m.at)
	return nil
}

// SetGroup sets the members of a group of an action selector; the group is made
// if there is none.
func (s *actionProfiles) SetGroup(profile string, id uint32, members []GroupMember) error {
	p, err := s.profile(profile)
	if err != nil {
		return err
	}
	if !p.def.Selector {
		return invalid("action profile %s is no selector", profile)
	}
	if id == 0 {
		return invalid("action profile %s: 0 is no group", profile)
	}
	seen := map[uint32]bool{}
	for _, gm := range members {
		switch {
		case p.members[gm.ID] == nil:
			return fmt.Errorf("member %d of %s: %w", gm.ID, profile, ErrNotFound)
		case seen[gm.ID]:
			return fmt.Errorf("group %d of %s: member %d %w in it", id, profile, gm.ID, ErrExists)
		case gm.Weight < 0 || gm.Weight > math.MaxUint16:
			return invalid("group %d of %s: weight %d", id, profile, gm.Weight)
		}
		seen[gm.ID] = true
	}
	g := p.groups[id]
	if g == nil {
		g = &group{id: id}
		p.groups[id] = g
		g.at = p.groupAt.put(g)
	}
	for _, gm := range g.members {
		p.members[gm.ID].uses--
	}
	g.members = slices.Clone(members)
	slices.SortFunc(g.members, func(a, b GroupMember) int { return int(int64(a.ID) - int64(b.ID)) })
	for _, gm := range g.members {
		p.members[gm.ID].uses++
	}
	p.refresh(g, s.down)
	return nil
}

// Group is the members of a group.
func (s *actionProfiles) Group(profile string, id uint32) ([]GroupMember, error) {
	p, err := s.profile(profile)
	if err != nil {
		return nil, err
	}
	g := p.groups[id]
	if g == nil {
		return nil, fmt.Errorf("group %d of %s: %w", id, profile, ErrNotFound)
	}
	return slices.Clone(g.members), nil
}

// Groups are the ids of a selector's groups, ascending.
func (s *actionProfiles) Groups(profile string) ([]uint32, error) {
	p, err := s.profile(profile)
	if err != nil {
		return nil, err
	}
	return sortedIDs(p.groups), nil
}

// DeleteGroup removes a group that no entry uses.
func (s *actionProfiles) DeleteGroup(profile string, id uint32) error {
	p, err := s.profile(profile)
	if err != nil {
		return err
	}
	g := p.groups[id]
	if g == nil {
		return fmt.Errorf("group %d of %s: %w", id, profile, ErrNotFound)
	}
	if g.uses > 0 {
		return fmt.Errorf("group %d of %s is %w", id, profile, ErrInUse)
	}
	for _, gm := range g.members {
		p.members[gm.ID].uses--
	}
	delete(p.groups, id)
	p.groupAt.drop(g.at)
	return nil
}

// SetLink says whether a port is up: members of groups that watch a port that
// is down get no packets. Ports are up at first.
func (s *actionProfiles) SetLink(port uint32, up bool) {
	if up {
		delete(s.down, port)
	} else {
		s.down[port] = true
	}
	for _, p := range s.profiles {
		for _, g := range p.groups {
			p.refresh(g, s.down)
		}
	}
}
