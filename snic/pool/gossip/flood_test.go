package gossip

import (
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/pool"
)

// begins is how a message of the pool begins.
func begins() []byte {
	return append([]byte{labelled, byte(len(poolLabel))}, poolLabel...)
}

// flood opens streams from an address where no board is, says that a long message comes on each, and sends most of it.
func flood(to string, streams, each int) (all []net.Conn) {
	const encrypted = 10 // memberlist's type of a message; its length follows
	head := append(begins(), encrypted, byte(each>>24), byte(each>>16), byte(each>>8), byte(each))
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	ready := make(chan net.Conn)
	for range streams {
		go func() {
			c, err := d.Dial("tcp", to)
			if err == nil {
				_ = c.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = c.Write(append(head, make([]byte, each-1)...))
			}
			ready <- c
		}()
	}
	for range streams {
		if c := <-ready; c != nil {
			all = append(all, c)
		}
	}
	return all
}

// TestStrangersStreams: senders without the secret open streams, and send on them the beginnings of long
// messages. Meanwhile boards join and exchange long messages.
func TestStrangersStreams(t *testing.T) {
	a := start(t, 0)
	all := flood(a.Addr(), 2*strangers, 4<<20)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				for _, c := range all {
					_ = c.Close()
				}
				all = flood(a.Addr(), strangers, 64<<10)
			}
		}
	}()
	b := start(t, 1, a.Addr())
	a.knows(1)
	a.Do(func(n *pool.Node, now clock.Time) {
		if err := n.Want(now, 1, 0, 1e6); err != nil {
			t.Error(err)
		}
	})
	a.kind(pool.Redirect)
	a.Do(func(n *pool.Node, _ clock.Time) { n.Freed(1) })
	a.kind(pool.Return)
	a.Do(func(n *pool.Node, now clock.Time) { n.Local(now, 1) })
	if e := a.kind(pool.Resume); e.Lost || string(e.State) != state {
		t.Errorf("%d bytes of state, lost %v", len(e.State), e.Lost)
	}
	close(stop)
	<-stopped
	for _, c := range all {
		_ = c.Close()
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestStrangersDatagrams: a stranger's datagram costs no more memory than it is long.
func TestStrangersDatagrams(t *testing.T) {
	a := start(t, 0)
	for _, c := range []struct {
		what string
		p    []byte
	}{{"noise", []byte("x")}, {"what begins as a message", append(begins(), make([]byte, 40)...)}} {
		out, err := net.Dial("udp", a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		const n = 20_000
		before := allocated()
		for i := range n {
			_, _ = out.Write(c.p)
			if i%100 == 99 {
				time.Sleep(time.Millisecond) // that the kernel need not drop them
			}
		}
		_ = out.Close()
		if each := (allocated() - before) / n; each > 4096 {
			t.Errorf("%s: %d bytes are allocated for a datagram", c.what, each)
		}
	}
}

// opened is a transport with so many streams of a side, on each of which so much was read, and the ends of these.
func opened(t *testing.T, of side, streams, each int) (tr *transport, ends []*counted) {
	t.Helper()
	tr, err := listen(net.IPv4(127, 0, 0, 1), 0, "test", clock.NewWall(), func(net.IP) bool { return of == peer })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Shutdown() })
	into, all := make([]byte, 64<<10), make([]byte, each)
	for range streams {
		c, err := net.Dial("tcp", tr.tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		s := (<-tr.streams).(*counted)
		ends = append(ends, s)
		go func() { _, _ = c.Write(all) }()
		for got := 0; got < each; {
			n, err := s.Read(into)
			if got += n; err != nil {
				t.Fatal(err)
			}
		}
	}
	return tr, ends
}

// stay checks which streams were not ended.
func stay(t *testing.T, tr *transport, ends []*counted, from int) {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for n, s := range ends {
		if _, there := tr.open[s]; there != (n >= from) {
			t.Errorf("stream %d is there: %v", n, there)
		}
	}
}

// TestStrangersTable: so many streams of strangers are read, and so much of each.
func TestStrangersTable(t *testing.T) {
	tr, ends := opened(t, stranger, strangers+3, strangersRead)
	stay(t, tr, ends, 3)
	c, err := net.Dial("tcp", tr.tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := <-tr.streams
	go func() {
		_, _ = c.Write(make([]byte, strangersRead+1))
		_ = c.Close()
	}()
	if n, err := io.Copy(io.Discard, s); !errors.Is(err, errFlood) || n > strangersRead {
		t.Errorf("%d bytes are read, %v", n, err)
	}
}

// TestPeersTable: streams from hosts where boards are hold so many bytes together; the oldest has to go.
func TestPeersTable(t *testing.T) {
	const each = peersRead/4 + 1
	tr, ends := opened(t, peer, 4, each)
	stay(t, tr, ends, 1)
	holds := func(bytes, streams int) {
		t.Helper()
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if tr.held != bytes || len(tr.open) != streams {
			t.Errorf("%d bytes of %d streams are held, want %d of %d", tr.held, len(tr.open), bytes, streams)
		}
	}
	holds(3*each, 3)
	for _, s := range ends {
		_ = s.Close()
	}
	holds(0, 0)
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
