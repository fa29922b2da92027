package p4

import (
	"cmp"
	"math/rand/v2"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Config holds the settings of a Switch. The zero value makes a switch like simple_switch without options.
type Config struct {
	// Start is the time from which the program's timestamps count.
	Start clock.Time
	// DropPort is the egress_spec that drops a packet; 0 stands for 511. Programs for PSA have none.
	DropPort uint32
	// Queues is the number of priorities that a port has; 0 stands for all that the architecture knows. A packet
	// with another priority is dropped, as in simple_switch, whose default is 1.
	Queues int
	// MaxPasses is how often a received packet, with all its clones, replicas and recirculations, may pass a
	// pipeline; 0 stands for 1024.
	MaxPasses int
	// Seed is the seed of random().
	Seed uint64
	// Digest is called with each digest that the program sends to the controller. The data is valid only during
	// the call.
	Digest func(d Digest)
	// Trace, if it is not nil, is called for each step of each packet.
	Trace func(e Event)
}

// Digest is a message of the program to the controller. Data has the fields of the digest one after the other,
// each big-endian in as many bytes as it needs.
type Digest struct {
	ID   int // ID of the DigestInfo
	Name string
	Data []byte
}

// Reason says why a packet, a clone or a replica ended in the switch.
type Reason uint8

// The reasons.
const (
	NotDropped Reason = iota
	// ParserError: the program dropped the packet after its parser had failed.
	ParserError
	// NoTableHit: the program dropped the packet in ingress, and the last table with a key had missed.
	NoTableHit
	// IngressDrop and EgressDrop: the program dropped the packet.
	IngressDrop
	EgressDrop
	// NoReplica: the packet was sent to a multicast group without members.
	NoReplica
	// NoQueue: the packet had a priority that ports do not have.
	NoQueue
	// PassLimit: the packet took more than MaxPasses passes.
	PassLimit
	// LoopLimit: an action jumped more than maxJumps times.
	LoopLimit
	// Asserted: an assert or an assume did not hold.
	Asserted

	numReasons
)

var reasonNames = [numReasons]string{"", "parser-error", "no-table-hit", "ingress-drop", "egress-drop",
	"no-replica", "no-queue", "pass-limit", "loop-limit", "assertion"}

// String returns a short name in kebab case.
func (r Reason) String() string { return reasonNames[r] }

// Result says what happened to a packet.
type Result struct {
	Emitted int    // number of frames that left
	Dropped Reason // reason of the last packet, clone or replica that was dropped
}

// Emit is called with a frame that leaves on a port. The frame is valid only during the call.
type Emit func(port uint32, frame []byte)

// The values of instance_type.
const (
	instanceNormal = iota
	instanceIngressClone
	instanceEgressClone
	instanceCoalesced
	instanceRecirculated
	instanceReplica
	instanceResubmitted
)

// Replica is a copy of a packet: the port to which it goes, and its egress_rid.
type Replica struct {
	Port uint32
	Rid  uint16
	// Backups are used in its place while its port is down: the first backup whose port is up, or the replica
	// itself if none is up. Backups of a backup are ignored.
	Backups []Replica
}

// Session says where clones go: to Replicas, and, if Group is not 0, to the replicas of that multicast group.
type Session struct {
	Replicas []Replica
	Group    uint32
	// Length is the highest number of bytes of a clone; 0: all. PSA cuts a clone before egress, v1model when the
	// clone leaves or is recirculated.
	Length int
	// Priority is the priority with which clones are queued; 0: their own priority.
	Priority int
}

// Switch runs a program. Only one goroutine may use it.
//
// A controller changes four parts of it: the tables (entries), the action profiles, the arrays, and where
// copies go (replication). Process passes packets through parsers, pipelines and queues, which read these parts
// and count in them.
type Switch struct {
	common
	actionProfiles
	entries
	arrays
	replication
	hashes []func(b []byte) uint64 // by calculation.index: hash functions that replace the calculation's own

	rand    *rand.Rand
	trace   func(Event)
	micros  uint64
	emit    Emit
	result  Result
	passes  int
	port    uint32 // port on which the frame came in
	copies  int    // copies made of the frame so far
	copied  int    // number of the copy that is processed now
	dropped [numReasons]uint64

	in, out []*packetState // packets that wait for ingress, and those that wait for egress
	inAt    int
	outAt   int
	spare   []*packetState
	tmp     []uint64
	buf     []byte // for frames that leave, and for inputs of hashes
}

// common holds what all parts of a Switch read. Only Process and Advance change the time.
type common struct {
	prog   *Program
	cfg    Config
	now    clock.Time
	follow ir.Follower // nil: there is no other executor
}

// NewSwitch makes a switch whose tables have the entries of the program.
func NewSwitch(p *Program, c Config) (*Switch, error) {
	c.DropPort = cmp.Or(c.DropPort, 511)
	c.MaxPasses = cmp.Or(c.MaxPasses, 1024)
	c.Queues = cmp.Or(c.Queues, p.Classes())
	if most, _ := p.arch.ports(); uint64(c.DropPort) > most {
		return nil, invalid("drop port %d, the program's ports are 0 to %d", c.DropPort, most)
	}
	if c.Queues < 0 || c.MaxPasses < 0 {
		return nil, invalid("%d queues, %d passes", c.Queues, c.MaxPasses)
	}
	s := &Switch{common: common{prog: p, cfg: c, now: c.Start}, actionProfiles: actionProfiles{down: map[uint32]bool{}}, trace: c.Trace, hashes: make([]func(b []byte) uint64, len(p.calcs)),
		tmp:  make([]uint64, p.tmp),
		rand: rand.New(rand.NewPCG(c.Seed, 0x70345f3136))}
	s.entries.common, s.entries.actionProfiles = &s.common, &s.actionProfiles
	s.arrays.common, s.replication.common, s.actionProfiles.common = &s.common, &s.common, &s.common
	s.replication.actionProfiles = &s.actionProfiles
	for _, d := range p.profiles {
		s.profiles = append(s.profiles, newProfile(d))
	}
	for _, v := range p.vsets {
		s.vsets = append(s.vsets, valueSet{def: v})
	}
	for _, d := range p.tables {
		t := newTable(d)
		if d.Meters {
			t.defMeter = make(ir.Meter, p.meters[d.meter].words())
		}
		s.tables = append(s.tables, t)
		for _, e := range d.preset {
			if err := t.preset(e); err != nil {
				return nil, err
			}
		}
	}
	s.resetArrays()
	p.arch.begin(s)
	return s, nil
}

// Program returns the program that the switch runs.
func (s *Switch) Program() *Program { return s.prog }

// SetTrace sets the function that is called for each step of each packet; nil: none.
func (s *Switch) SetTrace(f func(Event)) { s.trace = f }

// Dropped returns the number of packets, clones and replicas that ended for a reason.
func (s *Switch) Dropped(r Reason) uint64 { return s.dropped[r] }

// Advance sets the time between two packets. Entries that are inserted later count as hit at that time. An
// earlier time is ignored.
func (s *Switch) Advance(now clock.Time) { s.now = max(s.now, now) }

// Process passes a frame that came in on a port at time now through the program, with all its clones and
// replicas, and calls emit with the frames that leave. It does not change the frame.
func (s *Switch) Process(now clock.Time, port uint32, frame []byte, emit Emit) Result {
	if s.follow != nil {
		s.follow.Lock()
		defer s.follow.Unlock()
	}
	s.now = max(s.now, now)
	s.micros = uint64(s.now.Sub(s.cfg.Start)) / 1000
	s.emit, s.result, s.passes, s.port, s.copies = emit, Result{}, 0, port, 0
	k := s.take()
	k.frame, k.arrived, k.length = frame, len(frame), uint64(len(frame))
	s.prog.arch.arrive(s, k, port)
	s.in = append(s.in, k)
	for {
		switch {
		case s.inAt < len(s.in):
			k := s.in[s.inAt]
			s.inAt++
			s.prog.arch.ingress(s, k)
		case s.outAt < len(s.out):
			k := s.out[s.outAt]
			s.outAt++
			s.prog.arch.egress(s, k)
		default:
			s.in, s.out, s.inAt, s.outAt = s.in[:0], s.out[:0], 0, 0
			s.emit = nil
			return s.result
		}
	}
}

// take returns a packet with all fields zero.
func (s *Switch) take() *packetState {
	var k *packetState
	if n := len(s.spare); n > 0 {
		k = s.spare[n-1]
		s.spare = s.spare[:n-1]
		v, own := k.v, k.own
		*k = packetState{v: v, own: own}
		clear(v)
	} else {
		k = &packetState{v: make([]uint64, s.prog.slots)}
	}
	k.tmp, k.sw, k.truncate = s.tmp, s, maxFrame
	for _, r := range s.prog.reset {
		k.v[r.slot] = r.value
	}
	return k
}

// maxFrame is longer than any frame, in bytes.
const maxFrame = 1 << 30

// give takes back a packet that has ended.
func (s *Switch) give(k *packetState) { s.spare = append(s.spare, k) }

// lose counts a packet that is dropped.
func (s *Switch) lose(r Reason) {
	s.result.Dropped = r
	s.dropped[r]++
}

func (s *Switch) drop(k *packetState, r Reason) {
	s.lose(r)
	if s.trace != nil {
		s.trace(Event{Kind: EventDrop, Object: int(r), Copy: k.copied})
	}
	s.give(k)
}

// notForwarded returns the reason why the program forwards a packet nowhere after ingress.
func (s *Switch) notForwarded(k *packetState) Reason {
	switch {
	case k.parseError != s.prog.noError():
		return ParserError
	case k.missed:
		return NoTableHit
	}
	return IngressDrop
}

// pass counts a pass through a pipeline. It drops the packet and returns false if the packet took too many.
func (s *Switch) pass(k *packetState) bool {
	if s.passes == s.cfg.MaxPasses {
		s.drop(k, PassLimit)
		return false
	}
	s.passes++
	return true
}

// copyOf returns a new packet with k's frame. If the frame is in k's own memory, it is copied into the new
// packet's own memory.
func (s *Switch) copyOf(k *packetState) *packetState {
	if k.owns() {
		return s.copyWith(k, k.frame)
	}
	c := s.copyWith(k, nil)
	c.frame = k.frame
	return c
}

// copyWith returns a new packet with a frame, which is copied into the packet's own memory. The packet arrived as k did.
func (s *Switch) copyWith(k *packetState, frame []byte) *packetState {
	c := s.take()
	s.copies++
	c.arrived, c.copied = k.arrived, s.copies
	c.own = append(c.own[:0], frame...)
	c.frame = c.own
	return c
}

// owns reports whether the frame lies in k's own memory.
func (k *packetState) owns() bool {
	return len(k.frame) > 0 && len(k.own) > 0 && &k.frame[0] == &k.own[0]
}

// session is a Session; set says that it exists.
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

// replicas returns the replicas of a multicast group.
func (s *replication) replicas(group uint32) []Replica {
	if int(group) >= len(s.groups) {
		return nil
	}
	return s.groups[group]
}

// put stores v at index i of list, and extends the list if it is too short.
func put[T any](list []T, i int, v T) []T {
	if i >= len(list) {
		list = append(list, make([]T, i+1-len(list))...)
	}
	list[i] = v
	return list
}

// toSession queues copies of c for egress.
func (s *Switch) toSession(c *packetState, ses Session) {
	s.copied = c.copied
	if ses.Priority != 0 {
		s.prog.std.priority.set(c, uint64(ses.Priority))
	}
	if ses.Group != 0 {
		s.multicast(c, s.replicas(ses.Group))
	}
	if len(ses.Replicas) != 1 {
		s.multicast(c, ses.Replicas)
		return
	}
	x := s.replicate(c) // the clone itself
	x.copied = c.copied
	s.copies--
	s.send(x, s.serving(&ses.Replicas[0]))
}

// multicast queues a copy for each replica, and returns the number of replicas.
func (s *Switch) multicast(k *packetState, to []Replica) int {
	for i := range to {
		if s.passes+len(s.in)-s.inAt+len(s.out)-s.outAt >= s.cfg.MaxPasses {
			s.lose(PassLimit) // the packets that wait take all passes that are left
			continue
		}
		c := s.replicate(k)
		r := s.serving(&to[i])
		s.event(EventReplica, int(r.Port), uint64(c.copied))
		s.send(c, r)
	}
	return len(to)
}

// serving returns a replica, or the backup that serves in its place while its port is down.
func (s *actionProfiles) serving(r *Replica) *Replica {
	if len(r.Backups) > 0 && s.down[r.Port] {
		for i := range r.Backups {
			if b := &r.Backups[i]; !s.down[b.Port] {
				return b
			}
		}
	}
	return r
}

func (s *Switch) send(c *packetState, to *Replica) {
	s.prog.std.rid.set(c, uint64(to.Rid))
	s.enqueue(c, to.Port)
}

// replicate returns a copy of a packet and its headers, ready for egress.
func (s *Switch) replicate(k *packetState) *packetState {
	c := s.copyOf(k)
	copy(c.v, k.v)
	c.at, c.length, c.cut = k.at, k.length, k.cut
	c.parseError, c.badChecksum = k.parseError, k.badChecksum
	return c
}

func (s *Switch) enqueue(k *packetState, port uint32) {
	std := &s.prog.std
	if std.priority.get(k) >= uint64(s.cfg.Queues) {
		s.drop(k, NoQueue)
		return
	}
	std.enqTime.set(k, s.micros)
	std.enqDepth.set(k, 0)
	k.port = port
	s.out = append(s.out, k)
}

// idle reports whether the frame that is being emitted is the last one.
func (s *Switch) idle() bool { return s.inAt == len(s.in) && s.outAt == len(s.out) }
