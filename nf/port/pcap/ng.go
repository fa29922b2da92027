package pcap

import (
	"errors"
	"fmt"
	"io"
)

// openNG reads the section header and what stands before the first packet.
func (d *Reader) openNG() error {
	for {
		typ, b, err := d.peekBlock()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
		case typ == blockEnhanced || typ == blockSimple || typ == blockPacket:
			return nil
		default:
			err = d.declare(typ, b)
		}
		if err != nil {
			if d.off == 0 {
				return fmt.Errorf("file header: %w", err)
			}
			d.err = &Error{Packet: 1, Offset: d.off, Err: err} // for Next to report
			return nil
		}
		d.off += int64(len(b))
		d.br.Discard(len(b))
	}
}

// peekBlock shows the next block that matters, whole, without stepping over
// it; other blocks are skipped. io.EOF: the file ends between blocks.
func (d *Reader) peekBlock() (uint32, []byte, error) {
	for {
		h, err := d.br.Peek(12)
		if len(h) < 12 {
			if len(h) == 0 && err == io.EOF {
				return 0, nil, io.EOF
			}
			return 0, nil, d.cut(err)
		}
		typ := get32(h, d.h.BigEndian)
		if typ == blockSection { // reads the same in both orders
			switch {
			case get32(h[8:], false) == magicOrder:
				d.h.BigEndian = false
			case get32(h[8:], true) == magicOrder:
				d.h.BigEndian = true
			default:
				return 0, nil, fmt.Errorf("%w: a section without byte-order magic", ErrCorrupt)
			}
		}
		total := get32(h[4:], d.h.BigEndian)
		if total < 12 || total%4 != 0 {
			return 0, nil, fmt.Errorf("%w: a block of %d bytes", ErrCorrupt, total)
		}
		switch typ {
		case blockSection, blockInterface, blockPacket, blockSimple, blockEnhanced:
			if total > maxBlock {
				return 0, nil, fmt.Errorf("%w: a block of %d bytes, more than %d", ErrCorrupt, total, maxBlock)
			}
			b, err := d.br.Peek(int(total))
			if len(b) < int(total) {
				return 0, nil, d.cut(err)
			}
			if n := get32(b[total-4:], d.h.BigEndian); n != total {
				return 0, nil, fmt.Errorf("%w: a block's lengths are %d in front and %d at its end", ErrCorrupt, total, n)
			}
			return typ, b, nil
		}
		if err := d.discard(int64(total)); err != nil {
			return 0, nil, err
		}
	}
}

// discard steps over a block that is not looked into, whatever its length.
func (d *Reader) discard(n int64) error {
	for left := n; left > 0; {
		step := int(min(left, maxBlock))
		if k, err := d.br.Discard(step); k < step {
			return d.cut(err)
		}
		left -= int64(step)
	}
	d.off += n
	return nil
}

// declare takes in a block that is not a packet.
func (d *Reader) declare(typ uint32, b []byte) error {
	big := d.h.BigEndian
	switch typ {
	case blockSection:
		if len(b) < 28 {
			return fmt.Errorf("%w: a section header of %d bytes", ErrCorrupt, len(b))
		}
		d.h.Major, d.h.Minor = get16(b[12:], big), get16(b[14:], big)
		if d.h.Major != 1 {
			return fmt.Errorf("%w: pcapng version %d.%d, only 1.x is known", ErrFormat, d.h.Major, d.h.Minor)
		}
		d.base = len(d.ifaces)
	case blockInterface:
		if len(b) < 20 {
			return fmt.Errorf("%w: an interface block of %d bytes", ErrCorrupt, len(b))
		}
		if len(d.ifaces) == maxInterfaces {
			return fmt.Errorf("%w: more than %d interfaces", ErrCorrupt, maxInterfaces)
		}
		i := Interface{Link: get16(b[8:], big), SnapLen: get32(b[12:], big), Resol: defaultResol}
		o := options{b: b[16 : len(b)-4], big: big}
		for o.next() {
			switch {
			case o.code == optName:
				i.Name = string(o.val[:min(len(o.val), maxName)])
			case o.code == optDescription:
				i.Description = string(o.val[:min(len(o.val), maxName)])
			case o.code == optResol && len(o.val) == 1:
				i.Resol = o.val[0]
			case o.code == optOffset && len(o.val) == 8:
				hi, lo := get32(o.val, big), get32(o.val[4:], big)
				if !big {
					hi, lo = lo, hi
				}
				i.Offset = int64(uint64(hi)<<32 | uint64(lo))
			}
		}
		if o.err != nil {
			return o.err
		}
		u := unitsPerSecond(i.Resol)
		if u == 0 {
			return fmt.Errorf("%w: an interface with time resolution 0x%02x", ErrCorrupt, i.Resol)
		}
		d.ifaces = append(d.ifaces, iface{u, i.Offset, i.SnapLen})
		d.shown = append(d.shown, i)
	}
	return nil
}

