package clock

import (
	"testing"
	"time"
)

// TestBoot: a Boot agrees with a Wall while the machine runs, and is ahead of it by the time for which it was suspended.
func TestBoot(t *testing.T) {
	b, w := NewBoot(), NewWall()
	if d := b.Now().Sub(w.Now()); d < -time.Second || d > time.Second {
		t.Errorf("%v apart", d)
	}
	awake := bootTime
	defer func() { bootTime = awake }()
	bootTime = func() Time { return awake().Add(time.Hour) }
	if d := b.Now().Sub(w.Now()); d < time.Hour-time.Second || d > time.Hour+time.Second {
		t.Errorf("%v apart after an hour's sleep", d)
	}
}

// TestOffset: in a time namespace the machine's time is found.
func TestOffset(t *testing.T) {
	if d := offsetIn("monotonic        -100   5\nboottime            7         0\n"); d != -100e9+5 {
		t.Errorf("offset %d", d)
	}
	if d := offsetIn(""); d != 0 {
		t.Errorf("offset %d of nothing", d)
	}
}
