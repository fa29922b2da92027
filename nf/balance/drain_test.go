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
// down. A repeated SYN of a connection, and a SYN for a backend that is up, change nothing.
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
	}{{0, tcpSYN, 1}, {5 * time.Second, tcpACK, 1}, {0, tcpSYN, 1}, {5 * time.Second, tcpSYN, 2}, {0, tcpACK, 2}} {
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
	if got := push(t, f.x, 3, tcpSYN); got != 2 {
		t.Errorf("a new connection goes to %d, which was found down", got)
	}
}
