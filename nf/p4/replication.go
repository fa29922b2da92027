package p4

import (
	"fmt"
	"slices"
)

// replication says where copies of a packet go. Who controls the switch sets it; the pipelines ask session and replicas for each
// packet that is cloned or sent to a group.
type replication struct {
	*common
	groups   [][]Replica // by number; none: no such group
	sessions []session   // by number
}

// session is a Session, or none.
type session struct {
	Session
	set bool
}

func (s *replication) session(id uint32) (Session, bool) {
	if int(id) >= len(s.sessions) {
		return Session{}, false
	}
	return s.sessions[id].Session, s.sessions[id].set
}

// replicas are those of a multicast group.
func (s *replication) replicas(group uint32) []Replica {
	if int(group) >= len(s.groups) {
		return nil
	}
	return s.groups[group]
}

// SetMulticast sets the replicas of a multicast group; none deletes it.
func (s *replication) SetMulticast(group uint32, replicas []Replica) error {
	if group == 0 || group > 0xffff {
		return invalid("multicast group %d: groups are 1 to %d", group, 0xffff)
	}
	s.groups = put(s.groups, int(group), slices.Clone(replicas))
	return nil
}

// Multicast is the replicas of a multicast group.
func (s *replication) Multicast(group uint32) []Replica { return slices.Clone(s.replicas(group)) }

// SetSession sets a clone session (a mirroring session): 0 to 32767.
func (s *replication) SetSession(id uint32, ses Session) error {
	if id > 0x7fff {
		return invalid("clone session %d: the highest is %d", id, 0x7fff)
	}
	if ses.Length < 0 || ses.Priority < 0 || ses.Priority >= s.cfg.Queues {
		return invalid("clone session %d: a length of %d, a priority of %d: want priorities below %d", id, ses.Length, ses.Priority, s.cfg.Queues)
	}
	ses.Replicas = slices.Clone(ses.Replicas)
	s.sessions = put(s.sessions, int(id), session{ses, true})
	return nil
}

// Session is a clone session; false: there is none.
func (s *replication) Session(id uint32) (Session, bool) {
	ses, ok := s.session(id)
	ses.Replicas = slices.Clone(ses.Replicas)
	return ses, ok
}

// DeleteSession removes a clone session.
func (s *replication) DeleteSession(id uint32) error {
	if _, ok := s.session(id); !ok {
		return fmt.Errorf("clone session %d: %w", id, ErrNotFound)
	}
	s.sessions[id] = session{}
	return nil
}
