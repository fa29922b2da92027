package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// VerbsConfig describes client threads, each with a queue pair of its own, that
// issue one kind of verb to one memory node. Zero values take the defaults
// given with them.
type VerbsConfig struct {
	Op rnic.Op // OpWrite, OpRead, OpCompareSwap, OpFetchAdd or OpMaskedCompareSwap
	// QPs is the number of threads; 0 = 1. They are spread over Hosts; 0 = 1.
	QPs, Hosts int
	// Outstanding is how many requests a thread has under way; 0 = 1. It posts
	// as many, waits for all, and begins again.
	Outstanding int
	// Together lets the threads of a host begin their rounds together: none
	// begins before all have ended.
	Together bool
	// Stream posts another request for each that completes, 128 under way at
	// least, without work of the host: lists of inlined requests with few
	// completions.
	Stream bool
	// Size is of a WRITE or READ; 0 = 8.
	Size int
	// Addresses are 8-byte words, taken in turns so that requests under way
	// are to different ones; 0 = 1024; 1: all threads contend for one.
	Addresses int
	// Fails makes every CAS find another value than it expects, as those of many
	// threads that contend for a word hardly ever find theirs.
	Fails bool
	// Device puts the memory into the NIC.
	Device bool
	// Middlebox, if any, is in front of the memory node.
	Middlebox *Middlebox

	NIC     NIC     // zero: ConnectX5
	Network Network // zero: Rack100G
	Seed    uint64
	// Warmup and Measure are virtual time; 0 = 20 us and 200 us.
	Warmup, Measure time.Duration
	// Progress is told the share of the run that is done.
	Progress func(done float64)

	// connected is told the connections, as tor/conn writes them, before the
	// middlebox starts.
	connected func(conns []string)
	// apart lets the threads begin so long after one another, each with a
	// single request.
	apart time.Duration
}

// VerbsMeasured is what the threads did.
type VerbsMeasured struct {
	Ops          uint64  `json:"ops"`
	OpsPerSecond float64 `json:"ops_per_second"`
	P50Micros    float64 `json:"p50_us"`
	P99Micros    float64 `json:"p99_us"`
	PacketsPerOp float64 `json:"packets_per_op"`
	BytesPerOp   float64 `json:"bytes_per_op"`
	Errors       uint64  `json:"errors"`
	Events       uint64  `json:"events"`
}

// The memory node's region.
const (
	verbsBase   = 0x10_0000_0000
	verbsStride = 8
)

func (c *VerbsConfig) defaults() error {
	c.QPs = cmp.Or(c.QPs, 1)
	c.Hosts = cmp.Or(c.Hosts, 1)
	c.Outstanding = cmp.Or(c.Outstanding, 1)
	c.Size = cmp.Or(c.Size, 8)
	c.Addresses = cmp.Or(c.Addresses, 1024)
	if c.Stream {
		c.Outstanding = max(c.Outstanding, 128)
	}
	c.NIC = cmp.Or(c.NIC, ConnectX5())
	c.Warmup = cmp.Or(c.Warmup, 20*time.Microsecond)
	c.Measure = cmp.Or(c.Measure, 200*time.Microsecond)
	switch c.Op {
	case rnic.OpWrite, rnic.OpRead, rnic.OpCompareSwap, rnic.OpFetchAdd, rnic.OpMaskedCompareSwap:
	default:
		return errors.New("sim: verbs that are measured are WRITE, READ and atomics")
	}
	switch {
	case c.QPs < 1 || c.QPs > 4096 || c.Hosts < 1 || c.Hosts > c.QPs || c.Outstanding < 1 || c.Outstanding > 1024:
		return errors.New("sim: a run needs 1 to 4096 queue pairs, at most as many hosts, and 1 to 1024 requests under way")
	case c.Size < 1 || c.Size > 1024 || c.Addresses < 1 || c.Addresses > 1<<20:
		return errors.New("sim: requests are of 1 to 1024 bytes, to 1 to 2^20 addresses")
	case c.Warmup < 0 || c.Measure <= 0:
		return errors.New("sim: a run needs time to measure in")
	}
	return nil
}

// verbs is a host's threads. It implements host.App.
type verbs struct {
	cfg     *VerbsConfig
	cq      *rnic.CQ
	rkey    uint32
	threads []verbsThread
	wr      rnic.SendWR
	sgl     [1][]byte
	buf     []byte
	ended   int        // rounds, of threads that wait for the others
	started int        // threads that have begun
	next    clock.Time // when the next one does
	wcs     [64]rnic.WC
	count   *verbsCount
}

