package p4

import "encoding/binary"

// readBits reads n <= 64 bits at bit off of b, which must be long enough.
func readBits(b []byte, off, n int) uint64 {
	if n == 0 {
		return 0
	}
	b = b[off>>3:]
	s := uint(off & 7)
	if len(b) >= 9 {
		v := binary.BigEndian.Uint64(b)<<s | uint64(b[8])>>(8-s)
		return v >> uint(64-n)
	}
	var v uint64
	for i := range (int(s) + n + 7) / 8 {
		x := uint64(b[i])
		if i == 0 {
			x &= 0xff >> s
		}
		if last := int(s) + n - 8*i; last < 8 {
			v = v<<uint(last) | x>>uint(8-last)
			if i == 0 {
				v &= mask64(n)
			}
		} else {
			v = v<<8 | x
		}
	}
	return v & mask64(n)
}

// load reads a field into word off of a header: it reads eight bytes at byte, and removes left bits before the
// field and then those after it.
type load struct {
	off, byte   uint32
	left, right uint8
}

// planLoads plans the loads of a header type, if all its fields allow it.
func (t *headerType) planLoads() {
	if t.varbit != nil {
		return
	}
	loads := make([]load, 0, len(t.fields))
	for _, f := range t.fields {
		s := f.bitOff & 7
		if s+f.bits > 64 {
			return
		}
		loads = append(loads, load{uint32(f.off), uint32(f.bitOff >> 3), uint8(s), uint8(64 - f.bits)})
	}
	t.loads = loads
}

// beyond is the number of bytes after a header that its loads may read.
const beyond = 7

// readWide reads n bits at bit off of b as a number of several words.
func readWide(dst []uint64, b []byte, off, n int) {
	for i := range dst {
		w := min(64, n)
		n -= w
		dst[i] = readBits(b, off+n, w)
	}
}

// bitWriter appends fields to a byte slice, most significant bit first.
type bitWriter struct {
	b   []byte
	acc uint64
	n   uint // bits in acc, below 64
}

// put appends the lowest n <= 64 bits of v, whose other bits must be 0.
func (w *bitWriter) put(v uint64, n uint) {
	if w.n+n < 64 {
		w.acc = w.acc<<n | v
		w.n += n
		return
	}
	rest := w.n + n - 64
	w.b = binary.BigEndian.AppendUint64(w.b, w.acc<<(n-rest)|v>>rest)
	w.acc, w.n = v&(1<<rest-1), rest
}

// putWide appends the lowest n bits of a number of several words.
func (w *bitWriter) putWide(v []uint64, n int) {
	for n > 0 {
		i := (n - 1) / 64
		part := n - 64*i
		w.put(v[i]&mask64(part), uint(part))
		n -= part
	}
}

// flush appends the remaining bits, filled up with zeros to a whole byte.
func (w *bitWriter) flush() {
	for w.n >= 8 {
		w.n -= 8
		w.b = append(w.b, byte(w.acc>>w.n))
	}
	if w.n > 0 {
		w.b = append(w.b, byte(w.acc<<(8-w.n)))
	}
	w.acc, w.n = 0, 0
}

// putHeader appends a header in its form on the wire.
func (w *bitWriter) putHeader(k *packetState, t *headerType, base int) {
	for _, f := range t.fields {
		at := base + f.off
		switch {
		case f.varbit:
			w.putWide(k.v[at:at+words(f.bits)], int(k.v[base+f.lengthOff]))
		case f.bits <= 64:
			w.put(k.v[at], uint(f.bits))
		default:
			w.putWide(k.v[at:at+words(f.bits)], f.bits)
		}
	}
}
