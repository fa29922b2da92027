package rnic

import (
	"bytes"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
)

// A middlebox sends a READ to another address and dies, and the answer is lost. The READ that comes again has
// the addresses that the client asked for.
func TestRepeatedReadOfAnotherRange(t *testing.T) {
	for _, c := range []struct {
		profile Profile
		want    Status
	}{{ConnectX, Success}, {RXE, RetryExceededError}} {
		l := newLink(t, Config{Profile: c.profile}, false, 1)
		p := l.pair(TypeRC, quick(), 4096)
		for i := range p.mem[1] {
			p.mem[1][i] = byte(i / 64)
		}
		redirected, lost := false, false
		l.tap = func(from int, frame []byte) {
			var f hdr.Frame
			hdr.Parse(frame, &f)
			if from == 0 && f.Op == hdr.ReadRequest && !redirected {
				redirected = true
				f.RETHOf(frame).SetVA(testVA + 1024)
				hdr.SetICRC(frame, &f)
			}
		}
		l.lose = func(from int, _ []byte) bool {
			drop := from == 1 && !lost
			lost = lost || drop
			return drop
		}
		buf := make([]byte, 64)
		p.post(&SendWR{ID: 1, Op: OpRead, SGL: [][]byte{buf}, RemoteAddr: testVA + 128, RKey: p.mr[1].RKey, Signaled: true})
		got := p.done(0)
		if len(got) != 1 || got[0].Status != c.want {
			t.Errorf("profile %d: %+v, want status %d", c.profile, got, c.want)
		}
		if c.want == Success && !bytes.Equal(buf, bytes.Repeat([]byte{2}, 64)) {
			t.Errorf("profile %d: read % x", c.profile, buf[:8])
		}
	}
}
