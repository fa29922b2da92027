package gossip

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/quillon/quillon/nf/clock"
)

// What is under way on streams lies in memory until all of it is there, and only then it is known whether the sender has
// the secret. Of a host where no board is so many streams are read at a time, and so many bytes of each: what a board
// that joins has to say of 256 others is less. Of hosts where boards are it is so many streams and so many bytes in all:
// those of four chains (pool.MaxState) at once. Where there is no room the oldest stream has to go, and is repeated
// if it was a board's.
const (
	strangers     = 32
	strangersRead = 128 << 10
	peers         = 1024
	peersRead     = 80 << 20
)

// again is how long after an error of a socket the next try is.
const again = 10 * time.Millisecond

// portTries is how often a port is looked for that is free for UDP and TCP.
const portTries = 10

// receiveBuffer is what the kernel is asked to hold of datagrams that have come; it may give less.
const receiveBuffer = 2 << 20

// transport is memberlist's, but what strangers send costs little: a datagram that does not begin as one of the pool
// nothing, others their own length.
type transport struct {
	tcp     *net.TCPListener
	udp     *net.UDPConn
	head    []byte // of all that the pool sends
	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
	once    sync.Once
	all     sync.WaitGroup
	board   func(ip net.IP) bool // there is one
	clock   clock.Clock

	mu   sync.Mutex
	next uint64 // number of the next stream
	open map[*counted]struct{}
	held int // bytes, of all peers' streams
}

// side is who has opened a stream.
type side int

const (
	ours side = iota // this board, and a stranger may answer
	stranger
	peer
)

// counted is a stream in the table of those that are open.
type counted struct {
	net.Conn
	t      *transport
	number uint64
	side   side
	read   int // bytes
}

var errFlood = errors.New("it sends more than who is not known may")

// listen opens an address; port 0: any that is free.
func listen(ip net.IP, port int, label string, clk clock.Clock, board func(net.IP) bool) (_ *transport, err error) {
	t := &transport{head: append([]byte{labelled, byte(len(label))}, label...), board: board, clock: clk, open: map[*counted]struct{}{},
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), done: make(chan struct{})}
	for try := 0; ; try++ {
		if t.tcp, err = net.ListenTCP("tcp", &net.TCPAddr{IP: ip, Port: port}); err != nil {
			return nil, err
		}
		if t.udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: ip, Port: t.port()}); err == nil {
			break
		}
		_ = t.tcp.Close()
		if port != 0 || try == portTries {
			return nil, err
		}
	}
	_ = t.udp.SetReadBuffer(receiveBuffer)
	t.all.Go(t.receive)
	t.all.Go(t.accept)
	return t, nil
}

// labelled is memberlist's type of a message that begins with a label, behind its length.
const labelled = 244

// now is when a datagram went or came, for memberlist's round-trip times.
func (t *transport) now() time.Time { return time.Unix(0, int64(t.clock.Now())) }

func (t *transport) port() int { return t.tcp.Addr().(*net.TCPAddr).Port }

// receive takes datagrams.
func (t *transport) receive() {
	p := make([]byte, 1<<16)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(p)
		if err != nil {
			if !t.goesOn(err) {
				return
			}
			continue
		}
		if !bytes.HasPrefix(p[:n], t.head) {
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: bytes.Clone(p[:n]), From: net.UDPAddrFromAddrPort(from), Timestamp: t.now()}:
		case <-t.done:
			return
		}
	}
}

// accept takes streams.
func (t *transport) accept() {
	for {
		c, err := t.tcp.Accept()
		if err != nil {
			if !t.goesOn(err) {
				return
			}
			continue
		}
		select {
		case t.streams <- t.enter(c, t.whose(c)):
		case <-t.done:
			_ = c.Close()
			return
		}
	}
}

// goesOn waits a little after an error, and reports that it may get better: as when the process is out of descriptors.
func (t *transport) goesOn(err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	select {
	case <-t.done:
		return false
	case <-time.After(again):
		return true
	}
}

// whose is who has opened a stream that comes in.
func (t *transport) whose(c net.Conn) side {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok && t.board(a.IP) {
		return peer
	}
	return stranger
}

// enter takes a stream into the table.
func (t *transport) enter(c net.Conn, from side) *counted {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &counted{Conn: c, t: t, side: from, number: t.next}
	t.next++
	t.open[s] = struct{}{}
	if n, out := t.oldest(from); from == stranger && n > strangers || from == peer && n > peers {
		t.end(out)
	}
	return s
}

// oldest is how many streams of a side are open, and which of them was opened first.
func (t *transport) oldest(of side) (n int, first *counted) {
	for s := range t.open {
		if s.side != of {
			continue
		}
		if n++; first == nil || s.number < first.number {
			first = s
		}
	}
	return n, first
}

// end hangs up. Who reads from the stream is told, and closes it once more.
func (t *transport) end(s *counted) {
	if _, there := t.open[s]; there {
		delete(t.open, s)
		if s.side == peer {
			t.held -= s.read
		}
	}
	_ = s.Conn.Close()
}

func (s *counted) Close() error {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.end(s)
	return nil
}

func (s *counted) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if _, there := s.t.open[s]; !there {
		return n, err
	}
	s.read += n
	if s.side != peer {
		if s.read > strangersRead {
			return 0, errFlood
		}
		return n, err
	}
	for s.t.held += n; s.t.held > peersRead; {
		_, out := s.t.oldest(peer)
		s.t.end(out)
	}
	return n, err
}

// FinalAdvertiseAddr implements memberlist.Transport: it is where others reach this board.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	ip := t.tcp.Addr().(*net.TCPAddr).IP
	if ip.IsUnspecified() {
		// The address of the interface that other networks are reached by. Nothing is sent.
		c, err := net.Dial("udp4", "192.0.2.1:9")
		if err != nil {
			return nil, 0, fmt.Errorf("listening on all addresses: none of them can be told to others: %w", err)
		}
		ip = c.LocalAddr().(*net.UDPAddr).IP
		_ = c.Close()
	}
	if v4 := ip.To4(); v4 != nil {
		ip = v4
	}
	return ip, t.port(), nil
}

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	a, err := net.ResolveUDPAddr("udp", addr)
	if err == nil {
		_, err = t.udp.WriteTo(b, a)
	}
	return t.now(), err
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// DialTimeout implements memberlist.Transport. Who answers there may be a stranger, too.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return nil, err
	}
	return t.enter(c, ours), nil
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	var err error
	t.once.Do(func() {
		close(t.done)
		err = errors.Join(t.tcp.Close(), t.udp.Close())
		t.all.Wait()
	})
	return err
}
