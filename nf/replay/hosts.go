package replay

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/hdr"
)

// Hosts are the hosts of one side, by MAC address and by subnet. They show in which direction a frame went.
type Hosts struct {
	macs map[[6]byte]bool
	nets []netip.Prefix
}

// ParseHosts reads MAC addresses, IP addresses and subnets such as 10.0.0.0/24.
func ParseHosts(list []string) (*Hosts, error) {
	h := &Hosts{macs: map[[6]byte]bool{}}
	for _, v := range list {
		v = strings.TrimSpace(v)
		if mac, err := net.ParseMAC(v); err == nil && len(mac) == 6 {
			h.macs[[6]byte(mac)] = true
			continue
		}
		p, err := netip.ParsePrefix(v)
		if a, e := netip.ParseAddr(v); e == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q: want MAC addresses, IP addresses and subnets, as in 02:00:00:00:00:01,10.0.0.0/24", v)
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%s has bits behind its prefix: want %s", v, p.Masked())
		}
		h.nets = append(h.nets, p)
	}
	return h, nil
}

// Sent reports whether one of the hosts sent a frame: it has the frame's source MAC address, or the source address of
// its IP packet, or is the sender in its ARP packet.
func (h *Hosts) Sent(frame []byte) bool {
	if len(frame) < hdr.EthernetLen {
		return false
	}
	if h.macs[[6]byte(frame[6:12])] {
		return true
	}
	var l hdr.Layers
	if len(h.nets) == 0 || !hdr.Walk(frame, &l) {
		return false
	}
	const arpSender = 14 // offset of the sender's address, for Ethernet and IPv4 (RFC 826)
	var from netip.Addr
	switch p := frame[l.Net:]; {
	case l.L3 != 0 && l.EtherType == hdr.EtherIPv4:
		from = netip.AddrFrom4([4]byte(p[12:]))
	case l.L3 != 0:
		from = netip.AddrFrom16([16]byte(p[8:]))
	case l.EtherType == hdr.EtherARP && len(p) >= arpSender+4:
		from = netip.AddrFrom4([4]byte(p[arpSender:]))
	default:
		return false
	}
	return slices.ContainsFunc(h.nets, func(n netip.Prefix) bool { return n.Contains(from) })
}
