package rxe

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/hdr"
)

// numbering looks for requests that have the PSN of another one: of another packet of a message, say. No NIC may send such.
// Linux' rxe of 6.1 now and then does when it repeats on a busy machine: the first packet of the message has a PSN that is one
// too high then, and all behind it. The server refuses that, and the connection ends, also over the bare wire.
type numbering struct {
	sent map[request]hdr.Opcode
	bad  int
}

// request is a packet of a request, by its sender, queue pair and PSN.
type request struct {
	from netip.Addr
	qpn  uint32
	psn  uint32
}

// take looks at a frame.
func (n *numbering) take(b []byte) {
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE || f.Op.Transport() != hdr.RC || !f.Op.Has(hdr.IsRequest) {
		return
	}
	h := f.BTHOf(b)
	r := request{qpn: h.DestQP(), psn: h.PSN()}
	switch f.Net {
	case hdr.NetIPv4:
		r.from = f.IPv4Of(b).Src()
	case hdr.NetIPv6:
		r.from = f.IPv6Of(b).Src()
	}
	if was, there := n.sent[r]; there && was != f.Op {
		n.bad++
	}
	n.sent[r] = f.Op
}

// watchNumbering looks at what passes on the clients' side until count is called.
func (r *rack) watchNumbering(t *testing.T) (count func() int) {
	t.Helper()
	const all = 3<<8 | 0 // ETH_P_ALL, in network byte order
	fd := -1
	err := r.space.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		link, err := net.InterfaceByName(sides[0].near)
		if err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}))
	})
	if err != nil {
		t.Fatal(err)
	}
	n := numbering{sent: map[request]hdr.Opcode{}}
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for b := make([]byte, 1<<16); ; {
			size, _, err := unix.Recvfrom(fd, b, 0)
			if err == nil {
				n.take(b[:size])
				continue
			}
			select {
			case <-end:
				return
			default: // nothing came for a while
			}
		}
	})
	return func() int {
		close(end)
		done.Wait()
		_ = unix.Close(fd)
		return n.bad
	}
}

// TestNumbering: a repetition is the same packet, and a packet that was another one is found.
func TestNumbering(t *testing.T) {
	n := numbering{sent: map[request]hdr.Opcode{}}
	packet := func(op hdr.Opcode, psn uint32) []byte {
		b := make([]byte, 14+20+8+12+16+4)
		copy(b[12:], []byte{8, 0, 0x45, 0})
		b[16], b[17] = 0, byte(len(b)-14)
		b[22], b[23] = 64, 17
		copy(b[26:], []byte{192, 0, 2, 1, 192, 0, 2, 2})
		copy(b[36:], []byte{0x12, 0xb7, 0, byte(len(b) - 34)})
		h := b[42:]
		h[0], h[7] = byte(op), 81
		h[9], h[10], h[11] = byte(psn>>16), byte(psn>>8), byte(psn)
		return b
	}
	for _, c := range []struct {
		op  hdr.Opcode
		psn uint32
		bad int
	}{{hdr.WriteFirst, 58, 0}, {hdr.WriteMiddle, 59, 0}, {hdr.WriteFirst, 58, 0}, {hdr.WriteFirst, 59, 1}, {hdr.Acknowledge, 59, 1}, {hdr.WriteFirst, 60, 1}} {
		if n.take(packet(c.op, c.psn)); n.bad != c.bad {
			t.Errorf("%v with PSN %d: %d are found, want %d", c.op, c.psn, n.bad, c.bad)
		}
	}
}
