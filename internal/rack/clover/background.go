package clover

import (
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/rack/rnic"
)

const (
	// spaceChannels is how many grants can be under way at once.
	spaceChannels = 4
	// shortcutRound is how many shortcuts are written at once (the round of the GC threads in Clover).
	shortcutRound = 32
	// gcDelay is how long a GC record waits for other records, so that one message carries them all.
	gcDelay = 100 * time.Microsecond
	// spaceDelay is how long the client waits when the server has no space.
	spaceDelay = 100 * time.Microsecond
)

// IDs of completions, without the bit idBackground. The comment names what the low byte is.
const (
	bgSpace    = iota << 8 // number of the channel
	bgGC                   // 0: the one channel of init and GC
	bgShortcut             // number of the collector, if there are collectors
	bgReport               // number of the collector
)

// background is what a compute node does beside its operations, on queue pairs of its own. It learns the
// layout, keeps entries in stock, writes shortcuts and reports garbage. Where a key changed several times
// since the last round, one shortcut and one report are enough (but see SearchLibrary).
type background struct {
	ready    bool
	next     uint32 // init: index of the Space to ask for
	memory   []*rnic.QP
	space    [spaceChannels]spaceChannel
	retryAt  clock.Time // after a refusal
	gc       rpc
	gcKeys   queue[*keyState]
	gcAt     clock.Time // when the oldest record is sent at the latest
	scKeys   queue[*keyState]
	scBusy   int
	scWords  [shortcutRound][8]byte
	wr       rnic.SendWR
	sgl      [1][]byte
	giveBack bool
	nap      time.Duration
	threads  []collector // of SearchLibrary: instead of gc, gcKeys and scKeys
}

type spaceChannel struct {
	rpc
	class  int
	asking bool // it asks for entries; false: it gives entries back
}

// note queues the background's work after the entry own was linked behind old.
func (b *background) note(c *Client, k *keyState, old, own Pointer) {
	if len(b.threads) > 0 {
		b.threads[k.key%collectors].note(c.now, b.nap, gcRecord{k, old, own})
		return
	}
	if k.scPtr == 0 {
		b.scKeys.push(k)
	}
	k.scPtr = own
	if k.gcNew == 0 {
		if b.gcKeys.n == 0 {
			b.gcAt = c.now.Add(gcDelay)
		}
		b.gcKeys.push(k)
		k.gcOld = old
	}
	k.gcNew = own
}

func (b *background) quiet(c *Client) bool {
	for i := range c.pool {
		if b.giveBack && c.pool[i].n > 0 {
			return false
		}
	}
	for i := range b.space {
		if b.space[i].busy {
			return false
		}
	}
	for i := range b.threads {
		if !b.threads[i].quiet() {
			return false
		}
	}
	return b.scKeys.n == 0 && b.scBusy == 0 && b.gcKeys.n == 0 && !b.gc.busy
}

func (b *background) deadline() clock.Time {
	at := clock.Never
	if b.gcKeys.n > 0 && !b.gc.busy {
		at = b.gcAt
	}
	if b.retryAt != 0 {
		at = min(at, b.retryAt)
	}
	for i := range b.threads {
		at = min(at, b.threads[i].deadline())
	}
	return at
}

func (b *background) complete(c *Client, w *rnic.WC) {
	if w.Status != rnic.Success && c.err == nil {
		c.err = fmt.Errorf("clover: compute node %d, background queue pair %#x: completion status %d", c.index, w.QPN, w.Status)
	}
	switch w.ID & 0xFF00 {
	case bgSpace:
		b.space[w.ID&0xFF].sent = true
	case bgGC:
		b.gc.sent = true
	case bgShortcut:
		if len(b.threads) > 0 {
			b.threads[w.ID&0xFF].busy--
		} else {
			b.scBusy--
		}
	case bgReport:
		b.threads[w.ID&0xFF].sent = true
	}
}

