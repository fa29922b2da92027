package cm

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
)

// Peer is the address of a NIC, and a port there.
type Peer struct {
	IP   netip.Addr
	MAC  [6]byte
	Port uint16
}

// Params are what one side of a connection chooses.
type Params struct {
	// QP is an RC queue pair in the reset state. The Agent connects it.
	QP *rnic.QP
	// PathMTU is in bytes; 0 = 1024. The side that accepts takes the other side's.
	PathMTU int
	// Resources and Depth are the numbers of READs and atomics that this side accepts and issues at the same
	// time; 0 = 16.
	Resources, Depth uint8
	// LocalACKTimeout, RetryCount and RNRRetryCount are parameters of the transport. The side that accepts
	// takes the other side's, except for RNRRetryCount. 0 = 19 (2.1 s), 7 and 7.
	LocalACKTimeout, RetryCount, RNRRetryCount uint8
	// LocalPort is the port that Dial tells the peer as this side's.
	LocalPort uint16
	// PrivateData goes to the peer's user.
	PrivateData []byte
}

type state uint8

const (
	requestSent state = iota
	requestReceived
	replySent
	established
	disconnectSent
	ended
)

func (s state) String() string {
	return [...]string{"connecting", "asked", "accepted", "established", "disconnecting", "ended"}[s]
}

// ID is a connection, or an attempt at one.
type ID struct {
	agent   *Agent
	state   state
	passive bool
	// The two sides' names of the connection. If named is true, theirs is known.
	ours, theirs uint32
	named        bool
	tid          uint64
	peer         Peer
	port         uint16 // this side's port, if the peer asked for the connection
	qp           *rnic.QP
	psn          uint32 // first PSN that this side expects
	theirQPN     uint32
	theirPSN     uint32 // first PSN that the peer expects
	mtu          int

	resources                uint8 // the peer's; 0: not known
	ourResources, ourDepth   uint8
	timeout, retry, rnrRetry uint8
	flowLabel                uint32

	// msg waits for an answer until due. It is sent again after each wait, tries times.
	msg     [hdr.MADLen]byte
	due     clock.Time
	wait    clock.Duration
	tries   uint8
	delayed bool // a MsgRcptAck was sent as the answer
}

// code returns the time that a code of 5 bits stands for: 4.096 us * 2^c.
func code(c uint8) clock.Duration { return clock.Duration(4096) << (c & 31) }

// QP returns the connection's queue pair, nil if the connection was not accepted.
func (id *ID) QP() *rnic.QP { return id.qp }

// Peer returns the other side. If the peer asked for the connection, Port is the peer's own.
func (id *ID) Peer() Peer { return id.peer }

// Active reports whether this side asked for the connection.
func (id *ID) Active() bool { return !id.passive }

// Port returns the port that the peer asked for.
func (id *ID) Port() uint16 { return id.port }

func (id *ID) String() string {
	return fmt.Sprintf("connection %#x with %v, %v", id.ours, id.peer.IP, id.state)
}

func (p *Params) check(n *rnic.NIC) error {
	if p.QP == nil || p.QP.Type != rnic.TypeRC || p.QP.State() != rnic.StateReset || n.QP(p.QP.QPN) != p.QP {
		return fmt.Errorf("cm: a connection needs an RC queue pair of the NIC in the reset state: %w", rnic.ErrInvalid)
	}
	p.PathMTU = cmp.Or(p.PathMTU, 1024)
	switch p.PathMTU {
	case 256, 512, 1024, 2048, 4096:
	default:
		return fmt.Errorf("cm: path MTU %d is not 256, 512, 1024, 2048 or 4096: %w", p.PathMTU, rnic.ErrInvalid)
	}
	if p.PathMTU > n.MaxPathMTU() {
		return fmt.Errorf("cm: path MTU %d does not fit, at most %d: %w", p.PathMTU, n.MaxPathMTU(), rnic.ErrInvalid)
	}
	p.Resources, p.Depth = cmp.Or(p.Resources, 16), cmp.Or(p.Depth, 16)
	p.LocalACKTimeout, p.RetryCount, p.RNRRetryCount = cmp.Or(p.LocalACKTimeout, 19), cmp.Or(p.RetryCount, 7), cmp.Or(p.RNRRetryCount, 7)
	if p.LocalACKTimeout > 31 || p.RetryCount > 7 || p.RNRRetryCount > 7 || p.Resources > 128 || p.Depth > 128 {
		return fmt.Errorf("cm: LocalACKTimeout is a code of 5 bits, retry counts of 3, Resources and Depth at most 128: %w", rnic.ErrInvalid)
	}
	return nil
}

