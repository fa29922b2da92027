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

// The data of a stream lie in memory until the stream is complete, and only then it is known whether the
// sender has the secret. So both are bounded: for hosts without a known board, the number of open streams
// (strangers) and the bytes read of each (strangersRead), which is more than what a joining board has to say
// of 256 others (the second also holds for streams that this board opened, as a stranger may have answered);
// for hosts with known boards, the number of open streams (peers) and the bytes of all of them together
// (peersRead): those of four chains (pool.MaxState) at once. When there is no room, the oldest stream is
// closed. A board repeats what was closed.
const (
	strangers     = 32
	strangersRead = 128 << 10
	peers         = 1024
	peersRead     = 80 << 20
)

// again is the time from an error of a socket to the next try.
const again = 10 * time.Millisecond

// portTries is the number of tries to find a port that is free for both UDP and TCP.
const portTries = 10

// receiveBuffer is the size in bytes of the socket buffer that is asked for; the kernel may give less.
const receiveBuffer = 2 << 20

// transport does what memberlist's own transport does, but messages of strangers cost little: a datagram that
// does not begin like one of the pool costs nothing but its reading, any other one its own length.
type transport struct {
	tcp     *net.TCPListener
	udp     *net.UDPConn
	head    []byte // the beginning of all datagrams of the pool
	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
	once    sync.Once
	all     sync.WaitGroup
	board   func(ip net.IP) bool // whether a board is at this address
	clock   clock.Clock

	mu   sync.Mutex
	next uint64 // number of the next stream
	open map[*counted]struct{}
	held int // bytes read of all streams of peers
}

// side says which end opened a stream, and whether it is known.
type side int

const (
	ours side = iota // this board opened it; a stranger may have answered
	stranger
	peer
)

// counted is a stream in the table of open streams.
type counted struct {
	net.Conn
	t      *transport
	number uint64
	side   side
	read   int // bytes
}

var errFlood = errors.New("it sends more than who is not known may")

// listen opens an address. Port 0 stands for any free port.
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

// labelled is memberlist's type of messages that begin with a label: this byte, the label's length, and the
// label.
const labelled = 244

// now returns the time of a datagram, from which memberlist computes round-trip times.
func (t *transport) now() time.Time { return time.Unix(0, int64(t.clock.Now())) }

func (t *transport) port() int { return t.tcp.Addr().(*net.TCPAddr).Port }

// receive reads datagrams.
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

// accept accepts streams.
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

// goesOn waits a little after an error, and reports whether to try again: the error may pass, for example if
// the process is out of descriptors.
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

// whose returns the side of a stream that was accepted.
func (t *transport) whose(c net.Conn) side {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok && t.board(a.IP) {
		return peer
	}
	return stranger
}

// enter adds a stream to the table. If there are too many of its side, it closes the oldest.
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

// oldest returns the number of open streams of a side, and the one that was opened first.
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

// end closes a stream, and removes it from the table. The reader of the stream gets an error, and closes it
// again.
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

// FinalAdvertiseAddr implements memberlist.Transport: it returns the address at which other boards reach this
// one.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	ip := t.tcp.Addr().(*net.TCPAddr).IP
	if ip.IsUnspecified() {
		// The address of the interface that leads to other networks. Nothing is sent.
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

// DialTimeout implements memberlist.Transport. A stranger may answer there.
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
