package replay

import (
	"context"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Name implements port.Port.
func (s *side) Name() string { return s.name }

// Pool implements port.Port.
func (s *side) Pool() *packet.Pool { return s.pool }

// Rx implements port.Port. It returns nothing, because frames are pushed.
func (s *side) Rx(*packet.Batch) (int, error) { return 0, nil }

// Tx implements port.Port. The frames are written at the end of the breath.
func (s *side) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		s.stats.TxPackets++
		s.stats.TxBytes += uint64(x.Len())
	}
	s.out = append(s.out, b.Bufs()...)
	b.Reset()
	return n, nil
}

// Wait implements port.Port.
func (s *side) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }

// Stats implements port.Port.
func (s *side) Stats() port.Stats { return s.stats }

// Close implements port.Port. It does nothing: finish writes the frames that the apps gave up last.
func (s *side) Close() error { return nil }

var _ port.Port = (*side)(nil)
