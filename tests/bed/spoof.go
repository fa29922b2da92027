package bed

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
)

// Spoof is a frame of the adversary's: a host on the clients' side that sends any
// frame at all. On a bare wire none of them does anything: they have PSNs that the
// server has seen (a client's own are not guessed), or another address than the
// queue pair's peer, or are for nobody, or make no sense. The one exception are
// PSNs ahead of what is expected, after which the server asks a client for what it
// misses; the law counts those.
type Spoof struct {
	At     time.Duration
	Trick  Trick
	Victim int    // session
	Seed   uint64 // of all else
	Turn   uint32 // how many come before it in a row: it has the PSN behind theirs
	// Counted: the box counts what servers do not see; see Limits.
	Counted bool
}

// Trick is what a spoofed frame is like.
type Trick uint8

const (
	Repeated    Trick = iota // with a PSN that was used
	Before                   // with one before the connection's first
	FarBehind                // more than 65,536 before
	FarAhead                 // more than 65,536 ahead
	JustAhead                // a little ahead
	OtherSource              // the PSN that comes next, from another address
	Nobody                   // for a queue pair that does not exist, from any address
	NoServer                 // for a machine that does not exist, perhaps with the server's MAC
	Huge                     // a WRITE of 2^31 bytes, with a PSN that was used, or for nobody
	Strange                  // an opcode that nobody knows, XRC, DC, UD
	Broken                   // lengths and headers that make no sense
	InPieces                 // IP fragments, IPv6 extension headers
	Manager                  // the connection manager's, about others' connections
	Answers                  // ACKs, NAKs and READ responses for the server
	Congested                // congestion notifications
	Tagged                   // in a VLAN
	numTricks
)

// Tricks of wider worlds.
const (
	Close   Trick = numTricks + iota // 1 to 4,095 ahead
	Around                           // half of all PSNs away
	Ignored                          // the PSN that comes next, in a frame that the server throws away unseen
	Parts                            // parts of messages, of sizes that do not fit, with any PSN but the next
	numWideTricks
)

// target is whom a spoofed frame is about.
type target struct {
	Connection
	used uint32 // PSNs that the server has certainly seen
	// From una on and before next are the PSNs of what the client has posted and has no answer to. What is more
	// than clear behind next is never reached before the frame that has it is there.
	una, next, clear uint32
	reach            []Reach
	mac              [6]byte // the adversary's
	own              netip.Addr
	mtu              int
	ahead            bool // the frame is
	asks             bool // the server has requests of its own, which an answer with their PSN ends on a bare wire, too
}

// Reach is an address, and an R_Key that somebody has for it.
type Reach struct {
	VA   uint64
	RKey uint32
}

// request is an RC request or what looks like one.
func request(rng *rand.Rand, at Reach) (op hdr.Opcode, ext, data []byte) {
	va, rkey := at.VA+sharedAt(rng.IntN(sharedWords)), at.RKey
	switch rng.IntN(6) {
	case 0:
		return hdr.ReadRequest, RETH(va, rkey, uint32(8*rng.IntN(600))), nil
	case 1:
		return hdr.FetchAdd, AtomicETH(va, rkey, 1+uint64(rng.IntN(5)), 0), nil
	case 2:
		return hdr.CompareSwap, AtomicETH(va, rkey, rng.Uint64(), uint64(rng.IntN(3))), nil
	case 3:
		return hdr.WriteOnly, RETH(va, rkey, 0), nil
	case 4:
		return hdr.SendOnly, nil, make([]byte, 16)
	}
	return hdr.WriteOnly, RETH(va, rkey, 8), binary.LittleEndian.AppendUint64(nil, rng.Uint64())
}

// spoof makes a frame when its time has come; nil: none, since there is no victim.
func (p *play) spoof(x *Spoof, mac [6]byte, own netip.Addr) []byte {
	q := p.queues[x.Victim]
	if q.qp == nil {
		return nil
	}
	t := target{Connection: p.conns[q.Client*len(p.queues)+q.number].Connection, mac: mac, own: own, mtu: p.w.MTU}
	for _, o := range p.res.Records {
		if o.queue == q.number && o.life == q.life && o.status == rnic.Success {
			t.used++
		}
	}
	for i := range p.keys {
		t.reach = append(t.reach, Reach{p.w.Regions[i].VA, p.keys[i][len(p.keys[i])-1].rkey})
	}
	t.una, t.next = q.qp.Pending()
	t.asks = len(q.Back) > 0
	if (judge{p}).delays() {
		t.clear = q.rest()
	}
	b := x.frame(&t)
	if t.ahead {
		p.harm[q.number]++
	}
	return b
}

// rest is more PSNs than a session has still to post.
func (q *queue) rest() (n uint32) {
	for _, s := range q.Steps[q.next:] {
		n += uint32(s.Length/256) + 1
	}
	return n
}

