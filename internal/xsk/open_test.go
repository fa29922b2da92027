package xsk

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/port"
)

// TestOpenRefused: what the kernel refuses half way is an error, and leaves no
// file open.
func TestOpenRefused(t *testing.T) {
	root(t)
	files := func() int {
		t.Helper()
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	was := files()
	u, err := NewUMEM(64, 2048)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	whole := u.Mem
	u.Mem = whole[:2048*3/2] // no number of chunks
	if _, err := Open(u, Options{Ring: 64}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("memory that is no number of chunks: %v", err)
	}
	u.Mem = whole
	if _, err := Open(u, Options{Ring: 64, BusyPoll: 1 << 31}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("busy polling for longer than can be: %v", err)
	}
	st, err := NewState(here, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	sockets, err := NewSocketMap(1)
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close()
	spec := ProgramSpec{Filter: port.Filter{RoCE: true, Hosts: []netip.Addr{{}}}, Other: 1}
	was += 2
	if p, err := Load(WireProgram, Part{Index: here, Spec: spec, State: st, Sockets: sockets}); err == nil || p != nil {
		t.Errorf("a host that is no address: %v", err)
	}
	if n := files(); n != was {
		t.Errorf("%d files are open, not %d", n, was)
	}
	// What was refused leaves the memory as it was.
	s, err := Open(u, Options{Ring: 64})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
