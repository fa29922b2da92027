package balance

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/turn"
)

// Values of check=: ways to check a backend.
const (
	checkNone = iota
	checkICMP
	checkTCP
	checkHTTP
)

// checks are the arguments of health checks.
type checks struct {
	check    int           `arg:"check" words:"none icmp tcp http" help:"how backends are checked: none, icmp (an echo), tcp (a connection is opened and reset) or http (a GET is answered by a status from 200 to 399)"`
	from     selves        `arg:"check-from" keep:"none" help:"IP@MAC of the box, from which checks come, or one of each family joined by +: an address that nobody else has, on the backends' segment"`
	cport    uint16        `arg:"check-port" range:"1..65535" keep:"port" help:"checked port"` // 0: port=
	path     string        `arg:"check-path" help:"of an HTTP check"`
	interval time.Duration `arg:"check-interval" range:"10ms.." help:"from the beginning of a check to that of the next"`
	timeout  time.Duration `arg:"check-timeout" range:"1ms.." help:"a check that has no answer for so long has failed; not more than check-interval"`
	rise     int           `arg:"check-rise" range:"1..255" help:"checks one after the other that have to be answered until a backend is up"`
	fall     int           `arg:"check-fall" range:"1..255" help:"checks one after the other that have to fail until it is down"`
	ondown   int           `arg:"check-down" words:"keep move" help:"connections of a backend that is found down: keep stays with it, move goes to others"`
}

var defaultChecks = checks{path: "/", interval: 2 * time.Second, timeout: time.Second, rise: 2, fall: 3}

// self is the address of the box that checks come from.
type self struct {
	addr netip.Addr
	mac  [6]byte
}

// selves are the addresses of the box for IPv4 and IPv6.
type selves [2]self

