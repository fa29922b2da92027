package live

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// When a peer is killed its owner goes on with the newest copy of what the peer knew (pool-copy=): of connections only those
// are lost that were opened since, or while it was on its way. Without copies all are that were opened at the peer.
func TestPoolCopies(t *testing.T) {
	const (
		connections = 100
		gap         = 20 * time.Millisecond
	)
	for _, every := range []time.Duration{0, 500 * time.Millisecond} {
		b := raiseBoards(t, translated+fmt.Sprintf("      pool-copy: %v\n", every))
		b.start(0)
		b.start(1)
		b.until("peer", func() bool { return strings.Contains(b.show(0), "the same") && strings.Contains(b.show(1), "the same") })
		b.until("way there and back", func() bool { return b.ping("first") })
		b.until("frame at the peer", func() bool { return strings.Contains(b.show(0), "DAG 8 (fw -> nat): at board 1: there") })
		var conns [connections]*net.UDPConn
		var opened [connections]clock.Time
		clk := clock.NewWall()
		name := func(i int) string { return fmt.Sprintf("connection %d", i) }
		hears := func(i int, within time.Duration, text string) bool {
			if err := conns[i].SetReadDeadline(time.Now().Add(within)); err != nil {
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
			if !hears(i, time.Second, name(i)) {
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
		<-time.After(200 * time.Millisecond)
		lost, oldest := 0, time.Duration(0)
		for i := range conns {
			if !hears(i, 20*time.Millisecond, "you there?") {
				lost, oldest = lost+1, max(oldest, time.Duration(died.Sub(opened[i])))
			}
		}
		t.Logf("pool-copy=%v: of %d connections, one every %v, %d are lost; the first of these was %v old when the peer died", every, connections, gap, lost, oldest)
		if every == 0 && lost < connections/2 {
			t.Error("without copies the state at the peer outlives it")
		}
		// The peer asks its worker every 10 ms at most, and the copy has a few kilobytes.
		if most := every + 100*time.Millisecond; every > 0 && oldest > most {
			t.Errorf("one of %v is lost, want none of more than %v", oldest, most)
		}
		for i := range b.process {
			_ = b.process[i].Stop()
		}
	}
}
