package clio

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// crew is several workers that run a chain between two ports, at the same time.
type crew struct {
	steer func(side int, frame []byte) int // whose a frame is, that came by a (0) or b
	ports [2]port.Port
	pools []*packet.Pool
	desks [2][]*desk // a and b, by worker
	rx    packet.Batch
	errs  []error
}

// desk is a port of one worker: it yields nothing, and keeps what is sent to it.
type desk struct {
	name string
	pool *packet.Pool
	in   [][]byte
	sent [][]byte
	b    packet.Batch
}

func (d *desk) Name() string                                     { return d.name }
func (d *desk) Pool() *packet.Pool                               { return d.pool }
func (d *desk) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (d *desk) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (d *desk) Stats() port.Stats                                { return port.Stats{} }
func (d *desk) Close() error                                     { return nil }
func (d *desk) Tx(b *packet.Batch) (int, error) {
	for _, x := range b.Bufs() {
		d.sent = append(d.sent, slices.Clone(x.Bytes()))
	}
	n := b.Len()
	b.PutAll()
	return n, nil
}

// newCrew is so many workers, each with buffers of its own.
func newCrew(workers int, steering string, a, b port.Port, seed uint64) (*crew, error) {
	c := &crew{ports: [2]port.Port{a, b}, errs: make([]error, workers)}
	rng := rand.New(rand.NewPCG(seed, 7))
	client := func(side int, f []byte) int { // the last byte of its address
		return int(f[[2]int{33, 29}[side]])
	}
	var ok bool
	c.steer, ok = map[string]func(side int, f []byte) int{
		"by client":    func(side int, f []byte) int { return client(side, f) % workers },
		"by direction": func(side int, _ []byte) int { return side % workers },
		"by both":      func(side int, f []byte) int { return (client(side, f) + side) % workers },
		"anyhow":       func(int, []byte) int { return rng.IntN(workers) },
	}[steering]
	if !ok {
		return nil, fmt.Errorf("no steering is called %q", steering)
	}
	for range workers {
		pool, err := packet.NewPool(2048, 2048, nil)
		if err != nil {
			return nil, err
		}
		c.pools = append(c.pools, pool)
		for i, name := range []string{"a", "b"} {
			c.desks[i] = append(c.desks[i], &desk{name: name, pool: pool})
		}
	}
	return c, nil
}

// queues are the ports of the graph.
func (c *crew) queues() map[string][]port.Port {
	all := map[string][]port.Port{}
	for i, name := range []string{"a", "b"} {
		for _, d := range c.desks[i] {
			all[name] = append(all[name], d)
		}
	}
	return all
}

// breath is one of all workers, each on a goroutine of its own.
func (c *crew) breath(inst *graph.Instance, now clock.Time) (int, error) {
	n := 0
	for side, p := range c.ports {
		if _, err := p.Rx(&c.rx); err != nil {
			return n, err
		}
		n += c.rx.Len()
		for _, x := range c.rx.Bufs() {
			d := c.desks[side][c.steer(side, x.Bytes())]
			d.in = append(d.in, slices.Clone(x.Bytes()))
		}
		c.rx.PutAll()
	}
	var wg sync.WaitGroup
	for w := range c.errs {
		wg.Go(func() {
			for i := range c.desks {
				d := c.desks[(i+w)%2][w]
				if len(d.in) == 0 {
					continue
				}
				for _, f := range d.in {
					x := d.pool.Get()
					if x == nil || !x.SetBytes(f) || !d.b.Add(x) {
						c.errs[w] = errors.Join(c.errs[w], errors.New("no room for a frame"))
						return
					}
				}
				d.in = d.in[:0]
				c.errs[w] = errors.Join(c.errs[w], inst.PushTo(w, d.name, now, &d.b))
			}
		})
	}
	wg.Wait()
	err := errors.Join(c.errs...)
	if inst.NextTick() <= now {
		m, e := inst.Step(now)
		n, err = n+m, errors.Join(err, e)
	}
	return n, errors.Join(err, c.send())
}

// send gives the ports what the workers have sent.
func (c *crew) send() error {
	for side, p := range c.ports {
		for _, d := range c.desks[side] {
			for _, f := range d.sent {
				x := p.Pool().Get()
				if x == nil || !x.SetBytes(f) {
					return errors.New("no room for a frame that goes out")
				}
				c.rx.Add(x)
				if _, err := p.Tx(&c.rx); err != nil {
					return err
				}
				c.rx.PutAll() // for which there was no room
			}
			d.sent = d.sent[:0]
		}
	}
	return nil
}

// left says what of the workers' buffers is still used.
func (c *crew) left() error {
	for w, p := range c.pools {
		if n := p.InUse(); n != 0 {
			return fmt.Errorf("worker %d: %d buffers are still in use", w, n)
		}
	}
	return nil
}

// Two boards, of a worker each, run tasks that share what they know.
func TestWorkersInBoards(t *testing.T) {
	for _, name := range []string{"gobackn, window 4", "cache, lossy, deep", "copies, lossy", "gobackn+cache+copies"} {
		for _, steering := range []string{"by client", "by direction"} {
			s := setups[name]
			s.workers, s.steering, s.board = 2, steering, boards["one region"]
			t.Run(name+"/"+steering, func(t *testing.T) {
				t.Parallel()
				linearizable(t, s, 2)
			})
		}
	}
}

// TestWorkers: which worker gets a frame, and what others do at that moment, does not matter.
func TestWorkers(t *testing.T) {
	const seeds = 2 // both mixes
	for _, name := range []string{"gobackn", "gobackn, window 4", "cache, lossy", "cache, lossy, deep", "copies, lossy", "cache+copies, lossy",
		"gobackn+cache+copies", "a secondary dies"} {
		for _, steering := range []string{"by client", "by direction", "by both", "anyhow"} {
			if testing.Short() && steering != "anyhow" {
				continue
			}
			s := setups[name]
			s.workers, s.steering = 2, steering
			if steering == "by both" {
				s.workers = 3
			}
			t.Run(name+"/"+steering, func(t *testing.T) {
				t.Parallel()
				linearizable(t, s, seeds)
			})
		}
	}
}