type verbsThread struct {
	qp   *rnic.QP
	left int // of the round
	at   clock.Time
}

// verbsCount is what is counted in the window.
type verbsCount struct {
	open        bool
	turn        int // of the next request
	ops, errors uint64
	latency     *hdrhistogram.Histogram
}

// Step implements host.App.
func (v *verbs) Step(now clock.Time) bool {
	did := false
	for ; v.started < len(v.threads) && v.next <= now; v.started++ {
		v.next = now.Add(v.cfg.apart)
		if v.cfg.apart > 0 {
			v.threads[v.started].left, v.threads[v.started].at = 1, now
			v.post(v.started)
		} else {
			v.round(v.started, now)
		}
		did = true
	}
	for {
		k := v.cq.Poll(v.wcs[:])
		if k == 0 {
			return did
		}
		did = true
		for i := range v.wcs[:k] {
			v.done(now, &v.wcs[i])
		}
	}
}

// Deadline implements host.App.
func (v *verbs) Deadline() clock.Time {
	if v.started < len(v.threads) {
		return v.next
	}
	return clock.Never
}

func (v *verbs) done(now clock.Time, c *rnic.WC) {
	t := &v.threads[c.ID]
	if c.Status != rnic.Success {
		v.count.errors++
		return
	}
	if v.count.open {
		v.count.ops++
	}
	if v.cfg.Stream {
		v.post(int(c.ID))
		return
	}
	if t.left--; t.left == 0 {
		if v.count.open {
			_ = v.count.latency.RecordValue(max(int64(now.Sub(t.at)), 1))
		}
		if !v.cfg.Together {
			v.round(int(c.ID), now)
		} else if v.ended++; v.ended == len(v.threads) {
			v.ended = 0
			for i := range v.threads {
				v.round(i, now)
			}
		}
	}
}

func (v *verbs) round(i int, now clock.Time) {
	t := &v.threads[i]
	t.left, t.at = v.cfg.Outstanding, now
	for range v.cfg.Outstanding {
		v.post(i)
	}
}

func (v *verbs) post(i int) {
	v.sgl[0] = v.buf[:v.cfg.Size]
	if v.cfg.Op > rnic.OpRead {
		v.sgl[0] = v.buf[:8]
	}
	va := uint64(verbsBase)
	if v.cfg.Addresses > 1 {
		va += uint64(v.count.turn%v.cfg.Addresses) * verbsStride
		v.count.turn++
	}
	v.wr = rnic.SendWR{ID: uint64(i), Op: v.cfg.Op, SGL: v.sgl[:], RemoteAddr: va, RKey: v.rkey, Signaled: true}
	if v.cfg.Op > rnic.OpRead {
		v.wr.Compare, v.wr.Swap = uint64(i)&1, uint64(i)&1^1
		v.wr.CompareMask, v.wr.SwapMask = 1, 1
		if v.cfg.Fails {
			v.wr.Compare = 1 << 63
		}
	}
	if v.threads[i].qp.PostSend(&v.wr) != nil {
		v.count.errors++
	}
}

// memoryNode is a machine whose memory others use.
type memoryNode struct {
	m   *Machine
	nic *rnic.NIC
	pd  *rnic.PD
	cq  *rnic.CQ
	mr  *rnic.MR
}

const remoteAccess = rnic.LocalWrite | rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic

// rnicOn makes a NIC for a machine.
func (w *World) rnicOn(m *Machine, seed uint64) (*rnic.NIC, error) {
	return rnic.New(rnic.Config{MAC: m.MAC, IP: m.IP, Profile: rnic.ConnectX, Pool: w.pool, Seed: seed})
}

func (w *World) memoryNode(name string, nic NIC, size int, seed uint64) (*memoryNode, error) {
	m, err := w.Attach(name, nic)
	if err != nil {
		return nil, err
	}
	x, err := w.rnicOn(m, seed)
	if err != nil {
		return nil, err
	}
	n := &memoryNode{m: m, nic: x, pd: x.AllocPD(), cq: x.CreateCQ(16)}
	if n.mr, err = n.pd.RegMR(make([]byte, size), verbsBase, remoteAccess); err != nil {
		return nil, err
	}
	m.Drive(host.NewNode(m.Port(), x, nil))
	return n, nil
}

