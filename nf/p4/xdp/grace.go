package xdp

import "errors"

// graces are grace periods: after one no program runs any more that ran when it began. What nothing leads to any more rests until then. A grace period takes 10 to
// 30 ms; one is begun beside the Switch's goroutine while there is still room, so that it seldom has to wait.
type graces struct {
	wait  func() error // for the end of one; any goroutine may call it
	after func()       // called behind one that nothing was changed beside
	rests []*rest
	busy  chan error // of one that was begun; nil: none was
	n     int        // how many there were
}

// now waits for the end of a grace period.
func (g *graces) now() error {
	if err := g.collect(true); err != nil {
		return err
	}
	if err := g.wait(); err != nil {
		return err
	}
	g.n++
	for _, r := range g.rests {
		r.free = append(r.free, r.left...)
		r.left = r.left[:0]
	}
	g.after()
	return nil
}

// begin has what rests now be free when collect finds that a grace period has ended.
func (g *graces) begin() {
	for _, r := range g.rests {
		r.waiting, r.left = r.left, r.waiting[:0]
	}
	g.busy = make(chan error, 1)
	go func(done chan<- error) { done <- g.wait() }(g.busy)
}

// collect ends what begin has begun: with block it waits.
func (g *graces) collect(block bool) (err error) {
	if g.busy == nil {
		return nil
	}
	if block {
		err = <-g.busy
	} else {
		select {
		case err = <-g.busy:
		default:
			return nil
		}
	}
	g.busy = nil
	g.n++
	for _, r := range g.rests {
		if err == nil {
			r.free = append(r.free, r.waiting...)
		} else { // for another try
			r.left = append(r.left, r.waiting...)
		}
		r.waiting = r.waiting[:0]
	}
	return err
}

// rest are numbers that are used again after a grace period: first those below most that never were.
type rest struct {
	g                   *graces
	free, left, waiting []uint32
	used, most          uint32
}

func (g *graces) rest(most int) *rest {
	r := &rest{g: g, most: uint32(most)}
	g.rests = append(g.rests, r)
	return r
}

// begins is how many numbers rest before a grace period is begun for them.
const begins = 64

// take is a number that nobody uses.
func (r *rest) take() (n uint32, err error) {
	if err := r.g.collect(false); err != nil {
		return 0, err
	}
	room := len(r.free) + int(r.most-r.used)
	if room == 0 {
		if err := r.g.collect(true); err != nil {
			return 0, err
		}
	}
	if room == 0 && len(r.free) == 0 {
		if len(r.left) == 0 {
			return 0, errors.New("there are more entries than there is room for")
		}
		if err := r.g.now(); err != nil {
			return 0, err
		}
	}
	if k := len(r.free); k > 0 {
		n, r.free = r.free[k-1], r.free[:k-1]
	} else {
		n = r.used
		r.used++
	}
	if len(r.left) >= begins && len(r.left) > room && r.g.busy == nil {
		r.g.begin()
	}
	return n, nil
}

// leave has a number rest: nothing leads to it any more.
func (r *rest) leave(n uint32) { r.left = append(r.left, n) }

// back gives back a number to which nothing has led.
func (r *rest) back(n uint32) { r.free = append(r.free, n) }
