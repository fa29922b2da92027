package arbiter

import (
	"crypto/aes"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/turn"
)

// Fence shuts clients out from memory servers. tor/fence implements it; its instances share it
// (graph.Ctx.Shared).
type Fence interface {
	// Shut drops, from this moment on, all that a client in the VLANs with these IDs (hdr.VIDs) sends to a server's queue pair
	// (0: to all of them).
	// Frames that have passed before may be under way for settle. It returns false if it cannot, for example for
	// lack of room.
	Shut(client, server netip.Addr, qpn, vlans uint32) (settle time.Duration, ok bool)
	// Lift ends what Shut began.
	Lift(client, server netip.Addr, qpn, vlans uint32)
	// Shuts reports whether a client is shut out, whoever has done that.
	Shuts(client, server netip.Addr, qpn, vlans uint32) bool
}

// Times that nobody needs to set.
const (
	epoch  = 16 * time.Second       // a session that was given out and not used is good for one to two of them
	idle   = 3 * epoch              // a client that holds nothing is forgotten after that: its sessions are good for nothing any more
	again  = 100 * time.Millisecond // until what the fence had no room for is tried again
	fences = 10 * time.Millisecond  // between looks at the fence, at some clients each
)

// slice is the number of holds that are given back, or of clients that are looked at, at a time.
const slice = 64

// clientKey names a client. The same address in another VLAN is another host's.
type clientKey struct {
	ip     [4]byte
	vlans  uint32 // hdr.VIDs
	number uint32
}

func (k *clientKey) hash(seed uint64) uint64 {
	return hdr.Fold(hdr.Fold(seed, uint64(binary.LittleEndian.Uint32(k.ip[:]))|uint64(k.number)<<32), uint64(k.vlans))
}

type wordKey struct {
	addr  uint64
	space uint32
}

func (k *wordKey) hash(seed uint64) uint64 {
	return hdr.Fold(hdr.Fold(seed, k.addr), uint64(k.space))
}

// word is a word that a client holds, or that a request is in line for.
type word struct {
	holders    int32
	first      int32 // of its holds; -1: none
	head, tail int32 // of its line, as waiter*message.Most + number of the word there; -1: nobody is in line
	exclusive  bool
	dirty      bool // it is in state.dirty
}

// bars reports whether the holders of the word keep another client from it.
func (w *word) bars(exclusive bool) bool { return w.holders > 0 && (exclusive || w.exclusive) }

// about is what is known of a client besides its record in memory.
type about struct {
	grants  int32 // the first one; -1: none
	holds   int
	waiters int
	heirAt  clock.Time // since when an heir waits
	ends    clock.Time // its lease
	heard   clock.Time
	closed  bool // dying: it is shut out, and what passed before settles
}

// placed is what is known of a hold besides its record in memory.
type placed struct {
	word          int32
	next          int32 // of its grant; -1: none
	before, after int32 // of its word
	older, newer  int32 // of a grant's first one: grants of its client
}

// waiter is an Acquire that is in line.
type waiter struct {
	client, slot int32 // client -1: the place is free
	attempt      uint16
	n            int
	words        [message.Most]message.Word
	places       [message.Most]int32
	before       [message.Most]int32 // in the line, as word.head
	after        [message.Most]int32
}

// state is what the instances of all workers share. Only a worker that has the turn may use it.
type state struct {
	turn turn.Shared
	settings
	fence Fence // of this breath; nil: there is none
	begun bool
	quiet clock.Time // nothing is granted before
	look  int32      // client at which the fence is asked next
	looks clock.Time

	head    *header
	clients []client
	holds   []hold
	known   []about
	beside  []placed

	byKey flow.Table[clientKey, int32]
	census
	lines
	freeClients []int32
	freeHolds   []int32
	freeWaiters []int32
	waiters     []waiter
	due         due      // clients, and behind them waiters
	told        []pushed // answers that are due, unasked
	counts      [numCounters]uint64
	shown       [numCounters]uint64 // of counts, in some worker's counters

	offers
}

// pushed is an answer that is sent without a new request, because the outcome of a waiting one has come.
type pushed struct {
	client, slot int32
	attempt      uint16
}

func newState(s settings, seed uint64, memory []byte, secret [16]byte) *state {
	x := &state{settings: s, known: make([]about, s.nClients), beside: make([]placed, s.nHolds), waiters: make([]waiter, s.nWaiters),
		due: newDue(s.nClients + s.nWaiters), told: make([]pushed, 0, s.nWaiters), byKey: flow.New[clientKey, int32](2 * s.nClients), census: census{seed, flow.New[clientKey, int32](2 * s.nClients)}, lines: lines{seed: seed, words: flow.New[wordKey, word](2 * (s.nHolds + s.nWaiters))}}
	x.dirty = make([]int32, 0, x.words.Places()+slice)
	x.head, x.clients, x.holds = lay(memory, s.nClients, s.nHolds)
	x.freeClients, x.freeHolds = make([]int32, 0, s.nClients), make([]int32, 0, s.nHolds)
	for i := range x.waiters {
		x.waiters[i].client = -1
		x.freeWaiters = append(x.freeWaiters, int32(i))
	}
	for i := range x.known {
		x.known[i].grants = -1
	}
	if x.head.magic != memMagic {
		x.head.secret = secret
	}
	return x
}

