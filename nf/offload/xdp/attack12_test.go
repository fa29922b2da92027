package xdp

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// told12 are two boxes that are told what time it is.
func told12(t testing.TB, apps []string, args map[string]graph.Args) *world {
	s := spec(apps, args)
	return &world{TB: t, r: rand.New(rand.NewPCG(3, 4)), plain: newBoxOf(t, s, 1, 0, false), fast: newBoxOf(t, s, 1, 64, true), exact: true, at: clock.Time(time.Hour)}
}

// tcp12 is a connection with window scaling.
type tcp12 struct {
	w    *world
	mac  [2][6]byte
	addr [2][4]byte
	port [2]uint16
	next [2]uint32
	win  uint16
}

func newTCP12(w *world) *tcp12 {
	return &tcp12{w: w, mac: [2][6]byte{{2, 1, 0, 0, 0, 1}, {2, 2, 0, 0, 0, 1}}, addr: [2][4]byte{{10, 0, 0, 1}, {203, 0, 113, 1}}, port: [2]uint16{2000, 443}, next: [2]uint32{1000, 500000}, win: 500}
}

// frame is a segment from an end.
func (c *tcp12) frame(from int, seq, ack uint32, flags uint8, payload int, options []byte) []byte {
	b := append(append([]byte{}, c.mac[1-from][:]...), c.mac[from][:]...)
	b = be.AppendUint16(b, 0x0800)
	l4 := make([]byte, 20, 1500)
	l4 = append(l4, options...)
	be.PutUint16(l4, c.port[from])
	be.PutUint16(l4[2:], c.port[1-from])
	be.PutUint32(l4[4:], seq)
	be.PutUint32(l4[8:], ack)
	l4[12], l4[13] = byte(len(l4)/4)<<4, flags
	be.PutUint16(l4[14:], c.win)
	l4 = append(l4, make([]byte, payload)...)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, hdr.ProtoTCP
	be.PutUint16(ip[2:], uint16(20+len(l4)))
	copy(ip[12:], c.addr[from][:])
	copy(ip[16:], c.addr[1-from][:])
	be.PutUint16(ip[10:], hdr.Checksum(ip, 0))
	be.PutUint16(l4[16:], hdr.Checksum(l4, hdr.PseudoSum(netip.AddrFrom4(c.addr[from]), netip.AddrFrom4(c.addr[1-from]), hdr.ProtoTCP, len(l4))))
	return append(append(b, ip...), l4...)
}

// data sends payload from an end, and reports whether both boxes let it pass.
func (c *tcp12) data(from, payload int) (plain, fast bool) {
	f := c.frame(from, c.next[from], c.next[1-from], 0x10, payload, nil)
	c.next[from] += uint32(payload)
	return c.push(from, f)
}

func (c *tcp12) push(from int, f []byte) (plain, fast bool) {
	at := c.w.now()
	a, b := c.w.plain.frame(at, from, f), c.w.fast.frame(at, from, f)
	return len(a[1-from]) > 0, len(b[1-from]) > 0
}

func (c *tcp12) open() {
	scale := []byte{1, 3, 3, 7}
	c.push(0, c.frame(0, c.next[0], 0, 2, 0, scale))
	c.next[0]++
	c.push(1, c.frame(1, c.next[1], c.next[0], 0x12, 0, scale))
	c.next[1]++
	c.data(0, 0)
}

// TestAttack12TwoFirewalls: of two firewalls on a way one has not seen the connection's beginning. It does not write its numbers over the other's.
func TestAttack12TwoFirewalls(t *testing.T) {
	w := told12(t, []string{"firewall", "firewall2"}, map[string]graph.Args{
		"firewall":  {"rules": "allow+in:a", "mode": "loose", "tcp-idle": "5s"},
		"firewall2": {"rules": "allow+in:a"}})
	c := newTCP12(w)
	c.open()
	c.data(1, 100)
	w.at = w.at.Add(time.Minute) // the first firewall forgets it, and takes it up again
	for n := range 20 {
		w.at = w.at.Add(10 * time.Millisecond)
		c.data(n%2, 100)
	}
	// A SYN that somebody has made up: both firewalls let it pass, and its receiver asks back.
	c.push(1, c.frame(1, 77, 0, 2, 0, nil))
	w.at = w.at.Add(time.Second)
	for n := range 400 {
		w.at = w.at.Add(time.Millisecond)
		for range 4 { // well within the window, 64,000
			if a, b := c.data(0, 1000); a != b {
				t.Fatalf("round %d: a client's segment passes without: %v, with: %v", n, a, b)
			}
		}
		if a, b := c.data(1, 0); a != b {
			t.Fatalf("round %d: an acknowledgement passes without: %v, with: %v", n, a, b)
		}
	}
}

// TestAttack12TwoFirewallsBlind: there, one segment of a stranger who guesses nothing ends nobody's connection.
func TestAttack12TwoFirewallsBlind(t *testing.T) {
	w := told12(t, []string{"firewall2", "firewall"}, map[string]graph.Args{
		"firewall":  {"rules": "allow+in:a", "mode": "loose", "tcp-idle": "5s"},
		"firewall2": {"rules": "allow+in:a"}})
	c := newTCP12(w)
	c.open()
	c.data(1, 100)
	w.at = w.at.Add(time.Minute)
	for n := range 20 {
		w.at = w.at.Add(10 * time.Millisecond)
		c.data(n%2, 100)
	}
	// The strict firewall, behind the other one for who is outside, drops it.
	if a, b := c.push(1, c.frame(1, c.next[1]+1<<30, c.next[0], 0x10, 0, nil)); a || b {
		t.Fatalf("the stranger's segment passes: without %v, with %v", a, b)
	}
	for n := range 20 {
		w.at = w.at.Add(10 * time.Millisecond)
		if a, b := c.data((n+1)%2, 100); a != b {
			t.Fatalf("segment %d behind it, of the connection, passes without: %v, with: %v", n, a, b)
		}
	}
}
