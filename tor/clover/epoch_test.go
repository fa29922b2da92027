package clover

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// The records of a process that was started before the machine's clock was set say when they were written on this process's clock.
func TestRecordsOfOtherEpoch(t *testing.T) {
	le := binary.LittleEndian
	epoch := func(zero int64) clock.Epoch {
		var b [clock.EpochLen]byte
		b[0] = 1
		le.PutUint64(b[16:], uint64(zero))
		return clock.EpochIn(b[:])
	}
	j := journal{b: make([]byte, journalLen), epoch: epoch(0)}
	const at = 7 * time.Hour
	for _, i := range []int32{0, 5, maxNotes - 1} {
		p := j.record(i)
		le.PutUint64(p[8:], uint64(at))
		le.PutUint64(p[16:], uint64(i))
		le.PutUint64(p[:], sum(p, i))
	}
	le.PutUint64(j.record(6)[8:], uint64(at)) // one that was not written to its end
	for _, set := range []time.Duration{time.Hour, -time.Hour} {
		epoch(int64(set)).Put(j.b[journalEpoch:])
		for range 2 { // once is enough
			j.translate()
		}
		for _, i := range []int32{0, 5, maxNotes - 1} {
			p := j.record(i)
			if got := time.Duration(le.Uint64(p[8:])) - at; le.Uint64(p[:]) != sum(p, i) || got != set && got != 0 {
				t.Errorf("record %d is %v later than it was, with the clock set by %v", i, got, set)
			}
		}
		if got := time.Duration(le.Uint64(j.record(0)[8:])) - at; set > 0 && got != set || set < 0 && got != 0 {
			t.Errorf("record 0 is %v later than it was", got)
		}
	}
	if got := time.Duration(le.Uint64(j.record(6)[8:])); got != at {
		t.Errorf("what is no record was changed to %v", got)
	}
}
