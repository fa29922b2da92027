// Package mtu is for functions that make packets longer, so that packets of the hosts beside them no longer
// fit. It makes the ICMP error that tells a host how long a packet may be, and lowers the segment size that
// TCP connections offer, so that longer segments are not sent at all.
//
//	host ──── 1500 bytes, DF ───► function   the packet would not fit, and is dropped
//	host ◄─── ICMP: 1450 bytes ── function   in the name of the packet's destination
//
// The functions are bumps on the wire and have no address on the network that the packet came from. So the
// error has the packet's destination as its source, like the answers of a bridge. The host routes to that
// address, and the error reaches the host on the same way back.
package mtu

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

var be = binary.BigEndian

// Lengths in bytes: of the longest IP datagram with an ICMP error (RFC 1812 4.3.2.3, RFC 4443 2.4 (c)), and
// the least MTU of a link (RFC 791 3.2, RFC 8200 5), below which no error names an MTU.
const (
	longest4, longest6 = 576, 1280
	least4, least6     = 68, 1280
)

// longestFrame is the length in bytes of the longest frame that TooBig writes.
const longestFrame = hdr.EthernetLen + hdr.MaxTags*hdr.VLANLen + longest6

// unreachableTooBig is the code of ICMPUnreachable for "fragmentation needed and DF set".
const unreachableTooBig = 4

// TooBig writes to dst, which has room for longestFrame bytes, the error for the sender of frame b whose
// layers l hdr.Walk found: the frame's IP datagram is longer than mtu bytes. The error is ICMP type 3 code 4
// with the next hop's MTU (RFC 1191 4), or ICMPv6 type 2 (RFC 4443 3.2). It names mtu, or the protocol's
// least MTU if mtu is less. MAC addresses are exchanged, VLAN tags stay. TooBig returns the length of the
// frame that it wrote, or 0 if there must be no error:
//
//   - The datagram is not longer than mtu (a frame can be, by padding), or not longer than the
//     protocol's least MTU.
//   - The datagram is IPv4 without DF: a router would fragment it.
//   - RFC 1812 4.3.2.7 and RFC 4443 2.4 (e) forbid the error: the datagram is an ICMP error or a
//     redirect, a fragment other than the first, from or to an address that is not a single host's, or
//     broadcast on the link. IPv6 to a multicast group gets no error either: RFC 4443 leaves it free,
//     and the error would have the group as its source.
//   - Source and destination are equal.
//   - The checksum of the IPv4 header is wrong, or the datagram's headers do not fit in it.
func TooBig(dst, b []byte, l *hdr.Layers, mtu int) int {
	six := l.EtherType == hdr.EtherIPv6
	least := least4
	if six {
		least = least6
	}
	mtu = max(mtu, least)
	if l.L4 == 0 || l.End-l.L3 <= mtu || b[0]&1 != 0 || b[6]&1 != 0 || isError(b, l) {
		return 0
	}
	copy(dst[:l.L3], b)
	copy(dst[:6], b[6:12])
	copy(dst[6:12], b[:6])
	ip, out := b[l.L3:l.End], dst[l.L3:]
	if six {
		if !oneHost6(ip[8:24]) || !oneHost6(ip[24:40]) || string(ip[8:24]) == string(ip[24:40]) {
			return 0
		}
		return l.L3 + tooBig6(out, ip, mtu)
	}
	if h := hdr.IPv4(ip); !h.DF() || !h.ChecksumOK() || !oneHost4(ip[12:16]) || !oneHost4(ip[16:20]) ||
		string(ip[12:16]) == string(ip[16:20]) {
		return 0
	}
	return l.L3 + tooBig4(out, ip, mtu)
}

// tooBig4 writes the IPv4 datagram with the error for datagram ip, and returns its length.
func tooBig4(out, ip []byte, mtu int) int {
	const front = hdr.IPv4Len + hdr.ICMPLen
	n := front + copy(out[front:longest4], ip)
	// RFC 1812 4.3.2.5: errors have precedence 6.
	hdr.IPv4(out).Encode(&hdr.IPv4Fields{TOS: 6 << 5, TotalLen: uint16(n), DF: true, TTL: 64, Protocol: hdr.ProtoICMP,
		Src: hdr.IPv4(ip).Dst(), Dst: hdr.IPv4(ip).Src()})
	h := hdr.ICMP(out[hdr.IPv4Len:n])
	be.PutUint64(h, uint64(hdr.ICMPUnreachable)<<56|unreachableTooBig<<48|uint64(mtu))
	h.SetChecksum(hdr.Checksum(h, 0))
	return n
}

