package live

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/pcap"
)

// trace is all frames that the endpoints got and sent. A test that fails leaves it in the directory of QUILLON_TRACE: a
// capture with an interface for each endpoint and direction, the history of the
// words, and what the test did, all with the times of one clock.
type trace struct {
	dir    string // "": nothing is kept
	ifaces []pcap.Interface
	frames []traced
	bytes  []byte // of the frames
	events strings.Builder
}

type traced struct {
	at         clock.Time
	iface      int
	start, end int // in trace.bytes
}

func newTrace() *trace { return &trace{dir: os.Getenv("QUILLON_TRACE")} }

// wrap is port p of an endpoint, with its frames kept.
func (t *trace) wrap(name string, clk clock.Clock, p port.Port) port.Port {
	if t.dir == "" {
		return p
	}
	in := len(t.ifaces)
	for _, way := range []string{"in", "out"} {
		t.ifaces = append(t.ifaces, pcap.Interface{Link: pcap.LinkEthernet, Resol: 9, Name: name + " " + way})
	}
	return &tracedPort{Port: p, t: t, clk: clk, in: in}
}

type tracedPort struct {
	port.Port
	t   *trace
	clk clock.Clock
	in  int // its interface; the next one is what it sends
}

func (p *tracedPort) Rx(b *packet.Batch) (int, error) {
	n, err := p.Port.Rx(b)
	p.t.keep(p.clk.Now(), p.in, b.Bufs()[b.Len()-n:])
	return n, err
}

// Tx keeps the frames before the port takes them, and forgets those that it did not take.
func (p *tracedPort) Tx(b *packet.Batch) (int, error) {
	was := len(p.t.frames)
	p.t.keep(p.clk.Now(), p.in+1, b.Bufs())
	n, err := p.Port.Tx(b)
	p.t.frames = p.t.frames[:was+n]
	if was+n > 0 {
		p.t.bytes = p.t.bytes[:p.t.frames[was+n-1].end]
	}
	return n, err
}

func (t *trace) keep(now clock.Time, iface int, frames []*packet.Buf) {
	for _, x := range frames {
		start := len(t.bytes)
		t.bytes = append(t.bytes, x.Bytes()...)
		t.frames = append(t.frames, traced{now, iface, start, len(t.bytes)})
	}
}

// note keeps what the test does, also where frames are not kept; a test without endpoints has no trace.
func (t *trace) note(now clock.Time, what string) {
	if t == nil {
		return
	}
	fmt.Fprintf(&t.events, "%v %s\n", now.Sub(0), what)
}

// save leaves the files, once the endpoints have ended.
func (t *trace) save(test *testing.T, words []history.Op[history.Word, uint64]) {
	if t.dir == "" {
		return
	}
	name := filepath.Join(t.dir, strings.ReplaceAll(test.Name(), "/", "-"))
	for i := range words {
		o := &words[i]
		fmt.Fprintf(&t.events, "op client %d called %v returned %v %+v told %#x\n", o.Client, o.Called.Sub(0), o.Returned.Sub(0), o.In, o.Out)
	}
	if err := errors.Join(t.capture(name+".pcapng"), os.WriteFile(name+".txt", []byte(t.events.String()), 0o600)); err != nil {
		test.Error(err)
		return
	}
	test.Logf("the trace is in %s.pcapng and .txt", name)
}

func (t *trace) capture(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := pcap.NewWriter(f, pcap.NewHeader(pcap.NG))
	if err != nil {
		return err
	}
	for _, i := range t.ifaces {
		if _, err := w.AddInterface(i); err != nil {
			return err
		}
	}
	for _, x := range t.frames {
		b := t.bytes[x.start:x.end]
		if err := w.Write(&pcap.Packet{Interface: x.iface, Time: x.at, Data: b, OrigLen: uint32(len(b))}); err != nil {
			return err
		}
	}
	return w.Flush()
}
