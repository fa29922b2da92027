package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/quillon/quillon/internal/bench"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/pcap"
)

// p4FileFrames is how many frames a round has at least, and p4FilePatience how
// long it may take.
const (
	p4FileFrames   = 65536
	p4FilePatience = 30 * time.Second
)

// onFiles prepares both switches between two captures. In each round both get
// the frames of the next laps.
func (l load) onFiles(rival string, clk clock.Clock) (_ *duel, err error) {
	other := &bmv2{name: rival}
	if err := other.folder(); err != nil {
		return nil, err
	}
	undo := bench.Undoing{other.close}
	closeAll := func() { undo.All() }
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	// The other switch reads frames from a pipe, which does not end.
	in := func(n int) string { return filepath.Join(other.dir, fmt.Sprintf("%d_in.pcap", n)) }
	if err := syscall.Mkfifo(in(1), 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(in(2), pcapHeader(), 0o600); err != nil {
		return nil, err
	}
	pipe, err := os.OpenFile(in(1), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = pipe.Close() })
	if _, err := pipe.Write(pcapHeader()); err != nil {
		return nil, err
	}
	if err := other.start(l, "--use-files", "0", "-i", "1@1", "-i", "2@2"); err != nil {
		return nil, err
	}
	pool, err := packet.NewPool(16*packet.MaxBatch, 2048, nil)
	if err != nil {
		return nil, err
	}
	ends := [2]captured{{bench.Drain("pa", pool)}, {bench.Drain("pb", pool)}}
	inst, err := l.Instance(clk, map[string][]port.Port{"pa": {&ends[0]}, "pb": {&ends[1]}})
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = inst.Close() })

	laps := (p4FileFrames + len(l.Laps) - 1) / len(l.Laps)
	lap := 0
	ours := func() (func() (int, error), error) {
		chunk, n := l.capture(lap, laps)
		lap += laps
		from, to := filepath.Join(other.dir, "in.pcap"), filepath.Join(other.dir, "out.pcap")
		if err := os.WriteFile(from, append(pcapHeader(), chunk...), 0o600); err != nil {
			return nil, err
		}
		return func() (int, error) {
			done, err := openCaptures(&ends, from, to, pool, clk)
			if err != nil {
				return 0, err
			}
			for moved := 1; moved > 0 && err == nil; {
				moved, err = inst.Step(clk.Now())
			}
			sent := int(ends[1].Stats().TxPackets)
			if err = errors.Join(err, done()); err == nil && sent != n {
				err = fmt.Errorf("%d of %d frames came out", sent, n)
			}
			return sent, err
		}, nil
	}
	t := &theirFiles{bmv2: other, load: l, laps: laps, pipe: pipe, out: filepath.Join(other.dir, "2_out.pcap"), written: int64(len(pcapHeader()))}
	return &duel{bytes: l.bytes(), ours: ours, theirs: t.round, close: closeAll}, nil
}

// theirFiles is the other switch, which reads a pipe and writes a capture.
type theirFiles struct {
	*bmv2
	load
	lap, laps int // the next, and how many a round has
	pipe      *os.File
	out       string
	written   int64 // bytes that the capture has at the end of the round
}

// round is a bench.Run.
func (t *theirFiles) round() (func() (int, error), error) {
	chunk, n := t.capture(t.lap, t.laps)
	t.lap += t.laps
	t.written += int64(len(chunk)) // frames leave as long as they came
	last := t.Laps[len(t.Laps)-1]
	return func() (int, error) {
		failed := make(chan error, 1)
		go func() {
			_, err := t.pipe.Write(chunk)
			failed <- err
		}()
		limit := time.After(p4FilePatience)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			// It keeps the last frame until there is another.
			if st, err := os.Stat(t.out); err == nil && st.Size() >= t.written-int64(16+len(last.Bytes)) {
				return n, nil
			}
			select {
			case err := <-failed:
				if err != nil {
					return 0, err
				}
			case <-t.died:
				return 0, fmt.Errorf("%s stopped: %w", t.name, t.why())
			case <-limit:
				return 0, fmt.Errorf("%s does not write all frames", t.name)
			case <-tick.C:
			}
		}
	}, nil
}

// pcapHeader begins a classic capture of Ethernet with microseconds.
func pcapHeader() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = binary.LittleEndian.AppendUint32(b, 0x00040002) // version 2.4
	b = binary.LittleEndian.AppendUint64(b, 0)
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, 65535), pcap.LinkEthernet)
}

// capture is the records of some laps of the load, and how many they are.
func (l load) capture(first, laps int) (b []byte, frames int) {
	for lap := first; lap < first+laps; lap++ {
		for _, x := range l.Laps {
			for _, v := range []uint32{1_000_000_000, 0, uint32(len(x.Bytes)), uint32(len(x.Bytes))} {
				b = binary.LittleEndian.AppendUint32(b, v)
			}
			b = append(b, x.Bytes...)
			frames++
			if x.Step == 0 || lap == 0 {
				continue
			}
			frame := b[len(b)-len(x.Bytes):]
			var f hdr.Frame
			hdr.Parse(frame, &f)
			bth := f.BTHOf(frame)
			bth.SetPSN(bth.PSN() + uint32(lap)*x.Step)
			hdr.SetICRC(frame, &f)
		}
	}
	return b, frames
}

// captured is a port that is another capture in each round.
type captured struct{ port.Port }

// Rx implements port.Port: another capture may follow.
func (c *captured) Rx(b *packet.Batch) (int, error) {
	n, err := c.Port.Rx(b)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// openCaptures makes the two ports read and write files.
func openCaptures(ends *[2]captured, from, to string, pool *packet.Pool, clk clock.Clock) (done func() error, err error) {
	in, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	out, err := os.Create(to)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	r, err := pcap.NewReader(in)
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	w, err := pcap.NewWriter(out, pcap.NewHeader(pcap.Classic))
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	for i, c := range []pcap.Config{
		{Name: "pa", Pool: pool, Reader: r, Clock: clk, Close: in.Close},
		{Name: "pb", Pool: pool, Writer: w, Clock: clk, Close: out.Close},
	} {
		if ends[i].Port, err = pcap.NewPort(c); err != nil {
			return nil, errors.Join(err, in.Close(), out.Close())
		}
	}
	return func() error { return errors.Join(ends[0].Close(), ends[1].Close()) }, nil
}
