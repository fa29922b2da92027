package pcap_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/pcap"
)

// readAll returns the packets before the end or the damage, as copies.
func readAll(r *pcap.Reader) ([]pcap.Packet, error) {
	var all []pcap.Packet
	for {
		var p pcap.Packet
		if err := r.Next(&p); err != nil {
			return all, err
		}
		p.Data = append([]byte{}, p.Data...)
		p.Comments = slices.Clone(p.Comments)
		for i, c := range p.Comments {
			p.Comments[i] = bytes.Clone(c)
		}
		all = append(all, p)
	}
}

// write makes a capture; pcapng gets the interfaces first.
func write(t testing.TB, h pcap.Header, ifaces []pcap.Interface, ps []pcap.Packet) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := pcap.NewWriter(&out, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range ifaces {
		if _, err := w.AddInterface(i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range ps {
		if err := w.Write(&ps[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// copyThroughPort runs a capture through a Port and returns what was written.
func copyThroughPort(t testing.TB, in []byte, h func(pcap.Header) pcap.Header) ([]byte, error) {
	t.Helper()
	r, err := pcap.NewReader(bytes.NewReader(in))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := pcap.NewWriter(&out, h(r.Header()))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pcap.NewPool(r.Interfaces(), 100)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pcap.NewPort(pcap.Config{Name: "c", Pool: pool, Reader: r, Writer: w, Clock: clock.NewManual(0)})
	if err != nil {
		t.Fatal(err)
	}
	var b packet.Batch
	for {
		if _, err = p.Rx(&b); err != nil {
			break
		}
		if _, err := p.Tx(&b); err != nil {
			t.Fatal(err)
		}
	}
	if n := pool.InUse(); n != 0 {
		t.Errorf("%d slots leaked", n)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), err
}

func same(h pcap.Header) pcap.Header { return h }

// classic builds a file by hand, so that the Writer does not test itself.
func classic(order binary.ByteOrder, magic uint32, records ...[]byte) []byte {
	b := make([]byte, 24)
	order.PutUint32(b, magic)
	order.PutUint16(b[4:], 2)
	order.PutUint16(b[6:], 4)
	order.PutUint32(b[8:], 0xFFFFFF10)  // a time zone: kept
	order.PutUint32(b[12:], 7)          // significant figures: kept
	order.PutUint32(b[16:], 96)         // snap length
	order.PutUint32(b[20:], 0x14000001) // Ethernet with FCS bits above
	for _, r := range records {
		b = append(b, r...)
	}
	return b
}

func record(order binary.ByteOrder, sec, frac, orig uint32, data []byte) []byte {
	b := make([]byte, 16, 16+len(data))
	order.PutUint32(b, sec)
	order.PutUint32(b[4:], frac)
	order.PutUint32(b[8:], uint32(len(data)))
	order.PutUint32(b[12:], orig)
	return append(b, data...)
}

func TestClassicCopyIsExact(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		for magic, unit := range map[uint32]int64{0xA1B2C3D4: 1000, 0xA1B23C4D: 1} {
			in := classic(order, magic,
				record(order, 0, 0, 60, bytes.Repeat([]byte{1}, 60)),
				record(order, 1700000000, 123456, 1500, bytes.Repeat([]byte{2}, 96)), // snapped
				record(order, 1700000000, 123455, 0, nil),                            // back in time, empty
				record(order, 0xFFFFFFFF, 999_999, 200, bytes.Repeat([]byte{3}, 200)),
				record(order, 5, 3_000_000_000, 3, []byte{1, 2, 3})) // fraction above a second
			r, err := pcap.NewReader(bytes.NewReader(in))
			if err != nil {
				t.Fatal(err)
			}
			want := pcap.Header{BigEndian: order == binary.BigEndian, Nano: unit == 1, Major: 2, Minor: 4, Zone: -240, SigFigs: 7, SnapLen: 96, Link: 0x14000001}
			if r.Header() != want {
				t.Errorf("header %+v, want %+v", r.Header(), want)
			}
			ps, err := readAll(r)
			if err != io.EOF || len(ps) != 5 {
				t.Fatalf("%d packets, %v", len(ps), err)
			}
			if got, want := ps[1].Time, clock.Time(1700000000e9+123456*unit); got != want {
				t.Errorf("time %d, want %d", got, want)
			}
			if ps[1].OrigLen != 1500 || len(ps[1].Data) != 96 || ps[1].Number != 2 {
				t.Errorf("packet 2: %+v", ps[1])
			}
			out, err := copyThroughPort(t, in, same)
			if err != io.EOF || !bytes.Equal(out, in) {
				t.Errorf("%v %#x: the copy differs (%v)\n in  %x\n out %x", order, magic, err, in, out)
			}
		}
	}
}

func TestGoldenCapturesCopyExactly(t *testing.T) {
	files, _ := filepath.Glob("../../../tests/pcap/*/*.pcap")
	if len(files) == 0 {
		t.Fatal("no captures under tests/pcap")
	}
	for _, f := range files {
		in, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := copyThroughPort(t, in, same); err != io.EOF || !bytes.Equal(out, in) {
			t.Errorf("%s: the copy differs (%v)", f, err)
		}
	}
}

func TestSnappedFrameKeepsWhatWasCut(t *testing.T) {
	le := binary.LittleEndian
	in := classic(le, 0xA1B2C3D4, record(le, 1, 2, 1000, make([]byte, 96)))
	r, _ := pcap.NewReader(bytes.NewReader(in))
	pool, _ := pcap.NewPool(r.Interfaces(), 4)
	s := pcap.NewSlots(pool)
	var p pcap.Packet
	if err := r.Next(&p); err != nil {
		t.Fatal(err)
	}
	b, err := s.Load(&p)
	if err != nil {
		t.Fatal(err)
	}
	if b.RxTime != 1_000_002_000 || b.Seq != 1 || b.Port != 0 {
		t.Errorf("meta %+v", b.Meta)
	}
	b.Append(8)
	var q pcap.Packet
	s.Store(b, &q)
	if q.OrigLen != 1008 || len(q.Data) != 104 {
		t.Errorf("grown by 8: %d of %d", len(q.Data), q.OrigLen)
	}
	b.Put()
	// A frame that an app makes in the same slot is not taken for the packet.
	g := pool.Get()
	g.SetBytes(make([]byte, 70))
	s.Store(g, &q)
	if q.OrigLen != 70 || q.Stamp != 0 {
		t.Errorf("generated frame: %+v", q)
	}
	g.Put()
}

func genPackets(ifaces int) *rapid.Generator[[]pcap.Packet] {
	return rapid.Custom(func(t *rapid.T) []pcap.Packet {
		n := rapid.IntRange(0, 20).Draw(t, "n")
		ps := make([]pcap.Packet, n)
		for i := range ps {
			ps[i] = pcap.Packet{
				Number:    uint64(i + 1),
				Interface: rapid.IntRange(0, ifaces-1).Draw(t, "iface"),
				Time:      clock.Time(rapid.Int64Range(0, 4e18).Draw(t, "time")),
				OrigLen:   rapid.Uint32().Draw(t, "orig"),
				Data:      rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "data"),
			}
			for range rapid.IntRange(0, 2).Draw(t, "comments") {
				ps[i].Comments = append(ps[i].Comments, []byte(rapid.String().Draw(t, "comment")))
			}
		}
		return ps
	})
}

// TestRoundTrip: what is written is read back, in every format, and a second
// copy is the same file.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := pcap.NewHeader(pcap.Format(rapid.IntRange(0, 1).Draw(t, "format")))
		h.BigEndian = rapid.Bool().Draw(t, "big")
		var ifaces []pcap.Interface
		n := 1
		if h.Format == pcap.NG {
			n = rapid.IntRange(1, 3).Draw(t, "ifaces")
			for i := range n {
				ifaces = append(ifaces, pcap.Interface{
					Name:        rapid.StringN(0, 20, 60).Draw(t, "name"),
					Description: rapid.StringN(0, 20, 60).Draw(t, "description"),
					Link:        rapid.Uint16().Draw(t, "link"),
					SnapLen:     rapid.Uint32().Draw(t, "snap"),
					Resol:       []uint8{9, 10, 0x80 | 30}[i],
					Offset:      rapid.SampledFrom([]int64{0, -3600, 1 << 33}).Draw(t, "offset"),
				})
			}
		}
		ps := genPackets(n).Draw(t, "packets")
		for i := range ps {
			if h.Format == pcap.Classic {
				ps[i].Comments = nil
			} else if f := ifaces[ps[i].Interface]; int64(ps[i].Time)/1e9 < f.Offset {
				ps[i].Time = clock.Time(f.Offset)*1e9 + 17
			}
		}
		var out bytes.Buffer
		w, err := pcap.NewWriter(&out, h)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range ifaces {
			if _, err := w.AddInterface(i); err != nil {
				t.Fatal(err)
			}
		}
		for i := range ps {
			// 10^-10 s since the epoch leaves 64 bits in 2028.
			if h.Format == pcap.NG && ifaces[ps[i].Interface].Resol == 10 {
				ps[i].Time %= 1 << 60
				if o := ifaces[ps[i].Interface].Offset; int64(ps[i].Time)/1e9 < o {
					ps[i].Time = clock.Time(o)*1e9 + 17
				}
			}
			if err := w.Write(&ps[i]); err != nil {
				t.Fatalf("packet %d: %v", i+1, err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		r, err := pcap.NewReader(bytes.NewReader(out.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := readAll(r)
		if err != io.EOF {
			t.Fatal(err)
		}
		if h.Format == pcap.NG {
			if d := cmp.Diff(ifaces, r.Interfaces()); d != "" {
				t.Fatal(d)
			}
		}
		for i := range got {
			got[i].Stamp = 0
			if h.Format == pcap.NG && ifaces[got[i].Interface].Resol&0x80 != 0 {
				if d := ps[i].Time - got[i].Time; d < 0 || d > 1 {
					t.Fatalf("packet %d: time is off by %d ns", i+1, d)
				}
				got[i].Time = ps[i].Time
			}
			for len(got[i].Comments) < len(ps[i].Comments) {
				t.Fatalf("packet %d lost a comment", i+1)
			}
		}
		equalBytes := cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) })
		if d := cmp.Diff(ps, got, equalBytes); d != "" && len(ps) > 0 {
			t.Fatal(d)
		}
	})
}

// TestEveryCut cuts a file at every byte: all whole packets before the cut are
// delivered, and the end is clean only between records.
func TestEveryCut(t *testing.T) {
	ps := []pcap.Packet{
		{Time: 1e9, OrigLen: 5, Data: []byte("hello")},
		{Time: 2e9, OrigLen: 9, Data: []byte("a"), Comments: [][]byte{[]byte("x")}},
		{Time: 3e9, OrigLen: 4, Data: []byte("last")},
	}
	for _, f := range []pcap.Format{pcap.Classic, pcap.NG} {
		h := pcap.NewHeader(f)
		var ifaces []pcap.Interface
		if f == pcap.NG {
			ifaces = []pcap.Interface{{Name: "eth0", Link: 1, Resol: 9}}
		}
		ends := map[int]int{} // length of file -> packets
		for n := range len(ps) + 1 {
			ends[len(write(t, h, ifaces, ps[:n]))] = n
		}
		whole := write(t, h, ifaces, ps)
		head := len(write(t, h, nil, nil))
		for cut := range whole {
			r, err := pcap.NewReader(bytes.NewReader(whole[:cut]))
			if cut < head {
				if !errors.Is(err, pcap.ErrTruncated) && !errors.Is(err, pcap.ErrFormat) {
					t.Fatalf("%v cut at %d: %v", f, cut, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%v cut at %d: %v", f, cut, err)
			}
			got, err := readAll(r)
			want := 0
			for end, n := range ends {
				if end <= cut {
					want = max(want, n)
				}
			}
			if len(got) != want {
				t.Fatalf("%v cut at %d: %d packets, want %d", f, cut, len(got), want)
			}
			if _, clean := ends[cut]; clean || cut == head {
				if err != io.EOF {
					t.Fatalf("%v cut at %d: %v, want a clean end", f, cut, err)
				}
				continue
			}
			var e *pcap.Error
			if !errors.Is(err, pcap.ErrTruncated) || !errors.As(err, &e) || e.Packet != uint64(want+1) || e.Offset > int64(cut) {
				t.Fatalf("%v cut at %d: %v", f, cut, err)
			}
			if again := r.Next(new(pcap.Packet)); again != err {
				t.Fatalf("the error is not final: %v", again)
			}
		}
	}
}

func TestDamage(t *testing.T) {
	le := binary.LittleEndian
	ng := func(blocks ...[]byte) []byte {
		b := write(t, pcap.NewHeader(pcap.NG), nil, nil)
		return append(b, bytes.Join(blocks, nil)...)
	}
	block := func(typ uint32, body ...byte) []byte {
		n := uint32(12 + len(body))
		b := le.AppendUint32(nil, typ)
		b = append(le.AppendUint32(b, n), body...)
		return le.AppendUint32(b, n)
	}
	words := func(w ...uint32) (b []byte) {
		for _, x := range w {
			b = le.AppendUint32(b, x)
		}
		return b
	}
	iface := block(1, words(1, 0)...)
	good := block(6, words(0, 0, 1000, 4, 4, 0xDDCCBBAA)...)
	wrongTrailer := slices.Clone(good)
	wrongTrailer[len(wrongTrailer)-4]++
	for _, c := range []struct {
		name    string
		file    []byte
		open    bool // the error comes from NewReader
		packets int
		is      error
		says    string
	}{
		{"empty", nil, true, 0, pcap.ErrFormat, "0 bytes"},
		{"text", []byte("hello world"), true, 0, pcap.ErrFormat, "neither pcap nor pcapng"},
		{"version", append([]byte{0xD4, 0xC3, 0xB2, 0xA1, 9}, make([]byte, 19)...), true, 0, pcap.ErrFormat, "version 9.0"},
		{"huge record", classic(le, 0xA1B2C3D4, record(le, 0, 0, 1, []byte{1}), words(0, 0, 1<<30, 0)), false, 1, pcap.ErrCorrupt, "packet 2 at offset 41: corrupt capture: a frame of 1073741824 bytes"},
		{"ng order magic", append(le.AppendUint32(nil, 0x0A0D0D0A), words(28, 0, 0, 0, 0, 28)...), true, 0, pcap.ErrCorrupt, "byte-order magic"},
		{"ng version", append(le.AppendUint32(nil, 0x0A0D0D0A), words(28, 0x1A2B3C4D, 3, 0, 0, 28)...), true, 0, pcap.ErrFormat, "version 3.0"},
		{"ng odd length", ng(iface, good, words(6, 33, 0)), false, 1, pcap.ErrCorrupt, "packet 2 at offset 84: corrupt capture: a block of 33"},
		{"ng trailer", ng(iface, good, wrongTrailer), false, 1, pcap.ErrCorrupt, "lengths are 36 in front and 37"},
		{"ng long block", ng(iface, words(6, 1<<30, 0)), false, 0, pcap.ErrCorrupt, "a block of 1073741824"},
		{"ng no interface", ng(good), false, 0, pcap.ErrCorrupt, "interface 0 of 0"},
		{"ng wrong interface", ng(iface, good, block(6, words(7, 0, 0, 0, 0)...)), false, 1, pcap.ErrCorrupt, "interface 7 of 1"},
		{"ng short packet block", ng(iface, block(6, words(0, 0)...)), false, 0, pcap.ErrCorrupt, "a packet block of 20"},
		{"ng frame too long", ng(iface, block(6, words(0, 0, 0, 99, 99, 0)...)), false, 0, pcap.ErrCorrupt, "a frame of 99 bytes in a block of 36"},
		{"ng time", ng(iface, block(6, words(0, 0xFFFFFFFF, 0, 0, 0)...)), false, 0, pcap.ErrCorrupt, "out of range"},
		{"ng option", ng(iface, block(6, words(0, 0, 0, 0, 0, 0x00FF0001)...)), false, 0, pcap.ErrCorrupt, "option does not fit"},
		{"ng resolution", ng(block(1, words(1, 0, 0x00010009, 99)...), good), false, 0, pcap.ErrCorrupt, "resolution 0x63"},
		{"ng short interface", ng(block(1, words(1)...)), false, 0, pcap.ErrCorrupt, "an interface block of 16"},
		{"ng cut unknown block", ng(iface, words(99, 4096, 0)), false, 0, pcap.ErrTruncated, "packet 1 at offset 48"},
		{"ng old section", ng(iface, good, le.AppendUint32(nil, 0x0A0D0D0A), words(28, 0x1A2B3C4D, 1, 0, 0, 28), good), false, 1, pcap.ErrCorrupt, "interface 0 of 0"},
	} {
		r, err := pcap.NewReader(bytes.NewReader(c.file))
		if c.open != (err != nil) {
			t.Errorf("%s: opening: %v", c.name, err)
			continue
		}
		var got []pcap.Packet
		if err == nil {
			got, err = readAll(r)
		}
		if len(got) != c.packets || !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %d packets and %q; want %d and %q", c.name, len(got), err, c.packets, c.says)
		}
	}
}

// TestSectionsAndBlocks reads what our Writer never writes: two sections of
// different byte order, simple and obsolete packet blocks, unknown blocks, an
// interface behind the first packet.
func TestSectionsAndBlocks(t *testing.T) {
	var file []byte
	for i, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		words := func(w ...uint32) {
			for _, x := range w {
				file = order.AppendUint32(file, x)
			}
		}
		halves := func(a, b uint16) { file = order.AppendUint16(order.AppendUint16(file, a), b) }
		words(0x0A0D0D0A, 28, 0x1A2B3C4D)
		halves(1, 2)
		words(0xFFFFFFFF, 0xFFFFFFFF, 28)
		words(1, 20)
		halves(1, 0)
		words(3, 20)                  // interface 0: snap length 3
		words(99, 20, 1, 2, 20)       // unknown
		words(6, 32, 0, 0, 77, 0, 77) // enhanced, empty
		words(32)
		words(1, 20)
		halves(1, 0)
		words(0, 20)    // interface 1, late
		words(3, 20, 9) // simple: 9 bytes on the wire, 3 captured
		file = append(file, byte(i), 2, 3, 0)
		words(20)
		words(2, 36)
		halves(1, 5) // obsolete packet block of interface 1, 5 drops
		words(0, 78, 2, 2)
		file = append(file, 8, 9, 0, 0)
		words(36)
	}
	r, err := pcap.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(r.Interfaces()); n != 1 {
		t.Errorf("%d interfaces in front, want 1", n)
	}
	got, err := readAll(r)
	if err != io.EOF {
		t.Fatal(err)
	}
	var want []pcap.Packet
	for i := range 2 {
		n := uint64(3 * i)
		want = append(want,
			pcap.Packet{Number: n + 1, Interface: 2 * i, Time: 77000, Stamp: 77, OrigLen: 77, Data: []byte{}},
			pcap.Packet{Number: n + 2, Interface: 2 * i, Time: 77000, OrigLen: 9, Data: []byte{byte(i), 2, 3}},
			pcap.Packet{Number: n + 3, Interface: 2*i + 1, Time: 78000, Stamp: 78, OrigLen: 2, Data: []byte{8, 9}})
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if n := len(r.Interfaces()); n != 4 {
		t.Errorf("%d interfaces, want 4", n)
	}
}

func TestLongNamesAreCut(t *testing.T) {
	i := pcap.Interface{Name: strings.Repeat("n", 9999), Description: strings.Repeat("d", 256), Link: 1, Resol: 9}
	r, err := pcap.NewReader(bytes.NewReader(write(t, pcap.NewHeader(pcap.NG), []pcap.Interface{i}, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Interfaces()[0]; len(got.Name) != 256 || got.Description != i.Description {
		t.Errorf("a name of %d bytes, a description of %d", len(got.Name), len(got.Description))
	}
}

func TestGopacketAgrees(t *testing.T) {
	ps := []pcap.Packet{
		{Time: 1700000000_123456789, OrigLen: 60, Data: bytes.Repeat([]byte{7}, 60)},
		{Time: 1700000001_000000001, OrigLen: 1500, Data: bytes.Repeat([]byte{8}, 61), Comments: [][]byte{[]byte("why")}},
	}
	check := func(name string, i int, data []byte, ci gopacket.CaptureInfo, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: packet %d: %v", name, i+1, err)
		}
		if !bytes.Equal(data, ps[i].Data) || ci.Length != int(ps[i].OrigLen) || ci.Timestamp.UnixNano() != int64(ps[i].Time) {
			t.Errorf("%s: packet %d: %+v %x", name, i+1, ci, data)
		}
	}
	c, err := pcapgo.NewReader(bytes.NewReader(write(t, pcap.NewHeader(pcap.Classic), nil, ps)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range ps {
		data, ci, err := c.ReadPacketData()
		check("classic", i, data, ci, err)
	}
	ifaces := []pcap.Interface{{Name: "swp1", Description: "rack port", Link: 1, SnapLen: 1600, Resol: 9}}
	for _, big := range []bool{false, true} {
		h := pcap.NewHeader(pcap.NG)
		h.BigEndian = big
		g, err := pcapgo.NewNgReader(bytes.NewReader(write(t, h, ifaces, ps)), pcapgo.DefaultNgReaderOptions)
		if err != nil {
			t.Fatal(err)
		}
		for i := range ps {
			data, ci, err := g.ReadPacketData()
			check("pcapng", i, data, ci, err)
		}
		f, err := g.Interface(0)
		if err != nil || f.Name != "swp1" || f.Description != "rack port" || f.SnapLength != 1600 {
			t.Errorf("interface: %+v, %v", f, err)
		}
	}
	// The other way round.
	var file bytes.Buffer
	w, err := pcapgo.NewNgWriter(&file, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		ci := gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(p.Time)), Length: int(p.OrigLen), CaptureLength: len(p.Data)}
		if err := w.WritePacket(ci, p.Data); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	r, err := pcap.NewReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readAll(r)
	if err != io.EOF || len(got) != len(ps) {
		t.Fatalf("%d packets, %v", len(got), err)
	}
	for i, p := range got {
		if p.Time != ps[i].Time || p.OrigLen != ps[i].OrigLen || !bytes.Equal(p.Data, ps[i].Data) {
			t.Errorf("packet %d: %+v", i+1, p)
		}
	}
}

func TestTsharkReadsComments(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	ps := []pcap.Packet{
		{Time: 1700000000_123456789, OrigLen: 60, Data: make([]byte, 60), Comments: [][]byte{[]byte("rewritten: steered-cas")}},
		{Time: 1700000001_000000001, Interface: 1, OrigLen: 1500, Data: make([]byte, 61)},
	}
	ifaces := []pcap.Interface{{Name: "a", Link: 1, Resol: 9}, {Name: "b", Link: 1, Resol: 9}}
	file := filepath.Join(t.TempDir(), "x.pcapng")
	if err := os.WriteFile(file, write(t, pcap.NewHeader(pcap.NG), ifaces, ps), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-n", "-r", file, "-T", "fields", "-e", "frame.interface_name", "-e", "frame.time_epoch",
		"-e", "frame.len", "-e", "frame.cap_len", "-e", "frame.comment").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := "a\t1700000000.123456789\t60\t60\trewritten: steered-cas\nb\t1700000001.000000001\t1500\t61\t\n"
	if string(out) != want {
		t.Errorf("tshark reads\n%s\nwant\n%s", out, want)
	}
}

// TestOtherShapes: what gzip and zstd have compressed, and old Linux captures in either byte order, hold the same
// frames; what is cut, or damaged, is told.
func TestOtherShapes(t *testing.T) {
	plain, err := os.ReadFile("../../../cmd/quillon/testdata/steer-in.pcap")
	if err != nil {
		t.Fatal(err)
	}
	read := func(b []byte) (frames []string, err error) {
		r, err := pcap.NewReader(bytes.NewReader(b))
		var p pcap.Packet
		for err == nil {
			if err = r.Next(&p); err == nil {
				frames = append(frames, fmt.Sprintf("%d %d %x", p.Time, p.OrigLen, p.Data))
			}
		}
		if err == io.EOF {
			err = nil
		}
		return frames, err
	}
	want, err := read(plain)
	if err != nil || len(want) != 10 {
		t.Fatal(len(want), err)
	}
	var gz, zs bytes.Buffer
	g := gzip.NewWriter(&gz)
	z, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []io.WriteCloser{g, z} {
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	modified := func(order binary.AppendByteOrder) []byte {
		r, err := pcap.NewReader(bytes.NewReader(plain))
		if err != nil {
			t.Fatal(err)
		}
		b := order.AppendUint32(nil, 0xA1B2CD34)
		b = order.AppendUint16(order.AppendUint16(b, 2), 4)
		for _, x := range []uint32{0, 0, 65535, pcap.LinkEthernet} {
			b = order.AppendUint32(b, x)
		}
		var p pcap.Packet
		for r.Next(&p) == nil {
			for _, x := range []uint32{uint32(p.Time / 1e9), uint32(p.Time % 1e9 / 1e3), uint32(len(p.Data)), p.OrigLen, 3} {
				b = order.AppendUint32(b, x)
			}
			b = append(append(b, 8, 0, 4, 0), p.Data...)
		}
		return b
	}
	for name, b := range map[string][]byte{"gzip": gz.Bytes(), "zstd": zs.Bytes(), "modified": modified(binary.LittleEndian), "modified, big-endian": modified(binary.BigEndian)} {
		if got, err := read(b); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %d frames, %v", name, len(got), err)
		}
		if got, err := read(b[:len(b)-9]); err == nil || len(got) == len(want) && name != "gzip" && name != "zstd" {
			t.Errorf("%s, cut: %d frames, %v", name, len(got), err)
		}
		if _, err := read(b[:3]); err == nil {
			t.Errorf("%s: three bytes are taken", name)
		}
	}
}

func TestWriterRefuses(t *testing.T) {
	c, _ := pcap.NewWriter(io.Discard, pcap.NewHeader(pcap.Classic))
	n, _ := pcap.NewWriter(io.Discard, pcap.NewHeader(pcap.NG))
	for name, err := range map[string]error{
		"second interface of classic": second(c.AddInterface(pcap.Interface{Resol: 9})),
		"resolution":                  second(n.AddInterface(pcap.Interface{Resol: 20})),
		"long name":                   second(n.AddInterface(pcap.Interface{Resol: 9, Name: strings.Repeat("x", 1<<16)})),
		"undeclared interface":        n.Write(&pcap.Packet{}),
		"time before the epoch":       c.Write(&pcap.Packet{Time: -1}),
		"time after 2106":             c.Write(&pcap.Packet{Time: clock.Never}),
		"long frame":                  c.Write(&pcap.Packet{Data: make([]byte, pcap.MaxCapLen+1)}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := c.Write(&pcap.Packet{}); err != nil {
		t.Errorf("a refused packet is not the end: %v", err)
	}
}

func second(_ int, err error) error { return err }

type failing struct{ left int }

func (f *failing) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(b), nil
}

func TestPortUnhappy(t *testing.T) {
	le := binary.LittleEndian
	// The header claims 96 bytes, slots have room for 2048 and what is around.
	in := classic(le, 0xA1B2C3D4, record(le, 1, 1, 5000, make([]byte, 5000)), record(le, 1, 2, 9, make([]byte, 9)), []byte("rest"))
	r, err := pcap.NewReader(bytes.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	pool, _ := pcap.NewPool(r.Interfaces(), 1)
	clk := clock.NewManual(7e9)
	w, _ := pcap.NewWriter(&failing{left: 24}, pcap.NewHeader(pcap.Classic))
	p, err := pcap.NewPort(pcap.Config{Name: "f", Pool: pool, Reader: r, Writer: w, Clock: clk, Close: func() error { return errors.New("close") }})
	if err != nil {
		t.Fatal(err)
	}
	var b packet.Batch
	if n, err := p.Rx(&b); n != 1 || err != nil || b.At(0).Seq != 2 {
		t.Fatalf("Rx %d, %v", n, err)
	}
	if n, err := p.Rx(&b); n != 0 || !errors.Is(err, pcap.ErrTruncated) {
		t.Fatalf("Rx of the rest: %d, %v", n, err)
	}
	if n, err := p.Tx(&b); n != 1 || err != nil || pool.InUse() != 0 {
		t.Fatalf("Tx %d, %v, %d in use", n, err, pool.InUse())
	}
	if s := p.Stats(); s != (port.Stats{RxPackets: 1, RxBytes: 9, RxDropped: 1, TxPackets: 1, TxBytes: 9}) {
		t.Errorf("%+v", s)
	}
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "disk full") || !strings.Contains(err.Error(), "close") {
		t.Errorf("Close: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := p.Rx(&b); err != port.ErrClosed {
		t.Errorf("Rx after Close: %v", err)
	}
	if _, err := p.Tx(&b); err != port.ErrClosed {
		t.Errorf("Tx after Close: %v", err)
	}
	if _, err := pcap.NewPort(pcap.Config{}); err == nil {
		t.Error("a port without pool")
	}
}

func TestPortWaitsForASlot(t *testing.T) {
	le := binary.LittleEndian
	in := classic(le, 0xA1B2C3D4, record(le, 1, 1, 1, []byte{1}), record(le, 1, 2, 1, []byte{2}))
	r, _ := pcap.NewReader(bytes.NewReader(in))
	pool, _ := pcap.NewPool(r.Interfaces(), 1)
	p, _ := pcap.NewPort(pcap.Config{Name: "f", Pool: pool, Reader: r, Clock: clock.NewManual(0)})
	var b packet.Batch
	for i := range 2 {
		if n, err := p.Rx(&b); n != 1 || err != nil || b.At(0).Bytes()[0] != byte(i+1) {
			t.Fatalf("frame %d: %d, %v", i+1, n, err)
		}
		if n, _ := p.Rx(&b); n != 0 && i == 0 {
			t.Fatal("a frame without a slot")
		}
		p.Tx(&b) // no Writer: dropped and counted
	}
	if _, err := p.Rx(&b); err != io.EOF || p.Stats().TxDropped != 2 {
		t.Errorf("%v, %+v", err, p.Stats())
	}
}

// endless repeats a capture's records without end.
type endless struct {
	head, body []byte
	at         int
}

func (e *endless) Read(b []byte) (int, error) {
	if len(e.head) > 0 {
		n := copy(b, e.head)
		e.head = e.head[n:]
		return n, nil
	}
	n := copy(b, e.body[e.at:])
	e.at = (e.at + n) % len(e.body)
	return n, nil
}

func newEndless(t testing.TB, f pcap.Format, size int) *endless {
	h := pcap.NewHeader(f)
	var ifaces []pcap.Interface
	if f == pcap.NG {
		ifaces = []pcap.Interface{{Name: "e", Link: 1, Resol: 9}}
	}
	ps := make([]pcap.Packet, 64)
	for i := range ps {
		ps[i] = pcap.Packet{Time: clock.Time(i+1) * 1000, OrigLen: uint32(size), Data: make([]byte, size), Comments: [][]byte{[]byte("forwarded")}}
	}
	head := write(t, h, ifaces, nil)
	return &endless{head: head, body: write(t, h, ifaces, ps)[len(head):]}
}

// TestNothingAllocated: reader, writer and port, a packet at a time. This is
// also the proof of constant memory: the stream has no end.
func TestNothingAllocated(t *testing.T) {
	for _, f := range []pcap.Format{pcap.Classic, pcap.NG} {
		r, err := pcap.NewReader(newEndless(t, f, 300))
		if err != nil {
			t.Fatal(err)
		}
		w, _ := pcap.NewWriter(io.Discard, pcap.NewHeader(f))
		if f == pcap.NG {
			w.AddInterface(pcap.Interface{Resol: 9})
		}
		var p pcap.Packet
		if n := testing.AllocsPerRun(10000, func() {
			if err := r.Next(&p); err != nil {
				t.Fatal(err)
			}
			if err := w.Write(&p); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations per packet read and written", f, n)
		}
		pool, _ := pcap.NewPool(r.Interfaces(), 100)
		q, _ := pcap.NewPort(pcap.Config{Name: "q", Pool: pool, Reader: r, Writer: w, Clock: clock.NewManual(0)})
		var b packet.Batch
		if n := testing.AllocsPerRun(1000, func() {
			q.Rx(&b)
			q.Tx(&b)
		}); n != 0 {
			t.Errorf("%v: %v allocations per batch through a port", f, n)
		}
	}
}

func fuzzSeeds(f *testing.F, ng bool) {
	p := []pcap.Packet{{Time: 5, OrigLen: 70, Data: []byte("0123456789abcdef"), Comments: [][]byte{[]byte("c")}}, {Time: 9, OrigLen: 1, Data: []byte{1}}}
	for _, big := range []bool{false, true} {
		h := pcap.NewHeader(pcap.Classic)
		var ifaces []pcap.Interface
		if ng {
			h = pcap.NewHeader(pcap.NG)
			ifaces = []pcap.Interface{{Name: "a", Link: 1, Resol: 9, Offset: -1, SnapLen: 9}, {Resol: 0x82}}
		}
		h.BigEndian = big
		b := write(f, h, ifaces, p)
		f.Add(b)
		f.Add(b[:len(b)-3])
	}
}

// FuzzClassic: any file with a classic header is delivered up to its damage,
// and what was delivered is copied byte for byte.
func FuzzClassic(f *testing.F) {
	fuzzSeeds(f, false)
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := pcap.NewReader(bytes.NewReader(in))
		if err != nil || r.Header().Format != pcap.Classic {
			return
		}
		ps, err := readAll(r)
		if err == nil {
			t.Fatal("no end")
		}
		switch {
		case bytes.HasPrefix(in, []byte{0x1F, 0x8B}), bytes.HasPrefix(in, []byte{0x28, 0xB5, 0x2F, 0xFD}), // compressed
			bytes.HasPrefix(in, []byte{0x34, 0xCD, 0xB2, 0xA1}), bytes.HasPrefix(in, []byte{0xA1, 0xB2, 0xCD, 0x34}): // modified
			return // it is not written as it was
		}
		out := write(t, r.Header(), nil, ps)
		// A stamp of zero is made of the time, which is then zero as well.
		if !bytes.HasPrefix(in, out) {
			t.Fatalf("the copy differs\n in  %x\n out %x", in, out)
		}
		if (err == io.EOF) != (len(out) == len(in)) {
			t.Fatalf("%d of %d bytes, %v", len(out), len(in), err)
		}
	})
}

// FuzzNG: what is delivered of any pcapng file can be written, and is read
// back the same.
func FuzzNG(f *testing.F) {
	fuzzSeeds(f, true)
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := pcap.NewReader(bytes.NewReader(in))
		if err != nil || r.Header().Format != pcap.NG {
			return
		}
		ps, err := readAll(r)
		if err == nil {
			t.Fatal("no end")
		}
		for _, i := range r.Interfaces() {
			if i.Offset < 0 || i.Offset > 1<<40 || len(ps) > 1000 {
				return // simple packets may stand before such an epoch
			}
		}
		for i := range ps {
			if ps[i].Stamp == 0 {
				ps[i].Time = 0
				if r.Interfaces()[ps[i].Interface].Offset != 0 {
					return
				}
			}
		}
		again, err := pcap.NewReader(bytes.NewReader(write(t, r.Header(), r.Interfaces(), ps)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := readAll(again)
		if err != io.EOF {
			t.Fatal(err)
		}
		for i := range ps {
			ps[i].Comments, got[i].Comments = nil, nil
		}
		if d := cmp.Diff(ps, got); d != "" {
			t.Fatal(d)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	for _, f := range []pcap.Format{pcap.Classic, pcap.NG} {
		for _, size := range []int{64, 1024} {
			b.Run(fmt.Sprintf("%v/%dB", f, size), func(b *testing.B) {
				r, err := pcap.NewReader(newEndless(b, f, size))
				if err != nil {
					b.Fatal(err)
				}
				var p pcap.Packet
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := r.Next(&p); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkWriter(b *testing.B) {
	for _, f := range []pcap.Format{pcap.Classic, pcap.NG} {
		for _, size := range []int{64, 1024} {
			b.Run(fmt.Sprintf("%v/%dB", f, size), func(b *testing.B) {
				w, _ := pcap.NewWriter(io.Discard, pcap.NewHeader(f))
				if f == pcap.NG {
					w.AddInterface(pcap.Interface{Resol: 9})
				}
				p := pcap.Packet{Time: 1e9, OrigLen: uint32(size), Data: make([]byte, size), Comments: [][]byte{[]byte("forwarded")}}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := w.Write(&p); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
