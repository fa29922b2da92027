package clock

import (
	"testing"
	"time"
)

// What a process whose clock was an hour behind calls noon is one o'clock here, and nothing is said of clocks that do not tell, or of
// another start of the machine.
func TestEpoch(t *testing.T) {
	here := NewWall()
	e := EpochOf(here)
	if e == (Epoch{}) {
		t.Fatal("this machine tells no epoch")
	}
	var b [EpochLen]byte
	e.Put(b[:])
	if EpochIn(b[:]) != e {
		t.Errorf("%+v was put, and is %+v", e, EpochIn(b[:]))
	}
	if d := EpochOf(NewWall()).Since(e); d < -time.Second || d > time.Second {
		t.Errorf("two clocks of one process are %v apart", d)
	}
	set := e
	set.zero += int64(time.Hour) // its zero was later: it shows less
	if d := e.Since(set); d != time.Hour {
		t.Errorf("%v, not an hour", d)
	}
	set.boot[3]++
	if d := e.Since(set); d != 0 {
		t.Errorf("%v of another start of the machine", d)
	}
	if d := e.Since(Epoch{}); d != 0 {
		t.Errorf("%v of an unknown clock", d)
	}
	if EpochOf(NewManual(5)) != (Epoch{}) || EpochOf(nil) != (Epoch{}) {
		t.Error("a clock that is moved tells an epoch")
	}
}
