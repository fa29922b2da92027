package bed

import (
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/graph"
)

// torn is memory in which somebody who writes there can be made to die: at the first
// store to one of its pages, after all that came before it. What is left then is what a
// process leaves that is killed at that moment.
type torn struct{ b []byte }

const pageSize = 4096

// newTorn is such memory of so many bytes, zeros.
func newTorn(size int) (*torn, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return &torn{b}, err
}

// page is one where something was written.
func (t *torn) page(rng *rand.Rand) []byte {
	var used [][]byte
	for k := 0; k < len(t.b); k += pageSize {
		p := t.b[k:min(k+pageSize, len(t.b))]
		for i := 0; i < len(p); i += 64 {
			if p[i] != 0 {
				used = append(used, p)
				break
			}
		}
	}
	if len(used) == 0 {
		return t.b[:min(pageSize, len(t.b))]
	}
	return used[rng.IntN(len(used))]
}

// kill runs step, which dies when it writes to some page; died: it did.
func (t *torn) kill(rng *rand.Rand, step func() error) (died bool, err error) {
	p := t.page(rng)
	if err := unix.Mprotect(p, unix.PROT_READ); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unix.Mprotect(p, unix.PROT_READ|unix.PROT_WRITE)) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	err = step()
	if x, ok := errors.AsType[*graph.PanicError](err); ok {
		at, ok := x.Value.(interface{ Addr() uintptr })
		if from := uintptr(unsafe.Pointer(&p[0])); ok && at.Addr() >= from && at.Addr() < from+uintptr(len(p)) {
			return true, nil
		}
	}
	return false, err
}

func (t *torn) close() { _ = unix.Munmap(t.b) }
