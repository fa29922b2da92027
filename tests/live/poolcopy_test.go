package live

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
)

// When a peer is killed its owner goes on with the newest copy of what the peer knew (pool-copy=): of connections only those
// are lost that were opened since, or while it was on its way. Without copies all are that were opened at the peer.
func TestPoolCopies(t *testing.T) {
	if lost, connections, _ := killPeer(t, 0); lost < connections/2 {
		t.Error("without copies the state at the peer outlives it")
	}
	// The peer asks its worker every 10 ms at most, and the copy has a few kilobytes. On a
	// machine that does other work a copy may come later, but not each time.
	const every = 500 * time.Millisecond
	const most = every + 100*time.Millisecond
	var oldest time.Duration
	for range 4 {
		if _, _, oldest = killPeer(t, every); oldest <= most {
			return
		}
	}
	t.Errorf("four times one of more than %v is lost, at last of %v", most, oldest)
}

// killPeer opens connections that run at a peer, and kills it; lost are those that its
// owner does not know with copies at that distance, and oldest is how old the first of
// them was.
func killPeer(t *testing.T, every time.Duration) (lost, connections int, oldest time.Duration) {
	const gap = 20 * time.Millisecond
	connections = 80 + rand.IntN(25) // the peer is killed at any time between two copies
	b := raiseBoards(t, translated+fmt.Sprintf("      pool-copy: %v\n", every))
	b.start(0)
	b.start(1)
	b.until("peer", func() bool { return strings.Contains(b.show(0), "the same") && strings.Contains(b.show(1), "the same") })
	b.until("way there and back", func() bool { return b.ping("first") })
	b.until("frame at the peer", func() bool { return strings.Contains(b.show(0), "DAG 8 (fw -> nat): at board 1: there") })
	conns, opened := make([]*net.UDPConn, connections), make([]clock.Time, connections)
	clk := clock.NewWall()
	name := func(i int) string { return fmt.Sprintf("connection %d", i) }
	hears := func(i int, until time.Time, text string) bool {
		if err := conns[i].SetReadDeadline(until); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 2048)
		n, err := conns[i].Read(buf)
		return err == nil && string(buf[:n]) == text
	}
	tick := time.NewTicker(gap)
	for i := range conns {
		conns[i] = b.dial(b.host)
		opened[i] = clk.Now()
		if _, err := conns[i].Write([]byte(name(i))); err != nil {
			t.Fatal(err)
		}
		if !hears(i, time.Now().Add(20*time.Second), name(i)) {
			t.Fatalf("connection %d does not open: %s", i, b.show(0))
		}
		<-tick.C
	}
	tick.Stop()
	if err := b.process[1].Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	died := clk.Now()
	<-b.process[1].Done()
	b.until("board that goes on", func() bool { return b.ping("alone") })
	// The other end may speak first on connections that are known, and on no others.
	for i := range conns {
		b.mu.Lock()
		from, err := net.ResolveUDPAddr("udp4", b.sources[name(i)])
		b.mu.Unlock()
		if err == nil {
			_, err = b.echo.WriteToUDP([]byte("you there?"), from)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	late := time.Now().Add(2 * time.Second)
	for i := range conns {
		if !hears(i, late, "you there?") {
			lost, oldest = lost+1, max(oldest, time.Duration(died.Sub(opened[i])))
		}
	}
	t.Logf("pool-copy=%v: of %d connections, one every %v, %d are lost; the first of these was %v old when the peer died", every, connections, gap, lost, oldest)
	for i := range b.process {
		_ = b.process[i].Stop()
	}
	return lost, connections, oldest
}

// crowded is translated, with room for 100,000 connections of 10.1.0.0/16.
const crowded = `
          regions: {count: %d, area: 2}
          tasks:
            quiet: {kind: wire, area: 2}
            fw: {kind: firewall, args: {rules: "allow+in:a", conns: 131072, half: 131072, half-per-source: 131072, per-source: 131072}, area: 1}
            nat: {kind: napt, args: {public: 10.0.0.77+10.0.0.78+10.0.0.79, mappings: 131072}, area: 1}
          tenants: {alice: {}, bob: {}}
          dags:
            - {uid: 7, tenant: alice, run: quiet}
            - {uid: 8, tenant: bob, run: fw -> nat}
          rules:
            - {match: "src:10.0.0.99", dag: 7}
            - {match: "proto:17+src:10.0.0.2", dag: 8}
            - {match: "proto:17+src:10.1.0.0/16", dag: 8}
            - {match: "src:10.0.0.76/30", dag: 8}
`

// crowd opens connections: a datagram of each to an address that nobody has.
func (b *boards) crowd(n int) {
	b.t.Helper()
	if err := b.host.Do(func() error {
		eth, err := netlink.LinkByName("eth")
		if err != nil {
			return err
		}
		s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		f := make([]byte, 14+20+8)
		copy(f, "\x02\x00\x00\x00\x00\xfe")
		copy(f[6:], eth.Attrs().HardwareAddr)
		copy(f[12:], "\x08\x00\x45\x00\x00\x1c\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x01\x00\x00\x0a\x00\x00\xfa")
		binary.BigEndian.PutUint16(f[36:], 9)
		binary.BigEndian.PutUint16(f[38:], 8)
		for i := range n {
			f[28], f[29] = byte(i/10_000>>8), byte(1+i/10_000)
			f[24], f[25] = 0, 0
			sum := uint32(0)
			for k := 14; k < 34; k += 2 {
				sum += uint32(binary.BigEndian.Uint16(f[k:]))
			}
			sum = sum&0xffff + sum>>16
			binary.BigEndian.PutUint16(f[24:], ^uint16(sum&0xffff+sum>>16))
			binary.BigEndian.PutUint16(f[34:], uint16(2000+i%10_000))
			if err := unix.Sendto(s, f, 0, &unix.SockaddrLinklayer{Ifindex: eth.Attrs().Index}); err != nil {
				return err
			}
			if i%64 == 63 {
				<-time.After(time.Millisecond)
			}
		}
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
}

// ticks is how long a process has had processors for.
func (b *boards) ticks(i int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.process[i].PID()))
	if err != nil {
		b.t.Fatal(err)
	}
	var user, system int64
	rest := string(text[strings.LastIndexByte(string(text), ')')+2:])
	if fields := strings.Fields(rest); len(fields) < 13 {
		b.t.Fatalf("%q", text)
	} else if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		b.t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// BenchmarkPoolCopy is what copies of 100,000 connections cost the frames that run at a peer, and the peer.
func BenchmarkPoolCopy(b *testing.B) {
	for _, every := range []string{"0", "1s"} {
		b.Run("pool-copy="+every, func(b *testing.B) {
			for range b.N {
				x := raiseBoards(b, crowded+"      pool-copy: "+every+"\n")
				x.start(0)
				x.start(1)
				x.until("peer", func() bool { return strings.Contains(x.show(0), "the same") && strings.Contains(x.show(1), "the same") })
				x.until("way there and back", func() bool { return x.ping("first") })
				x.until("frame at the peer", func() bool { return strings.Contains(x.show(0), "DAG 8 (fw -> nat): at board 1: there") })
				x.crowd(100_000)
				const probes = 5000
				var took []time.Duration
				lost := 0
				clk := clock.NewWall()
				from, had := clk.Now(), x.ticks(1)
				tick := time.NewTicker(time.Millisecond)
				for i := range probes {
					at := clk.Now()
					if x.ping(fmt.Sprint("probe ", i)) {
						took = append(took, time.Duration(clk.Now().Sub(at)))
					} else {
						lost++
					}
					<-tick.C
				}
				tick.Stop()
				share := float64(x.ticks(1)-had) / float64(clk.Now().Sub(from))
				if out := x.show(1); !strings.Contains(out, "runs here") || strings.Contains(out, "could not") || strings.Contains(out, "copied") != (every != "0") {
					b.Fatalf("the peer: %s", out)
				}
				conns := 0
				for line := range strings.Lines(x.counters(1)) {
					if f := strings.Fields(line); len(f) > 3 && f[2] == "mappings" {
						_, _ = fmt.Sscan(f[3], &conns)
					}
				}
				if len(took) == 0 || conns < 95_000 {
					b.Fatalf("%d probes came back, %d connections\n%s", len(took), conns, x.counters(1))
				}
				slices.Sort(took)
				us := func(of float64) float64 { return float64(took[int(of*float64(len(took)-1))].Microseconds()) }
				b.ReportMetric(us(0.5), "p50-us")
				b.ReportMetric(us(0.99), "p99-us")
				b.ReportMetric(us(0.999), "p99.9-us")
				b.ReportMetric(us(1), "max-us")
				b.ReportMetric(100*share, "%processor")
				b.ReportMetric(float64(lost), "lost")
				for i := range x.process {
					_ = x.process[i].Stop()
				}
			}
		})
	}
}
