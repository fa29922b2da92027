package balance

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// push sends a client's TCP segment with these flags, and returns the backend that it goes to; 0: none.
func push(t *testing.T, x *graphtest.Test, client int, flags uint8) int {
	t.Helper()
	f := build(t, request(false, true, client))
	var d hdr.Layers
	hdr.Walk(f, &d)
	f[d.L4+13] = flags
	out := x.Push("a", f).Out["b"]
	if len(out) == 0 {
		return 0
	}
	return backendOf(out[0].Bytes)
}

// TestDownAndDrained: a connection whose backend drains, and is then found down, goes where it would without checks when no
// backend of its family gets new connections.
func TestDownAndDrained(t *testing.T) {
	f := newFarm(t, "icmp", graph.Args{"check-down": "move", "backends": "10.0.0.1@02:00:00:00:00:01"})
	f.live(3 * time.Second)
	if got := push(t, f.x, 1, tcpACK); got != 1 {
		t.Fatalf("backend %d", got)
	}
	if err := f.x.Set(graph.Args{"backends": "10.0.0.1@02:00:00:00:00:01/drain"}); err != nil {
		t.Fatal(err)
	}
	f.mode["10.0.0.1"] = "silent"
	f.live(60 * time.Second)
	for range 2 {
		if got := push(t, f.x, 1, tcpACK); got != 1 {
			t.Errorf("backend %d, want 1", got)
		}
	}
	if got := push(t, f.x, 2, tcpSYN); got != 0 {
		t.Errorf("a new connection goes to backend %d", got)
	}
	if err := f.x.Set(graph.Args{"backends": "10.0.0.1@02:00:00:00:00:01/drain+10.0.0.2@02:00:00:00:00:02"}); err != nil {
		t.Fatal(err)
	}
	f.live(time.Second)
	if got := push(t, f.x, 1, tcpACK); got != 2 {
		t.Errorf("with another backend: %d", got)
	}
}

// TestPortAgain: a client's port that is used again is a new connection, which goes to no backend that drains, or was found
// down, when its backend has not answered its SYN. A repeated SYN of a connection, and a SYN for a backend that is up, change nothing.
func TestPortAgain(t *testing.T) {
	const one, two = "10.0.0.1@02:00:00:00:00:01", "10.0.0.2@02:00:00:00:00:02"
	f := newFarm(t, "icmp", graph.Args{"backends": one})
	f.live(3 * time.Second)
	for client := 1; client <= 3; client++ {
		if got := push(t, f.x, client, tcpSYN); got != 1 {
			t.Fatalf("backend %d", got)
		}
	}
	if err := f.x.Set(graph.Args{"backends": one + "+" + two}); err != nil {
		t.Fatal(err)
	}
	f.live(time.Second)
	if got := push(t, f.x, 1, tcpSYN); got != 1 {
		t.Errorf("while the backend is up: %d", got)
	}
	if err := f.x.Set(graph.Args{"backends": one + "/drain+" + two}); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		after time.Duration
		flags uint8
		want  int
	}{{0, tcpSYN, 1}, {5 * time.Second, tcpACK, 1}, {0, tcpSYN, 1}, {5 * time.Second, tcpSYN, 1}, {0, tcpSYN, 1}, {time.Second, tcpSYN, 2}, {0, tcpACK, 2}} {
		f.live(c.after)
		if got := push(t, f.x, 1, c.flags); got != c.want {
			t.Errorf("%d: backend %d, want %d", i, got, c.want)
		}
	}
	f.mode["10.0.0.1"] = "silent"
	if err := f.x.Set(graph.Args{"backends": one + "+" + two}); err != nil {
		t.Fatal(err)
	}
	f.live(60 * time.Second)
	if got := push(t, f.x, 2, tcpACK); got != 1 {
		t.Errorf("a connection of a backend that was found down goes to %d", got)
	}
	f.live(time.Second)
	for _, want := range []int{1, 2} {
		f.live(time.Second)
		if got := push(t, f.x, 3, tcpSYN); got != want {
			t.Errorf("a new connection goes to %d, and not to %d, whose backend was found down", got, want)
		}
	}
}