func (d *Reader) nextNG(p *Packet) error {
	for {
		d.skip()
		typ, b, err := d.peekBlock()
		if err != nil {
			return err
		}
		switch typ {
		case blockEnhanced, blockPacket, blockSimple:
			if err := d.decode(typ, b, p); err != nil {
				return err
			}
			d.pending = len(b)
			return nil
		}
		if err := d.declare(typ, b); err != nil {
			return err
		}
		d.pending = len(b)
	}
}

var errOptions = errors.New("an option does not fit in its block")

// decode takes a packet block apart. Layouts, behind type and length:
//
//	enhanced: interface 4, time high 4, time low 4, captured 4, original 4, frame, options
//	packet:   interface 2, drops 2, then the same
//	simple:   original 4, frame
func (d *Reader) decode(typ uint32, b []byte, p *Packet) error {
	big := d.h.BigEndian
	body := b[8 : len(b)-4]
	head := 20
	if typ == blockSimple {
		head = 4
	}
	if len(body) < head {
		return fmt.Errorf("%w: a packet block of %d bytes", ErrCorrupt, len(b))
	}
	*p = Packet{}
	id := uint32(0)
	switch typ {
	case blockEnhanced:
		id = get32(body, big)
	case blockPacket:
		id = uint32(get16(body, big))
	}
	if uint64(id) >= uint64(len(d.ifaces)-d.base) {
		return fmt.Errorf("%w: interface %d of %d", ErrCorrupt, id, len(d.ifaces)-d.base)
	}
	p.Interface = d.base + int(id)
	f := &d.ifaces[p.Interface]
	var n uint32
	if typ == blockSimple {
		p.OrigLen = get32(body, big)
		n = p.OrigLen
		if f.snapLen != 0 {
			n = min(n, f.snapLen)
		}
		p.Time = d.last // a simple packet has no time: that of the packet before
	} else {
		p.Stamp = uint64(get32(body[4:], big))<<32 | uint64(get32(body[8:], big))
		n, p.OrigLen = get32(body[12:], big), get32(body[16:], big)
		t, ok := stampToTime(p.Stamp, f.perSecond, f.offset)
		if !ok {
			return fmt.Errorf("%w: timestamp %#x is out of range", ErrCorrupt, p.Stamp)
		}
		p.Time = t
	}
	rest := body[head:]
	if n > MaxCapLen || int(n) > len(rest) {
		return fmt.Errorf("%w: a frame of %d bytes in a block of %d", ErrCorrupt, n, len(b))
	}
	p.Data = rest[:n:n]
	if typ == blockSimple {
		return nil
	}
	o := options{b: rest[min(int(n)+pad4(int(n)), len(rest)):], big: big}
	d.comments = d.comments[:0]
	for o.next() {
		if o.code == optComment {
			d.comments = append(d.comments, o.val)
		}
	}
	if len(d.comments) > 0 {
		p.Comments = d.comments
	}
	return o.err
}

// options walks a block's option list: code 2, length 2, value, padding.
type options struct {
	b    []byte
	big  bool
	code uint16
	val  []byte
	err  error
}

func (o *options) next() bool {
	if len(o.b) < 4 {
		return false
	}
	code, n := get16(o.b, o.big), int(get16(o.b[2:], o.big))
	if code == optEnd {
		return false
	}
	if len(o.b) < 4+n {
		o.err = fmt.Errorf("%w: %w", ErrCorrupt, errOptions)
		return false
	}
	o.code, o.val = code, o.b[4:4+n:4+n]
	o.b = o.b[min(4+n+pad4(n), len(o.b)):]
	return true
}
