package arbiter

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
)

// lines has the words that clients hold, or that requests are in line for.
type lines struct {
	seed  uint64
	words flow.Table[wordKey, word]
	dirty []int32 // places of words whose line may move on
}

// place returns the place of a word in the table, where it adds the word if necessary, or a negative number if
// there is no room.
func (s *lines) place(k *wordKey) int32 {
	hash := k.hash(s.seed)
	at := s.words.Find(k, hash)
	if at < 0 {
		if at = s.words.Add(k, hash); at >= 0 {
			s.words.At(at).Val = word{first: -1, head: -1, tail: -1}
		}
	}
	return int32(at)
}

func (s *lines) word(at int32) *word { return &s.words.At(int(at)).Val }

// unused frees the place of a word that has no holder, no line, and is not in dirty.
func (s *lines) unused(at int32) {
	if w := s.word(at); w.holders == 0 && w.head < 0 && !w.dirty {
		s.words.Del(int(at))
	}
}

// touch has run look at the line of a word.
func (s *lines) touch(at int32) {
	w := s.word(at)
	if w.head >= 0 && !w.dirty {
		w.dirty = true
		s.dirty = append(s.dirty, at)
	}
	s.unused(at)
}

// try reports whether client i can have words at once. If the result is Held, w is the first word that it cannot
// have, and bar is its index.
func (s *state) try(i int32, words []message.Word) (w *word, bar int, r message.Result) {
	if r := s.room(i, words); r != message.OK {
		return nil, 0, r
	}
	for n := range words {
		k := wordKey{words[n].Addr, words[n].Space}
		at := s.words.Find(&k, k.hash(s.lines.seed))
		if at < 0 {
			continue
		}
		if w := s.word(int32(at)); w.head >= 0 || w.bars(words[n].Exclusive) {
			return w, n, message.Held
		}
	}
	return nil, 0, message.OK
}

// aim reports whether client i may change words at their servers. (grant notes the targets to shut the client out
// from.)
func (s *state) aim(i int32, words []message.Word) message.Result {
	if s.fenceName == "" {
		return message.OK
	}
	c := &s.clients[i]
	n := int(c.nTargets)
	if s.known[i].holds == 0 {
		n = 0
	}
	var more [message.Most]target
	all := more[:0]
	for k := range words {
		t := targetOf(&words[k])
		server := netip.AddrFrom4(t.server)
		if server.IsUnspecified() || server.IsMulticast() || t.server == [4]byte{255, 255, 255, 255} || t.server == c.from.ip {
			return message.Refused
		}
		if has(c.targets[:n], t) || has(all, t) {
			continue
		}
		if s.fence.Shuts(netip.AddrFrom4(c.from.ip), server, t.qpn, c.from.vids()) {
			return message.Shut
		}
		all = append(all, t)
	}
	if n+len(all) > maxTargets {
		return message.Full
	}
	return message.OK
}

func has(all []target, t target) bool {
	for i := range all {
		if all[i] == t {
			return true
		}
	}
	return false
}

func targetOf(w *message.Word) target {
	return target{[4]byte{byte(w.Space >> 24), byte(w.Space >> 16), byte(w.Space >> 8), byte(w.Space)}, w.QPN}
}

// grant gives client i words that no holder keeps from it. If the table has no room for them, the answer is Full.
func (s *state) grant(i int32, sl *slot, request uint32, words []message.Word) {
	c := &s.clients[i]
	var places [message.Most]int32
	for n := range words {
		key := wordKey{words[n].Addr, words[n].Space}
		if places[n] = s.place(&key); places[n] < 0 {
			for _, at := range places[:n] {
				s.unused(at)
			}
			s.counts[ctrDenied]++
			*sl = slot{request: request, op: message.Acquire, result: message.Full}
			return
		}
	}
	if s.fenceName != "" {
		if s.known[i].holds == 0 {
			c.nTargets = 0
		}
		for n := range words {
			if t := targetOf(&words[n]); !has(c.targets[:c.nTargets], t) {
				c.targets[c.nTargets] = t
				c.nTargets++
			}
		}
	}
	s.head.token++
	token := s.head.token
	s.head.pend(token, true)
	head, last := int32(-1), int32(-1)
	for n := range words {
		f := len(s.freeHolds) - 1
		id := s.freeHolds[f]
		s.freeHolds = s.freeHolds[:f]
		if head < 0 {
			head = id
		}
		h := &s.holds[id]
		h.addr, h.space, h.head, h.client, h.exclusive = words[n].Addr, words[n].Space, head, i, words[n].Exclusive
		atomic.StoreUint64(&h.token, token)
		s.link(id, places[n])
		if last >= 0 {
			s.beside[last].next = id
		}
		last = id
	}
	s.linkGrant(head)
	*sl = slot{request: request, op: message.Acquire, result: message.OK, token: token, handle: uint32(head)}
	s.head.done()
	s.counts[ctrGranted]++
	s.plan(i)
}

