package gossip

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/quillon/quillon/snic/pool"
)

// TestReplayedTwin: a board has died, and is started anew elsewhere. It does not take recorded messages of
// its former self for those of another board with its number, not even where the recorded answers to pings
// fit.
func TestReplayedTwin(t *testing.T) {
	a := start(t, 0)
	r := record(t, a.Addr())
	b := start(t, 1, a.Addr())
	a.knows(1)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(4 * time.Second); ; {
		select {
		case <-tick.C:
			r.read()
			continue
		case <-end:
		}
		break
	}
	if err := b.close(false); err != nil {
		t.Error(err)
	}
	a.until("the loss of board 1", func(e pool.Event) bool { return e.Kind == pool.PeerLost })
	c := start(t, 1, a.Addr())
	to := &recorder{port: portOf(t, c.Addr()), all: r.all}
	for end := time.After(4 * time.Second); ; {
		select {
		case <-tick.C:
			to.replay(t)
			continue
		case said := <-c.twins:
			t.Error("what was recorded is taken for a board: ", said)
		case <-end:
		}
		break
	}
	a.until("board 1, started anew", func(e pool.Event) bool { return e.Kind == pool.PeerUp && e.Peer == 1 })
}

// TestTwinAnswersItself: a twin from which only answers to pings come, which anybody with recorded answers
// can send, counts as gone. It counts as there when it replies again.
func TestTwinAnswersItself(t *testing.T) {
	a := start(t, 1)
	b := start(t, 1, a.Addr())
	b.twin(a, true, false)
	a.twin(b, true, true)
	mute := func(is bool) {
		a.mu.Lock()
		a.closed = is
		a.mu.Unlock()
	}
	mute(true)
	b.twin(a, false, false)
	mute(false)
	b.twin(a, true, false)
}

// TestUnheard: what chains know goes to the board that was heard, and not also to one of the same number that only
// the gossip knows, whose word may be a recorded one: that one would hold the message up.
func TestUnheard(t *testing.T) {
	p := &Pool{members: map[name]*member{}}
	one, other, third := &member{}, &member{}, &member{}
	p.members[name{1, 100}], p.members[name{1, 200}], p.members[name{2, 100}] = one, other, third
	short, long := &pool.State{To: 1}, &pool.State{To: 1, Asks: []pool.Ask{{State: []byte("state")}}}
	for _, c := range []struct {
		heard []name
		s     *pool.State
		want  int
	}{{nil, short, 2}, {nil, long, 2}, {[]name{{2, 100}}, long, 2}, {[]name{{1, 200}}, short, 2}, {nil, long, 1}} {
		for _, n := range c.heard {
			p.hears(n)
		}
		if got := p.receivers(c.s); len(got) != c.want || c.want == 1 && got[0] != other {
			t.Errorf("%+v: %d receivers", c, len(got))
		}
	}
}

// TestRepliesHeldBack: a reply counts for the question that was asked last, and for no later one.
func TestRepliesHeldBack(t *testing.T) {
	id := name{1, 100}
	x := newTwin(nil, id, 0, 0)
	p := &Pool{twins: map[uint64]*twin{id.inc: x}}
	x.asking = 5
	number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	for _, c := range []struct {
		from name
		text []byte
		want int
	}{{id, number(4), 0}, {id, number(6), 0}, {id, nil, 0}, {id, number(5)[:7], 0}, {name{1, 99}, number(5), 0}, {id, number(5), 1}} {
		if p.replied(c.from, c.text); len(x.replied) != c.want {
			t.Errorf("%v, %x: %d replies", c.from, c.text, len(x.replied))
		}
	}
}