// joined makes a connected pair of queue pairs between a client and n and
// returns the client's.
func (n *memoryNode) joined(m *Machine, x *rnic.NIC, pd *rnic.PD, cq *rnic.CQ, depth, outstanding int) (*rnic.QP, error) {
	q, err := x.CreateQP(rnic.QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: depth, MaxRecv: 1})
	if err != nil {
		return nil, err
	}
	p, err := n.nic.CreateQP(rnic.QPInit{PD: n.pd, SendCQ: n.cq, RecvCQ: n.cq, Access: remoteAccess, MaxSend: 1, MaxRecv: 1})
	if err != nil {
		return nil, err
	}
	c := rnic.DefaultConn()
	c.MaxRdAtomic, c.MaxDestRdAtomic = outstanding, outstanding
	c.SQPSN, c.RQPSN = q.QPN<<8, q.QPN<<8
	c.RemoteMAC, c.RemoteIP, c.DestQPN = n.m.MAC, n.m.IP, p.QPN
	if err := q.Connect(c); err != nil {
		return nil, err
	}
	c.RemoteMAC, c.RemoteIP, c.DestQPN = m.MAC, m.IP, q.QPN
	return q, p.Connect(c)
}

// Verbs measures client threads that issue one kind of verb to one memory node:
// the rerun of figures 1.1, 1.2, 2.1 and 2.3.
func Verbs(ctx context.Context, c VerbsConfig) (VerbsMeasured, error) {
	var r VerbsMeasured
	if err := c.defaults(); err != nil {
		return r, err
	}
	w, err := New(Config{Network: c.Network, Seed: c.Seed, Slots: 4096 + 4*c.QPs*c.Outstanding})
	if err != nil {
		return r, err
	}
	server, err := w.memoryNode("memory", c.NIC, c.Addresses*verbsStride+1024, c.Seed)
	if err != nil {
		return r, err
	}
	if c.Device {
		server.m.DeviceMemory(server.mr.VA, len(server.mr.Mem))
	}
	client := c.NIC
	if c.Stream {
		client.Verb = 0
	}
	var conns []string
	count := &verbsCount{latency: hdrhistogram.New(1, int64(10*time.Second), 3)}
	for i := range c.Hosts {
		m, err := w.Attach(fmt.Sprintf("host%d", i), client)
		if err != nil {
			return r, err
		}
		x, err := w.rnicOn(m, c.Seed+1+uint64(i))
		if err != nil {
			return r, err
		}
		n := (c.QPs + c.Hosts - 1 - i) / c.Hosts
		pd := x.AllocPD()
		v := &verbs{cfg: &c, cq: x.CreateCQ(n*c.Outstanding + 16), rkey: server.mr.RKey, buf: make([]byte, 1024), count: count}
		for range n {
			q, err := server.joined(m, x, pd, v.cq, c.Outstanding, max(client.Outstanding, 1))
			if err != nil {
				return r, err
			}
			v.threads = append(v.threads, verbsThread{qp: q})
			conns = append(conns, fmt.Sprintf("%s/%d-%s/%d,psn=%d,mtu=1024", m.IP, q.QPN, server.m.IP, q.Conn().DestQPN, q.Conn().SQPSN))
		}
		m.Drive(host.NewNode(m.Port(), x, v))
	}
	if c.connected != nil {
		c.connected(conns)
	}
	if c.Middlebox != nil {
		if _, err := w.Insert(*c.Middlebox, server.m); err != nil {
			return r, err
		}
	}
	open := w.Now() + From(c.Warmup)
	if err := w.Steps(ctx, open, nil); err != nil {
		return r, err
	}
	count.open, count.ops = true, 0
	frames, bytes := w.Switched()
	if err := w.Steps(ctx, open+From(c.Measure), c.Progress); err != nil {
		return r, err
	}
	f, b := w.Switched()
	r.Ops, r.Errors, r.Events = count.ops, count.errors, w.Events()
	r.OpsPerSecond = float64(count.ops) / c.Measure.Seconds()
	r.P50Micros = float64(count.latency.ValueAtQuantile(50)) / 1000
	r.P99Micros = float64(count.latency.ValueAtQuantile(99)) / 1000
	if count.ops > 0 {
		r.PacketsPerOp = float64(f-frames) / float64(count.ops)
		r.BytesPerOp = float64(b-bytes) / float64(count.ops)
	}
	return r, nil
}
