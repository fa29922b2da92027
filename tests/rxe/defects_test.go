package rxe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/hdr"
)

// defects are what the guests' kernel (rxe of Linux 6.1) does wrong, also over the bare wire, and what no middlebox can have done.
type defects struct {
	// renumbered is how many requests had the PSN of another one: of another packet of a message, say. No NIC may send such.
	// rxe now and then does when it repeats on a busy machine: the first packet of the message has a PSN that is one
	// too high then, and all behind it. The server refuses that, and the connection ends.
	renumbered int
	// valueless is how many atomics and READs the server acknowledged as if they were WRITEs. rxe answers a late copy of a WRITE by an
	// acknowledgement of the last request that it has executed, also when that one needs an answer of its own. As a client
	// rxe takes this for the answer, if it comes first or alone, and completes the request without a value.
	valueless int
}

func (d defects) String() string {
	return fmt.Sprintf("%d requests had the PSN of another one, and %d atomics and READs were acknowledged without a value", d.renumbered, d.valueless)
}

// watch looks for defects in what passes.
type watch struct {
	sent map[request]hdr.Opcode
	defects
}

// request is a packet of a request, by its sender and PSN; and by its queue pair, where answers are not looked for.
type request struct {
	from netip.Addr
	qpn  uint32
	psn  uint32
}

// take looks at a frame.
func (n *watch) take(b []byte) {
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE || f.Op.Transport() != hdr.RC {
		return
	}
	h := f.BTHOf(b)
	var from, to netip.Addr
	switch f.Net {
	case hdr.NetIPv4:
		from, to = f.IPv4Of(b).Src(), f.IPv4Of(b).Dst()
	case hdr.NetIPv6:
		from, to = f.IPv6Of(b).Src(), f.IPv6Of(b).Dst()
	}
	// An answer does not name the queue pair at the server: PSNs are random, and few.
	asked := request{from: to, qpn: anyQPN, psn: h.PSN()}
	switch {
	case f.Op.Has(hdr.IsRequest):
		r := request{from: from, qpn: h.DestQP(), psn: h.PSN()}
		if was, there := n.sent[r]; there && was != f.Op {
			n.renumbered++
		}
		n.sent[r] = f.Op
		r.qpn = anyQPN
		n.sent[r] = f.Op
	case f.Op == hdr.Acknowledge && f.AETHOf(b).Syndrome().ACK():
		if op, there := n.sent[asked]; there && op.Any(hdr.IsAtomic|hdr.IsRead) {
			n.valueless++
		}
	}
}

// anyQPN is no queue pair's number: these have 24 bits.
const anyQPN = 1 << 24

// watch looks at what passes until found is called: at requests where the clients send them, and at answers where the
// server does, so that nothing is the middlebox's.
func (r *rack) watch(t *testing.T) (found func() defects) {
	t.Helper()
	clients, server := r.watchCable(t, sides[0].near), r.watchCable(t, serverTap)
	return func() defects { return defects{renumbered: clients().renumbered, valueless: server().valueless} }
}

// watchCable looks at what passes on one cable.
func (r *rack) watchCable(t *testing.T, cable string) (found func() defects) {
	t.Helper()
	const all = 3<<8 | 0 // ETH_P_ALL, in network byte order
	fd := -1
	err := r.space.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		link, err := net.InterfaceByName(cable)
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
	n := watch{sent: map[request]hdr.Opcode{}}
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
	return func() defects {
		close(end)
		done.Wait()
		_ = unix.Close(fd)
		return n.defects
	}
}

// TestDefects: a repetition is the same packet, and a packet that was another one is found; so is an acknowledgement
// of an atomic, and not one of a WRITE, or of another client's.
func TestDefects(t *testing.T) {
	n := watch{sent: map[request]hdr.Opcode{}}
	packet := func(op hdr.Opcode, psn uint32, from, to byte) []byte {
		b := make([]byte, 14+20+8+12+int(op.Info().Len)+4)
		copy(b[12:], []byte{8, 0, 0x45, 0})
		b[16], b[17] = 0, byte(len(b)-14)
		b[22], b[23] = 64, 17
		copy(b[26:], []byte{192, 0, 2, from, 192, 0, 2, to})
		copy(b[36:], []byte{0x12, 0xb7, 0, byte(len(b) - 34)})
		h := b[42:]
		h[0], h[7] = byte(op), 81
		h[9], h[10], h[11] = byte(psn>>16), byte(psn>>8), byte(psn)
		return b
	}
	for _, c := range []struct {
		op       hdr.Opcode
		psn      uint32
		from, to byte
		want     defects
	}{
		{hdr.WriteFirst, 58, 1, 2, defects{}}, {hdr.WriteMiddle, 59, 1, 2, defects{}}, {hdr.WriteFirst, 58, 1, 2, defects{}},
		{hdr.WriteFirst, 59, 1, 2, defects{1, 0}}, {hdr.Acknowledge, 59, 2, 1, defects{1, 0}}, {hdr.WriteFirst, 60, 1, 2, defects{1, 0}},
		{hdr.CompareSwap, 61, 1, 2, defects{1, 0}}, {hdr.AtomicAck, 61, 2, 1, defects{1, 0}}, {hdr.Acknowledge, 60, 2, 1, defects{1, 0}},
		{hdr.Acknowledge, 61, 2, 3, defects{1, 0}}, {hdr.Acknowledge, 61, 2, 1, defects{1, 1}},
	} {
		if n.take(packet(c.op, c.psn, c.from, c.to)); n.defects != c.want {
			t.Errorf("%v with PSN %d: found are %+v, want %+v", c.op, c.psn, n.defects, c.want)
		}
	}
}

// TestValueless: the guests' kernel completes atomics without their values over a bare wire on which WRITEs come twice and
// answers are lost; when none comes twice, it does not. Other tests leave this out of account (testCase.judged).
func TestValueless(t *testing.T) {
	if !*long {
		t.Skip("only in the long form: it takes a minute")
	}
	r := newRack(t, t, 1, 4200, false)
	for _, twice := range []bool{true, false} {
		var s fault.Schedule
		for f := 1; f < 3000; f++ {
			if twice {
				late := time.Duration(1+f*7%12) * time.Millisecond
				s = append(s, fault.Fault{Action: fault.Duplicate, Where: cables[1], Dir: fault.Up, Frame: f, By: late})
			}
			if f > 60 && f%5 == 0 {
				s = append(s, fault.Fault{Action: fault.Drop, Where: cables[1], Dir: fault.Down, Frame: f})
			}
		}
		end := r.strike(t, s)
		o := r.contend(t, "own -q 2 -n 10 -d 8 -1 -t 14")
		end()
		t.Logf("frames come twice: %v; wrong answers %q; %s", twice, o.wrong, o.defects)
		if (len(o.wrong) > 0) != twice || (o.valueless > 0) != twice {
			t.Error("want wrong answers where frames come twice, and only there")
		}
	}
}