// tooBig6 writes the IPv6 datagram with the error for datagram ip, and returns its length.
func tooBig6(out, ip []byte, mtu int) int {
	const front = hdr.IPv6Len + hdr.ICMPLen
	n := front + copy(out[front:longest6], ip)
	f := hdr.IPv6Fields{PayloadLen: uint16(n - hdr.IPv6Len), NextHeader: hdr.ProtoICMPv6, HopLimit: 64,
		Src: hdr.IPv6(ip).Dst(), Dst: hdr.IPv6(ip).Src()}
	hdr.IPv6(out).Encode(&f)
	h := hdr.ICMP(out[hdr.IPv6Len:n])
	be.PutUint64(h, uint64(hdr.ICMPv6TooBig)<<56|uint64(mtu))
	h.SetChecksum(hdr.Checksum(h, hdr.PseudoSum(f.Src, f.Dst, f.NextHeader, len(h))))
	return n
}

// isError reports whether a datagram is an ICMP error or a redirect, or is ICMP without a type.
func isError(b []byte, l *hdr.Layers) bool {
	switch {
	case l.Proto != hdr.ProtoICMP && l.Proto != hdr.ProtoICMPv6:
		return false
	case l.L4 >= l.End:
		return true
	case l.Proto == hdr.ProtoICMPv6:
		const redirect = 137
		return b[l.L4] < 128 || b[l.L4] == redirect
	}
	switch b[l.L4] {
	case hdr.ICMPUnreachable, 4, 5, hdr.ICMPTimeExceeded, 12: // 4: source quench, 5: redirect, 12: parameter problem
		return true
	}
	return false
}

// oneHost4 reports whether an address may be a single host's: it is not unspecified, loopback, multicast,
// broadcast or reserved.
func oneHost4(a []byte) bool { return a[0] != 0 && a[0] != 127 && a[0] < 224 }

// oneHost6 does what oneHost4 does, for IPv6.
func oneHost6(a []byte) bool {
	return a[0] != 0xFF && be.Uint64(a)|be.Uint64(a[8:])>>1 != 0
}

// A worker sends at most 100 errors in a second, perhaps all of them at once. RFC 4443 2.4 (f) and RFC 1812
// 4.3.2.8 want a limit, and leave the number to the implementer. After an error, a host tries longer packets
// again after 10 minutes at the earliest (RFC 1191 6.3). So 100 a second are enough for 60,000 pairs of hosts
// that send without end.
const (
	each  = 10 * time.Millisecond
	burst = 100
)

// Teller sends errors, within the limit. Its zero value is ready. It belongs to one worker.
type Teller struct {
	full clock.Time // when the bucket of errors is full again
}

// may takes an error out of the bucket. It returns false if the bucket is empty.
func (t *Teller) may(now clock.Time) bool {
	at := max(t.full, now)
	if at.Sub(now) > (burst-1)*each {
		return false
	}
	t.full = at.Add(each)
	return true
}

// Tell sends the sender of frame x the error of TooBig, by output out, with reason r. l are the layers of x
// that hdr.Walk found; x is not changed. Tell sends nothing if there must be no error, if the worker has
// reached its limit, or if it has no buffer.
func (t *Teller) Tell(c *graph.Ctx, x *packet.Buf, l *hdr.Layers, mtu, out int, r graph.Reason) {
	y := c.Get()
	if y == nil {
		return
	}
	b, ok := y.Append(longestFrame)
	n := 0
	if ok {
		n = TooBig(b, x.Bytes(), l, mtu)
	}
	if n == 0 || !t.may(c.Now()) {
		c.Discard(y)
		return
	}
	y.TrimBack(longestFrame - n)
	c.Mark(y, packet.Generated, r)
	c.Emit(out, y)
}

