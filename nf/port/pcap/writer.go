package pcap

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Compress returns a writer that compresses to w if name ends in .gz or .zst, and else writes to w unchanged. plain is
// name without that ending. Close of the writer ends the compressed data and leaves w open.
func Compress(w io.Writer, name string) (_ io.WriteCloser, plain string) {
	if plain, ok := strings.CutSuffix(name, ".gz"); ok {
		return gzip.NewWriter(w), plain
	}
	if plain, ok := strings.CutSuffix(name, ".zst"); ok {
		// No option can be refused here; one goroutine makes the same bytes each time.
		z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
		return z, plain
	}
	return nopCloser{w}, name
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// Writer writes a capture. Flush makes what was written visible.
type Writer struct {
	bw      *bufio.Writer
	h       Header
	ifaces  []iface
	limits  []limit // of the interfaces
	at      int64   // bytes written, with those in bw
	scratch [32]byte
	zeros   [4]byte
	err     error
}

// limit is a snapshot length in the file, and the longest frame of its interface, in bytes.
type limit struct {
	at      int64
	snapLen uint32 // 0: none
	longest int
}

// Correct writes the length of the longest frame in the place of each snapshot length that a frame exceeds: others
// refuse or cut such frames. to is the carrier of the file, which begins at its offset 0. Everything must have been flushed.
func (e *Writer) Correct(to io.WriterAt) error {
	for _, l := range e.limits {
		if l.snapLen == 0 || l.longest <= int(l.snapLen) {
			continue
		}
		e.put(0, uint32(l.longest))
		if _, err := to.WriteAt(e.scratch[:4], l.at); err != nil {
			return err
		}
	}
	return nil
}

// NewWriter writes the header h: pass that of a Reader to copy its file
// exactly, or NewHeader's. A pcapng Writer needs AddInterface before Write.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	e := &Writer{bw: bufio.NewWriterSize(w, 256<<10), h: h}
	b := e.scratch[:]
	if h.Format == NG {
		clear(b)
		e.put(0, blockSection)
		e.put(4, 28)
		e.put(8, magicOrder)
		put16(b[12:], h.BigEndian, 1)
		put16(b[14:], h.BigEndian, 0)
		e.put(16, 0xFFFFFFFF) // section length: not known
		e.put(20, 0xFFFFFFFF)
		e.put(24, 28)
		e.write(b[:28])
		return e, e.err
	}
	magic := uint32(magicMicro)
	if h.Nano {
		magic = magicNano
	}
	e.put(0, magic)
	put16(b[4:], h.BigEndian, h.Major)
	put16(b[6:], h.BigEndian, h.Minor)
	e.put(8, uint32(h.Zone))
	e.put(12, h.SigFigs)
	e.put(16, h.SnapLen)
	e.put(20, h.Link)
	e.limits = []limit{{at: 16, snapLen: h.SnapLen}}
	e.write(b[:fileHeaderLen])
	return e, e.err
}

// put stores a word in the scratch space, in the file's byte order.
func (e *Writer) put(at int, v uint32) { put32(e.scratch[at:], e.h.BigEndian, v) }

func (e *Writer) write(b []byte) {
	e.at += int64(len(b))
	if e.err == nil {
		_, e.err = e.bw.Write(b)
	}
}

func (e *Writer) pad(n int) {
	e.write(e.zeros[:pad4(n)])
}

// AddInterface declares an interface of a pcapng file and returns its index,
// counted from 0. A classic file has one, which its header declares.
func (e *Writer) AddInterface(i Interface) (int, error) {
	if e.h.Format != NG {
		return 0, errors.New("a classic capture has one interface; write pcapng for more")
	}
	if len(e.ifaces) == maxInterfaces {
		return 0, fmt.Errorf("more than %d interfaces", maxInterfaces)
	}
	u := unitsPerSecond(i.Resol)
	if u == 0 {
		return 0, fmt.Errorf("time resolution 0x%02x does not fit in 64 bits", i.Resol)
	}
	if len(i.Name) > maxOption || len(i.Description) > maxOption {
		return 0, errors.New("an interface name of more than 65535 bytes")
	}
	n := 20 + 4 // block, end of options
	n += 8      // if_tsresol
	for _, s := range []string{i.Name, i.Description} {
		if s != "" {
			n += 4 + len(s) + pad4(len(s))
		}
	}
	if i.Offset != 0 {
		n += 12
	}
	e.put(0, blockInterface)
	e.put(4, uint32(n))
	put16(e.scratch[8:], e.h.BigEndian, i.Link)
	put16(e.scratch[10:], e.h.BigEndian, 0)
	e.put(12, i.SnapLen)
	e.limits = append(e.limits, limit{at: e.at + 12, snapLen: i.SnapLen})
	e.write(e.scratch[:16])
	e.option(optName, i.Name)
	e.option(optDescription, i.Description)
	e.optionHead(optResol, 1)
	e.write([]byte{i.Resol, 0, 0, 0})
	if i.Offset != 0 {
		e.optionHead(optOffset, 8)
		hi, lo := uint32(uint64(i.Offset)>>32), uint32(i.Offset)
		if !e.h.BigEndian {
			hi, lo = lo, hi
		}
		e.put(0, hi)
		e.put(4, lo)
		e.write(e.scratch[:8])
	}
	e.put(0, 0) // end of options
	e.put(4, uint32(n))
	e.write(e.scratch[:8])
	e.ifaces = append(e.ifaces, iface{u, i.Offset, i.SnapLen})
	return len(e.ifaces) - 1, e.err
}