// TestMadeUpSYN: a connection stays at its backend, which drains, as long as the backend has it, whatever somebody sends with its client's address
// and port. When it is over, the client's port begins another one elsewhere.
func TestMadeUpSYN(t *testing.T) {
	const one, two = "10.0.0.1@02:00:00:00:00:01", "10.0.0.2@02:00:00:00:00:02"
	const syn, ack, rst, fin = tcpSYN, tcpACK, tcpRST, uint8(1)
	type step struct {
		from     string // who sends
		flags    uint8
		seq, ack uint32
		goes     int // a client's: to this backend; a backend's: 1 to the client, 0 nowhere
	}
	const soon = "soon"                      // 10 ms later
	const client, backend = "1 s later", "b" // the client sends 1 s after what came before
	live := []step{{backend, ack, 5000, 1000, 1}}
	for name, steps := range map[string][]step{
		"SYNs, and the backend says that it has the connection": {{client, syn, 77, 0, 1}, {backend, ack, 5000, 1000, 1}, {client, syn, 77, 0, 1}, {backend, ack, 5000, 1000, 1}, {client, ack, 1000, 5000, 1}},
		"a SYN behind a made-up RST":                            {{client, rst, 78, 0, 1}, {client, syn, 77, 0, 1}, {backend, ack, 5000, 1000, 1}, {client, syn, 77, 0, 1}},
		"a SYN behind a made-up FIN":                            {{client, fin | ack, 78, 0, 1}, {client, syn, 77, 0, 1}, {backend, ack, 5000, 1000, 1}, {client, syn, 77, 0, 1}},
		"a SYN behind a made-up FIN, while the backend has sent its own": {{backend, fin | ack, 5000, 1000, 1}, {client, fin | ack, 78, 0, 1}, {backend, ack, 5001, 1000, 1}, {client, syn, 77, 0, 1}, {backend, ack, 5001, 1000, 1},
			{client, syn, 77, 0, 1}},
		"SYNs of a client that lost its state":  {{client, syn, 77, 0, 1}, {backend, ack, 5000, 1000, 1}, {soon, rst, 1000, 0, 1}, {client, syn, 77, 0, 2}, {client, ack, 78, 0, 2}},
		"SYNs that the backend does not answer": {{client, syn, 77, 0, 1}, {client, syn, 77, 0, 2}},
		"SYNs to a backend that refuses":        {{client, syn, 77, 0, 1}, {backend, rst | ack, 0, 78, 1}, {client, syn, 77, 0, 2}},
		"SYNs to a backend that lost its state": {{client, syn, 77, 0, 1}, {backend, syn | ack, 9000, 78, 0}, {backend, syn | ack, 9000, 78, 0}, {client, syn, 77, 0, 2}},
		"a SYN that the client has repeated before it got the answer, and then made-up ones": {{client, syn, 999, 0, 1}, {backend, syn | ack, 4999, 1000, 1}, {soon, ack, 1000, 5000, 1}, {backend, ack, 5000, 1006, 1},
			{client, syn, 77, 0, 1}, {backend, ack, 5000, 1006, 1}, {client, syn, 77, 0, 1}},
		"closed by the client":  {{client, fin | ack, 1000, 5000, 1}, {backend, ack, 5000, 1006, 1}, {backend, fin | ack, 5000, 1006, 1}, {soon, ack, 1006, 5001, 1}, {client, syn, 77, 0, 2}},
		"closed by the backend": {{backend, fin | ack, 5000, 1000, 1}, {client, fin | ack, 1000, 5001, 1}, {backend, ack, 5001, 1006, 1}, {client, syn, 77, 0, 2}},
		"reset by the backend":  {{backend, rst, 5000, 0, 1}, {client, syn, 77, 0, 2}},
		"reset by the client":   {{client, rst, 1000, 0, 1}, {client, syn, 77, 0, 2}},
		"closed, and begun anew at once": {{backend, fin | ack, 5000, 1000, 1}, {client, fin | ack, 1000, 5001, 1}, {backend, ack, 5001, 1006, 1}, {soon, syn, 77, 0, 1}, {backend, syn | ack, 9000, 78, 1}, {client, syn, 77, 0, 1},
			{backend, ack, 9001, 78, 1}, {client, syn, 77, 0, 1}},
	} {
		x := graphtest.New(t, *Kind(), graph.Args{"vip": vip4, "port": "80", "size": "1021", "backends": one})
		do := func(i int, s step) {
			f, in, out := build(t, request(false, true, 1)), "a", "b"
			if s.from == backend {
				r := request(false, true, 1)
				r.src, r.dst, r.sport, r.dport = "10.0.0.1", r.src, r.dport, r.sport
				f, in, out = build(t, r), "b", "a"
			}
			switch s.from {
			case soon:
				x.Advance(10 * time.Millisecond)
			case client:
				x.Advance(time.Second)
			}
			var d hdr.Layers
			hdr.Walk(f, &d)
			h := hdr.TCP(f[d.L4:])
			h.SetSeq(s.seq)
			h.SetAck(s.ack)
			h.SetFlags(s.flags)
			got := 0
			if all := x.Push(in, f).Out[out]; len(all) == 1 && in == "a" {
				got = backendOf(all[0].Bytes)
			} else if len(all) == 1 {
				got = 1
			}
			if got != s.goes {
				t.Errorf("%s: step %d goes to %d, want %d", name, i, got, s.goes)
			}
		}
		do(-2, step{client, syn, 999, 0, 1})
		do(-1, step{backend, syn | ack, 4999, 1000, 1})
		for _, s := range live {
			do(0, s)
		}
		if err := x.Set(graph.Args{"vip": vip4, "port": "80", "size": "1021", "backends": one + "/drain+" + two}); err != nil {
			t.Fatal(err)
		}
		for i, s := range steps {
			do(i+1, s)
		}
	}
}
