package clio

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr/clio"
)

// MinValue is the shortest value that a Load writes: the value's number.
const MinValue = 8

// FillValue makes the value with this number of a key.
func FillValue(b []byte, key, number uint64) {
	binary.LittleEndian.PutUint64(b, number)
	x := key ^ number*0x9E3779B97F4A7C15
	for i := MinValue; i < len(b); i++ {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
}

// NumberOf returns the number of a value; false: FillValue did not make these bytes.
func NumberOf(b []byte, key uint64) (uint64, bool) {
	if len(b) < MinValue {
		return 0, false
	}
	n := binary.LittleEndian.Uint64(b)
	x := key ^ n*0x9E3779B97F4A7C15
	for _, v := range b[MinValue:] {
		x = x*6364136223846793005 + 1442695040888963407
		if v != byte(x>>56) {
			return 0, false
		}
	}
	return n, true
}

// Fill creates all keys, with value number 0, in a device's store.
func Fill(d *Device, keys []uint64, size int) error {
	v := make([]byte, size)
	for _, k := range keys {
		FillValue(v, k, 0)
		if d.store.Create(k, clio.MaxKey, v) != clio.OK {
			return fmt.Errorf("clio: no room for %d keys of %d bytes (DeviceConfig.Memory)", len(keys), size)
		}
	}
	return nil
}

// LoadConfig describes a workload: each session of a client reads and updates keys.
type LoadConfig struct {
	Client *Client
	YCSB   ycsb.Config
	// Stream, below 2^16, differs between the clients of one workload.
	Stream    uint64
	ValueSize int // 0: 1024
	// Ops is the number of operations that are begun; 0: no limit.
	Ops int
	// Log, if not nil, records the history. Done, if not nil, is called at the end of each operation.
	Log  *history.Log[history.Register, uint64]
	Done func(Done)
}

// thread is a session's generator and its next operation.
type thread struct {
	gen   *ycsb.Generator
	next  ycsb.Op
	drawn bool
	at    clock.Time // when it may begin its next operation
}

type open struct {
	session int
	id      uint16
}

// Load runs YCSB on a client. It is a host.App.
type Load struct {
	cfg     LoadConfig
	threads []thread
	value   []byte
	number  uint64
	begun   int
	ended   int
	calls   map[open]int // the operation's number in the log
	stopped bool
	stats   LoadStats
}

// LoadStats are the totals of a workload.
type LoadStats struct {
	Reads, Writes   uint64
	Unknown, Failed uint64
	// Corrupt counts reads of values that no client wrote.
	Corrupt uint64
}

// NewLoad makes a workload.
func NewLoad(c LoadConfig) (*Load, error) {
	c.ValueSize = cmp.Or(c.ValueSize, 1024)
	if c.Client == nil || c.ValueSize < MinValue || c.Stream >= 1<<16 {
		return nil, fmt.Errorf("clio: a workload needs a client, and values of %d bytes or more", MinValue)
	}
	if c.ValueSize > MaxValue {
		return nil, ErrTooLong
	}
	l := &Load{cfg: c, threads: make([]thread, c.Client.Sessions()), value: make([]byte, c.ValueSize), number: c.Stream << 48, calls: map[open]int{}}
	for i := range l.threads {
		var err error
		if l.threads[i].gen, err = ycsb.New(c.YCSB, c.Stream<<16|uint64(i)); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Stop lets no more operations begin.
func (l *Load) Stop() { l.stopped = true }

// Tell replaces LoadConfig.Done by f.
func (l *Load) Tell(f func(Done)) { l.cfg.Done = f }

// Stats returns the totals so far.
func (l *Load) Stats() LoadStats { return l.stats }

// Idle reports whether all operations that began have ended, and no more will begin.
func (l *Load) Idle() bool {
	return l.ended == l.begun && (l.stopped || l.cfg.Ops > 0 && l.begun == l.cfg.Ops)
}

// Step implements host.App.
func (l *Load) Step(now clock.Time) bool {
	did := false
	for {
		d, ok := l.cfg.Client.Next()
		if !ok {
			break
		}
		l.end(now, d)
		did = true
	}
	for i := range l.threads {
		t := &l.threads[i]
		for t.at <= now && !l.stopped && (l.cfg.Ops == 0 || l.begun < l.cfg.Ops) && l.cfg.Client.Ready(i) {
			if !l.begin(now, i, t) {
				break
			}
			did = true
		}
	}
	return did
}

func (l *Load) begin(now clock.Time, i int, t *thread) bool {
	if !t.drawn {
		t.next, t.drawn = t.gen.Next(), true
	}
	op := Op{Code: clio.Read, Key: t.next.Key}
	in := history.Register{Key: op.Key, Write: t.next.Write}
	if t.next.Write {
		op.Code, op.Value = clio.Update, l.value
		in.Value = l.number + 1
		FillValue(l.value, op.Key, in.Value)
	}
	id, err := l.cfg.Client.Start(now, i, op)
	if errors.Is(err, ErrBusy) {
		return false
	}
	t.drawn = false
	if t.next.Write {
		l.number++
	}
	l.begun++
	if l.cfg.Log != nil {
		l.calls[open{i, id}] = l.cfg.Log.Call(int(l.cfg.Stream)<<16|i, now, in)
	}
	return true
}

func (l *Load) end(now clock.Time, d Done) {
	l.ended++
	l.threads[d.Session].at = now
	var number uint64
	switch {
	case d.Status == clio.Unknown:
		l.stats.Unknown++
	case d.Status != clio.OK:
		l.stats.Failed++
	case d.Code == clio.Read:
		l.stats.Reads++
		var ok bool
		if number, ok = NumberOf(d.Value, d.Key); !ok {
			l.stats.Corrupt++
			number = ^uint64(0) // no client wrote it, so no order of operations explains it
		}
	default:
		l.stats.Writes++
	}
	if l.cfg.Log != nil {
		k := open{d.Session, d.ID}
		call := l.calls[k]
		delete(l.calls, k)
		switch {
		case d.Status == clio.OK:
			l.cfg.Log.Return(call, now, number)
		case d.Status != clio.Unknown:
			l.cfg.Log.Forget(call)
		}
	}
	if l.cfg.Done != nil {
		l.cfg.Done(d)
	}
}

// Deadline implements host.App.
func (l *Load) Deadline() clock.Time {
	at := clock.Never
	if l.stopped || l.cfg.Ops > 0 && l.begun == l.cfg.Ops {
		return at
	}
	for i := range l.threads {
		if t := &l.threads[i]; l.cfg.Client.Ready(i) {
			at = min(at, t.at)
		}
	}
	return at
}
