package history

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// The search for an order of one object's operations is Wing and Gong's, with Lowe's memory of what was tried
// ("Testing for linearizability", 2017): take any operation that may come next, continue, and go back when
// none may come next. Three rules make it short for histories with hundreds of requests in flight:
//
//   - An operation that may come next and, by its answer, changes nothing,
//     comes next: whatever is possible before it is possible
//     after it.
//   - A state that is still needed by the answer of an operation is not left
//     if nothing can bring it back. Most values are written only once.
//   - Operations of one client that take effect in order are taken in order.
//
// An order that is found is checked against the model separately, so an error in the search can only cause a
// false alarm.

// move is what the search needs of an operation.
type move struct { // ret: math.MaxInt64 if it is open
	call, ret int64 // ret: math.MaxInt64 when it is open
	prev      int   // the operation that must take effect before; -1: none
	returned  bool
	inOrder   bool
	blind     bool   // possible in every state
	needs     uint64 // the state in which it is possible, if it returned and is not blind
	key       [2]uint64
}

type search[I, O any] struct {
	m     *Model[I, O]
	ops   []*Op[I, O]
	moves []move
	place []int // index in byRet, for operations that returned
	byRet []int // operations that returned, by return
	// All moves before low, and all of byRet before lowRet, are done.
	low, lowRet int
	done        []bool
	order       []int
	left        int // operations that returned and are not done
	waiting     map[uint64]int
	// makers counts, by state, the operations not done that leave it behind. wild counts those for which the
	// state before decides what they leave.
	makers map[uint64]int
	wild   int
	hasty  bool
	tried  map[[3]uint64]struct{}
	at     [2]uint64 // hash of the set of done operations
	effort int
}

var errTired = errors.New("tired")

// find reports whether there is an order of all operations that returned, with open ones among them where
// these help.
func (m *Model[I, O]) find(object uint64, ops []*Op[I, O], effort int) (bool, error) {
	s := &search[I, O]{m: m, ops: ops, moves: make([]move, len(ops)), place: make([]int, len(ops)), done: make([]bool, len(ops)),
		waiting: map[uint64]int{}, makers: map[uint64]int{}, tried: map[[3]uint64]struct{}{}, effort: effort}
	rng := rand.New(rand.NewPCG(object, uint64(len(ops))))
	last := map[int]int{} // by client
	for i, o := range ops {
		v := &s.moves[i]
		*v = move{call: o.call, ret: o.ret, prev: -1, returned: !o.Open(), blind: o.Open(), key: [2]uint64{rng.Uint64(), rng.Uint64()}}
		if v.returned {
			s.left++
			s.byRet = append(s.byRet, i)
			v.needs, v.blind = m.Needs(o.In, o.Out)
		} else {
			v.ret = math.MaxInt64
		}
		if m.InOrder != nil {
			if p, ok := last[o.Client]; ok {
				v.prev = p
			}
			if m.InOrder(o.In) {
				last[o.Client] = i
				v.inOrder = true
			}
		}
		s.count(i, 1)
	}
	slices.SortFunc(s.byRet, func(a, b int) int { return cmp.Compare(ops[a].ret, ops[b].ret) })
	for n, i := range s.byRet {
		s.place[i] = n
	}
	// The first search assumes that open operations whose result is not certain never bring a state back. An
	// order that it finds is as good as any.
	wild := s.wild
	s.wild = 0
	s.hasty = true
	ok, err := s.from(m.Init(object))
	if !ok && wild > 0 {
		s.wild, s.hasty, s.effort = wild, false, effort
		clear(s.tried)
		s.back(0)
		ok, err = s.from(m.Init(object))
	}
	if ok && !s.explains(m.Init(object)) {
		return false, errors.New("history: the order that was found is none: an error of the search")
	}
	return ok, err
}

// count adds n to the number of operations that wait for the state that operation i needs, and to the number
// of those that make the state that it leaves behind.
func (s *search[I, O]) count(i, n int) {
	v, o := &s.moves[i], s.ops[i]
	makes, known := uint64(0), true
	switch {
	case !v.returned:
		makes, known = s.m.Makes(o.In)
	case v.blind:
		makes, _ = s.m.Step(0, o.In, o.Out, true)
	default:
		s.waiting[v.needs] += n
		makes, _ = s.m.Step(v.needs, o.In, o.Out, true)
		if makes == v.needs {
			return // it needs the state, and does not bring it back
		}
	}
	if known {
		s.makers[makes] += n
	} else if !s.hasty {
		s.wild += n
	}
}

