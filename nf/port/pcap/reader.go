package pcap

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/quillon/quillon/nf/clock"
)

// Reader delivers the packets of a capture of either format.
type Reader struct {
	br      *bufio.Reader
	h       Header
	off     int64 // of the byte that br delivers next
	pending int   // bytes of the last record, still in br
	n       uint64
	err     error
	last    clock.Time

	ifaces   []iface
	shown    []Interface // what Interfaces returns
	base     int         // first interface of the section
	comments [][]byte
	record   int // bytes of a record's header, classic
}

type iface struct {
	perSecond uint64
	offset    int64
	snapLen   uint32
}

// NewReader reads the file's header. Errors wrap ErrFormat, ErrTruncated or
// ErrCorrupt, or are r's own. A pcapng file is read up to its first packet, so
// that Interfaces knows the interfaces that are declared at the front. A capture that is compressed by gzip or
// zstd is decompressed; offsets count in the decompressed capture.
func NewReader(r io.Reader) (*Reader, error) {
	d := &Reader{br: bufio.NewReaderSize(r, maxBlock), record: recordHeaderLen}
	b, err := d.br.Peek(4)
	if plain, e := expand(d.br, b); e != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, e)
	} else if plain != nil {
		d.br = bufio.NewReaderSize(plain, maxBlock)
		b, err = d.br.Peek(4)
	}
	if len(b) < 4 {
		if err == io.EOF {
			return nil, fmt.Errorf("%w: %d bytes long", ErrFormat, len(b))
		}
		return nil, err
	}
	switch magic := binary.LittleEndian.Uint32(b); magic {
	case blockSection:
		d.h.Format = NG
		if err := d.openNG(); err != nil {
			return nil, err
		}
		return d, nil
	case magicMicro, magicNano, magicModified:
		d.magic(magic)
	default:
		d.h.BigEndian = true
		switch magic := binary.BigEndian.Uint32(b); magic {
		case magicMicro, magicNano, magicModified:
			d.magic(magic)
		default:
			return nil, fmt.Errorf("%w: it begins with %02x %02x %02x %02x, neither pcap nor pcapng", ErrFormat, b[0], b[1], b[2], b[3])
		}
	}
	if err := d.openClassic(); err != nil {
		return nil, err
	}
	return d, nil
}

// expand is the text of what gzip or zstd has compressed, which begins with b; nil: it is not.
func expand(r io.Reader, b []byte) (io.Reader, error) {
	switch {
	case bytes.HasPrefix(b, []byte{0x1F, 0x8B}):
		return gzip.NewReader(r)
	case bytes.Equal(b, []byte{0x28, 0xB5, 0x2F, 0xFD}):
		// On this goroutine alone: there is nothing to be closed.
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	}
	return nil, nil
}

// maxWindow is what zstd --long needs.
const maxWindow = 128 << 20

// magic takes in the first word of a classic file.
func (d *Reader) magic(m uint32) {
	d.h.Nano = m == magicNano
	if m == magicModified {
		d.record = recordHeaderLen + 8
	}
}

func (d *Reader) openClassic() error {
	b, err := d.br.Peek(fileHeaderLen)
	if len(b) < fileHeaderLen {
		return fmt.Errorf("file header: %w", d.cut(err))
	}
	big := d.h.BigEndian
	d.h.Major, d.h.Minor = get16(b[4:], big), get16(b[6:], big)
	d.h.Zone, d.h.SigFigs = int32(get32(b[8:], big)), get32(b[12:], big)
	d.h.SnapLen, d.h.Link = get32(b[16:], big), get32(b[20:], big)
	if d.h.Major != 2 {
		return fmt.Errorf("%w: pcap version %d.%d, only 2.x is known", ErrFormat, d.h.Major, d.h.Minor)
	}
	resol := uint8(6)
	if d.h.Nano {
		resol = 9
	}
	d.shown = []Interface{{Link: uint16(d.h.Link), SnapLen: d.h.SnapLen, Resol: resol}}
	d.pending = fileHeaderLen
	return nil
}

// Header returns the file's header; for pcapng, that of the current section.
func (d *Reader) Header() Header { return d.h }

// Interfaces returns the interfaces declared so far; a pcapng file may declare more later.
func (d *Reader) Interfaces() []Interface { return d.shown }

// Next delivers the next packet in p, valid until the next call. It returns io.EOF at the
// end of an undamaged file; any other error is final and says where the file is damaged.
func (d *Reader) Next(p *Packet) error {
	if d.err != nil {
		return d.err
	}
	var err error
	if d.h.Format == NG {
		err = d.nextNG(p)
	} else {
		err = d.nextClassic(p)
	}
	if err == nil {
		d.n++
		p.Number = d.n
		d.last = p.Time
		return nil
	}
	if err != io.EOF {
		err = &Error{Packet: d.n + 1, Offset: d.off, Err: err}
	}
	d.err = err
	return err
}

// skip steps over the record that was delivered last.
func (d *Reader) skip() {
	d.br.Discard(d.pending) // it is in the buffer: cannot fail
	d.off += int64(d.pending)
	d.pending = 0
}

// cut is the error for a record of which too little could be read.
func (d *Reader) cut(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrTruncated
	}
	return err
}

func (d *Reader) nextClassic(p *Packet) error {
	d.skip()
	b, err := d.br.Peek(d.record)
	if len(b) < d.record {
		if len(b) == 0 && err == io.EOF {
			return io.EOF
		}
		return d.cut(err)
	}
	big := d.h.BigEndian
	sec, frac, n, orig := get32(b, big), get32(b[4:], big), get32(b[8:], big), get32(b[12:], big)
	if n > MaxCapLen {
		return fmt.Errorf("%w: a frame of %d bytes, more than %d", ErrCorrupt, n, MaxCapLen)
	}
	size := d.record + int(n)
	if b, err = d.br.Peek(size); len(b) < size {
		return d.cut(err)
	}
	unit := int64(1000)
	if d.h.Nano {
		unit = 1
	}
	*p = Packet{
		Time:    clock.Time(int64(sec)*1e9 + int64(frac)*unit),
		Stamp:   uint64(sec)<<32 | uint64(frac),
		OrigLen: orig,
		Data:    b[d.record:size:size],
	}
	d.pending = size
	return nil
}