// link adds a hold to those of its word, and counts it for its client.
func (s *state) link(id, at int32) {
	h, p, w := &s.holds[id], &s.beside[id], s.word(at)
	*p = placed{word: at, next: -1, before: -1, after: w.first, older: -1, newer: -1}
	if w.first >= 0 {
		s.beside[w.first].before = id
	}
	w.first = id
	w.holders++
	w.exclusive = w.exclusive || h.exclusive
	s.known[h.client].holds++
}

// linkGrant adds a grant to those of its client.
func (s *state) linkGrant(head int32) {
	k := &s.known[s.holds[head].client]
	p := &s.beside[head]
	if p.older, p.newer = k.grants, -1; k.grants >= 0 {
		s.beside[k.grants].newer = head
	}
	k.grants = head
}

// undo gives back a grant, and returns the number of its words.
func (s *state) undo(head int32) (n int) {
	p := &s.beside[head]
	k := &s.known[s.holds[head].client]
	s.head.pend(s.holds[head].token, false)
	if p.newer >= 0 {
		s.beside[p.newer].older = p.older
	} else {
		k.grants = p.older
	}
	if p.older >= 0 {
		s.beside[p.older].newer = p.newer
	}
	for id := head; id >= 0; n++ {
		p := &s.beside[id]
		w := s.word(p.word)
		if p.before >= 0 {
			s.beside[p.before].after = p.after
		} else {
			w.first = p.after
		}
		if p.after >= 0 {
			s.beside[p.after].before = p.before
		}
		if w.holders--; w.holders == 0 {
			w.exclusive = false
		}
		atomic.StoreUint64(&s.holds[id].token, 0)
		s.freeHolds = append(s.freeHolds, id)
		k.holds--
		s.touch(p.word)
		id = p.next
	}
	s.head.done()
	return n
}

// release does a Release or a Renew, which has nothing to be done. Without a token a Release is of the request that the handle
// names, whatever has become of it, or will.
func (s *state) release(i int32, m *message.Message) (uint64, message.Result) {
	if m.Op != message.Release {
		return 0, message.OK
	}
	token, handle := m.Token, m.Handle
	if token == 0 {
		at := int32(m.Handle % message.Slots)
		sl := &s.clients[i].slots[at]
		if m.Handle == 0 || m.Handle == m.Request || sl.older(m.Handle) || m.Handle == sl.request && sl.op != message.Acquire {
			return 0, message.NotYours
		}
		if sl.result == message.Waiting {
			s.leave(i, at)
		}
		token, handle = sl.token, sl.handle
		if m.Handle != sl.request || sl.result != message.OK {
			*sl = slot{request: m.Handle, op: message.Acquire, result: message.TimedOut}
			return 0, message.OK
		}
		defer func() { *sl = slot{request: m.Handle, op: message.Acquire, result: message.TimedOut} }() // when it is given back
	}
	if uint64(handle) >= uint64(len(s.holds)) {
		return 0, message.NotYours
	}
	if h := &s.holds[handle]; token == 0 || h.token != token || h.head != int32(handle) || h.client != i {
		return 0, message.NotYours
	}
	s.undo(int32(handle))
	s.counts[ctrReleased]++
	return token, message.OK
}

