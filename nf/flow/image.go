package flow

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// An image is a saved state (the numbers 0, 4, 5, 6 are offsets in bytes):
//
//	0 "QFLW" | 4 version of the kind | 5 length of the kind's name | 6 name |
//	records: sort (one byte, not 0), then the bytes of the record, whose number the sort fixes |
//	one byte 0 | number of records (8 bytes) | CRC-32C of all bytes before it (4 bytes)
//
// Numbers are in network byte order.
const magic = "QFLW"

// Image writes an image. An error of the writer is kept, and Close returns it.
type Image struct {
	w   io.Writer
	b   []byte // what is not written yet
	sum uint32 // of what is
	n   uint64
	err error
}

// imageBuf is the capacity in bytes of an Image's buffer. A longer record enlarges the buffer.
const imageBuf = 1 << 14

// NewImage begins an image of a state of the named kind, and writes it to w. The name may have at most 255 bytes.
func NewImage(w io.Writer, kind string, version uint8) *Image {
	i := &Image{w: w, b: make([]byte, 0, imageBuf)}
	i.b = append(append(append(i.b, magic...), version, uint8(len(kind))), kind...)
	return i
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// flush writes the buffered bytes to w, and makes room for n bytes in the buffer.
func (i *Image) flush(n int) {
	if i.err == nil {
		i.sum = crc32.Update(i.sum, castagnoli(), i.b)
		_, i.err = i.w.Write(i.b)
	}
	if i.b = i.b[:0]; n > cap(i.b) {
		i.b = make([]byte, 0, n)
	}
}

// Add adds a record of the given sort (not 0) with size bytes, and returns these bytes. The caller
// must set all of them before the next call: they may hold old data.
func (i *Image) Add(sort uint8, size int) []byte {
	if len(i.b)+1+size > cap(i.b) {
		i.flush(1 + size)
	}
	n := len(i.b)
	i.b = i.b[:n+1+size]
	i.b[n] = sort
	i.n++
	return i.b[n+1:]
}

// Record adds a record of the given sort (not 0) with a copy of b.
func (i *Image) Record(sort uint8, b []byte) { copy(i.Add(sort, len(b)), b) }

// Close ends the image. It returns the first error of all writes.
func (i *Image) Close() error {
	i.b = be.AppendUint64(append(i.b, 0), i.n)
	i.flush(0)
	i.b = be.AppendUint32(i.b, i.sum)
	i.flush(0)
	return i.err
}

// ErrDamaged says that an image differs from what was written.
var ErrDamaged = errors.New("the state is damaged")

// Open reads r to its end, checks that it holds a whole image of the kind and version, and returns
// the image's records. size returns the bytes of a record of a sort, or 0 if the kind has no such
// sort. Open fails if the image has more than most bytes.
func Open(r io.Reader, kind string, version uint8, size func(sort uint8) int, most int) (Records, error) {
	b, err := readAll(r, most+1)
	if err != nil {
		return Records{}, err
	}
	head := len(magic) + 2
	switch {
	case len(b) > most:
		return Records{}, fmt.Errorf("the state has more than %d bytes: more than there is room for", most)
	case len(b) < head || string(b[:len(magic)]) != magic || len(b) < head+int(b[5]):
		return Records{}, errors.New("this is no state that was saved")
	case string(b[head:head+int(b[5])]) != kind:
		return Records{}, fmt.Errorf("the state is that of a %q, not of a %s", b[head:head+int(b[5])], kind)
	case b[4] != version:
		return Records{}, fmt.Errorf("the state is of version %d, and this is version %d", b[4], version)
	}
	end := len(b) - 13
	if end < head+len(kind) || b[end] != 0 || sum(b[:end+9]) != be.Uint32(b[end+9:]) {
		return Records{}, ErrDamaged
	}
	all := b[head+len(kind) : end]
	n := uint64(0)
	for p := all; len(p) > 0; n++ {
		s := size(p[0])
		if p[0] == 0 || s == 0 || len(p) < 1+s {
			return Records{}, ErrDamaged
		}
		p = p[1+s:]
	}
	if n != be.Uint64(b[end+1:]) {
		return Records{}, ErrDamaged
	}
	return Records{all, size}, nil
}

// atOnce is the number of bytes that are copied or summed without a pause. It is small because the
// garbage collector waits for the goroutine meanwhile, and all other goroutines for the collector.
const atOnce = 1 << 16

func sum(b []byte) (sum uint32) {
	for len(b) > 0 {
		n := min(len(b), atOnce)
		sum, b = crc32.Update(sum, castagnoli(), b[:n]), b[n:]
	}
	return sum
}

// readAll reads r to its end, or the first most bytes of it.
func readAll(r io.Reader, most int) ([]byte, error) {
	var b []byte
	if l, ok := r.(interface{ Len() int }); ok {
		b = make([]byte, 0, min(l.Len(), most)+1)
	}
	for r = io.LimitReader(r, int64(most)); ; {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):min(cap(b), len(b)+atOnce)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// Records are the records of an image that Open has checked.
type Records struct {
	b    []byte
	size func(sort uint8) int
}

// All yields the sort and the bytes of each record, in the order of writing. The bytes are not a copy.
func (r Records) All(yield func(sort uint8, b []byte) bool) {
	for p := r.b; len(p) > 0; {
		s := r.size(p[0])
		if !yield(p[0], p[1:1+s]) {
			return
		}
		p = p[1+s:]
	}
}