// Dial asks for a connection. The result is an event: Established, Rejected or Unreachable. At most 56 bytes
// of PrivateData are sent.
func (a *Agent) Dial(now clock.Time, to Peer, p Params) (*ID, error) {
	if err := p.check(a.nic); err != nil {
		return nil, err
	}
	own := a.nic.Config()
	to.IP = to.IP.Unmap()
	if to.IP.Is4() != own.IP.Is4() || !to.IP.IsValid() {
		return nil, fmt.Errorf("cm: peer %v is not of the same family as %v: %w", to.IP, own.IP, rnic.ErrInvalid)
	}
	id := &ID{agent: a, state: requestSent, ours: a.newName(), peer: to, qp: p.QP, psn: a.nic.RandomPSN(), mtu: p.PathMTU,
		ourResources: p.Resources, ourDepth: p.Depth, timeout: p.LocalACKTimeout, retry: p.RetryCount, rnrRetry: p.RNRRetryCount}
	f := hdr.CMFields{AttributeID: hdr.ConnectRequest, ServiceID: hdr.ServiceIDOfPort(to.Port), CAGUID: a.guid, LocalQPN: p.QP.QPN, StartingPSN: id.psn,
		ResponderResources: p.Resources, InitiatorDepth: p.Depth, RemoteResponseTimeout: a.cfg.ResponseTimeout, LocalResponseTimeout: a.cfg.ResponseTimeout,
		MaxCMRetries: a.cfg.Retries, RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, PKey: 0xFFFF, PathMTU: p.PathMTU,
		LocalGID: own.IP, RemoteGID: to.IP, HopLimit: 64, LocalACKTimeout: p.LocalACKTimeout,
		PrivateData: append(hdr.AppendIPCM(nil, netip.AddrPortFrom(own.IP, p.LocalPort), to.IP), p.PrivateData...)}
	if own.Profile == rnic.RXE {
		// Linux gives a connection a flow label of its own.
		id.flowLabel = a.nic.RandomPSN() & 0xFFFFF
	} else {
		f.PacketRate = 7 // 40 Gb/s, as in captures
	}
	f.FlowLabel = id.flowLabel
	id.tid = id.ownTransaction()
	a.local[id.ours] = id
	id.ask(now, &f, code(a.cfg.ResponseTimeout), a.cfg.Retries)
	return id, nil
}

// ownTransaction returns the transaction ID of an exchange that this side begins: the agent's number and the
// connection's name, in Linux' byte order.
func (id *ID) ownTransaction() uint64 {
	return 2<<32 | uint64(bits.ReverseBytes32(id.ours))
}

// sendMessage sends a message of the connection.
func (id *ID) sendMessage(f *hdr.CMFields) {
	f.TransactionID = cmp.Or(f.TransactionID, id.tid)
	f.LocalCommID, f.RemoteCommID = id.ours, id.theirs
	hdr.CM(id.msg[:]).Encode(f)
	id.agent.send(id.peer.IP, id.peer.MAC, id.msg[:])
}

// ask sends a message and waits for an answer.
func (id *ID) ask(now clock.Time, f *hdr.CMFields, wait clock.Duration, tries uint8) {
	id.quiet()
	id.sendMessage(f)
	id.wait, id.tries, id.due = wait, tries, now.Add(wait)
	id.agent.timed = append(id.agent.timed, id)
}

// quiet stops waiting for an answer.
func (id *ID) quiet() {
	id.agent.timed = slices.DeleteFunc(id.agent.timed, func(o *ID) bool { return o == id })
}

