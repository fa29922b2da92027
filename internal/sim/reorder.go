package sim

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
)

// ReorderConfig describes a stream of READs, WRITEs and CAS in equal shares,
// evenly paced, over many queue pairs: the rerun of figure 2.2.
type ReorderConfig struct {
	QPs       int           // 0 = 32
	Pace      time.Duration // between requests; 0 = 1 us
	Addresses int           // 0 = 1024
	Requests  int           // 0 = 100,000
	NIC       NIC           // zero: ConnectX5
	Seed      uint64
	Progress  func(done float64)
}

// MaxGap is the longest gap that Reorder tells apart; longer ones count as it.
const MaxGap = 15

// Reordered is the distribution of gaps: Gap[k] is the share of answers whose
// request passed the switch k places before or after the request of the answer
// that came before.
type Reordered struct {
	Answers uint64              `json:"answers"`
	Gap     [MaxGap + 1]float64 `json:"gap"`
}

// order watches requests and answers at the switch.
type order struct {
	seq   uint64
	of    [][]uint64 // by queue pair and PSN
	last  uint64
	n     uint64
	gap   [MaxGap + 1]uint64
	frame hdr.Frame
}

const orderWindow = 256

func (o *order) see(b *packet.Buf) {
	p := b.Bytes()
	if hdr.Parse(p, &o.frame) != hdr.IsRoCE {
		return
	}
	h := o.frame.BTHOf(p)
	q := int(h.DestQP())
	for q >= len(o.of) {
		o.of = append(o.of, make([]uint64, orderWindow))
	}
	at := &o.of[q][h.PSN()%orderWindow]
	if !o.frame.Op.Has(hdr.IsResponse) {
		o.seq++
		*at = o.seq
		return
	}
	if o.last != 0 {
		d := int64(*at - o.last)
		o.gap[min(max(d, -d), MaxGap)]++
		o.n++
	}
	o.last = *at
}

// pacer posts a request every so often, whatever has completed. It implements
// host.App.
type pacer struct {
	cfg  *ReorderConfig
	cq   *rnic.CQ
	qps  []*rnic.QP
	rkey uint32
	rng  *rand.Rand
	next clock.Time
	left int
	buf  []byte
	wr   rnic.SendWR
	sgl  [1][]byte
	wcs  [16]rnic.WC
	fail uint64
}

// Step implements host.App.
func (p *pacer) Step(now clock.Time) bool {
	did := false
	for k := p.cq.Poll(p.wcs[:]); k > 0; k = p.cq.Poll(p.wcs[:]) {
		did = true
		for _, c := range p.wcs[:k] {
			if c.Status != rnic.Success {
				p.fail++
			}
		}
	}
	for p.left > 0 && p.next <= now {
		p.left--
		p.next = p.next.Add(p.cfg.Pace)
		op := [...]rnic.Op{rnic.OpRead, rnic.OpWrite, rnic.OpCompareSwap}[p.rng.IntN(3)]
		p.sgl[0] = p.buf[:8]
		p.wr = rnic.SendWR{Op: op, SGL: p.sgl[:], RemoteAddr: verbsBase + uint64(p.rng.IntN(p.cfg.Addresses))*verbsStride, RKey: p.rkey, Signaled: true}
		if p.qps[p.rng.IntN(len(p.qps))].PostSend(&p.wr) != nil {
			p.fail++
		}
		did = true
	}
	return did
}

// Deadline implements host.App.
func (p *pacer) Deadline() clock.Time {
	if p.left == 0 {
		return clock.Never
	}
	return p.next
}

// Reorder measures how far answers come out of the order of their requests.
func Reorder(ctx context.Context, c ReorderConfig) (Reordered, error) {
	var r Reordered
	c.QPs = cmp.Or(c.QPs, 32)
	c.Addresses = cmp.Or(c.Addresses, 1024)
	c.Requests = cmp.Or(c.Requests, 100_000)
	c.Pace = cmp.Or(c.Pace, time.Microsecond)
	c.NIC = cmp.Or(c.NIC, ConnectX5())
	if c.QPs < 1 || c.QPs > 4096 || c.Addresses < 1 || c.Addresses > 1<<20 || c.Requests < 1 || c.Pace < time.Nanosecond {
		return r, errors.New("sim: reordering is measured with 1 to 4096 queue pairs, 1 to 2^20 addresses and at least one request")
	}
	w, err := New(Config{Seed: c.Seed})
	if err != nil {
		return r, err
	}
	server, err := w.memoryNode("memory", c.NIC, c.Addresses*verbsStride, c.Seed)
	if err != nil {
		return r, err
	}
	m, err := w.Attach("host", c.NIC)
	if err != nil {
		return r, err
	}
	x, err := w.rnicOn(m, c.Seed+1)
	if err != nil {
		return r, err
	}
	p := &pacer{cfg: &c, cq: x.CreateCQ(4096), rkey: server.mr.RKey, rng: rand.New(rand.NewPCG(c.Seed, 1)),
		next: w.Now().Clock(), left: c.Requests, buf: make([]byte, 8)}
	pd := x.AllocPD()
	for range c.QPs {
		q, err := server.joined(m, x, pd, p.cq, 128, max(c.NIC.Outstanding, 1))
		if err != nil {
			return r, err
		}
		p.qps = append(p.qps, q)
	}
	m.Drive(host.NewNode(m.Port(), x, p))
	o := &order{}
	w.sw.watch = o.see
	end := w.Now() + From(c.Pace)*Time(c.Requests) + Millisecond
	if err := w.Steps(ctx, end, c.Progress); err != nil {
		return r, err
	}
	if p.fail > 0 {
		return r, errors.New("sim: requests failed while reordering was measured: give a longer pace, or more queue pairs")
	}
	r.Answers = o.n
	for i, n := range o.gap {
		r.Gap[i] = float64(n) / float64(max(o.n, 1))
	}
	return r, nil
}
