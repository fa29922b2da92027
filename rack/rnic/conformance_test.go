package rnic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// The captures of Linux rxe (kernel 6.1) and of ConnectX-5 are played into a NIC in the place of one of the
// two sides. The frames that this NIC sends must be those of the real NIC, byte for byte.

type captured struct {
	p    []byte
	f    hdr.Frame
	at   clock.Time
	psn  uint32
	dest uint32
	good bool
}

func (c *captured) request() bool { return c.f.Op.Has(hdr.IsRequest) }

func (c *captured) srcIP() netip.Addr {
	if c.f.Net == hdr.NetIPv4 {
		return netip.AddrFrom4([4]byte(c.p[c.f.L3+12:]))
	}
	return netip.AddrFrom16([16]byte(c.p[c.f.L3+8:]))
}

func (c *captured) destIP() netip.Addr {
	if c.f.Net == hdr.NetIPv4 {
		return netip.AddrFrom4([4]byte(c.p[c.f.L3+16:]))
	}
	return netip.AddrFrom16([16]byte(c.p[c.f.L3+24:]))
}

func (c *captured) port() uint16 { return binary.BigEndian.Uint16(c.p[c.f.L4:]) }

func (c *captured) String() string {
	s := fmt.Sprintf("%v psn %06x", c.f.Op, c.psn)
	if c.f.Op.Info().Ext&hdr.HasAETH != 0 {
		a := c.f.AETHOf(c.p)
		s += fmt.Sprintf(" syndrome %02x msn %d", uint8(a.Syndrome()), a.MSN())
	}
	return s
}

func parsed(p []byte, at clock.Time) *captured {
	c := &captured{p: p, at: at}
	if hdr.Parse(p, &c.f) != hdr.IsRoCE {
		return nil
	}
	h := c.f.BTHOf(p)
	c.psn, c.dest = h.PSN(), h.DestQP()
	c.good = hdr.ICRC(p, &c.f) == hdr.StoredICRC(p, &c.f)
	return c
}

