package cm

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
)

// Config has the parameters of an Agent. Zero values mean the values of Linux.
type Config struct {
	// ResponseTimeout is the time that an answer may take: 4.096 us *
	// 2^ResponseTimeout; 0 means 20 (4.3 s).
	ResponseTimeout uint8
	// Retries is the number of times that a message is repeated; 0 means 15, the largest value.
	Retries uint8
	Seed    uint64 // of the names of connections
}

// Stats count datagrams.
type Stats struct {
	Sent, Received uint64
	Retries        uint64 // messages that were sent again; Sent counts them, too
	Duplicates     uint64 // messages that arrived again; they are answered again where that helps
	Stray          uint64 // messages about no connection, or not expected in the connection's state
	Malformed      uint64 // datagrams that are not messages of a connection manager
	NoRoom         uint64 // messages that found the queue pair full; a retry sends them later
}

const (
	depth   = 64 // of queue pair 1's work queues
	grhLen  = 40
	recvTag = 1 << 32 // in IDs of receives
)

// Agent is the communication manager of one NIC. One goroutine uses it at a time.
type Agent struct {
	nic    *rnic.NIC
	cfg    Config
	guid   uint64
	gsi    *rnic.QP
	cq     *rnic.CQ
	rx     [depth][grhLen + hdr.MADLen]byte
	tx     [depth][hdr.MADLen]byte
	free   []uint8 // indices of tx that are free
	wc     [16]rnic.WC
	listen map[uint64]bool // service IDs
	local  map[uint32]*ID
	remote map[name]*ID
	timed  []*ID // connections that wait for an answer
	events []Event
	next   uint32 // counter from which local names are made
	stats  Stats
}

// name identifies a connection by the peer's address and the peer's communication ID.
type name struct {
	ip netip.Addr
	id uint32
}

// New makes the communication manager of n, which uses queue pair 1 of n until Close.
func New(n *rnic.NIC, c Config) (*Agent, error) {
	c.ResponseTimeout = cmp.Or(c.ResponseTimeout, 20)
	c.Retries = cmp.Or(c.Retries, 15)
	if c.ResponseTimeout > 31 || c.Retries > 15 {
		return nil, fmt.Errorf("cm: response timeout %d and %d retries: codes of 5 and 4 bits: %w", c.ResponseTimeout, c.Retries, rnic.ErrInvalid)
	}
	if n.MaxPathMTU() < hdr.MADLen {
		return nil, fmt.Errorf("cm: path MTU %d is too small for a datagram of %d bytes: %w", n.MaxPathMTU(), hdr.MADLen, rnic.ErrInvalid)
	}
	a := &Agent{nic: n, cfg: c, cq: n.CreateCQ(2 * depth), listen: map[uint64]bool{}, local: map[uint32]*ID{}, remote: map[name]*ID{}, next: uint32(mix(c.Seed))}
	m := n.Config().MAC
	a.guid = uint64(m[0]^2)<<56 | uint64(m[1])<<48 | uint64(m[2])<<40 | 0xFFFE<<24 | uint64(m[3])<<16 | uint64(m[4])<<8 | uint64(m[5])
	q, err := n.CreateGSI(rnic.QPInit{PD: n.AllocPD(), SendCQ: a.cq, RecvCQ: a.cq, MaxSend: depth, MaxRecv: depth, SQSigAll: true})
	if err != nil {
		return nil, err
	}
	a.gsi = q
	for i := range depth {
		a.free = append(a.free, uint8(i))
		if err := q.PostRecv(&rnic.RecvWR{ID: recvTag | uint64(i), Buf: a.rx[i][:]}); err != nil {
			return nil, err
		}
	}
	if err := q.Connect(rnic.Conn{}); err != nil {
		return nil, err
	}
	return a, nil
}

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Close destroys queue pair 1. Connections stay as they are.
func (a *Agent) Close() { a.gsi.Destroy() }

// Stats returns the counters.
func (a *Agent) Stats() Stats { return a.stats }

// Listen accepts requests of peers for connections to port; each request becomes an event Requested. The
// Agent rejects requests for other ports.
func (a *Agent) Listen(port uint16) { a.listen[hdr.ServiceIDOfPort(port)] = true }

// Kind is the kind of an Event.
type Kind uint8

const (
	// Requested means that a peer asks for a connection. The user calls Accept, Reject or Delay.
	Requested Kind = iota
	// Established means that the queue pair may be used.
	Established
	// Rejected means that the peer rejected the connection; Event.Reason says why.
	Rejected
	// Unreachable means that the peer did not answer, after all retries.
	Unreachable
	// Disconnected means that the connection has ended.
	Disconnected
)