func (s *search[I, O]) take(i int) {
	s.done[i] = true
	s.order = append(s.order, i)
	s.count(i, -1)
	s.at[0] ^= s.moves[i].key[0]
	s.at[1] ^= s.moves[i].key[1]
	if s.moves[i].returned {
		s.left--
	}
}

// back undoes the last takes, until to operations are left in the order.
func (s *search[I, O]) back(to int) {
	for len(s.order) > to {
		i := s.order[len(s.order)-1]
		s.order = s.order[:len(s.order)-1]
		s.done[i] = false
		s.low = min(s.low, i)
		s.count(i, 1)
		s.at[0] ^= s.moves[i].key[0]
		s.at[1] ^= s.moves[i].key[1]
		if s.moves[i].returned {
			s.left++
			s.lowRet = min(s.lowRet, s.place[i])
		}
	}
}

// from reports whether the operations that are not done can follow in this state. If they cannot, it leaves
// the search as it was.
func (s *search[I, O]) from(state uint64) (bool, error) {
	was := len(s.order)
	next := s.next()
	for i := 0; i < len(next); i++ {
		k := next[i]
		if after, ok := s.result(k, state); ok && after == state && !s.moves[k].blind {
			s.take(k)
			next = s.next()
			i = -1
		}
	}
	if s.left == 0 {
		return true, nil
	}
	key := [3]uint64{s.at[0], s.at[1], state}
	if _, ok := s.tried[key]; ok {
		s.back(was)
		return false, nil
	}
	if s.effort--; s.effort < 0 {
		return false, errTired
	}
	for _, k := range next {
		// An open operation that changes nothing is still taken if it is in order, because it lets the next
		// ones of its client come.
		after, ok := s.result(k, state)
		v := &s.moves[k]
		if !ok || after == state && !v.returned && !v.inOrder || after != state && s.missed(k, state) {
			continue
		}
		at := len(s.order)
		s.take(k)
		if ok, err := s.from(after); ok || err != nil {
			return ok, err
		}
		s.back(at)
	}
	s.tried[key] = struct{}{}
	s.back(was)
	return false, nil
}

// result returns the state after operation i; false: the operation is not possible.
func (s *search[I, O]) result(i int, state uint64) (uint64, bool) {
	v := &s.moves[i]
	if !v.blind && v.needs != state {
		return 0, false
	}
	return s.m.Step(state, s.ops[i].In, s.ops[i].Out, v.returned)
}

// missed reports whether an operation waits for this state and would never see it again after operation i.
func (s *search[I, O]) missed(i int, state uint64) bool {
	n := s.waiting[state]
	if v := &s.moves[i]; v.returned && !v.blind && v.needs == state {
		n--
	}
	return n > 0 && s.makers[state] == 0 && s.wild == 0
}

// next returns the operations that may come next: those called before the first return of an operation that
// is not done. Operations that returned come first.
func (s *search[I, O]) next() []int {
	for s.low < len(s.moves) && s.done[s.low] {
		s.low++
	}
	for s.lowRet < len(s.byRet) && s.done[s.byRet[s.lowRet]] {
		s.lowRet++
	}
	first := int64(math.MaxInt64)
	if s.lowRet < len(s.byRet) {
		first = s.moves[s.byRet[s.lowRet]].ret
	}
	var returned, open []int
	for i := s.low; i < len(s.moves); i++ {
		v := &s.moves[i]
		if v.call > first {
			break
		}
		switch {
		case s.done[i] || v.prev >= 0 && !s.done[v.prev]:
		case v.returned:
			returned = append(returned, i)
		default:
			open = append(open, i)
		}
	}
	return append(returned, open...)
}

// explains checks the order that was found, by the definition of linearizability.
func (s *search[I, O]) explains(state uint64) bool {
	place := make([]int, len(s.ops))
	for i := range place {
		place[i] = math.MaxInt
	}
	for n, i := range s.order {
		o := s.ops[i]
		next, ok := s.m.Step(state, o.In, o.Out, !o.Open())
		if !ok {
			return false
		}
		state, place[i] = next, n
	}
	latest := int64(0) // newest call of the operations so far
	for _, i := range s.order {
		if s.moves[i].ret < latest {
			return false
		}
		latest = max(latest, s.moves[i].call)
	}
	for i := range s.moves {
		v := &s.moves[i]
		if v.returned && place[i] == math.MaxInt || v.prev >= 0 && place[v.prev] > place[i] {
			return false
		}
	}
	return true
}