// expire repeats a message that was not answered in time, or gives up.
func (id *ID) expire(now clock.Time) {
	a := id.agent
	if id.tries > 0 {
		id.tries--
		id.due = now.Add(id.wait)
		a.stats.Retries++
		a.send(id.peer.IP, id.peer.MAC, id.msg[:])
		return
	}
	if id.state == disconnectSent {
		id.end(Disconnected, 0, nil)
		return
	}
	id.sendMessage(&hdr.CMFields{AttributeID: hdr.ConnectReject, Message: 2, Reason: ReasonTimeout})
	if id.passive {
		id.qp.Fail()
	}
	id.end(Unreachable, 0, nil)
}

// end removes the connection and emits an event.
func (id *ID) end(k Kind, reason uint16, private []byte) {
	id.forget()
	id.agent.emit(k, id, reason, private)
}

func (id *ID) forget() {
	a := id.agent
	id.quiet()
	id.state = ended
	delete(a.local, id.ours)
	if n := (name{id.peer.IP, id.theirs}); a.remote[n] == id {
		delete(a.remote, n)
	}
}

// connect connects the queue pair to the peer's.
func (id *ID) connect() error {
	c := rnic.DefaultConn()
	c.RemoteMAC, c.RemoteIP, c.DestQPN, c.FlowLabel = id.peer.MAC, id.peer.IP, id.theirQPN, id.flowLabel
	c.PathMTU, c.SQPSN, c.RQPSN = id.mtu, id.theirPSN, id.psn
	c.Timeout, c.RetryCnt, c.RNRRetry = int(id.timeout), int(id.retry), int(id.rnrRetry)
	c.MaxDestRdAtomic = int(id.ourResources)
	if id.ourResources == 0 {
		c.MaxDestRdAtomic = rnic.NoRdAtomic // this side announced none
	}
	c.MaxRdAtomic = int(min(id.ourDepth, id.resources))
	if id.resources == 0 {
		c.MaxRdAtomic = int(id.ourDepth) // the peer announced none
	}
	return id.qp.Connect(c)
}

// Accept answers Requested. The queue pair executes requests of the peer at once. Requests may be posted to
// it after the event Established. At most 196 bytes of PrivateData are sent.
func (id *ID) Accept(now clock.Time, p Params) error {
	if id.state != requestReceived {
		return fmt.Errorf("cm: accept %v: %w", id, ErrState)
	}
	p.PathMTU = id.mtu
	if err := p.check(id.agent.nic); err != nil {
		return err
	}
	id.qp, id.psn, id.ourResources, id.ourDepth = p.QP, id.agent.nic.RandomPSN(), p.Resources, p.Depth
	if err := id.connect(); err != nil {
		return err
	}
	id.state = replySent
	id.ask(now, &hdr.CMFields{AttributeID: hdr.ConnectReply, LocalQPN: p.QP.QPN, StartingPSN: id.psn, ResponderResources: p.Resources,
		InitiatorDepth: min(p.Depth, id.resources), TargetACKDelay: 15, RNRRetryCount: p.RNRRetryCount, CAGUID: id.agent.guid, PrivateData: p.PrivateData},
		id.wait, id.tries)
	return nil
}

// Reject answers Requested with a rejection. At most 148 bytes of private are sent.
func (id *ID) Reject(reason uint16, private []byte) error {
	if id.state != requestReceived {
		return fmt.Errorf("cm: reject %v: %w", id, ErrState)
	}
	delete(id.agent.local, id.ours)
	id.ours = 0 // a rejection carries no name of the side that rejects
	id.sendMessage(&hdr.CMFields{AttributeID: hdr.ConnectReject, Reason: reason, PrivateData: private})
	id.forget()
	return nil
}

// Delay answers Requested with a MsgRcptAck, which says that the final answer takes up to 4.096 us *
// 2^serviceTimeout.
func (id *ID) Delay(serviceTimeout uint8) error {
	if id.state != requestReceived {
		return fmt.Errorf("cm: delay %v: %w", id, ErrState)
	}
	id.delayed = true
	id.sendMessage(&hdr.CMFields{AttributeID: hdr.MsgRcptAck, ServiceTimeout: serviceTimeout & 31})
	return nil
}

