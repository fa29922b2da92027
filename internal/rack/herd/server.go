package herd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

var le = binary.LittleEndian

// Kind is what an operation does.
type Kind uint16

// Kinds of operations.
const (
	Get Kind = iota
	Put
	Delete
)

// status is the status of an answer.
type status uint8

const (
	found  status = iota
	absent        // the key is not there
	full          // no room for another key
	bad           // not a valid request
)

// The end of a request.
const (
	tailLen = 16
	// MostValue is the longest value in bytes: an answer is one datagram.
	MostValue  = 1024
	numberMask = 1<<24 - 1
)

// memoryVA is the address at which the slots are registered.
const memoryVA = 1 << 40

// qkey is the Q_Key of all UD queue pairs.
const qkey = 0x1111_1111

// Layout is what clients and server must agree on.
type Layout struct {
	Cores    int
	Sessions int // of all clients together
	Value    int // longest value
}

func (l *Layout) check() error {
	if l.Cores < 1 || l.Cores > 256 || l.Sessions < 1 || l.Sessions > 1<<14 || l.Value < 1 || l.Value > MostValue {
		return fmt.Errorf("herd: %+v: want 1 to 256 cores, 1 to %d sessions, and values of 1 to %d bytes", *l, 1<<14, MostValue)
	}
	return nil
}

func (l *Layout) slotSize() int { return (l.Value + tailLen + 63) &^ 63 }

// end returns the offset at which a session's slot at a core ends.
func (l *Layout) end(core, session int) int { return (core*l.Sessions + session + 1) * l.slotSize() }

// coreOf returns the core to which a key belongs.
func (l *Layout) coreOf(key uint64) int {
	key ^= key >> 33 // the finalizer of MurmurHash3 (Appleby), in part
	key *= 0xff51afd7ed558ccd
	key ^= key >> 33
	return int(key % uint64(l.Cores))
}

// ServerConfig describes a server.
type ServerConfig struct {
	Layout
	// Keys is the most keys for which a core has room.
	Keys int
	// Request is the time that a core works on a request; 0: only the time that the code takes.
	Request time.Duration
}

// ServerStats are the totals of a server.
type ServerStats struct {
	Requests, Repeated, Bad uint64
	Busy                    time.Duration // of all cores, if Request is not 0
}

// Server is the server's process. It implements host.App.
type Server struct {
	cfg   ServerConfig
	nic   *rnic.NIC
	pd    *rnic.PD
	cq    *rnic.CQ
	slots []byte
	mr    onesided.Region
	cores []core
	peers []*rnic.AH // by session; nil: the session was not admitted
	last  []uint32   // number of the slot's newest request, by core and session
	done  []status   // status of that request
	stats ServerStats
}

// core has a share of the keys.
type core struct {
	qp     *rnic.QP
	values map[uint64][]byte
	next   int // session whose slot is looked at next
	at     int // session whose request is being executed; -1: none
	until  clock.Time
	sgl    [][][]byte // by session: the answer that is under way
	buf    [][]byte
}

// NewServer makes a server on a NIC.
func NewServer(nic *rnic.NIC, c ServerConfig) (*Server, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Keys < 1 || c.Request < 0 {
		return nil, errors.New("herd: a core has room for a key at least, and takes no negative time")
	}
	n := c.Cores * c.Sessions
	s := &Server{cfg: c, nic: nic, pd: nic.AllocPD(), cq: nic.CreateCQ(16), slots: make([]byte, n*c.slotSize()), cores: make([]core, c.Cores), peers: make([]*rnic.AH, c.Sessions), last: make([]uint32, n), done: make([]status, n)}
	for i := range s.cores {
		q, err := nic.CreateQP(rnic.QPInit{PD: s.pd, Type: rnic.TypeUD, SendCQ: s.cq, RecvCQ: s.cq, QKey: qkey, MaxSend: max(128, c.Sessions), MaxRecv: 1})
		if err != nil {
			return nil, err
		}
		if err := q.Connect(rnic.Conn{}); err != nil {
			return nil, err
		}
		k := core{qp: q, values: map[uint64][]byte{}, at: -1, sgl: make([][][]byte, c.Sessions), buf: make([][]byte, c.Sessions)}
		for j := range k.buf {
			k.buf[j], k.sgl[j] = make([]byte, c.Value), make([][]byte, 1)
		}
		s.cores[i] = k
	}
	return s, onesided.Serve(s.pd, onesided.Part{Mem: s.slots, VA: memoryVA, To: &s.mr, Access: rnic.LocalWrite | rnic.RemoteWrite})
}

