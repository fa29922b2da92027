package conn

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// A server's program takes longer than a second to close its end, and answers repetitions until then. The
// reply to the DisconnectRequest ends the connection all the same.
func TestAttack4SlowDisconnect(t *testing.T) {
	c := example()
	x := newTable(t, Config{Rows: 4})
	s := pairUp(t, x, 0, c)
	run(t, x, clock.Time(time.Second), step{"data", c.request(hdr.WriteOnly, c.cpsn), Known}, step{"its answer", c.response(hdr.Acknowledge, c.cpsn), Known},
		step{"disconnect", c.tell(hdr.DisconnectRequest, true), IsClosing})
	feed(x, clock.Time(3*time.Second), c.response(hdr.Acknowledge, c.cpsn)) // as to a question
	if _, e := feed(x, clock.Time(3100*time.Millisecond), c.tell(hdr.DisconnectReply, false)); e != Removed {
		t.Errorf("the reply to the request for the end is %v", e)
	}
	if x.Used(s) {
		t.Errorf("the connection is %v", x.Row(s).State)
	}
}
