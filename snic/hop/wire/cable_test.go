package wire

import (
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
)

// TestCable: one line of a port has its cable be the last hop, at either end, whatever is linked to the port.
func TestCable(t *testing.T) {
	for _, links := range []string{"[eth1.out -> h.p0, h.p0 -> eth1.in]", "[eth1.out -> eth2.in, eth2.out -> eth1.in]"} {
		s, err := graph.ParseSpec([]byte("ports:\n  eth1: {kind: afxdp, args: {dev: eth1}, cable: {kind: hop, args: {rate: 25Gbit}}}\n  eth2: {kind: afxdp}\nlinks: " + links))
		if err != nil {
			t.Fatal(err)
		}
		if a := s.Apps["eth1-cable"]; a.Kind != "hop" || a.Args["rate"] != "25Gbit" {
			t.Errorf("%+v", s.Apps)
		}
		want := []string{"eth1-cable.a -> h.p0", "h.p0 -> eth1-cable.a", "eth1.out -> eth1-cable.b", "eth1-cable.b -> eth1.in"}
		if strings.Contains(links, "eth2") {
			want[0], want[1] = "eth1-cable.a -> eth2.in", "eth2.out -> eth1-cable.a"
		}
		if !slices.Equal(s.Links, want) {
			t.Errorf("links %q", s.Links)
		}
		text, err := s.Marshal()
		if err != nil || strings.Contains(string(text), "cable:\n") && !strings.Contains(string(text), "eth1-cable:") {
			t.Errorf("%s %v", text, err)
		}
		if again, err := graph.ParseSpec(text); err != nil || !slices.Equal(again.Links, s.Links) {
			t.Errorf("read back: %v %v", again, err)
		}
	}
	_, err := graph.ParseSpec([]byte("ports: {p: {kind: mem, cable: {kind: hop}}}\napps: {p-cable: {kind: wire}}"))
	if err == nil || !strings.Contains(err.Error(), "p-cable is the name of another app") {
		t.Error(err)
	}
}
