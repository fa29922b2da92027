package hop

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// TestAsker: a pause is renewed before it runs out, ended when it is not needed, and cut off at its limit: then nothing is
// asked for as long.
func TestAsker(t *testing.T) {
	a := Asker{Rate: 100e9, Limit: PauseLimit}
	if _, send := a.Ask(0, false); send {
		t.Error("an end of nothing")
	}
	var until, last clock.Time
	cutAt := clock.Time(0)
	for now := clock.Time(0); now < clock.Time(150*time.Millisecond); now += 1000 {
		q, send := a.Ask(now, true)
		switch {
		case send && q > 0:
			if until > 0 && now > until {
				t.Fatalf("%v: the pause ran out at %v", now, until)
			}
			until, last = now.Add(PauseTime(q, a.Rate)), now
		case send:
			cutAt = now
		case cutAt == 0 && a.Due() < now:
			t.Fatalf("%v: due at %v", now, a.Due())
		}
	}
	if cutAt != clock.Time(PauseLimit) || a.Cut != 1 || last > cutAt || a.Asking() {
		t.Errorf("cut at %v, last asked at %v", cutAt, last)
	}
	if q, send := a.Ask(clock.Time(2*PauseLimit), true); !send || q == 0 {
		t.Error("not asked again after the limit")
	}
	if q, send := a.Ask(clock.Time(2*PauseLimit)+5000, false); !send || q != 0 || a.Asking() {
		t.Error("not ended")
	}
}

// TestObeyer: a pause ends when it runs out or is ended; one that is renewed for ever ends at the limit, and for as long
// none is obeyed.
func TestObeyer(t *testing.T) {
	o := Obeyer{Rate: 100e9, Limit: PauseLimit}
	o.Hear(1000, 0xFFFF)
	if d := o.Until().Sub(1000); d < 335*time.Microsecond || d > 336*time.Microsecond { // 65535 * 512 bits
		t.Errorf("a pause of %v", d)
	}
	o.Hear(2000, 0)
	if o.Until() > 2000 {
		t.Error("not ended")
	}
	start := clock.Time(time.Millisecond)
	for now := start; now < start.Add(3*PauseLimit); now += 100_000 {
		o.Hear(now, 0xFFFF)
		if in := now.Sub(start); in < PauseLimit != (o.Until() > now) && in < 2*PauseLimit {
			t.Fatalf("%v after the start: paused until %v", in, o.Until())
		}
	}
	if o.Cut != 2 {
		t.Errorf("cut %d times", o.Cut)
	}
}

// TestObeyerLapsed: a pause that is asked for anew just after each has ended, before a frame could leave, lasts no longer than one that is renewed in
// time. Where frames leave between pauses none is cut off.
func TestObeyerLapsed(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		o := Obeyer{Rate: 100e9, Limit: PauseLimit}
		held := clock.Duration(0)
		for now := clock.Time(1000); now < clock.Time(3*PauseLimit); now = now.Add(PauseTime(0xFFFF, o.Rate) + 1) {
			if leaves {
				o.Sent()
			}
			if o.Hear(now, 0xFFFF); o.Until() > now {
				held += o.Until().Sub(now)
			}
		}
		if leaves != (held > 2*PauseLimit) || leaves != (o.Cut == 0) {
			t.Errorf("frames leave between pauses: %v; held for %v, cut %d times", leaves, held, o.Cut)
		}
	}
}