func (k Kind) String() string {
	return [...]string{"requested", "established", "rejected", "unreachable", "disconnected"}[k]
}

// Event is something that happened to a connection.
type Event struct {
	Kind Kind
	ID   *ID
	// Reason is the reason of Rejected, as in the peer's message.
	Reason uint16
	// PrivateData is the private data of the peer's message.
	PrivateData []byte
}

// Poll takes the oldest event, or returns false if there is none.
func (a *Agent) Poll() (Event, bool) {
	if len(a.events) == 0 {
		return Event{}, false
	}
	e := a.events[0]
	a.events = slices.Delete(a.events, 0, 1)
	return e, true
}

func (a *Agent) emit(k Kind, id *ID, reason uint16, private []byte) {
	a.events = append(a.events, Event{k, id, reason, slices.Clone(private)})
}

// Deadline returns the time at which Step has work without input.
func (a *Agent) Deadline() clock.Time {
	at := clock.Never
	for _, id := range a.timed {
		at = min(at, id.due)
	}
	return at
}

// Step takes received datagrams and repeats messages that were not answered in time. It reports whether there
// was anything to do.
func (a *Agent) Step(now clock.Time) bool {
	worked := false
	for {
		n := a.cq.Poll(a.wc[:])
		if n == 0 {
			break
		}
		worked = true
		for i := range a.wc[:n] {
			w := &a.wc[i]
			if w.ID&recvTag == 0 {
				a.free = append(a.free, uint8(w.ID))
				continue
			}
			b := &a.rx[uint8(w.ID)]
			a.receive(now, w, b[:w.ByteLen])
			if a.gsi.PostRecv(&rnic.RecvWR{ID: w.ID, Buf: b[:]}) != nil {
				return worked // Close was called
			}
		}
	}
	for i := 0; i < len(a.timed); {
		if id := a.timed[i]; id.due <= now {
			worked = true
			id.expire(now) // removes the connection from timed when it gives up
			if i < len(a.timed) && a.timed[i] == id {
				i++
			}
			continue
		}
		i++
	}
	return worked
}

// send sends a message to a peer.
func (a *Agent) send(ip netip.Addr, mac [6]byte, mad []byte) {
	n := len(a.free) - 1
	if n < 0 {
		a.stats.NoRoom++
		return
	}
	i := a.free[n]
	copy(a.tx[i][:], mad)
	w := rnic.SendWR{ID: uint64(i), Op: rnic.OpSend, SGL: [][]byte{a.tx[i][:]}, Signaled: true, AH: &rnic.AH{MAC: mac, IP: ip, QPN: 1, QKey: hdr.GSIQKey}}
	if a.gsi.PostSend(&w) != nil {
		a.stats.NoRoom++
		return
	}
	a.free = a.free[:n]
	a.stats.Sent++
}

// newName returns a name that no connection of this agent has.
func (a *Agent) newName() uint32 {
	for {
		a.next++
		// Names count up in host byte order, as Linux' do.
		if v := bits.ReverseBytes32(a.next); v != 0 && a.local[v] == nil {
			return v
		}
	}
}

// ErrState is returned by calls that the state of a connection does not allow.
var ErrState = errors.New("connection is not in a state for that")

// source returns the source address in the GRH of a received datagram.
func (a *Agent) source(b []byte) netip.Addr {
	if a.nic.Config().IP.Is4() {
		return netip.AddrFrom4([4]byte(b[32:36]))
	}
	return netip.AddrFrom16([16]byte(b[8:24]))
}

