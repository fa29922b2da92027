package snic

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/snic/hop"
)

// inVLAN is a frame of a source with a VLAN tag of a priority.
func inVLAN(src byte, priority byte, n int) []byte {
	f := frameLong(src, fmt.Sprintf("%08d-.%s", n, strings.Repeat(".", n)))
	return slices.Concat(f[:12], []byte{0x81, 0, priority << 5, 1}, f[12:])
}

// sender sends by p0 as fast as it is let: so many frames of a slice, unless it was asked to pause and obeys.
type sender struct {
	src, priority byte
	each          int
	deaf          bool
	until         clock.Time
	sent, held    int
}

// hear takes pauses of the sender's priority.
func (s *sender) hear(now clock.Time, fs []graphtest.Frame) {
	for _, f := range fs {
		if q, ok := hop.DecodePause(f.Bytes, int(s.priority)); ok {
			s.until = now.Add(hop.PauseTime(q, 5e9))
		}
	}
}

// TestLossless: a tenant that asks for more than its share is paused at a lossless port before a frame of it is dropped, and
// gets its share; who does not obey is dropped, as throttled; another priority of the port is not paused.
func TestLossless(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		x := scripted(t, shared("1"), "packets", "1024", "slack", "0", "lossless", "p0:3")
		x.Advance(20 * time.Millisecond)
		all := []*sender{{src: 2, priority: 3, each: 4, deaf: deaf}, {src: 1, priority: 5, each: 1}}
		drops, why := map[byte]int{}, map[string]int{}
		pauses, resumes, got := 0, 0, map[byte]int{}
		take := func(r graphtest.Result) {
			for _, s := range all {
				s.hear(x.Clock.Now(), r.Out["p0"])
			}
			for _, f := range r.Out["p0"] {
				if q, ok := hop.DecodePause(f.Bytes, 3); !ok || f.Bytes[16] != 0 || f.Bytes[17] != 8 || len(f.Bytes) != 60 {
					t.Fatalf("by p0: %x", f.Bytes)
				} else if q > 0 {
					pauses++
				} else {
					resumes++
				}
			}
			for _, f := range r.Out["p1"] {
				got[f.Bytes[33]]++
			}
			for _, f := range r.Dropped {
				drops[f.Bytes[33]]++
				why[f.Reason]++
				if f.Reason != "throttled" && f.Reason != "over-quota" {
					t.Fatalf("dropped as %s", f.Reason)
				}
			}
		}
		for i := range 4000 {
			for _, s := range all {
				if i%8 > 0 && s.src == 1 {
					continue
				}
				for range s.each {
					if x.Clock.Now() < s.until && !s.deaf {
						s.held++
						continue
					}
					s.sent++
					take(x.Push("p0", inVLAN(s.src, s.priority, 900)))
				}
			}
			take(x.Advance(2 * time.Microsecond))
		}
		t.Logf("deaf %v: %d pauses, %d ends; tenant 2 sent %d and held %d, %d arrive, %d dropped %v; tenant 1 %d of %d", deaf, pauses, resumes, all[0].sent, all[0].held, got[2], drops[2], why, got[1], all[1].sent)
		if pauses == 0 || drops[2] > 0 != deaf || drops[1] > 0 || all[1].held > 0 || !deaf && (resumes == 0 || all[0].held == 0) {
			t.Errorf("deaf %v: %d pauses, %d ends, dropped %v; tenant 1 held %d", deaf, pauses, resumes, drops, all[1].held)
		}
		if mbit := float64(got[2]) * 946 * 8 / 8e3; !deaf && mbit < 3000 { // of 5 Gbit/s it can have all that tenant 1 leaves
			t.Errorf("tenant 2 gets %.0f Mbit/s", mbit)
		}
		if x.Counter("pauses-asked") != uint64(pauses) {
			t.Errorf("%d pauses are counted, %d sent", x.Counter("pauses-asked"), pauses)
		}
	}
}

// TestPauseHeard: a pause at a lossless port holds frames of its priority that leave there, in their order, and no others;
// without the option the frame is one like others.
func TestPauseHeard(t *testing.T) {
	pause := make([]byte, hop.MinFrame)
	hop.EncodePause(pause, [6]byte{2}, 3, 0xFFFF)
	x := scripted(t, shared("1"), "fair", "off", "lossless", "p1:3", "port-rate", "100G")
	x.Advance(20 * time.Millisecond)
	if r := x.Push("p1", pause); len(r.Dropped) != 1 || r.Dropped[0].Reason != "pause" || len(r.Out["p0"]) > 0 {
		t.Errorf("%+v", r)
	}
	var out []graphtest.Frame
	take := func(r graphtest.Result) {
		out = append(out, r.Out["p1"]...)
		if len(r.Dropped) > 0 {
			t.Errorf("dropped: %s", r.Dropped[0].Reason)
		}
	}
	for i := range 20 {
		take(x.Push("p0", inVLAN(9, 3, i), inVLAN(9, 4, i)))
	}
	take(x.Advance(300 * time.Microsecond))
	if len(out) != 20 || out[0].Bytes[14]>>5 != 4 || x.App().(*board).gates.paused != 20 {
		t.Errorf("%d pass, %d wait", len(out), x.App().(*board).gates.paused)
	}
	out = nil
	for range 10 {
		take(x.Advance(20 * time.Microsecond))
	}
	for i, f := range out {
		if f.Bytes[14]>>5 != 3 || len(f.Bytes) != len(inVLAN(9, 3, i)) {
			t.Errorf("frame %d: %x", i, f.Bytes[:20])
		}
	}
	if len(out) != 20 || x.App().(*board).gates.paused != 0 || x.Counter("pauses-heard") != 1 {
		t.Errorf("%d of 20 after the pause", len(out))
	}
	// As many as may wait, and no more; the port that they come in by is not lossless.
	x.Push("p1", pause)
	dropped := 0
	for range maxPaused + 5 {
		for _, f := range x.Push("p0", inVLAN(9, 3, 10)).Dropped {
			if dropped++; f.Reason != "paused-full" {
				t.Errorf("dropped: %s", f.Reason)
			}
		}
	}
	if dropped != 5 {
		t.Errorf("%d dropped", dropped)
	}
	x.Advance(time.Millisecond)
	x.Advance(time.Millisecond)
	plain := scripted(t, shared("1"))
	if r := plain.Push("p1", pause); len(r.Out["p0"]) != 1 {
		t.Errorf("without the option: %+v", r)
	}
}

func TestLosslessArguments(t *testing.T) {
	for _, v := range []string{"", "3", "p0", "p0:8", "p16:1", "q:1", "p0:1+p0:2", "p0:-1"} {
		if _, err := parseLossless(v); err == nil {
			t.Errorf("%q is taken", v)
		}
	}
}