// frame is what x sends about a connection.
func (x *Spoof) frame(c *target) []byte {
	c.ahead = x.Trick == FarAhead || x.Trick == JustAhead
	rng := rand.New(rand.NewPCG(x.Seed, 0x73706f6f66))
	at, used := c.reach[rng.IntN(len(c.reach))], c.used
	op, ext, data := request(rng, at)
	f := Packet{SrcMAC: c.mac, DstMAC: c.ServerMAC, Src: c.ClientIP, Dst: c.ServerIP, SrcPort: 0xC000 | uint16(rng.Uint32()&0x3FFF), Op: op, QPN: c.ServerQPN, PSN: c.ClientPSN, AckReq: true, Ext: ext, Payload: data}
	switch rng.IntN(4) {
	case 0:
		f.SrcMAC = c.ClientMAC
	case 1:
		f.SrcMAC = [6]byte{2, 0, 0, 0xee, byte(rng.Uint32()), byte(rng.Uint32())}
	}
	switch x.Trick {
	case Repeated, Huge, Strange, Broken, InPieces, Tagged, Answers:
		if used == 0 {
			return nil
		}
		f.PSN += rng.Uint32N(used)
	}
	switch x.Trick {
	case Close, Around, Ignored, Parts:
		return x.wide(rng, c, f, at)
	case Before:
		f.PSN -= 1 + rng.Uint32N(300)
	case FarBehind:
		f.PSN -= 1<<16 + rng.Uint32N(1<<22)
	case FarAhead:
		f.PSN += 1<<17 + rng.Uint32N(1<<22)
	case JustAhead:
		f.PSN += 4096 + rng.Uint32N(1<<15)
	case OtherSource:
		f.Src = c.own
		f.PSN += used + rng.Uint32N(2)
	case Nobody:
		f.QPN, f.PSN = 0x700000+rng.Uint32N(1<<16), rng.Uint32()
		if rng.IntN(2) == 0 {
			f.Src = anyAddr(rng, c.own)
		}
	case NoServer:
		f.Dst, f.PSN = anyAddr(rng, c.own), rng.Uint32()
		if rng.IntN(2) == 0 {
			f.DstMAC = [6]byte{2, 0, 0, 9, byte(rng.Uint32()), byte(rng.Uint32())}
		}
	case Huge:
		f.Op, f.Ext, f.Payload = hdr.WriteFirst, RETH(0, at.RKey, 1<<31), make([]byte, c.mtu)
		if rng.IntN(2) == 0 {
			f.QPN = 0x700000
		}
	case Strange:
		f.Op = []hdr.Opcode{XRC | hdr.FetchAdd, DC | hdr.CompareSwap, 0x1F, 0x40, hdr.UC | hdr.WriteOnly, hdr.UDSendOnly, hdr.MaskedFetchAdd, hdr.AtomicWrite, hdr.Flush}[rng.IntN(9)]
		f.Ext = append(make([]byte, 8), RETH(at.VA, at.RKey, 8)...)
		f.Payload = make([]byte, 24)
	case Manager:
		return manager(rng, f, &c.Connection)
	case Answers:
		if f.PSN, f.Payload = c.ServerPSN+rng.Uint32N(64), nil; c.asks {
			f.PSN -= 1 << 16
		}
		f.Op = []hdr.Opcode{hdr.Acknowledge, hdr.ReadRespOnly, hdr.AtomicAck}[rng.IntN(3)]
		f.Ext = append([]byte{[]byte{0x1F, 0x60, 0x61, 0x63, 0x2C}[rng.IntN(5)]}, make([]byte, 11)...)
		if f.Op != hdr.AtomicAck {
			f.Ext = f.Ext[:4]
		}
	case Congested:
		f.Op, f.Ext, f.Payload = hdr.CNP, nil, make([]byte, 16)
	}
	return bend(rng, x.Trick, f.Bytes(), c.own.Is6())
}

// bend does to a frame what is no packet's matter.
func bend(rng *rand.Rand, t Trick, b []byte, ipv6 bool) []byte {
	switch t {
	case Broken:
		switch rng.IntN(3) {
		case 0:
			b = b[:14+rng.IntN(len(b)-14)]
		case 1: // any byte behind the Ethernet header
			b[14+rng.IntN(len(b)-14)] ^= 1 << rng.IntN(8)
		default:
			binary.BigEndian.PutUint16(b[16:], uint16(rng.Uint32()))
		}
	case InPieces:
		if ipv6 {
			return Extended(b, []byte{0, 60}[rng.IntN(2)])
		}
		return Fragments(b, uint16(rng.Uint32()), 8*(1+rng.IntN(4)))[0]
	case Tagged:
		tag := []byte{0x81, 0, byte(rng.Uint32()), 1 + byte(rng.Uint32()%200)}
		return append(append(append([]byte(nil), b[:12]...), tag...), b[12:]...)
	}
	return b
}