func (b *background) step(c *Client) bool {
	if c.err != nil {
		return b.starve(c)
	}
	if !b.ready {
		return b.init(c)
	}
	did := b.stock(c)
	for i := range b.threads {
		did = b.threads[i].step(c, i) || did
	}
	did = b.shortcuts(c) || did
	return b.report(c) || did
}

// starve ends the operations that wait for an entry, since no entries are granted after an error.
func (b *background) starve(c *Client) bool {
	did := false
	for i := range c.hungry {
		for h := &c.hungry[i]; h.n > 0; did = true {
			h.pop().finish(c.err)
		}
	}
	return did
}

// init learns the layout, a Space at a time.
func (b *background) init(c *Client) bool {
	if b.gc.busy {
		if !b.gc.take() {
			return false
		}
		m := b.gc.reply
		if u64(m, msgOption) != resOK {
			c.err = fmt.Errorf("clover: layout: %w", ErrServer)
			return true
		}
		c.layout = append(c.layout, getSpace(m))
		b.next++
		if b.next == u32(m, initTotal) {
			c.err = c.arrange()
			b.ready = c.err == nil
			return true
		}
	}
	clear(b.gc.req[msgContent:MsgLen])
	put32(b.gc.req[:], initIndex, b.next)
	if err := b.gc.post(idBackground|bgGC, MsgInit, MsgLen, c.index, 0); err != nil {
		c.err = err
	}
	return true
}

// arrange makes the lists and buffers that the layout needs.
func (c *Client) arrange() error {
	largest := 0
	for i := range c.layout {
		s := &c.layout[i]
		if int(s.Node) >= len(c.bg.memory) {
			return fmt.Errorf("clover: the layout names memory node %d; there are %d", s.Node, len(c.bg.memory))
		}
		if s.Kind == KindShortcut {
			continue
		}
		slab := int(s.Slab)
		if !wire.ValidSlab(slab) {
			return fmt.Errorf("clover: the layout has slabs of %d bytes", slab)
		}
		largest = max(largest, slab)
		c.entries += int(s.Count)
		at := 0
		for at < len(c.slabs) && c.slabs[at] < slab {
			at++
		}
		if at == len(c.slabs) || c.slabs[at] != slab {
			c.slabs = append(c.slabs[:at], append([]int{slab}, c.slabs[at:]...)...)
		}
	}
	c.pool = make([]queue[Pointer], len(c.slabs))
	c.hungry = make([]queue[*Session], len(c.slabs))
	c.used = make([]bool, len(c.slabs))
	for _, s := range c.sessions {
		s.entry, s.out = make([]byte, largest), make([]byte, largest)
		s.mine = make([]queue[Pointer], len(c.slabs))
	}
	return nil
}

// stock asks for entries when few are left.
func (b *background) stock(c *Client) bool {
	did := false
	coming := 0
	for i := range b.space {
		ch := &b.space[i]
		if ch.take() {
			did = true
			if ch.asking {
				b.granted(c, ch)
			}
		}
		if ch.busy && ch.asking {
			coming += GrantMax
		}
	}
	if b.giveBack {
		return b.release(c) || did
	}
	if b.retryAt != 0 {
		if c.now < b.retryAt {
			return did
		}
		b.retryAt = 0
	}
	for class := range c.pool {
		if !c.used[class] {
			continue
		}
		for i := range b.space {
			if c.pool[class].n+coming > GrantMax+len(c.sessions) {
				break
			}
			ch := &b.space[i]
			if ch.busy {
				continue
			}
			clear(ch.req[msgContent:MsgLen])
			put32(ch.req[:], grantSize, uint32(c.slabs[class]))
			put32(ch.req[:], grantCount, GrantMax)
			if err := ch.post(idBackground|bgSpace|uint64(i), MsgAskEntry, MsgLen, c.index, uint32(i)); err != nil {
				c.err = err
				return did
			}
			ch.class, ch.asking = class, true
			c.stats.Grants++
			coming += GrantMax
			did = true
		}
	}
	return did
}

