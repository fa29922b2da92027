package xdp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/outer"
)

var chains12 = []struct {
	name string
	apps []string
	args map[string]graph.Args
	vlan int
}{
	{"firewall", []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a", "udp-idle": "300ms", "tcp-idle": "400ms", "tcp-close": "100ms"}}, 0},
	{"loose", []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a", "mode": "loose", "udp-idle": "300ms", "tcp-idle": "400ms", "tcp-close": "100ms"}}, 0},
	{"napt", []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "mac": mac, "udp-idle": "300ms", "tcp-idle": "400ms", "tcp-trans": "100ms"}}, 0},
	{"napt-port", []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "filter": "port", "udp-idle": "300ms", "tcp-idle": "400ms", "tcp-trans": "100ms"}}, 0},
	{"napt-endpoint", []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "filter": "endpoint", "udp-idle": "300ms", "tcp-idle": "400ms", "tcp-trans": "100ms"}}, 0},
	{"napt-address", []string{"napt"}, map[string]graph.Args{"napt": {"public": public + "+198.51.100.2", "filter": "address", "ports": "2000-2060", "udp-idle": "300ms", "tcp-idle": "400ms", "tcp-trans": "100ms"}}, 0},
	{"small", []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a", "conns": "16", "udp-idle": "300ms", "tcp-idle": "400ms", "tcp-close": "100ms"}}, 0},
	{"both", []string{"firewall", "napt"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a", "udp-idle": "250ms", "tcp-idle": "300ms"}, "napt": {"public": public, "mac": mac, "filter": "endpoint", "udp-idle": "350ms", "tcp-idle": "400ms"}}, 0},
	{"vxlan", []string{"vxlan"}, map[string]graph.Args{"vxlan": {"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01", "remote-mac": "02:00:00:00:00:02", "inner-tags": "keep", "offload": "on"}}, 0},
	{"tenant", []string{"firewall", "vxlan"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a", "udp-idle": "300ms", "tcp-idle": "400ms"}, "vxlan": {"tenants": "7:5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01", "remote-mac": "02:00:00:00:00:02", "offload": "on"}}, 7},
	{"tenant-only", []string{"vxlan"}, map[string]graph.Args{"vxlan": {"tenants": "7:5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01", "remote-mac": "02:00:00:00:00:02", "offload": "on", "dscp": "9", "ecn": "compatibility", "ttl": "1", "mtu": "1400", "inner-tags": "keep"}}, 7},
	{"chain", []string{"firewall", "napt", "vxlan"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a", "udp-idle": "300ms", "tcp-idle": "400ms"}, "napt": {"public": public, "mac": mac, "udp-idle": "350ms", "tcp-idle": "300ms"},
		"vxlan": {"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01", "remote-mac": "02:00:00:00:00:02"}}, 0},
}

// mutate12 changes some of a frame's headers.
func mutate12(r *rand.Rand, f []byte) []byte {
	f = slices.Clone(f)
	l2 := 0
	if len(f) > 100 && be.Uint16(f[36:]) == hdr.PortVXLAN && f[23] == 17 {
		if r.IntN(2) == 0 {
			l2 = 50
		}
	}
	l3 := l2 + 14
	if be.Uint16(f[l2+12:]) == 0x8100 {
		l3 += 4
	}
	six := f[l3]>>4 == 6
	l4 := l3 + 20
	if six {
		l4 = l3 + 40
	}
	ip := f[l3:]
	at := func(i int) { f[i] ^= 1 << r.IntN(8) }
	fix := func() {
		if !six && r.IntN(4) > 0 && l3+20 <= len(f) && int(ip[0]&15) == 5 {
			hdr.IPv4(f[l3:]).UpdateChecksum()
		}
	}
	switch r.IntN(20) {
	case 0:
		at(r.IntN(min(len(f), l4+20)))
	case 1:
		at(l3 + r.IntN(l4-l3))
		fix()
	case 2:
		at(l4 + r.IntN(min(20, len(f)-l4)))
	case 3: // total length
		d := 2
		if six {
			d = 4
		}
		be.PutUint16(ip[d:], uint16(int(be.Uint16(ip[d:]))+r.IntN(80)-40))
		fix()
	case 4: // UDP length
		be.PutUint16(f[l4+4:], uint16(int(be.Uint16(f[l4+4:]))+r.IntN(80)-40))
	case 5: // cut
		f = f[:max(14, len(f)-r.IntN(60))]
	case 6:
		for range 1 + r.IntN(80) {
			f = append(f, byte(r.Uint32()))
		}
	case 7:
		if six {
			ip[7] = byte(r.IntN(2))
		} else {
			ip[8] = byte(r.IntN(2))
			fix()
		}
	case 8:
		if !six {
			ip[6] = []byte{0x80, 0x40, 0xC0, 0x20}[r.IntN(4)]
			fix()
		}
	case 9:
		if !six {
			be.PutUint16(ip[10:], []uint16{0, 0xFFFF}[r.IntN(2)])
		}
	case 10: // checksums of the transport
		o := 6
		if ip[9] == 6 && !six || six && ip[6] == 6 {
			o = 16
		}
		if l4+o+2 <= len(f) {
			be.PutUint16(f[l4+o:], []uint16{0, 0xFFFF, uint16(r.Uint32())}[r.IntN(3)])
		}
	case 11: // a tag
		tpid := []uint32{0x8100, 0x88A8}[r.IntN(2)]
		f = slices.Insert(f, l2+12, be.AppendUint32(nil, tpid<<16|uint32([]int{0, 7, 8, 4095}[r.IntN(4)])|uint32(r.IntN(8))<<13)...)
	case 12:
		at(l2 + r.IntN(12))
	case 13: // TCP header length
		if l4+13 < len(f) {
			f[l4+12] = byte(r.IntN(16)) << 4
		}
	case 14:
		if l4+13 < len(f) {
			f[l4+13] = byte(r.IntN(256))
		}
	case 15:
		if l4+16 < len(f) {
			be.PutUint16(f[l4+14:], []uint16{0, 1, 0xFFFF}[r.IntN(3)])
		}
	case 16: // TOS
		if six {
			be.PutUint16(ip, 0x6000|uint16(r.IntN(4096)))
		} else {
			ip[1] = byte(r.IntN(256))
			fix()
		}
	case 17: // urgent
		if l4+20 <= len(f) {
			f[l4+13] |= 0x20
			be.PutUint16(f[l4+18:], uint16(r.IntN(200)))
		}
	case 18: // sequence number a little out of what was
		if l4+8 <= len(f) {
			be.PutUint32(f[l4+4:], be.Uint32(f[l4+4:])+uint32(r.IntN(200000))-100000)
		}
	case 19: // and acknowledgement
		if l4+12 <= len(f) {
			be.PutUint32(f[l4+8:], be.Uint32(f[l4+8:])+uint32(r.IntN(200000))-100000)
		}
	}
	return f
}

// compare12 is compare, but for what is forgotten within the next 20 ms, as the kernel's clock is coarse.
func (w *world) compare12() {
	w.Helper()
	at := w.now()
	_, na := w.plain.state(at)
	_, nb := w.fast.state(at)
	for name, n := range na {
		if m := nb[name]; m != n && !hasSuffix(name, " calls", " sampled-ns", " sampled-packets", " counter connections", " counter mappings", " counter timed-out", " counter new-mappings", " counter opened") {
			w.Errorf("frame %d: %s is %d without, %d with", w.frames, name, n, m)
		}
	}
	if w.Failed() {
		w.FailNow()
	}
}

// TestAttack12Fuzz: headers of flows that are run, changed at random, and times close to those at which flows are forgotten.
func TestAttack12Fuzz(t *testing.T) {
	from, seeds, workers := 1, 1, 1
	if n, err := strconv.Atoi(os.Getenv("QUILLON_SEED")); err == nil {
		from, workers = n, 1+n%2
	}
	for seed := from; seed < from+seeds; seed++ {
		for _, c := range chains12 {
			t.Run(fmt.Sprint(c.name, seed), func(t *testing.T) {
				s := spec(c.apps, c.args)
				w := &world{TB: t, r: rand.New(rand.NewPCG(uint64(seed), 2)), plain: newBoxOf(t, s, workers, 0, false), fast: newBoxOf(t, s, workers, 256, true), at: clock.Time(time.Hour), sixth: 4}
				if _, ok := c.args["vxlan"]; ok {
					w.vni = 5000
					w.tunnel = outer.New(outer.Config{LocalMAC: [6]byte{2, 0, 0, 0, 0, 2}, RemoteMAC: [6]byte{2, 0, 0, 0, 0, 1}, Local: netip.MustParseAddr("192.0.2.2"),
						Remote: netip.MustParseAddr("192.0.2.1"), TTL: 64, Proto: hdr.ProtoUDP, Port: hdr.PortVXLAN})
				}
				w.exact = true
				n := 0
				fresh := func() *conversation {
					x := w.conversation(n)
					n++
					if c.vlan != 0 {
						x.vlan = c.vlan
					}
					return x
				}
				for range 12 {
					w.all = append(w.all, fresh())
				}
				for k := range 6000 {
					i := w.r.IntN(len(w.all))
					if w.r.IntN(100) == 0 {
						w.all[i] = fresh()
					}
					x := w.all[i]
					if w.r.IntN(300) == 0 {
						w.at = w.at.Add(time.Duration(w.r.IntN(112)) * 4 * time.Millisecond)
					} else {
						w.at = w.at.Add(time.Duration(w.r.IntN(2)) * 4 * time.Millisecond) // ticks of the kernel's clock
					}
					w.fast.tell(w.at)
					w.plain.breathe(w.at) // both forget at the same times
					w.fast.breathe(w.at)
					switch w.r.IntN(6) {
					case 0:
						from := w.r.IntN(2)
						if from == 1 && x.public == [4]byte{} {
							continue
						}
						y := *x
						f := w.attackFrame(&y, from, func(d *datagram) { d.six = x.six; d.payload = w.r.IntN(60) })
						if from == 1 && c.vlan != 0 { // without its tag inside
							f = append(f[:12:12], f[16:]...)
						}
						if from == 1 {
							f = w.into(f, 0)
						}
						w.push(from, mutate12(w.r, f))
					case 1:
						if w.r.IntN(4) == 0 {
							w.odd(x)
						}
					default:
						v := x.vlan
						if x.step++; x.proto == hdr.ProtoTCP && x.step <= 3 {
							x.step--
							if x.step%2 == 1 && c.vlan != 0 {
								x.vlan = -1
							}
							w.goOn(x)
							x.vlan = v
						} else {
							from := w.r.IntN(2)
							if from == 1 && c.vlan != 0 {
								x.vlan = -1
							}
							w.send(x, from, nil)
							x.vlan = v
						}
					}
					if k%700 == 699 && c.vlan == 0 {
						w.set(c.apps)
					}
					if k%200 == 199 {
						w.compare12()
					}
				}
				r, _ := w.fast.inst.Ahead()
				t.Logf("%d frames, %d run in front: %v %v", w.frames, w.fast.ran, r.Outcomes, r.Decisions)
			})
		}
	}
}
