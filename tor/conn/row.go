package conn

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// Addr is an IP address of 16 bytes, an IPv4 one IPv4-mapped (RFC 4291
// 2.5.5.2), in a VLAN: the same address in another VLAN is another host's. A GID of
// RoCE v1 is an address like any other. Equal addresses are ==.
type Addr struct {
	hi, lo uint64
	vlan   uint64
}

const mapped = 0xFFFF << 32

// AddrFrom is a as an Addr, in no VLAN; zero when a is not valid. Zones are ignored.
func AddrFrom(a netip.Addr) Addr {
	if !a.IsValid() {
		return Addr{}
	}
	b := a.As16()
	return Addr{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

// Is4 reports whether a is an IPv4 address.
func (a Addr) Is4() bool { return a.hi == 0 && a.lo>>32 == 0xFFFF }

// plain reports whether a is an IPv4 address in no VLAN: then lo tells it apart.
func (a *Addr) plain() bool { return a.Is4() && a.vlan == 0 }

// VLAN is the VLAN that a is in, from 1 to 4095; 0: in none, or behind a tag for
// the priority only. In is a in another one.
func (a Addr) VLAN() uint16        { return uint16(a.vlan) }
func (a Addr) In(vlan uint16) Addr { a.vlan = uint64(vlan); return a }

// Netip is a as a netip.Addr, an IPv4 address unmapped; the VLAN is lost.
func (a Addr) Netip() netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], a.hi)
	binary.BigEndian.PutUint64(b[8:], a.lo)
	return netip.AddrFrom16(b).Unmap()
}

func (a Addr) String() string {
	if a.vlan != 0 {
		return fmt.Sprintf("%v in VLAN %d", a.Netip(), a.vlan)
	}
	return a.Netip().String()
}

// Slot is the number of a row, stable while the row lives.
type Slot int32

// NoSlot is no row.
const NoSlot Slot = -1

// Source says how a row was learnt, in order of trust.
type Source uint8

const (
	// Inferred from PSNs.
	Inferred Source = iota
	// Static rows come from configuration.
	Static
	// Managed rows come from the connection manager's datagrams.
	Managed
)

func (s Source) String() string { return [...]string{"inferred", "static", "cm"}[s] }

// State of a row.
type State uint8

const (
	// HalfOpen: one direction only is known, or the handshake is going on.
	HalfOpen State = iota
	// Paired: both ends are known.
	Paired
	// Closing: a DisconnectRequest passed.
	Closing
)

func (s State) String() string { return [...]string{"half-open", "paired", "closing"}[s] }

// End is one end of a connection.
type End struct {
	Addr Addr
	// QPN is the end's queue pair. Of a half-open row's client it is 0.
	QPN uint32
	// StartPSN is the first PSN of the requests that the end sends, as the
	// connection manager or the configuration said; valid with HasPSN.
	StartPSN uint32
	// L2 is destination and source MAC address, as on the wire, of the last
	// frame that the end sent; zero when none was seen.
	L2 [12]byte
	// Port is the UDP source port of the last frame that the end sent on the
	// connection; 0 when none was seen.
	Port   uint16
	HasPSN bool
	// Resources and Depth are the READs and atomics that the end said it takes
	// and issues at once (the connection manager's ResponderResources and
	// InitiatorDepth).
	Resources, Depth uint8
	hasComm          bool
	// CommID is the end's name for the connection in the connection manager's
	// datagrams, with hasComm.
	CommID uint32
}

// Source and destination MAC address of frames that the end sends.
func (e *End) SrcMAC() [6]byte { return [6]byte(e.L2[6:]) }
func (e *End) DstMAC() [6]byte { return [6]byte(e.L2[:6]) }