// Region returns the memory into which requests are written.
func (s *Server) Region() onesided.Region { return s.mr }

// Listen makes a UC queue pair for a session's requests; Connect makes it ready.
func (s *Server) Listen() (*rnic.QP, error) {
	return s.nic.CreateQP(rnic.QPInit{PD: s.pd, Type: rnic.TypeUC, SendCQ: s.cq, RecvCQ: s.cq, Access: rnic.RemoteWrite, MaxSend: 1, MaxRecv: 1})
}

// Admit admits a session; its answers go to a UD queue pair.
func (s *Server) Admit(session int, to rnic.AH) error {
	if session < 0 || session >= s.cfg.Sessions {
		return fmt.Errorf("herd: session %d of %d", session, s.cfg.Sessions)
	}
	to.QKey = qkey
	s.peers[session] = &to
	return nil
}

// Put adds a key before clients come.
func (s *Server) Put(key uint64, value []byte) error {
	if len(value) < 1 || len(value) > s.cfg.Value {
		return fmt.Errorf("herd: a value of %d bytes, not 1 to %d", len(value), s.cfg.Value)
	}
	if s.cores[s.cfg.coreOf(key)].put(key, value, s.cfg.Keys) == full {
		return errors.New("herd: no room for another key")
	}
	return nil
}

func (k *core) put(key uint64, value []byte, most int) status {
	v, ok := k.values[key]
	if !ok && len(k.values) == most {
		return full
	}
	if cap(v) < len(value) {
		v = make([]byte, len(value))
	}
	v = v[:len(value)]
	copy(v, value)
	k.values[key] = v
	return found
}

// Stats returns the totals so far.
func (s *Server) Stats() ServerStats { return s.stats }

// Step implements host.App.
func (s *Server) Step(now clock.Time) bool {
	did := false
	for i := range s.cores {
		for s.work(now, i) {
			did = true
		}
	}
	return did
}

// Deadline implements host.App.
func (s *Server) Deadline() clock.Time {
	d := clock.Never
	for i := range s.cores {
		if k := &s.cores[i]; k.at >= 0 {
			d = min(d, k.until)
		}
	}
	return d
}

// work ends a core's request, or begins its next one; false: there is nothing to do at present.
func (s *Server) work(now clock.Time, i int) bool {
	k := &s.cores[i]
	if k.at >= 0 {
		if now < k.until {
			return false
		}
		s.answer(i, k.at)
		k.at = -1
	}
	for range s.cfg.Sessions {
		session := k.next
		k.next = (k.next + 1) % s.cfg.Sessions
		end := s.cfg.end(i, session)
		if le.Uint32(s.slots[end-4:]) != 0 && s.peers[session] != nil {
			k.at, k.until = session, now.Add(s.cfg.Request)
			s.stats.Busy += s.cfg.Request
			return s.cfg.Request == 0
		}
	}
	return false
}

// answer executes the request in a slot, and sends the answer.
func (s *Server) answer(i, session int) {
	k, end, at := &s.cores[i], s.cfg.end(i, session), i*s.cfg.Sessions+session
	tail := s.slots[end-tailLen : end]
	key, kind, n, number := le.Uint64(tail), Kind(le.Uint16(tail[8:])), int(le.Uint16(tail[10:])), le.Uint32(tail[12:])
	le.PutUint32(tail[12:], 0)
	s.stats.Requests++
	var value []byte
	st := bad
	switch {
	case n > s.cfg.Value || kind > Delete || s.cfg.coreOf(key) != i || kind == Put && n == 0:
		s.stats.Bad++
	case kind == Get:
		st = absent
		if v, ok := k.values[key]; ok {
			st, value = found, k.buf[session][:copy(k.buf[session], v)]
		}
	case number == s.last[at]: // a repetition: the answer was lost
		s.stats.Repeated++
		st = s.done[at]
	case kind == Put:
		st = k.put(key, s.slots[end-tailLen-n:end-tailLen], s.cfg.Keys)
	default:
		st = absent
		if _, ok := k.values[key]; ok {
			delete(k.values, key)
			st = found
		}
	}
	s.last[at], s.done[at] = number, st
	k.sgl[session][0] = value
	// An answer that finds no room in the queue is lost, as on the way: the client repeats its request.
	_ = k.qp.PostSend(&rnic.SendWR{Op: rnic.OpSendImm, SGL: k.sgl[session], Imm: uint32(st)<<24 | number&numberMask, AH: s.peers[session]})
}
