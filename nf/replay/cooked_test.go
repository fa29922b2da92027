package replay_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/pcap"
	"github.com/quillon/quillon/nf/replay"
)

// cooked is a classic capture of one frame.
func cooked(link uint32, orig int, frame []byte) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xA1B2C3D4)
	b = le.AppendUint16(le.AppendUint16(b, 2), 4)
	for _, x := range []uint32{0, 0, 65535, link, 1700000000, 5, uint32(len(frame)), uint32(orig)} {
		b = le.AppendUint32(b, x)
	}
	return append(b, frame...)
}

// TestCooked: frames of Linux cooked captures, of both versions, come out behind Ethernet headers; one that is cut
// within its header, and a link type that has no Ethernet header, are told.
func TestCooked(t *testing.T) {
	body := []byte("\x45\x00 a datagram")
	src := "\x02\x00\x00\x00\x00\x07"
	for _, c := range []struct {
		name        string
		link        uint32
		head        string
		want, fails string
	}{
		{"SLL, to us", 113, "\x00\x00\x00\x01\x00\x06" + src + "\x99\x99\x08\x00", "\x00\x00\x00\x00\x00\x00" + src + "\x08\x00", ""},
		{"SLL, broadcast", 113, "\x00\x01\x00\x01\x00\x06" + src + "\x00\x00\x08\x06", "\xff\xff\xff\xff\xff\xff" + src + "\x08\x06", ""},
		{"SLL, a tunnel", 113, "\x00\x04\xff\xfe\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x86\xdd", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x86\xdd", ""},
		{"SLL, LLC", 113, "\x00\x02\x00\x01\x00\x06" + src + "\x00\x00\x00\x04", "\x01\x00\x00\x00\x00\x00" + src + "\x00\x0d", ""},
		{"SLL2", 276, "\x08\x00\x00\x00\x00\x00\x00\x03\x00\x01\x04\x06" + src + "\x00\x00", "\x00\x00\x00\x00\x00\x00" + src + "\x08\x00", ""},
		{"raw IP", 101, "", "", "link type 101: only Ethernet (1) and Linux cooked captures (113, 276)"},
		{"cut", 113, "", "", "packet 1: a cooked frame is cut within its header"},
	} {
		frame := append([]byte(c.head), body...)
		if c.name == "cut" {
			frame = frame[:8]
		}
		in, err := pcap.NewReader(bytes.NewReader(cooked(c.link, len(frame)+3, frame)))
		if err != nil {
			t.Fatal(err)
		}
		spec, err := graph.ParseSpec([]byte("ports: {a: {kind: x}, b: {kind: x}}\napps: {w: {kind: wire}}\nlinks: [a.out -> w.a, w.b -> b.in]"))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		r, err := replay.New(replay.Config{Spec: spec, Kinds: graph.Builtin(), Inputs: []replay.Input{{Reader: in, Name: "in"}}})
		if err == nil {
			_, err = r.Run(&out)
		}
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got, err := pcap.NewReader(&out)
		if err != nil {
			t.Fatal(err)
		}
		var p pcap.Packet
		if err := got.Next(&p); err != nil || string(p.Data) != c.want+string(body) || int(p.OrigLen) != len(c.want)+len(body)+3 || got.Header().Link != pcap.LinkEthernet {
			t.Errorf("%s: %v, %+v, %x", c.name, err, got.Header(), p.Data)
		}
		if err := got.Next(&p); err != io.EOF {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
