package host

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// Probe asks by ARP whether another machine has an IPv4 address, before an endpoint takes the address (RFC
// 5227 2.1, with shorter times, because the other machines are in the same rack). It implements Endpoint.
//
// Every second question has as its source a MAC address that no machine has. If another machine has the
// endpoint's MAC address, too, a bridge would bring an answer to that address to the wrong machine, or drop
// it.
type Probe struct {
	ip   netip.Addr
	macs [2][6]byte
	pool *packet.Pool
	next clock.Time
	sent int
	end  clock.Time
	err  error
}

const (
	probes     = 4
	probeEvery = 50 * time.Millisecond
)

// NewProbe makes a Probe that begins at once, for an endpoint with this MAC address. seed differs from
// machine to machine.
func NewProbe(ip netip.Addr, mac [6]byte, pool *packet.Pool, now clock.Time, seed uint64) *Probe {
	other := [6]byte{2, 0x51, byte(seed >> 24), byte(seed >> 16), byte(seed >> 8), byte(seed)}
	return &Probe{ip: ip, macs: [2][6]byte{mac, other}, pool: pool, next: now, end: now.Add((probes + 1) * probeEvery)}
}

// Over reports whether the Probe has ended. The error says that another machine has the address, or probes
// for it, too.
func (p *Probe) Over(now clock.Time) (bool, error) { return p.err != nil || now >= p.end, p.err }

// Input implements Endpoint.
func (p *Probe) Input(_ clock.Time, b *packet.Buf) {
	defer b.Put()
	f := b.Bytes()
	if len(f) < hdr.EthernetLen || hdr.Ethernet(f).EtherType() != hdr.EtherARP {
		return
	}
	a := hdr.ARP(f[hdr.EthernetLen:])
	if !a.Valid() {
		return
	}
	mine := a.SHA() == p.macs[0] || a.SHA() == p.macs[1]
	asks := a.Op() == hdr.ARPRequest && a.SPA().IsUnspecified() && a.TPA() == p.ip
	if a.SPA() == p.ip || asks && !mine {
		m := a.SHA()
		p.err = fmt.Errorf("%v is another machine's address: %v has it: take another one", p.ip, net.HardwareAddr(m[:]))
	}
}

// Output implements Endpoint.
func (p *Probe) Output(now clock.Time, out *packet.Batch) {
	if now < p.next || p.sent == probes || out.Full() {
		return
	}
	b := p.pool.Get()
	if b == nil {
		return
	}
	f := make([]byte, 60)
	mac := p.macs[p.sent%2]
	e := hdr.Ethernet(f)
	e.SetDst([6]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF})
	e.SetSrc(mac)
	e.SetEtherType(hdr.EtherARP)
	hdr.ARP(f[hdr.EthernetLen:]).Encode(&hdr.ARPFields{Op: hdr.ARPRequest, SHA: mac, SPA: netip.IPv4Unspecified(), TPA: p.ip})
	b.Verdict = packet.Generated
	if !b.SetBytes(f) {
		b.Put()
		return
	}
	out.Add(b)
	p.sent++
	p.next = now.Add(probeEvery)
}

// Deadline implements Endpoint.
func (p *Probe) Deadline() clock.Time {
	if p.sent == probes {
		return p.end
	}
	return p.next
}

// Tick implements Endpoint.
func (p *Probe) Tick(clock.Time) {}
