package arbiter

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
)

// killable is the variable that has the test's program be the process that is killed: the file of its memory.
const killable = "QUILLON_ARBITER_KILLED"

// mapped is a state over a file.
func mapped(t testing.TB, path string) *state {
	s, err := parse(with("clients", "8", "locks", "64", "waiting", "4", "max-lease", "1h"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := memLen(s.nClients, s.nHolds)
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	x := newState(s, 1, m, [16]byte{1})
	x.begin(1)
	x.quiet, x.head.young = 0, 0
	return x
}

// hammer does requests as fast as it can, each acquire for eight words in a row of 24.
func hammer(x *state, requests int) {
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	m := new(message.Message)
	var last [4]uint32
	var sessions [4]uint64
	for n := range last {
		m.Incarnation = 1
		sessions[n] = x.cookie(&peer{ip: [4]byte{10, 0, 0, byte(n)}, port: 7}, m, 0)
		for i := range x.clients {
			if c := &x.clients[i]; c.state == live && c.from.ip[3] == byte(n) {
				for k := range c.slots {
					last[n] = max(last[n], c.slots[k].request)
				}
			}
		}
	}
	for ; requests != 0; requests-- {
		n := r.IntN(4)
		from := peer{ip: [4]byte{10, 0, 0, byte(n)}, port: 7}
		*m = message.Message{Op: message.Acquire, Request: last[n] + 1, Incarnation: 1, Lease: 1000, N: 8, Session: sessions[n]}
		if last[n]%2 == 1 { // what it has asked for just now
			m.Op, m.Handle = message.Release, last[n]
		}
		last[n]++
		at := uint64(r.IntN(17))
		for i := range m.N {
			m.Words[i] = excl(at + uint64(i))
		}
		x.handle(clock.Time(1), m, &from)
	}
}

// TestKilledAnywhere: a process that is killed between any two stores leaves grants that are whole, of words that nobody shares.
func TestKilledAnywhere(t *testing.T) {
	if path := os.Getenv(killable); path != "" {
		x := mapped(t, path)
		_, _ = os.Stdout.WriteString("\n")
		hammer(x, -1)
	}
	path := filepath.Join(t.TempDir(), "memory")
	caught, kills := 0, 0
	for ; kills < 60 || caught == 0 && kills < 600; kills++ {
		c := exec.Command(os.Args[0], "-test.run", "^TestKilledAnywhere$")
		c.Env = append(os.Environ(), killable+"="+path)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err == nil {
			_, err = out.Read(make([]byte, 1)) // when its requests begin
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		_ = c.Process.Kill()
		_ = c.Wait()
		before := mappedHeader(t, path)
		if before.pending != 0 || before.noting != 0 {
			caught++
		}
		x := mapped(t, path)
		if before.magic == memMagic && x.head.token < before.token {
			t.Fatalf("token %d after %d", x.head.token, before.token)
		}
		words, by := map[uint64]bool{}, map[uint64]int{}
		for i := range x.holds {
			h := &x.holds[i]
			if h.token == 0 {
				continue
			}
			if words[h.addr] {
				t.Fatalf("%#x is held twice", h.addr)
			}
			words[h.addr] = true
			by[h.token]++
		}
		for token, n := range by {
			if n != 8 {
				t.Fatalf("of grant %d %d of 8 words are held", token, n)
			}
		}
		hammer(x, 51)
	}
	t.Logf("killed %d times, %d of them within a request", kills, caught)
	if caught == 0 {
		t.Error("no kill fell into a request: this shows nothing")
	}
}

// mappedHeader is the header as a process has left it.
func mappedHeader(t *testing.T, path string) header {
	b, err := os.ReadFile(path)
	if err != nil || len(b) < memLen(0, 0) {
		return header{} // it had not begun
	}
	h, _, _ := lay(b, 0, 0)
	return *h
}