// maxOption is the longest value of an option: its length has 16 bits.
const maxOption = 1<<16 - 1

func (e *Writer) optionHead(code uint16, n int) {
	put16(e.scratch[0:], e.h.BigEndian, code)
	put16(e.scratch[2:], e.h.BigEndian, uint16(n))
	e.write(e.scratch[:4])
}

func (e *Writer) option(code uint16, s string) {
	if s == "" {
		return
	}
	e.optionHead(code, len(s))
	e.at += int64(len(s))
	if e.err == nil {
		_, e.err = e.bw.WriteString(s)
	}
	e.pad(len(s))
}

// Write appends a packet. Comments are kept in pcapng only; p.Number is not
// stored. The first error of the carrier is returned by all later calls.
func (e *Writer) Write(p *Packet) error {
	if e.err != nil {
		return e.err
	}
	if len(p.Data) > MaxCapLen {
		return fmt.Errorf("a frame of %d bytes, more than %d", len(p.Data), MaxCapLen)
	}
	if e.h.Format == NG {
		return e.writeNG(p)
	}
	stamp := p.Stamp
	if stamp == 0 {
		if p.Time < 0 || int64(p.Time)/1e9 > 1<<32-1 {
			return fmt.Errorf("time %d ns does not fit in a classic capture", p.Time)
		}
		frac := uint64(p.Time) % 1e9
		if !e.h.Nano {
			frac /= 1000
		}
		stamp = uint64(p.Time)/1e9<<32 | frac
	}
	e.limits[0].longest = max(e.limits[0].longest, len(p.Data))
	e.put(0, uint32(stamp>>32))
	e.put(4, uint32(stamp))
	e.put(8, uint32(len(p.Data)))
	e.put(12, p.OrigLen)
	e.write(e.scratch[:recordHeaderLen])
	e.write(p.Data)
	return e.err
}

func (e *Writer) writeNG(p *Packet) error {
	if p.Interface < 0 || p.Interface >= len(e.ifaces) {
		return fmt.Errorf("interface %d was not declared", p.Interface)
	}
	f := &e.ifaces[p.Interface]
	stamp := p.Stamp
	if stamp == 0 {
		ok := false
		if stamp, ok = timeToStamp(p.Time, f.perSecond, f.offset); !ok {
			return fmt.Errorf("time %d ns does not fit the interface's resolution", p.Time)
		}
	}
	n := 32 + len(p.Data) + pad4(len(p.Data))
	for _, c := range p.Comments {
		k := min(len(c), maxOption)
		n += 4 + k + pad4(k)
	}
	if len(p.Comments) > 0 {
		n += 4
	}
	if n > maxBlock {
		return fmt.Errorf("a packet of %d bytes with its comments, more than %d", n, maxBlock)
	}
	e.limits[p.Interface].longest = max(e.limits[p.Interface].longest, len(p.Data))
	e.put(0, blockEnhanced)
	e.put(4, uint32(n))
	e.put(8, uint32(p.Interface))
	e.put(12, uint32(stamp>>32))
	e.put(16, uint32(stamp))
	e.put(20, uint32(len(p.Data)))
	e.put(24, p.OrigLen)
	e.write(e.scratch[:28])
	e.write(p.Data)
	e.pad(len(p.Data))
	for _, c := range p.Comments {
		c = c[:min(len(c), maxOption)]
		e.optionHead(optComment, len(c))
		e.write(c)
		e.pad(len(c))
	}
	if len(p.Comments) > 0 {
		e.put(0, 0)
		e.write(e.scratch[:4])
	}
	e.put(0, uint32(n))
	e.write(e.scratch[:4])
	return e.err
}

// Flush writes out what is buffered.
func (e *Writer) Flush() error {
	if e.err == nil {
		e.err = e.bw.Flush()
	}
	return e.err
}
