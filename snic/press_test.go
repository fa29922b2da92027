package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/hdr"
)

// TestPressed: a tenant that has more than its share is told by marks in packets that can carry them, before the first of its
// packets is dropped; nobody else is. Headers stay right, and packets that cannot be marked stay as they are.
func TestPressed(t *testing.T) {
	for _, ecn := range []uint8{hdr.NotECT, hdr.ECT0, hdr.ECT1, hdr.CE} {
		x := scripted(t, shared("1"), "packets", "1024", "slack", "0")
		x.Advance(20 * time.Millisecond)
		long := strings.Repeat(".", 900)
		n := 0
		make := func(src byte) []byte {
			n++
			f := frameLong(src, fmt.Sprintf("%08d-.%s", n, long))
			h := hdr.IPv4(f[14:])
			h.SetTOS(0xb8 | ecn)
			h.UpdateChecksum()
			return f
		}
		marks, first, dropped, polite := 0, 0, 0, 0
		for i := range 4000 { // of 5 Gbit/s tenant 2 wants 15, tenant 3 3.8, and tenant 1 0.5
			frames := [][]byte{make(2), make(2), make(2), make(2)}
			if i%8 == 0 {
				frames = append(frames, make(1), make(3), make(3), make(3), make(3), make(3), make(3), make(3), make(3))
			}
			r := x.Push("p0", frames...)
			r2 := x.Advance(2 * time.Microsecond)
			for _, f := range append(r.Out["p1"], r2.Out["p1"]...) {
				h := hdr.IPv4(f.Bytes[14:])
				sum := h.Checksum()
				if h.UpdateChecksum(); h.Checksum() != sum {
					t.Fatalf("checksum %#x of %x", sum, f.Bytes[14:34])
				}
				switch tos := h.TOS(); {
				case tos == 0xb8|ecn:
				case tos != 0xb8|hdr.CE:
					t.Fatalf("TOS %#x of %#x", tos, 0xb8|ecn)
				case f.Bytes[29] == 1:
					polite++
				default:
					if marks++; first == 0 {
						first = i
					}
				}
			}
			for _, f := range append(r.Dropped, r2.Dropped...) {
				if f.Reason != "throttled" {
					t.Fatalf("dropped as %s", f.Reason)
				}
				if dropped++; f.Bytes[29] == 1 {
					t.Fatal("a packet of who is polite is dropped")
				} else if dropped == 1 && x.Counter("ecn-ce") == 0 && (ecn == hdr.ECT0 || ecn == hdr.ECT1) {
					t.Errorf("dropped before anything was marked")
				}
			}
		}
		t.Logf("ECN %d: %d marked from round %d on, %d dropped; %d of who is polite", ecn, marks, first, dropped, polite)
		if can := ecn == hdr.ECT0 || ecn == hdr.ECT1; (marks > 100) != can || polite > 0 || dropped == 0 || x.Counter("ecn-ce") == 0 == can {
			t.Errorf("ECN %d: %d marked, %d of who is polite, %d dropped", ecn, marks, polite, dropped)
		}
	}
}

// TestPressedSix: the same in IPv6, which has no checksum.
func TestPressedSix(t *testing.T) {
	for ecn, want := range []uint8{hdr.NotECT, hdr.CE, hdr.CE, hdr.CE} {
		f := frame(1, "")
		copy(f[14:], []byte{0x60, 0, 0, 0})
		hdr.IPv6(f[14:]).SetTrafficClass(0xb8 | uint8(ecn))
		can := ecn == int(hdr.ECT0) || ecn == int(hdr.ECT1)
		if did := congest(f, &hdr.Layers{EtherType: hdr.EtherIPv6, L3: 14}); did != can || hdr.IPv6(f[14:]).TrafficClass() != 0xb8|want {
			t.Errorf("ECN %d: marked: %v, traffic class %#x", ecn, did, hdr.IPv6(f[14:]).TrafficClass())
		}
	}
}
