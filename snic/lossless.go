package snic

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/hop"
)

// Counters of lossless ports.
const (
	ctrPausesAsked counter.ID = iota
	ctrPausesHeard
	ctrPausesCut
	ctrPaused
	numCounters
)

var pauseCounters = [numCounters]counter.Def{
	ctrPausesAsked: {Name: "pauses-asked", Help: "pauses of a priority that neighbours at lossless ports were asked for, and renewals (IEEE 802.1Qbb)"},
	ctrPausesHeard: {Name: "pauses-heard", Help: "pauses that they asked for"},
	ctrPausesCut:   {Name: "pauses-cut", Help: "pauses that lasted as long as one may, and were ended, either way"},
	ctrPaused:      {Name: "paused", Help: "frames that wait for the end of a pause"},
}

// maxPaused is the most frames that wait at a lossless port; more are dropped. When half of them wait, the ports by which
// frames come in are asked to pause.
const maxPaused = 512

// pauseEvery is how often a board that has asked for a pause looks whether it is still needed.
const pauseEvery = 5_000 // ns

// lossless is a port with a priority that must not lose frames.
type lossless struct {
	class   int // the priority, 0 to 7
	ask     hop.Asker
	obey    hop.Obeyer
	tenants []int32                // who have sent too much by this port
	strains []int32                // who have since the last sample
	queue   [maxPaused]*packet.Buf // frames that leave by it after the pause
	head, n int
	owed    bool // a frame that asks for a pause, or ends one, is still to be sent
	q       uint16
}

// gates sends frames away: by a port, which may be lossless, to a peer, or to another worker.
type gates struct {
	cat    *catalog
	stock  *stock
	split  *shares
	pool   *pooled           // nil: it is in none
	pauses *[ports]*lossless // nil: no port is lossless
	paused int               // frames that wait at these
	marked []int32           // tenants some of whose packets were marked since the last sample
	lates  []lates           // by worker
	late   int               // frames in them

	// crowded: a link has room for no more than crowdedAt frames. Frames on the board wait until the next breath.
	crowded bool
}

// crowdedAt is half of a link. That is room for the frames that one batch can become in tasks that make several frames of one.
const crowdedAt = 4 * packet.MaxBatch

// send sends frames by a port.
func (gt *gates) send(c *graph.Ctx, out int, frames []*packet.Buf) {
	c.EmitAll(out, frames)
	gt.crowded = gt.crowded || c.Room(out) <= crowdedAt
}

// mark notes that packets of a tenant were marked, so that its senders send less.
func (gt *gates) mark(tenant int) {
	if t := int32(tenant); len(gt.marked) < cap(gt.marked) && !slices.Contains(gt.marked, t) {
		gt.marked = append(gt.marked, t)
	}
}

// parseLossless reads which priority of which ports is lossless: p0:3+p2:3. -1: none.
func parseLossless(v string) (class [ports]int8, err error) {
	for i := range class {
		class[i] = -1
	}
	for t := range arg.Items(v, "+") {
		p, c, ok := strings.Cut(t, ":")
		digits, named := strings.CutPrefix(p, "p")
		port, err := strconv.Atoi(digits)
		priority, err2 := strconv.Atoi(c)
		if !ok || !named || err != nil || err2 != nil || port < 0 || port >= ports || priority < 0 || priority > 7 || class[port] >= 0 {
			return class, fmt.Errorf("want ports and a priority of each, 0 to 7, as in p0:3+p1:3")
		}
		class[port] = int8(priority)
	}
	return class, nil
}

// newLossless is the lossless ports of a board; nil: it has none.
func newLossless(class [ports]int8, rate int64) *[ports]*lossless {
	var all [ports]*lossless
	some := false
	for i, c := range class {
		if c >= 0 {
			some = true
			all[i] = &lossless{class: int(c), ask: hop.Asker{Rate: uint64(rate), Limit: hop.PauseLimit}, obey: hop.Obeyer{Rate: uint64(rate), Limit: hop.PauseLimit}, tenants: make([]int32, 0, 64), strains: make([]int32, 0, 64)}
		}
	}
	if !some {
		return nil
	}
	return &all
}

// priority is that of a frame: of its VLAN tag; without one it is 0.
func priority(p []byte) int {
	if len(p) >= hdr.EthernetLen+2 {
		if t := binary.BigEndian.Uint16(p[12:]); t == hdr.EtherVLAN || t == hdr.EtherQinQ {
			return int(hdr.VLAN(p[hdr.EthernetLen:]).PCP())
		}
	}
	return 0
}

// hear takes a frame that asks for a pause at a lossless port. It reports whether it was one.
func (gt *gates) hear(c *graph.Ctx, in int, x *packet.Buf) bool {
	p := gt.pauses[in]
	if f := x.Bytes(); p == nil || len(f) < hdr.EthernetLen || binary.BigEndian.Uint16(f[12:]) != hop.Control {
		return false
	}
	if q, ok := hop.DecodePause(x.Bytes(), p.class); ok {
		p.obey.Hear(c.Now(), q)
		c.Wake(c.Now())
	}
	c.Drop(x, reasonPause) // it is for this port alone
	return true
}

// depart sends a frame by a port, or keeps it until the end of a pause.
func (gt *gates) depart(c *graph.Ctx, out int, x *packet.Buf) {
	if gt.pauses != nil && gt.stays(c, out, x) {
		return
	}
	c.Emit(out, x)
	gt.crowded = gt.crowded || c.Room(out) <= crowdedAt
}

