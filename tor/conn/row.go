package conn

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// Addr is an IP address in a VLAN. The address has 16 bytes; an IPv4 address is IPv4-mapped (RFC 4291
// 2.5.5.2). The same address in another VLAN belongs to another host. A GID of
// RoCE v1 is an address, too. Addrs can be compared with ==.
type Addr struct {
	hi, lo uint64
	vlan   uint64
}

const mapped = 0xFFFF << 32

// AddrFrom returns a as an Addr in no VLAN, or the zero Addr if a is not valid. It ignores zones.
func AddrFrom(a netip.Addr) Addr {
	if !a.IsValid() {
		return Addr{}
	}
	b := a.As16()
	return Addr{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

// Is4 reports whether a is an IPv4 address.
func (a Addr) Is4() bool { return a.hi == 0 && a.lo>>32 == 0xFFFF }

// plain reports whether a is an IPv4 address in no VLAN; lo alone identifies such an address.
func (a *Addr) plain() bool { return a.Is4() && a.vlan == 0 }

// VLAN returns the VLAN of a, from 1 to 4095; 0 means no VLAN (no tag, or a priority tag). In returns
// a with its VLAN replaced.
func (a Addr) VLAN() uint16        { return uint16(a.vlan) }
func (a Addr) In(vlan uint16) Addr { a.vlan = uint64(vlan); return a }

// Netip returns a as a netip.Addr, without its VLAN; an IPv4 address is unmapped.
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

// NoSlot stands for no row.
const NoSlot Slot = -1

// Source says how a row was learnt, in order of trust.
type Source uint8

const (
	// Inferred rows come from the PSNs of requests and responses.
	Inferred Source = iota
	// Static rows come from configuration.
	Static
	// Managed rows come from the connection manager's datagrams.
	Managed
)

func (s Source) String() string { return [...]string{"inferred", "static", "cm"}[s] }

// State is the state of a row.
type State uint8

const (
	// HalfOpen: the client's queue pair is not known, or the handshake is going on.
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
	// QPN is the end's queue pair number; 0 for the client of a half-open inferred row.
	QPN uint32
	// StartPSN is the first PSN of the requests that the end sends, as the
	// connection manager or the configuration said; valid with HasPSN.
	StartPSN uint32
	// L2 holds the destination and the source MAC address, as on the wire, of the last
	// frame that the end sent; it is zero if none was seen.
	L2 [12]byte
	// Port is the UDP source port of the last frame that the end sent on the
	// connection; 0 when none was seen.
	Port   uint16
	HasPSN bool
	// Resources and Depth are the numbers of READs and atomics at once that the end takes, and
	// that it issues, as its datagrams said (ResponderResources and InitiatorDepth).
	Resources, Depth uint8
	hasComm          bool
	// CommID is the end's name for the connection in the connection manager's
	// datagrams, with hasComm.
	CommID uint32
}

// SrcMAC returns the source MAC address of the last frame that the end sent, DstMAC the destination.
func (e *End) SrcMAC() [6]byte { return [6]byte(e.L2[6:]) }
func (e *End) DstMAC() [6]byte { return [6]byte(e.L2[:6]) }

// Row is a connection. Callers do not write to it. Its first two cache lines, up to easy, hold what
// the table needs for most frames.
type Row struct {
	Client, Server End
	LastSeen       clock.Time
	PKey           uint16 // of the server's frames; 0: none was seen
	MTU            uint16 // path MTU in bytes; 0 = not known
	Net            uint8  // hdr.NetIPv4, NetIPv6, or NetGRH for RoCE v1
	Learnt         Source
	State          State
	// easy says how much work the table has with a frame of this row.
	easy ease

	// Owner is the one of the users that share the table to which the row belongs; 0: none. See Table.Give.
	Owner uint16
	used  bool
	// pinned: the caller numbers the requests itself (Table.Pin).
	pinned bool
	// ready: the client confirmed the handshake. waits: the row has its
	// ConnectReply, or was inferred, but other rows hold some of its queue pairs until the
	// connection is confirmed.
	waits, ready bool
	// AckTimeout and Retries are how long and how often the client waits for an answer before it
	// gives up, as the connection manager said. AckTimeout is 1 more than the code (IBTA: Local
	// ACK Timeout); 0: neither is known.
	AckTimeout, Retries uint8
	// rival+1 is the slot of the row that waits for this one's queue pair.
	rival Slot
	tid   uint64

	// PSNs of an inferred row's requests: sent is the newest request's PSN, next the PSN
	// after that request (an upper bound: a READ whose path MTU is not known counts with its
	// greatest length), and low the oldest PSN that may be answered.
	sent, next, low uint32
	// wild is the number of requests out of all sequence that followed each other; the next
	// of them would have PSN wildNext.
	wildNext uint32
	// candidate is the queue pair to which the matching responses went; matches is their number, and
	// matched the PSN of the newest. misses counts the responses that contradict the pairing. asks
	// counts the client's new requests since the first match that were at least Config.Settle
	// apart, and asked is the time of the last of these.
	candidate, matched    uint32
	matches, misses, wild uint8
	asks                  uint8
	asked                 clock.Time
	// Requests before PSN old were sent longer than Config.Settle ago. mark is the value
	// that next had at time markAt.
	old, mark uint32
	markAt    clock.Time

	// Links of the list of half-open inferred rows in the same bucket of byPSN.
	listed     bool
	prev, succ Slot
	notes      int32 // +1: its notes about who may be its client; 0: none

	// Place in the heap of the rows that may have to make room (byQuiet): heap in, index at, key
	// since. since is no later than LastSeen, except for a row that its owner did not let go.
	placed bool
	in     class
	at     int32
	since  clock.Time

	// enders are the ends that sent a DisconnectRequest: 1 the client, 2 the server.
	enders uint8
	// Contested: a handshake says that the client's queue pair belongs to another connection, but the
	// owner keeps this row. Answers to that queue pair may answer requests of the other connection.
	Contested bool

	_ [14]byte // fills the row up to whole cache lines
}

func (r *Row) String() string {
	return fmt.Sprintf("%v/%#x-%v/%#x %v %v", r.Client.Addr, r.Client.QPN, r.Server.Addr, r.Server.QPN, r.Learnt, r.State)
}

// ends returns the client's end and its peer, or the server's end and its peer.
func (r *Row) ends(client bool) (e, peer *End) {
	if client {
		return &r.Client, &r.Server
	}
	return &r.Server, &r.Client
}

// ease says how much work the table has to find that a frame belongs to a row.
type ease uint8

const (
	// hard: a frame needs more than a look-up.
	hard ease = iota
	// easy: a frame needs a look-up only.
	easy
	// plain: like easy; besides, both ends' addresses are Addr.plain, and MAC addresses do not matter.
	plain
)

// rewatch sets r.easy anew.
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

// Event says what a frame meant to the table.
type Event uint8

const (
	// Known: the frame belongs to a paired connection; nothing changed.
	Known Event = iota
	// NowPaired: with this frame both ends became known.
	NowPaired
	// Opened: a half-open row was made.
	Opened
	// Waiting: the frame belongs to a half-open row, or is a step of a handshake.
	Waiting
	// Replaced: the row of an earlier connection was removed, and a half-open
	// row made.
	Replaced
	// Unpaired: the server's PSNs contradicted the pairing; the row is half-open
	// again.
	Unpaired
	// IsClosing: the frame is a DisconnectRequest, or belongs to a connection after its
	// DisconnectRequest.
	IsClosing
	// Removed: the datagram ended the connection; its row is gone.
	Removed
	// Reverse: the frame is a server's request, or a client's response.
	Reverse
	// Ambiguous: the response fits several half-open rows.
	Ambiguous
	// Unmatched: the response fits no request.
	Unmatched
	// Full: there is no room for the connection.
	Full
	// Spoofed: the frame is for a known queue pair, but not from its peer.
	Spoofed
	// Forged: the connection manager's datagram contradicts itself or what is known.
	Forged
	// Ended: the datagram is from an end of a connection that has ended: the last reply
	// when both ends asked for the disconnect at once, or a repetition.
	Ended
	// Stray: the datagram is about a connection that is not known, and was not known lately: it is
	// older than the table, it found no room, or it does not exist.
	Stray
	// Foreign: the table does not track such a frame: for example one of another transport.
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
