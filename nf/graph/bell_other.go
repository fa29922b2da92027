//go:build !linux

package graph

import (
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// bell does nothing on this system: nothing wakes a worker early.
type bell struct {
	port.Port
	asleep atomic.Bool
	fd     int
}

func newBell() *bell   { return &bell{fd: -1} }
func (b *bell) open()  {}
func (b *bell) close() {}
func (b *bell) ring()  {}
func (b *bell) awake() { b.asleep.Store(false) }

func (b *bell) wait(d clock.Duration) { time.Sleep(d) }