// begin takes over the memory of an earlier process. If that is lost, nothing is granted until all leases have
// ended that the process may have given. Known leases begin anew, because nobody could renew them.
func (s *state) begin(now clock.Time) {
	if s.begun {
		return
	}
	s.begun = true
	h := s.head
	fits := h.magic == memMagic && h.clients == uint64(len(s.clients)) && h.holds == uint64(len(s.holds)) && s.sound()
	if fits {
		s.mend()
		fits = s.restore()
	}
	if !fits {
		s.lose()
		h.young = 1
	}
	if h.young != 0 {
		s.quiet = now.Add(s.lease + s.settle)
	}
	// Tokens never decrease, even if the last one is not known: nobody grants a million a second for ever.
	h.token = max(h.token, uint64(now)/uint64(time.Microsecond))
	h.clients, h.holds = uint64(len(s.clients)), uint64(len(s.holds))
	h.magic = memMagic
	s.block, _ = aes.NewCipher(h.secret[:])
	for i := range s.clients {
		c, k := &s.clients[i], &s.known[i]
		if c.state == free {
			continue
		}
		k.heirAt, k.heard, k.ends = now, now, now.Add(time.Duration(c.lease)*time.Millisecond)
		switch {
		case c.state == live && k.holds > 0:
			s.due.set(int32(i), k.ends)
		case c.state == dying:
			s.due.set(int32(i), now)
		default:
			s.due.set(int32(i), now.Add(idle))
		}
	}
}

// lose forgets everything but the secret and the last token.
func (s *state) lose() {
	clear(s.clients)
	clear(s.holds)
	s.head.done()
	s.head.note(0, 0)
	s.byKey.Clear()
	s.hosts.Clear()
	s.words.Clear()
	s.freeClients, s.freeHolds = s.freeClients[:0], s.freeHolds[:0]
	for i := range s.clients {
		s.freeClients = append(s.freeClients, int32(i))
		s.known[i] = about{grants: -1}
	}
	for i := range s.holds {
		s.freeHolds = append(s.freeHolds, int32(i))
	}
}

// sound reports whether the records in memory are consistent.
func (s *state) sound() bool {
	for i := range s.clients {
		if c := &s.clients[i]; c.state > shut || c.nTargets > maxTargets {
			return false
		}
	}
	for i := range s.holds {
		h := &s.holds[i]
		if h.token == 0 || h.token == s.head.pending>>1 {
			continue
		}
		if h.client < 0 || int(h.client) >= len(s.clients) || s.clients[h.client].state == free || h.head < 0 || int(h.head) >= len(s.holds) || s.holds[h.head].token != h.token {
			return false
		}
	}
	return true
}

func (c *client) key() clientKey { return clientKey{c.from.ip, c.from.vids(), c.number} }

// handle turns message m, of a client, into its answer, or returns false if there is none.
func (s *state) handle(now clock.Time, m *message.Message, from *peer) bool {
	m.Answer, m.Result, m.Holder = true, message.OK, [4]byte{}
	if m.Op == message.Hello {
		m.Session, m.Wait = s.cookie(from, m, uint64(now)/uint64(epoch)), 0
		return true
	}
	i, result := s.admit(now, m, from)
	if result == message.OK {
		result = s.renew(now, i, m, from)
	}
	m.Lease = 0
	if result != message.OK {
		m.Result, m.N = result, 0
		return true
	}
	sl := &s.clients[i].slots[m.Request%message.Slots]
	switch {
	case m.Request == 0 || sl.request == m.Request && sl.op != m.Op:
		m.Result = message.Refused
		return true
	case sl.older(m.Request):
		s.counts[ctrOld]++
		return false
	case m.Request != sl.request:
		if result := s.now(now, m); result != message.OK {
			m.Result = result
			return true
		}
		s.head.note(i, m.Request)
		s.do(now, i, m, sl)
		s.head.note(0, 0)
		s.run(now)
	default:
		s.counts[ctrRepeated]++
		if sl.result == message.Waiting {
			s.waiters[sl.handle].attempt = m.Attempt
		}
	}
	s.answer(now, i, int32(m.Request%message.Slots), m)
	return true
}

// now returns OK if m can be executed now. Otherwise m is not noted, and the client sends it again or gives it
// up.
func (s *state) now(now clock.Time, m *message.Message) message.Result {
	if m.Op != message.Acquire {
		return message.OK
	}
	if now < s.quiet {
		m.Wait = millis(s.quiet.Sub(now))
		return message.Settling
	}
	if s.blind() {
		s.counts[ctrBlind]++
		m.Wait = uint32(again / time.Millisecond)
		return message.Settling
	}
	return message.OK
}