// wait puts request m, of slot at of client i, in the lines of its words.
func (s *state) wait(now clock.Time, i, at int32, m *message.Message) {
	id := s.freeWaiters[len(s.freeWaiters)-1]
	x := &s.waiters[id]
	x.client, x.slot, x.attempt, x.n = i, at, m.Attempt, m.N
	copy(x.words[:x.n], m.Words[:m.N])
	for n := range m.N {
		key := wordKey{m.Words[n].Addr, m.Words[n].Space}
		if x.places[n] = s.place(&key); x.places[n] < 0 {
			for k := range n {
				s.unused(x.places[k])
			}
			x.client = -1
			s.clients[i].slots[at].result = message.Full
			return
		}
	}
	s.freeWaiters = s.freeWaiters[:len(s.freeWaiters)-1]
	for n := range m.N {
		w, node := s.word(x.places[n]), id*message.Most+int32(n)
		x.before[n], x.after[n] = w.tail, -1
		if w.tail >= 0 {
			s.waiters[w.tail/message.Most].after[w.tail%message.Most] = node
		} else {
			w.head = node
		}
		w.tail = node
	}
	s.known[i].waiters++
	s.clients[i].slots[at].handle = uint32(id)
	s.due.set(int32(len(s.clients))+id, now.Add(min(time.Duration(m.Wait)*time.Millisecond, s.maxWait)))
}

// leave takes the request of a slot out of its lines.
func (s *state) leave(i, at int32) {
	sl := &s.clients[i].slots[at]
	id := int32(sl.handle)
	x := &s.waiters[id]
	sl.handle, sl.result = 0, message.TimedOut
	for n := range x.n {
		w, before, after := s.word(x.places[n]), x.before[n], x.after[n]
		if before >= 0 {
			s.waiters[before/message.Most].after[before%message.Most] = after
		} else {
			w.head = after
		}
		if after >= 0 {
			s.waiters[after/message.Most].before[after%message.Most] = before
		} else {
			w.tail = before
		}
		s.touch(x.places[n])
	}
	x.client = -1
	s.known[i].waiters--
	s.freeWaiters = append(s.freeWaiters, id)
	s.due.remove(int32(len(s.clients)) + id)
}

// leaveAll takes all waiting requests of a client out of their lines.
func (s *state) leaveAll(i int32) {
	for at := range s.clients[i].slots {
		if s.clients[i].slots[at].result == message.Waiting {
			s.leave(i, int32(at))
		}
	}
}

// run grants requests in lines that may move on. It looks at a limited number of lines, so that a breath stays
// short.
func (s *state) run(now clock.Time) {
	if s.blind() {
		return
	}
	n := 0
	for ; n < slice && n < len(s.dirty); n++ {
		at := s.dirty[n]
		w := s.word(at)
		w.dirty = false
		if w.head < 0 {
			s.unused(at)
			continue
		}
		id := w.head / message.Most
		x := &s.waiters[id]
		if !s.turnOf(id) {
			continue
		}
		i, sl := x.client, &s.clients[x.client].slots[x.slot]
		request, slotAt := sl.request, x.slot
		s.leave(i, slotAt)
		r := message.TimedOut // its client is silent
		if s.known[i].ends > now {
			r = s.room(i, x.words[:x.n])
		}
		if r == message.OK {
			s.head.note(i, request)
			s.grant(i, sl, request, x.words[:x.n])
			s.head.note(0, 0)
		} else {
			s.counts[ctrDenied]++
			sl.result = r
		}
		s.tell(i, slotAt, x.attempt)
	}
	s.dirty = append(s.dirty[:0], s.dirty[n:]...)
}

// room reports whether client i may hold these words in addition, and change them at their servers.
func (s *state) room(i int32, words []message.Word) message.Result {
	if len(s.freeHolds) < len(words) || s.known[i].holds+len(words) > s.each {
		return message.Full
	}
	return s.aim(i, words)
}

// turnOf reports whether a waiter is the first one in all of its lines, and no holder keeps it from its words.
func (s *state) turnOf(id int32) bool {
	x := &s.waiters[id]
	for n := range x.n {
		w := s.word(x.places[n])
		if w.head != id*message.Most+int32(n) || w.bars(x.words[n].Exclusive) {
			return false
		}
	}
	return true
}