// capture reads the RoCE frames of connections (no management datagrams) of one of the golden captures.
func capture(t *testing.T, name string) []*captured {
	t.Helper()
	f, err := os.Open("../../tests/pcap/" + name + ".pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []*captured
	for {
		p, ci, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		c := parsed(p, clock.Time(ci.Timestamp.UnixNano()))
		if c == nil {
			t.Fatalf("frame %d of %s is not RoCE", len(out)+1, name)
		}
		if c.dest > 1 {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s is empty", name)
	}
	return out
}

// connection is a pair of queue pairs in a capture.
type connection struct {
	port              uint16 // of the server's frames
	clientQPN, srvQPN uint32
	clientPSN         uint32
	clientIP, srvIP   netip.Addr
	clientMAC, srvMAC [6]byte
}

// connections finds the pairs: by the client's number where a log tells the server's number, otherwise by
// their UDP source port.
func connections(fs []*captured, server map[uint32]uint32) []*connection {
	var out []*connection
	byServer := map[uint32]*connection{}
	byPort := map[uint16]*connection{}
	for _, c := range fs {
		if c.request() {
			if byServer[c.dest] == nil {
				k := &connection{port: c.port(), srvQPN: c.dest, clientPSN: c.psn, clientIP: c.srcIP(), srvIP: c.destIP()}
				k.clientMAC, k.srvMAC = [6]byte(c.p[6:12]), [6]byte(c.p[:6])
				byServer[c.dest], byPort[c.port()] = k, k
				out = append(out, k)
			}
			continue
		}
		k := byPort[c.port()]
		if server != nil {
			k = byServer[server[c.dest]]
		}
		k.clientQPN, k.port = c.dest, c.port()
	}
	return out
}

// logged takes QPNs, PSNs and the server's region from the log that belongs to a capture of rxe.
func logged(t *testing.T, name string) (psn, server map[uint32]uint32, va, size uint64, key, readOnly uint32) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	psn, server = map[uint32]uint32{}, map[uint32]uint32{}
	for line := range strings.Lines(string(b)) {
		var i int
		var cq, cp, sq, sp uint32
		if _, err := fmt.Sscanf(line, "client: raddr=0x%x rlen=%d rkey=0x%x rkey_ro=0x%x", &va, &size, &key, &readOnly); err == nil {
			continue
		}
		if _, err := fmt.Sscanf(line, "qp %d: client qpn=0x%x psn=0x%x  server qpn=0x%x psn=0x%x", &i, &cq, &cp, &sq, &sp); err == nil {
			psn[cq], psn[sq], server[cq] = cp, sp, sq
		}
	}
	if size == 0 || len(psn) == 0 {
		t.Fatalf("%s: incomplete", name)
	}
	return psn, server, va, size, key, readOnly
}

// sparse is the memory of a captured server: a few regions in one address space. Contents from before the
// capture are learned from its first answers.
type sparse struct {
	va  uint64
	mem []byte
	set []bool
}

func (s *sparse) learn(va uint64, b []byte) {
	for i, x := range b {
		at := va + uint64(i) - s.va
		if at < uint64(len(s.mem)) && !s.set[at] {
			s.mem[at], s.set[at] = x, true
		}
	}
}

func (s *sparse) know(va uint64, n int) {
	for i := range uint64(n) {
		if at := va + i - s.va; at < uint64(len(s.set)) {
			s.set[at] = true
		}
	}
}

func newSparse(va, size uint64) *sparse {
	return &sparse{va: va, mem: make([]byte, size), set: make([]bool, size)}
}

// server plays the requests of a capture into a NIC in the server's place.
func playServer(t *testing.T, fs []*captured, profile Profile, regions map[uint32]*sparse, readOnly uint32, psn, server map[uint32]uint32) *NIC {
	t.Helper()
	conns := connections(fs, server)
	first := conns[0].srvQPN
	for _, k := range conns {
		first = min(first, k.srvQPN)
	}
	pool, err := packet.NewPool(64, 4096, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(Config{MAC: conns[0].srvMAC, IP: conns[0].srvIP, Profile: profile, FirstQPN: first, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	pd, cq := n.AllocPD(), n.CreateCQ(4096)
	for key, m := range regions {
		a := allFlag
		if key == readOnly {
			a = LocalWrite | RemoteRead
		}
		if _, err := pd.regMR(m.mem, m.va, a, key); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range conns {
		q, err := n.createQP(QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, Access: allFlag}, k.srvQPN)
		if err != nil {
			t.Fatal(err)
		}
		timer := 12
		for _, c := range fs {
			if !c.request() && c.dest == k.clientQPN && c.f.Op == hdr.Acknowledge {
				if s := c.f.AETHOf(c.p).Syndrome(); s.RNR() {
					timer = int(s & 31)
				}
			}
		}
		if err := q.Connect(Conn{RemoteMAC: k.clientMAC, RemoteIP: k.clientIP, DestQPN: k.clientQPN, PathMTU: 1024, RQPSN: k.clientPSN, SQPSN: psn[k.srvQPN], MinRNRTimer: timer}); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range conns {
		// If the connection manager made a connection, or it has a flow label, its UDP port is not derived
		// from the queue pairs' numbers.
		m := &n.QP(k.srvQPN).tmpl
		binary.BigEndian.PutUint16(m.head[m.frame.L4:], k.port)
	}
	// Each connection's answers in order: requests of a connection that are served later do not delay another
	// connection's answers.
	answers := map[uint32][]*captured{}
	for _, c := range fs {
		if !c.request() {
			answers[c.dest] = append(answers[c.dest], c)
		}
	}
	client := map[uint32]uint32{}
	for _, k := range conns {
		client[k.srvQPN] = k.clientQPN
	}
	compared := 0
	var out packet.Batch
	for i, c := range fs {
		if !c.request() {
			continue
		}
		peer := client[c.dest]
		next := answers[peer]
		if c.f.Op.Has(hdr.IsSend) && len(next) > 0 && next[0].psn == c.psn && next[0].f.AETHOf(next[0].p).Syndrome().ACK() {
			if err := n.QP(c.dest).PostRecv(&RecvWR{Buf: make([]byte, 4096)}); err != nil {
				t.Fatal(err)
			}
		}
		teach(c, next, regions)
		b := pool.Get()
		b.SetBytes(c.p)
		n.Input(c.at, b)
		if i+1 < len(fs) && fs[i+1].request() && profile == ConnectX {
			continue // a real NIC was still busy, and order between queue pairs matters
		}
		for n.rspQ.head != nil {
			peer := n.rspQ.head.conn.DestQPN
			if len(answers[peer]) > 0 {
				n.ipID = binary.BigEndian.Uint16(answers[peer][0].p[18:])
			}
			// One frame at a time, so that each gets the captured IP id.
			for out.Room() > 1 {
				out.Add(nil)
			}
			n.Output(c.at, &out)
			b := out.At(packet.MaxBatch - 1)
			out.Reset()
			got := parsed(bytes.Clone(b.Bytes()), 0)
			b.Put()
			if len(answers[peer]) == 0 {
				t.Fatalf("request %d %v: answer %v, none captured", i+1, c, got)
			}
			want := answers[peer][0]
			answers[peer] = answers[peer][1:]
			if !bytes.Equal(got.p, want.p) {
				t.Fatalf("request %d %v:\n got %v\n%x\nwant %v\n%x", i+1, c, got, got.p, want, want.p)
			}
			compared++
		}
	}
	for _, a := range answers {
		if len(a) > 0 {
			t.Errorf("%d answers were not given, the first is %v", len(a), a[0])
		}
	}
	if pool.InUse() != 0 {
		t.Errorf("%d frames were not given back", pool.InUse())
	}
	if compared == 0 {
		t.Error("nothing was compared")
	}
	return n
}

// teach fills memory that a READ or atomic needs and that no earlier request of the capture wrote. It takes
// the contents from the answers that follow.
func teach(c *captured, next []*captured, regions map[uint32]*sparse) {
	switch {
	case c.f.Op.Has(hdr.IsWrite) && c.f.Op.Info().Ext&hdr.HasRETH != 0:
		h := c.f.RETHOf(c.p)
		if m := regions[h.RKey()]; m != nil {
			m.know(h.VA(), int(h.DMALength()))
		}
	case c.f.Op == hdr.ReadRequest:
		h := c.f.RETHOf(c.p)
		m := regions[h.RKey()]
		for _, a := range next {
			d := hdr.PSNDiff(a.psn, c.psn)
			if m != nil && a.f.Op.Has(hdr.IsReadResp) && d >= 0 && uint32(d)*1024 < h.DMALength() {
				m.learn(h.VA()+uint64(d)*1024, a.f.PayloadOf(a.p))
			}
		}
	case c.f.Op.Has(hdr.IsAtomic):
		h := hdr.AtomicETH(c.p[c.f.BTH+hdr.BTHLen:])
		m := regions[h.RKey()]
		for _, a := range next {
			if m != nil && a.f.Op == hdr.AtomicAck && a.psn == c.psn {
				var w [8]byte
				binary.LittleEndian.PutUint64(w[:], a.f.AtomicAckETHOf(a.p).Original())
				m.learn(h.VA(), w[:])
			}
		}
	}
}

func TestServerAsRXE(t *testing.T) {
	for _, name := range []string{
		"drop-write-middle.server", "drop-write-only-burst.server", "drop-write-last-of-burst.server", "drop-ack-single.server",
		"drop-cas-request-pipelined.server", "drop-atomic-ack-pipelined.server", "drop-atomic-ack-faa.server",
		"dup-cas-request.server", "dup-read-request.server", "dup-write-request.server",
		"drop-read-resp-middle.server", "drop-read-resp-last.server", "reorder-requests.server", "misaligned-cas.server", "bad-icrc-request.server",
		"error-badrkey-cas", "error-badrkey-mwrite", "error-badrkey-read", "error-badrkey-write", "error-oob-read", "error-oob-write",
		"error-ro-cas", "error-ro-write", "rnr-send-1qp", "rnr-exceeded", "send-imm-2qp", "psn-wrap-read4096", "ipv6-write-5003B",
	} {
		t.Run(name, func(t *testing.T) {
			fs := capture(t, "rxe/"+name)
			base, _, _ := strings.Cut(name, ".")
			psn, server, va, size, key, ro := logged(t, "rxe/"+base+".log")
			m := newSparse(va, size)
			n := playServer(t, fs, RXE, map[uint32]*sparse{key: m, ro: m}, ro, psn, server)
			bad := uint64(0)
			for _, c := range fs {
				if c.request() && !c.good {
					bad++
				}
			}
			if s := n.Stats(); s.DropBadICRC != bad {
				t.Errorf("%d frames dropped for their ICRC, want %d", s.DropBadICRC, bad)
			}
		})
	}
}

func TestServerAsConnectX(t *testing.T) {
	for _, name := range []string{"rcuckoo-masked-cas/in", "connectx-write-steering/100-packet-ingress"} {
		t.Run(name, func(t *testing.T) {
			fs := capture(t, name)
			// A region for each key, as wide as the requests to it.
			lo, hi := map[uint32]uint64{}, map[uint32]uint64{}
			for _, c := range fs {
				var key uint32
				var va, n uint64
				switch {
				case c.f.Op.Info().Ext&hdr.HasRETH != 0:
					h := c.f.RETHOf(c.p)
					key, va, n = h.RKey(), h.VA(), uint64(h.DMALength())
				case c.f.Op.Has(hdr.IsAtomic):
					h := hdr.AtomicETH(c.p[c.f.BTH+hdr.BTHLen:])
					key, va, n = h.RKey(), h.VA(), 8
				default:
					continue
				}
				if _, ok := lo[key]; !ok {
					lo[key] = va
				}
				lo[key], hi[key] = min(lo[key], va), max(hi[key], va+n)
			}
			regions := map[uint32]*sparse{}
			for key, va := range lo {
				regions[key] = newSparse(va, hi[key]-va)
			}
			playServer(t, fs, ConnectX, regions, 0, nil, nil)
		})
	}
}

// playClient makes a NIC in the client's place post what the captured client sent, and gives it the captured
// answers.
func playClient(t *testing.T, name string) {
	fs := capture(t, "rxe/"+name+".client")
	psn, server, _, _, _, _ := logged(t, "rxe/"+name+".log")
	k := connections(fs, server)[0]
	pool, err := packet.NewPool(256, 4096, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(Config{MAC: k.clientMAC, IP: k.clientIP, FirstQPN: k.clientQPN, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	cq := n.CreateCQ(4096)
	q, err := n.CreateQP(QPInit{PD: n.AllocPD(), SendCQ: cq, RecvCQ: cq, SQSigAll: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Connect(Conn{RemoteMAC: k.srvMAC, RemoteIP: k.srvIP, DestQPN: k.srvQPN, PathMTU: 1024, SQPSN: psn[k.clientQPN], RQPSN: psn[k.srvQPN], Timeout: 14, RetryCnt: 7, RNRRetry: 7}); err != nil {
		t.Fatal(err)
	}
	var sent []*packet.Buf
	var out packet.Batch
	now := fs[0].at
	output := func() {
		n.Output(now, &out)
		sent = append(sent, out.Bufs()...)
		out.Reset()
	}
	posted, compared := 0, 0
	newest := psn[k.clientQPN]
	for i, c := range fs {
		now = max(now, c.at)
		if !c.request() {
			b := pool.Get()
			b.SetBytes(c.p)
			n.Input(now, b)
			output()
			continue
		}
		if c.psn == newest && !c.f.Op.Any(hdr.IsMiddle|hdr.IsLast) {
			w := asPosted(t, c, fs[i:])
			if err := q.PostSend(w); err != nil {
				t.Fatal(err)
			}
			posted++
			newest = q.req.postPSN
			output()
		}
		for tries := 0; len(sent) == 0 && tries < 3; tries++ { // the captured client timed out
			now = max(now, n.Deadline())
			n.Tick(now)
			output()
		}
		if len(sent) == 0 {
			t.Fatalf("frame %d: nothing sent, want %v", i+1, c)
		}
		got := parsed(sent[0].Bytes(), 0)
		// The kernel chooses the IP id; all other bytes must be equal.
		copy(got.p[18:20], c.p[18:20])
		copy(got.p[24:26], c.p[24:26])
		hdr.SetICRC(got.p, &got.f)
		if !bytes.Equal(got.p, c.p) {
			t.Fatalf("frame %d:\n got %v\n%x\nwant %v\n%x", i+1, got, got.p, c, c.p)
		}
		compared++
		sent[0].Put()
		sent = sent[1:]
	}
	if len(sent) != 0 {
		t.Errorf("sent %d frames more than the captured client", len(sent))
	}
	w := make([]WC, 4096)
	w = w[:cq.Poll(w)]
	if len(w) != posted || compared < posted {
		t.Errorf("%d completions of %d requests, %d frames compared", len(w), posted, compared)
	}
	for _, x := range w {
		if x.Status != Success {
			t.Errorf("completion %+v", x)
		}
	}
	if q.Outstanding() != 0 {
		t.Errorf("%d requests have not completed", q.Outstanding())
	}
}

// asPosted is the work request whose first packet is c.
func asPosted(t *testing.T, c *captured, rest []*captured) *SendWR {
	t.Helper()
	switch {
	case c.f.Op.Has(hdr.IsWrite):
		h := c.f.RETHOf(c.p)
		data := make([]byte, h.DMALength())
		for _, x := range rest {
			if d := hdr.PSNDiff(x.psn, c.psn); x.request() && d >= 0 && int(d)*1024 < len(data) {
				copy(data[d*1024:], x.f.PayloadOf(x.p))
			}
		}
		return &SendWR{Op: OpWrite, SGL: [][]byte{data}, RemoteAddr: h.VA(), RKey: h.RKey()}
	case c.f.Op == hdr.ReadRequest:
		h := c.f.RETHOf(c.p)
		return &SendWR{Op: OpRead, SGL: [][]byte{make([]byte, h.DMALength())}, RemoteAddr: h.VA(), RKey: h.RKey()}
	case c.f.Op == hdr.CompareSwap:
		h := c.f.AtomicETHOf(c.p)
		return &SendWR{Op: OpCompareSwap, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: h.VA(), RKey: h.RKey(), Compare: h.Compare(), Swap: h.Swap()}
	}
	t.Fatalf("no work request for %v", c)
	return nil
}

func TestClientAsRXE(t *testing.T) {
	for _, name := range []string{
		"drop-write-middle", "drop-write-only-burst", "drop-write-last-of-burst", "drop-ack-single", "drop-cas-request-pipelined",
		"drop-read-resp-last", "drop-read-request", "dup-acks", "reorder-acks", "bad-icrc-response",
	} {
		t.Run(name, func(t *testing.T) { playClient(t, name) })
	}
}