// Disconnect ends an established connection. The event Disconnected follows when the peer has answered, or
// after all retries. The queue pair fails at once.
func (id *ID) Disconnect(now clock.Time) error { return id.Leave(now, nil) }

// Leave is Disconnect with private data for the peer's user, of which at most 220 bytes are sent.
func (id *ID) Leave(now clock.Time, private []byte) error {
	if id.state != established && id.state != replySent {
		return fmt.Errorf("cm: disconnect %v: %w", id, ErrState)
	}
	id.qp.Fail()
	id.state = disconnectSent
	id.ask(now, &hdr.CMFields{AttributeID: hdr.DisconnectRequest, TransactionID: id.ownTransaction(), RemoteQPN: id.theirQPN, PrivateData: private},
		code(id.agent.cfg.ResponseTimeout), id.agent.cfg.Retries)
	return nil
}

// disconnected handles a connection that the peer has ended.
func (id *ID) disconnected(private []byte) {
	if id.qp != nil {
		id.qp.Fail()
	}
	id.end(Disconnected, 0, private)
}

func (id *ID) connectReply(m hdr.CM) {
	a := id.agent
	ready := func() {
		id.sendMessage(&hdr.CMFields{AttributeID: hdr.ReadyToUse})
	}
	switch {
	case id.state == established && !id.passive:
		a.stats.Duplicates++
		ready()
	case id.state != requestSent:
		a.stats.Stray++
	default:
		id.quiet()
		id.theirs, id.named = m.LocalCommID(), true
		id.theirQPN, id.theirPSN, id.rnrRetry = m.LocalQPN(), m.StartingPSN(), m.RNRRetryCount()
		id.resources = m.ResponderResources()
		if err := id.connect(); err != nil {
			// The owner destroyed or used the queue pair in the meantime.
			id.sendMessage(&hdr.CMFields{AttributeID: hdr.ConnectReject, Message: 1, Reason: ReasonConsumer})
			id.end(Rejected, ReasonConsumer, nil)
			return
		}
		a.remote[name{id.peer.IP, id.theirs}] = id
		id.state = established
		ready()
		a.emit(Established, id, 0, m.PrivateData())
	}
}

func (id *ID) readyToUse(m hdr.CM) {
	switch {
	case id.state == replySent:
		id.quiet()
		id.state = established
		id.agent.emit(Established, id, 0, m.PrivateData())
	case id.state == established && id.passive:
		id.agent.stats.Duplicates++
	default:
		id.agent.stats.Stray++
	}
}

// msgRcptAck waits longer, as the peer asks.
func (id *ID) msgRcptAck(now clock.Time, m hdr.CM) {
	if id.state == requestSent && m.Message() == 0 || id.state == replySent && m.Message() == 1 {
		id.due = max(id.due, now.Add(code(m.ServiceTimeout())))
		return
	}
	id.agent.stats.Stray++
}

func (id *ID) connectReject(m hdr.CM) {
	switch id.state {
	case requestSent, requestReceived:
	case replySent:
		id.qp.Fail()
	default:
		id.agent.stats.Stray++
		return
	}
	id.end(Rejected, m.Reason(), m.PrivateData())
}

func (id *ID) disconnectRequest(mac [6]byte, m hdr.CM) {
	if id.state != established && id.state != replySent && id.state != disconnectSent || m.RemoteQPN() != id.qp.QPN {
		id.agent.stats.Stray++
		return
	}
	id.agent.answer(id.peer.IP, mac, m, &hdr.CMFields{AttributeID: hdr.DisconnectReply, LocalCommID: id.ours})
	id.disconnected(m.PrivateData())
}

func (id *ID) disconnectReply(hdr.CM) {
	if id.state != disconnectSent {
		id.agent.stats.Stray++
		return
	}
	id.end(Disconnected, 0, nil)
}
