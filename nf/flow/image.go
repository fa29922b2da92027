package flow

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// An image is a saved state:
//
//	0 "QFLW" | 4 version of the kind | 5 length of its name | 6 name |
//	records: sort (not 0), as many bytes as records of that sort have |
//	0 | number of records (8 bytes) | CRC-32C of all that is before it (4)
//
// Numbers are in network byte order.
const magic = "QFLW"

// Image is an image that is being written.
type Image struct {
	w   *bufio.Writer
	sum uint32
	n   uint64
	err error
}

// NewImage begins the image of the state of a kind.
func NewImage(w io.Writer, kind string, version uint8) *Image {
	i := &Image{w: bufio.NewWriterSize(w, 1<<16)}
	i.write([]byte(magic))
	i.write([]byte{version, uint8(len(kind))})
	i.write([]byte(kind))
	return i
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func (i *Image) write(b []byte) {
	if i.err != nil {
		return
	}
	i.sum = crc32.Update(i.sum, castagnoli(), b)
	_, i.err = i.w.Write(b)
}

// Record adds a record of a sort, which is not 0.
func (i *Image) Record(sort uint8, b []byte) {
	i.write([]byte{sort})
	i.write(b)
	i.n++
}

// Close ends the image; the error is the first of all writes.
func (i *Image) Close() error {
	i.write(be.AppendUint64([]byte{0}, i.n))
	i.write(be.AppendUint32(nil, i.sum))
	if i.err != nil {
		return i.err
	}
	return i.w.Flush()
}

// ErrDamaged is that an image is not what was written.
var ErrDamaged = errors.New("the state is damaged")

// Open reads an image of a kind and version to its end, and checks all of it: the
// records are what follows. size is what records of a sort have; 0: there are none
// of that sort. There are at most most bytes in it.
func Open(r io.Reader, kind string, version uint8, size func(sort uint8) int, most int) (Records, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
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
	if end < head+len(kind) || b[end] != 0 || crc32.Checksum(b[:end+9], castagnoli()) != be.Uint32(b[end+9:]) {
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

// Records of an image, all of them whole.
type Records struct {
	b    []byte
	size func(sort uint8) int
}

// All are the records, in the order of writing.
func (r Records) All(yield func(sort uint8, b []byte) bool) {
	for p := r.b; len(p) > 0; {
		s := r.size(p[0])
		if !yield(p[0], p[1:1+s]) {
			return
		}
		p = p[1+s:]
	}
}