// manager is a datagram of the connection manager's about a connection of others.
func manager(rng *rand.Rand, f Packet, c *Connection) []byte {
	d := hdr.DETH(make([]byte, hdr.DETHLen))
	d.SetQKey(hdr.GSIQKey)
	d.SetSrcQP(1)
	m := hdr.CM(make([]byte, hdr.MADLen))
	m.Encode(&hdr.CMFields{
		AttributeID: []hdr.CMAttr{hdr.ConnectRequest, hdr.ConnectReply, hdr.ReadyToUse, hdr.DisconnectRequest, hdr.DisconnectReply, hdr.ConnectReject}[rng.IntN(6)],
		LocalCommID: rng.Uint32N(4), RemoteCommID: rng.Uint32N(4), TransactionID: uint64(rng.IntN(4)),
		LocalQPN: c.ClientQPN, RemoteQPN: c.ServerQPN, StartingPSN: rng.Uint32() & hdr.PSNMask, PathMTU: 1024, PKey: 0xFFFF,
		LocalGID: c.ClientIP, RemoteGID: c.ServerIP, ResponderResources: uint8(rng.IntN(17)), InitiatorDepth: uint8(rng.IntN(17)),
		RetryCount: uint8(rng.IntN(8)), RNRRetryCount: uint8(rng.IntN(8)),
	})
	f.Op, f.QPN, f.PSN, f.Ext, f.Payload = hdr.UDSendOnly, 1, rng.Uint32(), d, m
	return f.Bytes()
}

// anyAddr is an address of own's family.
func anyAddr(rng *rand.Rand, own netip.Addr) netip.Addr {
	if own.Is6() {
		return netip.AddrFrom16([16]byte{0xfd, 5: byte(rng.Uint32()), 14: byte(rng.Uint32()), 15: byte(rng.Uint32())})
	}
	return netip.AddrFrom4([4]byte{10, 9, byte(rng.Uint32()), byte(rng.Uint32())})
}

// wide is what x sends in a wider world, of f.
func (x *Spoof) wide(rng *rand.Rand, c *target, f Packet, at Reach) []byte {
	close := c.next + c.clear + 1 + rng.Uint32N([]uint32{4, 20, 250, 4095}[rng.IntN(4)])
	around := c.next + 1<<23 + rng.Uint32N(4096) - 2048
	switch x.Trick {
	case Close:
		f.PSN, c.ahead = close, true
	case Around:
		f.PSN, c.ahead = around, true
	case Ignored:
		f.PSN = c.una + rng.Uint32N(c.next-c.una&hdr.PSNMask+2)
	case Parts:
		f.part(rng, at, c.mtu)
		switch place := rng.IntN(6); {
		case place == 0 && c.used > 0:
			f.PSN += (rng.Uint32N(c.used)+x.Turn)%c.used - x.Turn
		case place == 1:
			f.PSN = f.PSN - 1 - rng.Uint32N(300) - 130 // a row of them stays behind
		case place == 2:
			f.PSN -= 1<<16 + rng.Uint32N(1<<22)
		case place == 3:
			f.PSN, c.ahead = f.PSN+1<<17+rng.Uint32N(1<<22), true
		case place == 4:
			f.PSN, c.ahead = around, true
		default:
			f.PSN, c.ahead = close, true
		}
	}
	if f.PSN += x.Turn; x.Trick != Ignored {
		return f.Bytes()
	}
	return x.ignored(rng, f)
}

// ignored is frame f in such a way that the server does not look at it.
func (x *Spoof) ignored(rng *rand.Rand, f Packet) []byte {
	way := rng.IntN(4)
	if x.Counted {
		way &= 1
	}
	if way == 2 {
		f.DstMAC[5] ^= 0x40
	}
	b := f.Bytes()
	var h hdr.Frame
	if hdr.Parse(b, &h) != hdr.IsRoCE {
		return nil
	}
	switch bth := b[h.BTH:]; way {
	case 0:
		b[len(b)-1] ^= 1 // of the ICRC
		return b
	case 1:
		bth[1] |= 1 << rng.IntN(4) // the version
	case 3:
		binary.BigEndian.PutUint16(bth[2:], uint16(rng.Uint32N(0x7FFF)|rng.Uint32N(2)<<15))
	}
	hdr.SetICRC(b, &h)
	return b
}

// part makes p a part of a message.
func (p *Packet) part(rng *rand.Rand, at Reach, mtu int) {
	full := 256
	for full < mtu && rng.IntN(3) > 0 {
		full *= 2
	}
	n := full
	if rng.IntN(4) == 0 {
		n = rng.IntN(mtu)
	}
	p.Ext, p.Payload = nil, make([]byte, n)
	switch p.Op = []hdr.Opcode{hdr.WriteFirst, hdr.WriteFirst, hdr.SendFirst, hdr.WriteMiddle, hdr.SendMiddle, hdr.WriteLast, hdr.SendLast, hdr.WriteOnly, hdr.ReadRequest}[rng.IntN(9)]; p.Op {
	case hdr.WriteFirst, hdr.WriteOnly:
		p.Ext = RETH(at.VA, at.RKey, uint32(rng.IntN(8*full)))
	case hdr.ReadRequest:
		p.Ext, p.Payload = RETH(at.VA, at.RKey, rng.Uint32()>>rng.IntN(32)), nil
	}
}
