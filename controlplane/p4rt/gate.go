package p4rt

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
)

// Types and flags of HTTP/2 frames (RFC 9113, section 6).
const (
	frameData     = 0
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4

	// settingHeaders is the setting for the longest list of headers, in bytes, that the sender of the frame
	// accepts (section 6.5.2).
	settingHeaders = 6

	flagEndStream = 0x1
	flagPadded    = 0x8

	prefaceSize = 24 // of what a client sends first (RFC 9113, section 3.4)
)

// frames finds the HTTP/2 frames in the bytes that go in one direction of a connection.
type frames struct {
	skip     int // bytes to skip before the next header
	head     [9]byte
	n        int // bytes of head that have come
	kind     byte
	stream   uint32
	end      bool // the frame is the last of its stream in this direction
	pads     bool // the next byte is the length of the padding
	left     int  // bytes of a DATA frame's content that have not come
	tailSkip int  // bytes of padding behind the content

	item [6]byte // of a SETTINGS frame: two bytes of the setting's identifier, four of its value
	at   int     // bytes of item that have come
}

// feed calls data for each piece of a DATA frame's content (last tells the last piece of a frame), other for
// every other frame, and setting, if it is not nil, for each setting of a SETTINGS frame. feed ends with the
// first error of data.
func (f *frames) feed(p []byte, data func(piece []byte, last bool) error, other func(), setting func(id uint16, v uint32)) error {
	for len(p) > 0 {
		switch {
		case f.skip > 0:
			n := min(f.skip, len(p))
			if f.kind == frameSettings && setting != nil {
				f.settings(p[:n], setting)
			}
			f.skip -= n
			p = p[n:]
		case f.pads:
			f.pads = false
			f.tailSkip = min(int(p[0]), f.left-1)
			f.left -= 1 + f.tailSkip
			p = p[1:]
			if f.left == 0 {
				f.skip, f.tailSkip = f.tailSkip, 0
				if err := data(nil, true); err != nil {
					return err
				}
			}
		case f.left > 0:
			n := min(f.left, len(p))
			f.left -= n
			if err := data(p[:n], f.left == 0); err != nil {
				return err
			}
			p = p[n:]
			if f.left == 0 {
				f.skip, f.tailSkip = f.tailSkip, 0
			}
		default:
			n := copy(f.head[f.n:], p)
			f.n += n
			p = p[n:]
			if f.n < len(f.head) {
				return nil
			}
			if err := f.header(data, other); err != nil {
				return err
			}
		}
	}
	return nil
}

// settings handles a piece of a SETTINGS frame's content.
func (f *frames) settings(p []byte, setting func(id uint16, v uint32)) {
	for len(p) > 0 {
		n := copy(f.item[f.at:], p)
		f.at += n
		p = p[n:]
		if f.at == len(f.item) {
			setting(binary.BigEndian.Uint16(f.item[:]), binary.BigEndian.Uint32(f.item[2:]))
			f.at = 0
		}
	}
}

// header handles the header of a frame: 3 bytes of length, one of type, one of flags, 4 of the stream
// identifier, big-endian.
func (f *frames) header(data func([]byte, bool) error, other func()) error {
	f.n, f.at = 0, 0
	length := int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
	flags := f.head[4]
	f.kind = f.head[3]
	f.stream = binary.BigEndian.Uint32(f.head[5:]) &^ (1 << 31)
	f.end = flags&flagEndStream != 0 && f.kind <= frameHeaders
	if f.kind != frameData {
		f.skip = length
		other()
		return nil
	}
	f.left = length
	f.pads = flags&flagPadded != 0 && length > 0
	if length == 0 {
		return data(nil, true)
	}
	return nil
}

// gate is a client's connection, above TLS if there is TLS. It reads the length of each gRPC message from the
// message's prefix before the rest of the message arrives, and ends the connection if the client may not send
// that much.
type gate struct {
	net.Conn
	c *conn

	mu       sync.Mutex
	in, out  frames
	messages map[uint32]partial // by stream: messages of which a part has come
	held     int                // the sum of their lengths, in bytes
}