// receive takes a datagram, with its GRH in front.
func (a *Agent) receive(now clock.Time, w *rnic.WC, b []byte) {
	a.stats.Received++
	m, ok := hdr.CMFrom(b[grhLen:])
	if !ok || w.SrcQP != 1 {
		a.stats.Malformed++
		return
	}
	ip := a.source(b)
	if m.AttributeID() == hdr.ConnectRequest {
		a.connectRequest(ip, w.SrcMAC, m)
		return
	}
	id := a.local[m.RemoteCommID()]
	if id == nil && m.RemoteCommID() == 0 && m.AttributeID() == hdr.ConnectReject {
		id = a.remote[name{ip, m.LocalCommID()}] // the peer does not know this side's name for the connection
	}
	if id != nil && (id.peer.IP != ip || id.named && m.LocalCommID() != id.theirs && (m.AttributeID() != hdr.ConnectReject || m.LocalCommID() != 0)) {
		id = nil
	}
	if id == nil {
		a.stats.Stray++
		if m.AttributeID() == hdr.DisconnectRequest {
			// The peer repeats a request whose answer may have been lost.
			a.answer(ip, w.SrcMAC, m, &hdr.CMFields{AttributeID: hdr.DisconnectReply, LocalCommID: m.RemoteCommID()})
		}
		return
	}
	switch m.AttributeID() {
	case hdr.ConnectReply:
		id.connectReply(m)
	case hdr.ReadyToUse:
		id.readyToUse(m)
	case hdr.MsgRcptAck:
		id.msgRcptAck(now, m)
	case hdr.ConnectReject:
		id.connectReject(m)
	case hdr.DisconnectRequest:
		id.disconnectRequest(w.SrcMAC, m)
	case hdr.DisconnectReply:
		id.disconnectReply(m)
	default:
		a.stats.Stray++
	}
}

// answer sends a message in answer to m.
func (a *Agent) answer(ip netip.Addr, mac [6]byte, m hdr.CM, f *hdr.CMFields) {
	f.TransactionID, f.RemoteCommID = m.TransactionID(), m.LocalCommID()
	var b [hdr.MADLen]byte
	hdr.CM(b[:]).Encode(f)
	a.send(ip, mac, b[:])
}

// Reasons of a rejection (IBTA table 102).
const (
	ReasonNoResources      uint16 = 3
	ReasonTimeout          uint16 = 4
	ReasonInvalidServiceID uint16 = 8
	ReasonInvalidTransport uint16 = 9
	ReasonStale            uint16 = 10
	ReasonInvalidGID       uint16 = 12
	ReasonInvalidMTU       uint16 = 26
	ReasonConsumer         uint16 = 28
)

// mostPatient is the longest time for which one sending of a message waits for an answer, whatever the peer
// says how long that may take. It is Linux' own time (4.3 s), so that a peer that never answers is given up
// after 69 s.
var mostPatient = code(20)

// connectRequest takes a ConnectRequest.
func (a *Agent) connectRequest(ip netip.Addr, mac [6]byte, m hdr.CM) {
	if id := a.remote[name{ip, m.LocalCommID()}]; id != nil {
		a.stats.Duplicates++
		if id.state == requestReceived && id.delayed {
			a.send(ip, mac, id.msg[:])
		}
		return // a lost answer is repeated by the timer of the connection
	}
	reject := func(reason uint16) {
		a.answer(ip, mac, m, &hdr.CMFields{AttributeID: hdr.ConnectReject, Reason: reason})
	}
	switch {
	case m.TransportService() != hdr.RC:
		reject(ReasonInvalidTransport)
		return
	case m.PrimaryLocalGID() != ip || m.PrimaryRemoteGID() != a.nic.Config().IP:
		reject(ReasonInvalidGID)
		return
	case !a.listen[m.ServiceID()]:
		reject(ReasonInvalidServiceID)
		return
	case m.PathMTU() == 0 || m.PathMTU() > a.nic.MaxPathMTU():
		reject(ReasonInvalidMTU)
		return
	}
	for _, id := range a.remote {
		if id.peer.IP == ip && id.theirQPN == m.LocalQPN() {
			// The peer cannot use a queue pair for two connections, so it has forgotten the other one.
			reject(ReasonStale)
			id.disconnected(nil)
			return
		}
	}
	id := &ID{agent: a, state: requestReceived, ours: a.newName(), theirs: m.LocalCommID(), named: true, tid: m.TransactionID(), peer: Peer{IP: ip, MAC: mac},
		theirQPN: m.LocalQPN(), theirPSN: m.StartingPSN(), mtu: m.PathMTU(), resources: m.ResponderResources(),
		timeout: m.LocalACKTimeout(), retry: m.RetryCount(), rnrRetry: m.RNRRetryCount(), flowLabel: m.FlowLabel(),
		wait: min(code(m.LocalResponseTimeout()), mostPatient), tries: m.MaxCMRetries(), port: uint16(m.ServiceID()), passive: true}
	private := m.PrivateData()
	if src, _, ok := m.IPEndpoints(); ok {
		id.peer.Port = src.Port()
		private = private[hdr.IPCMLen:]
	}
	a.local[id.ours], a.remote[name{ip, id.theirs}] = id, id
	a.emit(Requested, id, 0, private)
}
