package gossip

import (
	"bytes"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/pool"
)

// TestPages: a page of 2 MB goes to another board and comes back.
func TestPages(t *testing.T) {
	const size = 2 << 20
	var pools [2]*Pool
	var pagers [2]*pool.Pager
	var join []string
	for i := range pools {
		pagers[i] = pool.NewPager(i, 2, 0)
		p, err := Start(Config{Node: pool.Config{Board: i, Topology: pool.Intermediate(2, true), Host: &board{}}, Join: join, Secret: bytes.Repeat([]byte{7}, 16),
			Page: func(_ *pool.Node, now clock.Time, m []byte) {
				if err := pagers[i].Input(now, m); err != nil {
					t.Error(err)
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		pools[i], join = p, []string{p.Addr()}
		p.Do(func(_ *pool.Node, now clock.Time) { pagers[i].Begin(now, size) })
	}
	page, frame := bytes.Repeat([]byte("a page "), size/7+1)[:size], make([]byte, size)
	pools[0].Do(func(_ *pool.Node, now clock.Time) { pagers[0].Put(now, 1, 1, page, 1) })
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for done := 0; done < 2; {
		for i, p := range pools {
			p.Do(func(_ *pool.Node, now clock.Time) {
				for _, e := range pagers[i].Events() {
					switch {
					case e.Kind == pool.PageLend:
						pagers[i].Lent(e.Loan, 0, frame, true)
					case e.Kind == pool.PageDone && e.OK && done == 0:
						done, page = 1, make([]byte, size)
						pagers[0].Get(now, 2, 1, page)
					case e.Kind == pool.PageDone && e.OK:
						done = 2
					default:
						t.Fatalf("%+v", e)
					}
				}
				pagers[i].Poll(now, p.Pages())
			})
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("the page does not come back")
		}
	}
	if !bytes.Equal(page, frame) || string(page[:7]) != "a page " {
		t.Error("it is another page")
	}
}