// partial is a message of which a part has arrived.
type partial struct {
	head [5]byte // compressed or not, and the length, big endian
	n    int     // bytes of head that have come
	left int     // bytes behind head that have not come
	size int     // the message's part of held
}

func newGate(under net.Conn, c *conn) *gate {
	return &gate{Conn: under, c: c, in: frames{skip: prefaceSize}, messages: map[uint32]partial{}}
}

func (g *gate) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.in.feed(p[:n], g.content, g.other, g.setting); e != nil {
		g.c.expel(e)
		return 0, e
	}
	return n, err
}

// Write also follows the frames that the server sends, because the rest of a message does not arrive once the
// server has ended its stream.
func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	_ = g.out.feed(p, func([]byte, bool) error { return nil }, func() {
		if g.out.kind == frameReset || g.out.end {
			g.forget(g.out.stream)
		}
	}, nil)
	g.mu.Unlock()
	return g.Conn.Write(p)
}

// other handles a frame of the client that carries no message content.
func (g *gate) other() {
	if g.in.kind == frameReset {
		g.forget(g.in.stream)
	}
}

// setting handles a setting of the client.
func (g *gate) setting(id uint16, v uint32) {
	if id == settingHeaders {
		g.c.headers.Store(v)
	}
}

func (g *gate) forget(stream uint32) {
	g.hold(-g.messages[stream].size)
	delete(g.messages, stream)
}

// content handles a piece of the messages of a stream.
func (g *gate) content(p []byte, last bool) error {
	id := g.in.stream
	m, begun := g.messages[id]
	for len(p) > 0 {
		if m.n < len(m.head) {
			n := copy(m.head[m.n:], p)
			m.n += n
			p = p[n:]
			if m.n < len(m.head) {
				break
			}
			m.left = int(binary.BigEndian.Uint32(m.head[1:]))
			if err := g.take(&m); err != nil {
				delete(g.messages, id) // the message before has come
				return err
			}
		}
		n := min(m.left, len(p))
		m.left -= n
		p = p[n:]
		if m.left == 0 {
			g.hold(-m.size)
			m = partial{}
		}
	}
	switch {
	case last && g.in.end:
		g.hold(-m.size)
		delete(g.messages, id)
	case m.n > 0:
		if !begun && len(g.messages) >= maxHalf {
			return fmt.Errorf("%d messages have begun on one connection, and none has ended", maxHalf)
		}
		g.messages[id] = m
	case begun:
		delete(g.messages, id)
	}
	return nil
}

// take counts a message once its length is known, and returns an error if the client may not send it.
func (g *gate) take(m *partial) error {
	most, all := strangersMessage, strangersHeld
	if g.c.proven() {
		if m.left > MaxMessage {
			return nil // gRPC refuses the message itself, and ends the call
		}
		most, all = MaxMessage, provenHeld
	}
	if m.left > most {
		return fmt.Errorf("a message of %d bytes: a connection on which no controller is primary may send %d at a time; claim a role on the same connection first", m.left, most)
	}
	if g.held+m.left > all {
		return fmt.Errorf("%d bytes of messages that have not come in full, and %d more: at most %d may be under way on a connection", g.held, m.left, all)
	}
	m.size = m.left
	g.hold(m.size)
	if m.size <= strangersMessage {
		return nil
	}
	why := fmt.Errorf("more than %d bytes of messages have not come in full on connections on which its controllers are primary no more", provenHeld)
	switch out := g.c.flooded(); out {
	case nil:
	case g.c:
		return why
	default:
		out.expel(why)
	}
	return nil
}

// hold adds n to the bytes of incomplete messages; n is negative when messages have ended.
func (g *gate) hold(n int) {
	g.held += n
	g.c.held.Store(int64(g.held))
}