// stays keeps a frame at a lossless port whose priority is paused, and reports whether it did.
func (gt *gates) stays(c *graph.Ctx, out int, x *packet.Buf) bool {
	p := gt.pauses[out]
	if p == nil || priority(x.Bytes()) != p.class {
		return false
	}
	if p.n == 0 && c.Now() >= p.obey.Until() {
		p.obey.Sent()
		return false
	}
	if p.n == maxPaused {
		c.Drop(x, reasonPaused)
		return true
	}
	p.queue[(p.head+p.n)%maxPaused] = x
	p.n++
	gt.paused++
	gt.look(c)
	c.Wake(p.obey.Until())
	return true
}

// strain notes that a tenant that sends by a lossless port should send less: the port asks for a pause before frames are dropped.
func (gt *gates) strain(c *graph.Ctx, in, tenant int) {
	p := gt.pauses[in]
	if p == nil || !gt.much(c.Now(), tenant, 2) || slices.Contains(p.tenants, int32(tenant)) {
		return
	}
	if len(p.tenants) == cap(p.tenants) {
		return // many are, and the port is asked
	}
	p.tenants = append(p.tenants, int32(tenant))
	if len(p.strains) < cap(p.strains) && !slices.Contains(p.strains, int32(tenant)) {
		p.strains = append(p.strains, int32(tenant))
	}
	gt.look(c)
}

// askedToSlow reports whether a tenant was asked to send less since the last sample: to pause at a lossless port, or by marks.
func (gt *gates) askedToSlow(tenant int) bool {
	if slices.Contains(gt.marked, int32(tenant)) {
		return true
	}
	return gt.pauses != nil && slices.ContainsFunc(gt.pauses[:], func(p *lossless) bool { return p != nil && slices.Contains(p.strains, int32(tenant)) })
}

// anyAskedToSlow reports whether any tenant was asked to send less.
func (gt *gates) anyAskedToSlow() bool {
	return len(gt.marked) > 0 || gt.pauses != nil && slices.ContainsFunc(gt.pauses[:], func(p *lossless) bool { return p != nil && len(p.strains) > 0 })
}

// much reports whether a tenant has used half of what it may send in one go, or has more than 1/part of the room that it
// may have in the packet store.
func (gt *gates) much(now clock.Time, tenant, part int) bool {
	return gt.stock.much(tenant, part) || gt.split.fair != nil && gt.split.fair.Low(now, tenant)
}

// look asks for pauses that are due, and ends those that are no longer needed. It returns the time of its next call.
func (gt *gates) look(c *graph.Ctx) clock.Time {
	now, due := c.Now(), clock.Never
	full := false
	for _, p := range gt.pauses {
		full = full || p != nil && p.n > maxPaused/2
	}
	var asked, heard, cut uint64
	for i, p := range gt.pauses {
		if p == nil {
			continue
		}
		kept := p.tenants[:0]
		for _, t := range p.tenants {
			if gt.much(now, int(t), 4) {
				kept = append(kept, t)
			}
		}
		p.tenants = kept
		if q, send := p.ask.Ask(now, full || len(p.tenants) > 0); send || p.owed {
			if send {
				p.q = q
			}
			p.owed = !gt.pauseFrame(c, i, p)
		}
		if p.ask.Asking() || p.owed {
			due = min(due, p.ask.Due(), now.Add(pauseEvery))
		}
		asked, heard, cut = asked+p.ask.Asked, heard+p.obey.Heard, cut+p.ask.Cut+p.obey.Cut
	}
	c.Set(ctrPausesAsked, asked)
	c.Set(ctrPausesHeard, heard)
	c.Set(ctrPausesCut, cut)
	c.Set(ctrPaused, uint64(gt.paused))
	if due != clock.Never {
		c.Wake(due)
	}
	return due
}

// pauseFrame sends the frame that asks for a pause, or ends one. It reports false when there is no buffer.
func (gt *gates) pauseFrame(c *graph.Ctx, port int, p *lossless) bool {
	x := c.Get()
	if x == nil {
		return false
	}
	if len(x.Mem()) < hop.MinFrame {
		c.Discard(x)
		return true // it never can
	}
	x.SetFrame(0, hop.MinFrame)
	hop.EncodePause(x.Bytes(), [6]byte{2, 'p', 'a', 'u', 's', byte(port)}, p.class, p.q)
	c.Emit(port, x)
	return true
}

// resume sends frames whose pause has ended, and calls look for the other pauses. It returns the time of its next call.
func (gt *gates) resume(c *graph.Ctx) clock.Time {
	if gt.pauses == nil {
		return clock.Never
	}
	due := clock.Never
	for i, p := range gt.pauses {
		if p == nil || p.n == 0 {
			continue
		}
		for left := packet.MaxBatch; p.n > 0 && left > 0 && c.Now() >= p.obey.Until(); left-- {
			c.Emit(i, gt.unpause(p))
			p.obey.Sent()
		}
		if p.n > 0 {
			due = min(due, max(c.Now()+1, p.obey.Until()))
		}
	}
	return min(due, gt.look(c))
}

// unpause takes the first frame that waits at a port.
func (gt *gates) unpause(p *lossless) *packet.Buf {
	x := p.queue[p.head]
	p.queue[p.head] = nil
	p.head = (p.head + 1) % maxPaused
	p.n--
	gt.paused--
	return x
}

// stopPauses ends what waits at lossless ports.
func (gt *gates) stopPauses(c *graph.Ctx) {
	if gt.pauses == nil {
		return
	}
	for _, p := range gt.pauses {
		for p != nil && p.n > 0 {
			c.Drop(gt.unpause(p), reasonStopped)
		}
	}
}
