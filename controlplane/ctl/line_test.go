package ctl

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/p4info"
)

// lineEntities are an entity of each kind, as files have them.
var lineEntities = []struct{ name, text string }{
	{"entry", `{table: all, match: {hdr.a: "00:00:00:00:00:01", hdr.ip6: "2001:db8::/32", hdr.d: 5..9, hdr.ip: 10.0.0.1, hdr.f: 0x10&&&0xff0}, priority: 7, action: set, params: {mac: "00:00:00:00:00:02", n: 3}}`},
	{"exact", `{table: lower, match: {x: 3}, action: nop}`},
	{"set", `{table: upper, match: {x: 3}, action: set, params: {mac: "00:00:00:00:00:02", n: 3}}`},
	{"member", `{profile: sel, member: 5, action: set, params: {mac: "00:00:00:00:00:02", n: 3}}`},
	{"group", `{profile: sel, group: 5, max_size: 10, members: [{member: 1, weight: 2}, {member: 2, weight: 1}]}`},
	{"multicast", `{group: 1, ports: [1, {port: 2, instance: 1}]}`},
	{"register", `{register: r, index: 3, value: 0x12}`},
	{"meter", `{meter: m, index: 3, cir: 1, cburst: 2, pir: 3, pburst: 4}`},
	{"counter", `{counter: c, index: 3, packets: 7, bytes: 100}`},
}

// BenchmarkLine writes entities as a dump does.
func BenchmarkLine(b *testing.B) {
	info := everythingInfo(b)
	for _, x := range lineEntities {
		b.Run(x.name, func(b *testing.B) {
			e, err := ParseEntity(info, p4v1.Update_UNSPECIFIED, x.text)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				Line(info, e)
			}
		})
	}
}

// TestLineAllocations: a dump has as many lines as the device has entities, so the keys of a line may not cost
// allocations, only its values: a form, a buffer that grows, and the text of each value.
func TestLineAllocations(t *testing.T) {
	if testing.Short() {
		t.Skip("with -short the detector of races may run, which allocates, too")
	}
	info := everythingInfo(t)
	for _, x := range lineEntities {
		e, err := ParseEntity(info, p4v1.Update_UNSPECIFIED, x.text)
		if err != nil {
			t.Fatal(err)
		}
		_, line := Line(info, e)
		values := strings.Count(line, "hdr.") + strings.Count(line, "x:") + strings.Count(line, "mac:") + strings.Count(line, " n:") + strings.Count(line, "value:")
		// A form, a buffer that doubles from 64 bytes, and the text; of each value its text, its quotes, and its mask or end.
		if got, most := testing.AllocsPerRun(100, func() { Line(info, e) }), 3+bits.Len(uint(len(line)/64))+3*values; got > float64(most) {
			t.Errorf("%s: %.0f allocations, want at most %d", line, got, most)
		}
	}
}

// BenchmarkDump dumps a device with 1000 entries of three tables, an operation an entry.
func BenchmarkDump(b *testing.B) {
	info := everythingInfo(b)
	f := ctltest.New(1)
	at, _ := f.Start(b, "127.0.0.1:0", nil)
	s := open(b, &Dialer{}, at, 1, options())
	if err := s.Ready(within(b)); err != nil {
		b.Fatal(err)
	}
	if err := s.SetPipeline(within(b), p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, NewPipeline(info.Proto, []byte("{}"))); err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		e, err := ParseEntity(info, p4v1.Update_UNSPECIFIED, lineEntities[i%3].text)
		if err != nil {
			b.Fatal(err)
		}
		f.Devices[1].Entities[fmt.Sprintf("%s%d", p4info.Key(e), i)] = e
	}
	for b.Loop() {
		if n, err := s.Dump(within(b), info, "i", "c", io.Discard); err != nil || n < 1000 {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/entity")
}
