package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/napt"
)

// Connections of a firewall and an address translator stay through context switches, the
// deployment of other tasks, and other arguments of their own.
func TestStateStays(t *testing.T) {
	text := func(conns, other, idle string) string {
		return fmt.Sprintf(`
regions: {count: 1, area: 2}
tasks:
  fw:  {kind: firewall, args: {rules: "allow+in:a", conns: "%s"}}
  nat: {kind: napt, args: {public: 203.0.113.1, udp-idle: %s}}
  o: {kind: quick, args: {letter: %s}, area: 2}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: fw -> nat}, {uid: 2, tenant: v, run: o}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "dst:203.0.113.1", dag: 1}, {match: "src:203.0.113.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`, conns, idle, other)
	}
	x := graphtest.NewOuter(t, append(scripts(), *firewall.Kind(), *napt.Kind()), graph.Args{"deployment": text("100", "o", "5m")})
	x.Advance(20 * time.Millisecond)
	out := append(x.Push("p0", frame(1, "hello")).Out["p1"], x.Advance(time.Millisecond).Out["p1"]...)
	if len(out) != 1 || string(out[0].Bytes[26:30]) != "\xcb\x00\x71\x01" {
		t.Fatalf("%v", out)
	}
	// The answer, to the port that was given out.
	answer := answerTo(out[0].Bytes)
	passes := func(when string) {
		t.Helper()
		r := x.Push("p1", answer)
		more := x.Advance(40 * time.Millisecond)
		back := append(r.Out["p0"], more.Out["p0"]...)
		if len(back) != 1 || string(back[0].Bytes[30:34]) != "\x0a\x00\x00\x01" || back[0].Bytes[37] != 9 {
			t.Errorf("%s: the answer does not come back: %v %v", when, r, more)
		}
	}
	passes("at once")
	x.Push("p0", frame(2, "00000000-."))
	if out := x.Advance(40 * time.Millisecond).Out["p1"]; marks(out) != "-.o" {
		t.Fatalf("the other chain: %v", out)
	}
	passes("after a context switch")
	for _, c := range []struct{ when, conns, other, idle string }{
		{"after a deployment of another task", "100", "p", "5m"},
		{"after other arguments of the firewall", "200", "p", "5m"},
		{"after other arguments of the translator", "200", "p", "6m"},
	} {
		if err := x.Set(graph.Args{"deployment": text(c.conns, c.other, c.idle)}); err != nil {
			t.Fatal(err)
		}
		passes(c.when)
	}
	// A task that starts again has forgotten.
	again := strings.Replace(text("200", "p", "6m"), "{kind: firewall,", "{kind: firewall, restart: 1,", 1)
	if err := x.Set(graph.Args{"deployment": again}); err != nil {
		t.Fatal(err)
	}
	if out := append(x.Push("p1", answer).Out["p0"], x.Advance(40 * time.Millisecond).Out["p0"]...); len(out) != 0 {
		t.Errorf("after a new start of the firewall the answer comes back: %v", out)
	}
}

// answerTo is the datagram that answers one, without a UDP checksum.
func answerTo(b []byte) []byte {
	answer := append([]byte{}, b...)
	copy(answer[26:30], b[30:34])
	copy(answer[30:34], b[26:30])
	copy(answer[34:36], b[36:38])
	copy(answer[36:38], b[34:36])
	answer[40], answer[41] = 0, 0
	sum := uint32(0)
	answer[24], answer[25] = 0, 0
	for i := 14; i < 34; i += 2 {
		sum += uint32(answer[i])<<8 | uint32(answer[i+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xFFFF + sum>>16
	}
	answer[24], answer[25] = byte(^sum>>8), byte(^sum)
	return answer
}