// blind reports whether fence= names a fence that is not there.
func (s *state) blind() bool { return s.fenceName != "" && s.fence == nil }

func millis(d time.Duration) uint32 { return uint32(max(0, (d+time.Millisecond-1)/time.Millisecond)) }

// do executes a request that has not come before.
func (s *state) do(now clock.Time, i int32, m *message.Message, sl *slot) {
	at := int32(m.Request % message.Slots)
	if sl.result == message.Waiting {
		s.leave(i, at) // its client has given it up
	}
	if m.Op != message.Acquire {
		token, result := s.release(i, m)
		s.note(sl, m, slot{result: result, token: token})
		return
	}
	w, bar, result := s.try(i, m.Words[:m.N])
	switch {
	case m.N == 0 || twice(m.Words[:m.N]):
		s.note(sl, m, slot{result: message.Refused})
	case result == message.OK:
		s.grant(i, sl, m.Request, m.Words[:m.N])
	case result == message.Held && m.Wait > 0 && len(s.freeWaiters) > 0:
		s.note(sl, m, slot{result: message.Waiting})
		s.wait(now, i, at, m)
	case result == message.Held:
		x := slot{result: result, word: uint8(bar)}
		if h := w.first; h >= 0 {
			c := s.holds[h].client
			x.holder, x.wait = s.clients[c].from.ip, millis(s.known[c].ends.Sub(now))
		}
		if m.Wait > 0 {
			x.result = message.Full
		}
		s.counts[ctrDenied]++
		s.note(sl, m, x)
	default:
		s.counts[ctrDenied]++
		s.note(sl, m, slot{result: result})
	}
}

// note stores the answer x to request m in its slot.
func (s *state) note(sl *slot, m *message.Message, x slot) {
	x.request, x.op = m.Request, m.Op
	*sl = x
}

// answer fills m with the answer in slot at of client i.
func (s *state) answer(now clock.Time, i, at int32, m *message.Message) {
	sl := &s.clients[i].slots[at]
	m.Result, m.N, m.Token, m.Handle, m.Holder, m.Wait = sl.result, int(sl.word), sl.token, sl.handle, sl.holder, sl.wait
	m.Lease = 0
	if k := &s.known[i]; s.clients[i].state == live {
		m.Lease = uint32(max(0, min(k.ends.Sub(now), time.Duration(s.clients[i].lease)*time.Millisecond)/time.Millisecond))
	}
}

// twice reports whether words contains a word twice.
func twice(words []message.Word) bool {
	for i := range words {
		for k := range i {
			if words[i].Addr == words[k].Addr && words[i].Space == words[k].Space {
				return true
			}
		}
	}
	return false
}

// tick does what is due, and returns when it must be called again.
func (s *state) tick(now clock.Time) clock.Time {
	if s.head.young != 0 && now >= s.quiet {
		s.head.young = 0
	}
	for range slice {
		id, at := s.due.next()
		if at > now {
			break
		}
		if int(id) < len(s.clients) {
			s.client(now, id)
		} else {
			w := &s.waiters[int(id)-len(s.clients)]
			i, at := w.client, w.slot
			s.leave(i, at)
			s.counts[ctrTimedOut]++
			s.tell(i, at, w.attempt)
		}
	}
	s.run(now)
	held := len(s.freeHolds) < len(s.holds)
	if s.fence != nil && held && now >= s.looks {
		s.looks = now.Add(fences)
		s.ask(now)
	}
	_, next := s.due.next()
	if s.head.young != 0 {
		next = min(next, s.quiet)
	}
	switch {
	case s.blind():
		next = min(next, now.Add(again))
	case s.fence != nil && held:
		next = min(next, s.looks)
	}
	if len(s.dirty) > 0 && !s.blind() {
		next = now
	}
	return max(next, now)
}

// ask looks at some clients, and ends the leases of those that somebody else has shut out.
func (s *state) ask(now clock.Time) {
	for range min(slice, len(s.clients)) {
		if s.look++; int(s.look) >= len(s.clients) {
			s.look = 0
		}
		if c := &s.clients[s.look]; c.state == live && s.known[s.look].holds > 0 {
			for _, t := range c.targets[:c.nTargets] {
				if s.fence.Shuts(netip.AddrFrom4(c.from.ip), netip.AddrFrom4(t.server), t.qpn, c.from.vids()) {
					s.die(now, s.look)
					break
				}
			}
		}
	}
}

// tell has the answer in slot at of client i sent.
func (s *state) tell(i, at int32, attempt uint16) {
	if len(s.told) < cap(s.told) { // else the client asks
		s.told = append(s.told, pushed{i, at, attempt})
	}
}