// MSS is the largest TCP segment size that a host may offer, by IP version; 0: no limit.
type MSS struct{ V4, V6 uint16 }

// leastMSS is the least value of mss=: TCP_MIN_MSS, below which Linux does not go either.
const leastMSS = 88

// Setting is the argument mss=, to be embedded in a function's settings (nf/arg).
type Setting struct {
	MSS Limit `arg:"mss" help:"largest segment that TCP may offer, in both directions: a number, or auto: what fits; larger ones are lowered"`
}

// Limit is a value of mss=: none, auto or a number.
type Limit struct {
	auto bool
	most uint16 // 0: no limit
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Limit) UnmarshalText(text []byte) error {
	switch n, err := strconv.ParseUint(string(text), 10, 16); {
	case string(text) == "none":
		*l = Limit{}
	case string(text) == "auto":
		*l = Limit{auto: true}
	case err != nil || n < leastMSS:
		return fmt.Errorf("want none, auto or a number from %d to 65535", leastMSS)
	default:
		*l = Limit{most: uint16(n)}
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (l *Limit) MarshalText() ([]byte, error) {
	switch {
	case l.auto:
		return []byte("auto"), nil
	case l.most == 0:
		return []byte("none"), nil
	}
	return strconv.AppendUint(nil, uint64(l.most), 10), nil
}

// Within returns the limit where hosts may send IP packets of at most inner bytes.
func (l Limit) Within(inner int) MSS {
	if l.auto {
		return MSS{uint16(max(inner-hdr.IPv4Len-hdr.TCPLen, leastMSS)), uint16(max(inner-hdr.IPv6Len-hdr.TCPLen, leastMSS))}
	}
	return MSS{l.most, l.most}
}

// Lower lowers the maximum segment size that frame b offers, if b is a TCP SYN that offers more than the
// limit for its IP version (RFC 9293 3.7.1), and corrects the checksum. l are the layers of b that hdr.Walk
// found. Lower reports whether it changed b. It does not change fragments.
func (m *MSS) Lower(b []byte, l *hdr.Layers) bool {
	most := m.V4
	if l.EtherType == hdr.EtherIPv6 {
		most = m.V6
	}
	return most != 0 && l.Proto == hdr.ProtoTCP && l.L4 != 0 && !l.Fragment && lower(b[l.L4:l.End], most)
}

// lower does what Lower does, for a TCP segment.
func lower(seg []byte, most uint16) (did bool) {
	h := hdr.TCP(seg)
	if len(seg) <= hdr.TCPLen || h.Flags()&hdr.TCPSyn == 0 || h.HeaderLen() > len(seg) {
		return false
	}
	const end, nop, maxSegmentSize = 0, 1, 2
	for at, n := hdr.TCPLen, h.HeaderLen(); at+4 <= n && seg[at] != end; {
		if seg[at] == nop {
			at++
			continue
		}
		size := int(seg[at+1])
		if size < 2 || at+size > n {
			return did
		}
		if was := be.Uint16(seg[at+2:]); seg[at] == maxSegmentSize && size == 4 && was > most {
			be.PutUint16(seg[at+2:], most)
			old, new := was, most
			if at%2 != 0 { // its bytes lie in two words of the sum (RFC 1071 2 B)
				old, new = bits.ReverseBytes16(old), bits.ReverseBytes16(new)
			}
			h.SetChecksum(hdr.PatchChecksum(h.Checksum(), old, new))
			did = true
		}
		at += size
	}
	return did
}

// Note returns the text that says at start which packets hosts beside a function may send.
func Note(inner, mtu int, m MSS) string {
	s := fmt.Sprintf("longest packets from port a: %d bytes (mtu=%d)", inner, mtu)
	if inner < least6 {
		s += fmt.Sprintf("; IPv6 wants %d, and its longer packets are lost", least6)
	}
	if m == (MSS{}) {
		return s + "; senders of longer ones are told by ICMP; where ICMP is filtered, give mss=auto"
	}
	return s + fmt.Sprintf("; senders of longer ones are told by ICMP; TCP segments: %d bytes over IPv4, %d over IPv6", m.V4, m.V6)
}
