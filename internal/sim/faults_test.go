package sim

import (
	"errors"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/graph"
)

// Instance is the graph that runs; nil when the middlebox forwards.
func (b *Box) Instance() *graph.Instance { return b.inst }

// Kill stops the middlebox with all that it knows and holds; frames go past it.
func (b *Box) Kill() error {
	if b.down {
		return nil
	}
	b.down = true
	if b.inst == nil {
		return nil
	}
	err := b.inst.Close()
	b.inst = nil
	return err
}

// Restart starts a middlebox that was killed, with other arguments unless args
// is nil.
func (b *Box) Restart(args graph.Args) error {
	if !b.down {
		return errors.New("sim: restart of a middlebox that runs")
	}
	if args != nil {
		b.cfg.Args = args
	}
	err := b.start()
	b.tick()
	return err
}

// SetFaults says what the machine's cable does to frames that it sends (up) and
// receives (down) from now on.
func (m *Machine) SetFaults(up, down Faults) {
	m.up.faults, m.up.faulty = up, up != Faults{}
	m.down.faults, m.down.faulty = down, down != Faults{}
}

// Kill stops the machine: what its endpoint holds stays, frames that are in
// the NIC or come to it are lost, and nothing of it runs.
func (m *Machine) Kill() {
	m.alive = false
	for i := range m.in {
		for q := &m.in[i]; q.wait.n > 0; {
			q.wait.pop().buf.Put()
			m.stats.Lost++
		}
	}
}

// Restart lets a machine that was killed go on: with wk as its endpoint, or as
// it was when wk is nil.
func (m *Machine) Restart(wk host.Worker) {
	m.alive = true
	if wk != nil {
		m.worker = wk
	}
	m.wakeAt = never
	m.wake(m.w.k.now)
}