func (b *background) granted(c *Client, ch *spaceChannel) {
	n := min(u32(ch.reply, grantCount), GrantMax)
	if u64(ch.reply, msgOption) != resOK || n == 0 {
		b.retryAt = c.now.Add(spaceDelay)
		return
	}
	p := &c.pool[ch.class]
	for i := range int(n) {
		if e := pointerAt(ch.reply, grantPtrs+8*i); e.LH() != 0 {
			p.push(e)
		}
	}
	h := &c.hungry[ch.class]
	for h.n > 0 && p.n > 0 {
		h.pop().obtain()
	}
}

// Release gives the entries in stock back to the metadata server. The client must not write afterwards.
// Release has ended when Quiet reports true.
func (c *Client) Release() {
	c.bg.giveBack = true
	for _, s := range c.sessions {
		for class := range s.mine {
			for q := &s.mine[class]; q.n > 0; {
				c.pool[class].push(q.pop())
			}
		}
	}
}

func (b *background) release(c *Client) bool {
	for i := range b.space {
		ch := &b.space[i]
		if ch.busy {
			continue
		}
		clear(ch.req[msgContent:MsgLen])
		n := 0
		for class := range c.pool {
			p := &c.pool[class]
			for p.n > 0 && n < GrantMax {
				put64(ch.req[:], grantPtrs+8*n, uint64(p.pop()))
				n++
			}
		}
		if n == 0 {
			return false
		}
		put32(ch.req[:], grantCount, uint32(n))
		ch.asking = false
		if err := ch.post(idBackground|bgSpace|uint64(i), MsgRecycle, MsgLen, c.index, uint32(i)); err != nil {
			c.err = err
		}
		return true
	}
	return false
}

// shortcuts writes a round of shortcuts when the round before has ended.
func (b *background) shortcuts(c *Client) bool {
	if b.scBusy > 0 || b.scKeys.n == 0 {
		return false
	}
	for i := 0; i < shortcutRound && b.scKeys.n > 0; i++ {
		k := b.scKeys.pop()
		p := k.scPtr
		k.scPtr = 0
		s, va := c.layout.Shortcut(k.slot)
		if s == nil {
			continue
		}
		put64(b.scWords[i][:], 0, uint64(p))
		b.sgl[0] = b.scWords[i][:]
		b.wr.ID, b.wr.Op, b.wr.SGL, b.wr.RemoteAddr, b.wr.RKey, b.wr.Signaled = idBackground|bgShortcut, rnic.OpWrite, b.sgl[:], va, s.RKey, true
		if b.memory[s.Node].PostSend(&b.wr) == nil {
			b.scBusy++
			c.stats.ShortcutWrites++
		}
	}
	return true
}

// report sends GC records when they fill a message or the oldest of them has waited for gcDelay.
func (b *background) report(c *Client) bool {
	b.gc.take()
	if b.gc.busy || b.gcKeys.n == 0 || (b.gcKeys.n < GCMax && c.now < b.gcAt) {
		return false
	}
	m := b.gc.req[:]
	clear(m[msgContent:])
	n := 0
	for n < GCMax && b.gcKeys.n > 0 {
		k := b.gcKeys.pop()
		at := gcEntries + n*gcEntryLen
		put64(m, at+gcOld, uint64(k.gcOld))
		put64(m, at+gcNew, uint64(k.gcNew))
		put64(m, at+gcKey, k.key)
		put32(m, at+gcFactor, 1)
		k.gcOld, k.gcNew = 0, 0
		n++
	}
	put32(m, gcCount, uint32(n))
	b.gcAt = c.now.Add(gcDelay)
	c.stats.GCRecord += uint64(n)
	if err := b.gc.post(idBackground|bgGC, MsgGC, LargeMsgLen, c.index, 0); err != nil {
		c.err = err
	}
	return true
}
