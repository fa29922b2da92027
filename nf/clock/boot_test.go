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