// Row is a connection. Callers do not write to it. What most frames need lies in
// its first two lines of the processor's cache, up to easy.
type Row struct {
	Client, Server End
	LastSeen       clock.Time
	PKey           uint16 // of the server's frames; 0: none was seen
	MTU            uint16 // path MTU in bytes; 0 = not known
	Net            uint8  // hdr.NetIPv4, NetIPv6, or NetGRH for RoCE v1
	Learnt         Source
	State          State
	// easy: what frames of this row need.
	easy ease

	// Owner is whose row it is, of those who share the table; 0: nobody's. See Table.Give.
	Owner uint16
	used  bool
	// pinned: the caller numbers the requests itself (Table.Pin).
	pinned bool
	// ready: the client confirmed the handshake. waits: the row has its
	// ConnectReply, or was inferred, but queue pairs of its are other rows' until
	// that is confirmed.
	waits, ready bool
	// AckTimeout and Retries are how long and how often the client waits for an answer before it
	// gives up, as the connection manager said. AckTimeout is 1 more than the code (IBTA: Local
	// ACK Timeout); 0: neither is known.
	AckTimeout, Retries uint8
	// rival+1 is the slot of the row that waits for this one's queue pair.
	rival Slot
	tid   uint64

	// Numbering of an inferred row's requests: the newest PSN sent, the PSN
	// after it (at most: a READ whose path MTU is not known counts as long as
	// it may be), and the oldest one that may be answered.
	sent, next, low uint32
	// wild requests in a row were out of any sequence, the next would be
	// wildNext.
	wildNext uint32
	// candidate is the client's queue pair that matches responses named, up
	// to PSN matched; misses contradicted the pairing. asks is how many times
	// the client sent something new since, at least Config.Settle apart, and
	// asked the last of these.
	candidate, matched    uint32
	matches, misses, wild uint8
	asks                  uint8
	asked                 clock.Time
	// Requests before PSN old were sent longer than Config.Settle ago: mark was
	// next at markAt.
	old, mark uint32
	markAt    clock.Time

	// The list of half-open inferred rows between the same two addresses.
	listed     bool
	prev, succ Slot
	notes      int32 // +1: its notes about who may be its client; 0: none

	// The heap of rows that may have to make room: since is no later than
	// LastSeen, but for a row that its owner did not let go.
	placed bool
	in     class
	at     int32
	since  clock.Time

	// enders are the ends that sent a DisconnectRequest: 1 the client, 2 the server.
	enders uint8
	// Contested: a handshake says that the client's queue pair is another connection's, and the owner keeps this row. Answers for that queue pair
	// may be to what passed over the other one.
	Contested bool

	_ [14]byte // to whole lines
}

func (r *Row) String() string {
	return fmt.Sprintf("%v/%#x-%v/%#x %v %v", r.Client.Addr, r.Client.QPN, r.Server.Addr, r.Server.QPN, r.Learnt, r.State)
}

// ends are the end that side names and its peer.
func (r *Row) ends(client bool) (e, peer *End) {
	if client {
		return &r.Client, &r.Server
	}
	return &r.Server, &r.Client
}

// ease is how easily a frame is found to be of a row.
type ease uint8

const (
	// hard: frames need more than a look-up.
	hard ease = iota
	// easy: they need a look-up alone.
	easy
	// plain: and both ends' addresses are (Addr.plain), and their MAC addresses do not matter.
	plain
)

// rewatch decides anew what frames of the row need.
func (t *store) rewatch(r *Row) {
	switch {
	case r.State != Paired || r.rival != 0 || r.Learnt == Inferred && !r.pinned || r.Learnt == Managed && !r.ready || r.PKey == 0:
		r.easy = hard
	case r.Net == hdr.NetIPv4 && r.Client.Addr.plain() && r.Server.Addr.plain() && !t.cfg.GuardMAC:
		r.easy = plain
	default:
		r.easy = easy
	}
}

// Event is what a frame meant to the table.
type Event uint8

const (
	// Known: a frame of a paired connection; nothing changed.
	Known Event = iota
	// NowPaired: as of this frame both ends are known.
	NowPaired
	// Opened: a half-open row was made.
	Opened
	// Waiting: a frame of a half-open row, or a step of a handshake.
	Waiting
	// Replaced: the row of an earlier connection was removed, and a half-open
	// one made.
	Replaced
	// Unpaired: the server's PSNs contradicted the pairing; the row is half-open
	// again.
	Unpaired
	// IsClosing: a frame of a connection after its DisconnectRequest, or that
	// request.
	IsClosing
	// Removed: the datagram ended the connection; its row is gone.
	Removed
	// Reverse: a server's request, or a client's response.
	Reverse
	// Ambiguous: a response that fits several half-open rows.
	Ambiguous
	// Unmatched: a response that fits no request.
	Unmatched
	// Full: there is no room for the connection.
	Full
	// Spoofed: for a known queue pair, but not from its peer.
	Spoofed
	// Forged: a datagram of the connection manager that contradicts itself or
	// what is known.
	Forged
	// Ended: a datagram about a connection that is no more, from its end: the
	// last reply when both asked for the end at once, or a repetition.
	Ended
	// Stray: a datagram about no connection that is known, nor was lately: of
	// the time before the table, of one that found no room, or of none.
	Stray
	// Foreign: nothing that the table tracks: another transport.
	Foreign
	NumEvents
)

var eventNames = [NumEvents]string{"known", "paired", "opened", "waiting", "replaced", "unpaired", "closing", "removed",
	"reverse", "ambiguous", "unmatched", "full", "spoofed", "forged",
	"ended", "stray", "foreign"}

func (e Event) String() string {
	if e < NumEvents {
		return eventNames[e]
	}
	return "event?"
}