// UnmarshalText reads IP@MAC, or one of each family.
func (s *selves) UnmarshalText(text []byte) error {
	for x := range arg.Items(string(text), "+") {
		ip, mac, _ := strings.Cut(x, "@")
		a, err := arg.ParseAddr(ip)
		if err != nil {
			return err
		}
		m, err := arg.ParseMAC(mac)
		if err != nil {
			return fmt.Errorf("%q: %w", x, err)
		}
		if s[familyOf(a)].addr.IsValid() {
			return fmt.Errorf("%q: want one address of a family", text)
		}
		s[familyOf(a)] = self{a, m}
	}
	return nil
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// validChecks returns an error if the arguments of checks contradict each other.
func (s *settings) validChecks() error {
	if s.check == checkNone {
		return nil
	}
	if s.timeout > s.interval {
		return fmt.Errorf("check-timeout=%v: longer than check-interval=%v", s.timeout, s.interval)
	}
	if len(s.path) > 512 || strings.ContainsAny(s.path, " \t\r\n") || !strings.HasPrefix(s.path, "/") {
		return fmt.Errorf("check-path=%q: want a path without spaces, as /health", s.path)
	}
	for _, b := range s.backends {
		f := &s.from[familyOf(b.addr)]
		if !f.addr.IsValid() {
			return fmt.Errorf("check-from: backend %s is checked, and the box has no address of its family", b.addr)
		}
		if f.addr == b.addr || f.addr == s.vip[familyOf(b.addr)] {
			return fmt.Errorf("check-from: %s is another's", f.addr)
		}
	}
	return nil
}

// health has the checks of a balancer's backends, which its workers share. Worker 0 begins checks; the worker
// that gets an answer handles it.
type health struct {
	mu  sync.Mutex // of the map, which no frame looks at
	all map[netip.Addr]*probe
}

// of returns the check of a backend, and makes it if there is none.
func (h *health) of(a netip.Addr) *probe {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.all[a]
	if p == nil {
		p = &probe{}
		h.all[a] = p
	}
	return p
}

// keep forgets the checks of all other backends.
func (h *health) keep(backends []backend) {
	h.mu.Lock()
	defer h.mu.Unlock()
	here := map[netip.Addr]bool{}
	for i := range backends {
		here[backends[i].addr] = true
	}
	for a := range h.all {
		if !here[a] {
			delete(h.all, a)
		}
	}
}

// probe is the check of a backend.
type probe struct {
	turn   turn.Turn
	failed atomic.Bool // it is down

	phase    phase
	met      bool
	due      clock.Time // when the next check begins, or the one at hand has failed
	begun    clock.Time
	port     uint16 // ours; of ICMP, the identifier
	seq, ack uint32 // ours that comes next, and the backend's; of ICMP seq is what is echoed
	run      int    // checks one after the other that say the opposite of failed
	since    clock.Time
	why      string // how the last check ended
}

type phase uint8

const (
	idle  phase = iota
	asked       // a SYN or an echo is on its way
	sent        // a GET is
)

// moveDown is check-down=move.
const moveDown = 1

// Tick implements graph.Ticker: it begins checks, and ends checks that have failed because their time is over.
func (b *balance) Tick(c *graph.Ctx) clock.Time {
	if b.check == checkNone || b.worker != 0 {
		return c.Now().Add(time.Second) // arguments may change
	}
	const most = 32 // frames that are sent at a time
	if b.recalls {
		b.recall()
	}
	next, n, here := c.Now().Add(b.interval), 0, uint64(0)
	for i, p := range b.probes {
		if b.backends[i].state == down {
			continue
		}
		if b.backends[i].state == up && b.alive(uint16(i)) {
			here++
		}
		p.turn.Take()
		if !p.met { // they begin one after the other
			p.met, p.since, p.why = true, c.Now(), "not checked yet"
			p.due = c.Now().Add(b.interval * time.Duration(i) / time.Duration(len(b.probes)))
		}
		if p.due <= c.Now() && n < most {
			n++
			if p.phase == idle {
				b.begin(c, i, p)
			} else {
				b.ended(c, i, p, "no answer in time")
			}
		}
		next = min(next, p.due)
		p.turn.Give()
	}
	c.Set(ctrUp, here)
	if b.recalls {
		next = 0
	}
	return max(next, c.Now().Add(time.Millisecond))
}

// begin begins a check of backend i.
func (b *balance) begin(c *graph.Ctx, i int, p *probe) {
	r := c.Rand()
	p.phase, p.begun, p.due = asked, c.Now(), c.Now().Add(b.timeout)
	p.port, p.seq = 32768+uint16(r.Uint32N(28000)), r.Uint32()
	c.Count(ctrChecks, 1)
	if b.check == checkICMP {
		b.echo(c, i, p)
		return
	}
	b.segment(c, i, p, tcpSYN, nil)
	p.seq++
}

// ended ends a check. why says why it has failed; it is "" if it has not.
func (b *balance) ended(c *graph.Ctx, i int, p *probe, why string) {
	if p.phase == sent || p.phase == asked && why == "" && b.check != checkICMP {
		b.segment(c, i, p, tcpRST|tcpACK, nil)
	}
	p.phase, p.due = idle, p.begun.Add(b.interval)
	p.why = "answered"
	if why != "" {
		p.why = why
		c.Count(ctrFailed, 1)
	}
	bad := why != ""
	if bad == p.failed.Load() {
		p.run = 0
		return
	}
	if p.run++; p.run < b.rise && !bad || p.run < b.fall && bad {
		return
	}
	p.run, p.since = 0, c.Now()
	p.failed.Store(bad)
	if bad {
		c.Count(ctrDown, 1)
		b.recalls, b.recalled = b.ondown == moveDown, 0
	}
}

// answered handles a frame from the backends' side that is for the box itself. It returns false if the frame is
// not.
func (b *balance) answered(c *graph.Ctx, frame []byte, d *hdr.Layers) bool {
	if me := &b.from[0]; me.addr.IsValid() && len(frame) >= 42 && be.Uint16(frame[12:]) == hdr.EtherARP {
		return b.arp(c, frame, me)
	}
	if d.L3 == 0 || d.Fragment || d.L4 == 0 || d.VLANs() != 0 { // a priority tag is of no VLAN
		return false
	}
	family, at, n := 0, d.L3+12, 4
	if d.Family() == hdr.NetIPv6 {
		family, at, n = 1, d.L3+8, 16
	}
	me := &b.from[family]
	if !me.addr.IsValid() {
		return false
	}
	l4 := frame[d.L4:d.End]
	if family == 1 && d.Proto == hdr.ProtoICMPv6 && len(l4) >= 24 && l4[0] == hdr.ICMPv6NeighborSol {
		return b.neighbour(c, frame, d, l4, me)
	}
	to, _ := netip.AddrFromSlice(frame[at+n : at+2*n])
	if to != me.addr {
		return false
	}
	who, _ := netip.AddrFromSlice(frame[at : at+n])
	i, ok := b.byAddr[who]
	if !ok {
		return true
	}
	p := b.probes[i]
	p.turn.Take()
	defer p.turn.Give()
	switch {
	case p.phase == idle:
	case b.check == checkICMP:
		echo := hdr.ICMPEchoReply
		if family == 1 {
			echo = hdr.ICMPv6EchoReply
		}
		if (d.Proto == hdr.ProtoICMP || d.Proto == hdr.ProtoICMPv6) && len(l4) >= 12 && l4[0] == echo && be.Uint16(l4[4:]) == p.port && be.Uint32(l4[8:]) == p.seq {
			b.ended(c, int(i), p, "")
		}
	case d.Proto == hdr.ProtoTCP && len(l4) >= hdr.TCPLen:
		b.tcp(c, int(i), p, hdr.TCP(l4))
	}
	return true
}

// Flags of TCP.
const (
	tcpFIN = 1 << iota
	tcpSYN
	tcpRST
	tcpPSH
	tcpACK
)

// tcp handles a segment of a backend that is checked. The segment must acknowledge the random number that was
// sent.
func (b *balance) tcp(c *graph.Ctx, i int, p *probe, h hdr.TCP) {
	data := h.HeaderLen()
	if h.SrcPort() != b.checked() || h.DstPort() != p.port || h.Flags()&tcpACK == 0 || h.Ack() != p.seq || data < hdr.TCPLen || data > len(h) {
		return
	}
	flags := h.Flags()
	switch {
	case flags&tcpRST != 0:
		phase := p.phase
		p.phase = idle // there is nothing to reset
		if phase == asked {
			b.ended(c, i, p, "refused")
		} else {
			b.ended(c, i, p, "reset")
		}
	case p.phase == asked && flags&tcpSYN != 0:
		p.ack = h.Seq() + 1
		if b.check == checkTCP {
			b.ended(c, i, p, "")
			return
		}
		get := b.get[familyOf(b.backends[i].addr)]
		p.phase = sent
		b.segment(c, i, p, tcpACK|tcpPSH, get)
		p.seq += uint32(len(get))
	case p.phase == sent && h.Seq() == p.ack && len(h) > data:
		b.ended(c, i, p, status(h[data:]))
	}
}

// status returns what is wrong with an answer by HTTP, or "" if the check has succeeded.
func status(answer []byte) string {
	if len(answer) < len("HTTP/1.0 200") || string(answer[:7]) != "HTTP/1." || answer[8] != ' ' {
		return "no answer of HTTP/1"
	}
	code := string(answer[9:12])
	if code < "200" || code > "399" || len(answer) > 12 && answer[12] >= '0' && answer[12] <= '9' {
		return "status " + strings.ToValidUTF8(code, "?")
	}
	return ""
}

// checked returns the port that checks go to.
func (b *balance) checked() uint16 {
	if b.cport != 0 {
		return b.cport
	}
	return b.port
}

// question returns the request that an HTTP check sends to backends of a family.
func (b *balance) question(family int) []byte {
	host := netip.AddrPortFrom(b.vip[family], b.checked()).String()
	if !b.vip[family].IsValid() {
		host = "quillon"
	}
	return fmt.Appendf(nil, "GET %s HTTP/1.0\r\nHost: %s\r\nUser-Agent: quillon\r\n\r\n", b.path, host)
}

var be = binary.BigEndian
