package rxe

import (
	"testing"
	"time"
)

func TestFirst(t *testing.T) {
	t0 := time.Now()
	r := newRack(t, 1, 4200)
	t.Log("up after", time.Since(t0))
	for k, v := range r.guests[0].files(t, "/sys/class/infiniband/rxe0/ports/1/gids/[0-3]") {
		t.Log(k, v)
	}
	bw := func() {
		t0 := time.Now()
		args := []string{"ib_write_bw", "-d", "rxe0", "-x", "1", "-F", "-m", "4096", "-n", "50", "-q", "2", "-s", "8192"}
		s := r.guests[0].start(t, args...)
		time.Sleep(time.Second)
		c := r.guests[1].start(t, append(args, r.guests[0].ip4)...)
		out, exit := c.wait(t)
		t.Log(time.Since(t0), exit, out)
		out, exit = s.wait(t)
		t.Log(exit, out)
	}
	bw()
	m := r.insert(t, "--nf", "wire")
	bw()
	out, err := r.quillonShow(r.folder + "/control")
	t.Logf("%s %v", out, err)
	m.remove(t)
	t.Log(m.log.String())
}
