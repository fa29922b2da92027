package xdp

import "errors"

// graces makes grace periods. After a grace period no program runs that ran when the period began. Numbers to
// which nothing leads wait for one. A grace period takes 10 to 30 ms. It is started in the background while
// there is still room, so that the Switch's goroutine seldom has to wait.
type graces struct {
	wait  func() error // for the end of one; any goroutine may call it
	after func()       // called behind one that nothing was changed beside
	rests []*rest
	busy  chan error // of one that was begun; nil: none was
	n     int        // how many there were
}

// now waits until a grace period has ended.
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

// begin starts a grace period in the background. When collect finds that it has ended, the numbers that wait at
// the start become free.
func (g *graces) begin() {
	for _, r := range g.rests {
		r.waiting, r.left = r.left, r.waiting[:0]
	}
	g.busy = make(chan error, 1)
	go func(done chan<- error) { done <- g.wait() }(g.busy)
}

// collect ends what begin has started, if the grace period is over; with block it waits for that.
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

// rest hands out numbers below most, and takes them back. A number is handed out again only after a grace
// period.
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

// begins is the number of waiting numbers at which a grace period is started.
const begins = 64

// take returns a number that is not in use.
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

// leave takes back a number to which nothing leads any more. It waits for a grace period.
func (r *rest) leave(n uint32) { r.left = append(r.left, n) }

// back takes back a number to which nothing has ever led.
func (r *rest) back(n uint32) { r.free = append(r.free, n) }
