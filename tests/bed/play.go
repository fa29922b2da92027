package bed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
)

// play is a run of a world.
type play struct {
	*Bed
	w        *World
	cqs      []*rnic.CQ // of the server's NICs
	pds      []*rnic.PD
	binder   []*rnic.QP // of the server's, by domain: it binds windows
	under    []*rnic.MR // what windows are over, by region
	memory   [][]byte
	keys     [][]epoch // by region
	queues   []*queue
	events   []Event
	thaw     clock.Time
	odds     map[uint32]int // in the log, by queue pair number: those that were not executed
	frozen   *host.Node
	boxAt    clock.Time // when the next box starts; 0: it is there
	cpu      int        // the CPU's number in the log
	recvs    map[uint64][]byte
	recvID   uint64
	got      map[[2]uint64]int // SENDs that came, by session and number
	marked   map[uint32]int    // by the client's queue pair: frames that met congestion
	notified map[uint32]int    // notifications
	losses   losses
	reboots  []clock.Time // of the box's machine
	freed    []freed      // numbers of queue pairs, those of the server's and of the clients'
	back     backs
	fenced   []fenced
	goes     []going // by time
	// serverAsks: the server asked for the disconnect of the connection that ends now.
	serverAsks bool
	res        *TwinResult
	nics       []*rnic.NIC // the server's
	spies      map[string]*Spy
	ends       []Connection
	came       int                    // marks that came to the server
	posts      []map[int][]clock.Time // receives, by queue and life
	harm       []int                  // by queue: frames of strangers after which a server asks for what it has
	taken      map[nicKey]bool        // R_Keys that the server's CPU has taken away
	err        error
}

// queue is a session that plays.
type queue struct {
	Queue
	number   int
	qp       *rnic.QP
	far      *rnic.QP
	life     int
	logger   int // client in the log of words, of this life
	next     int // step
	at       clock.Time
	open     []*record
	seq      uint64
	gap      clock.Time // when the next receive is posted
	since    clock.Time // when it was connected
	redialAt clock.Time
	done     bool
	left     int          // lives that ended of their own accord
	quits    []clock.Time // of these
	end      int          // of its connection in play.ends
}

// lives is how often a session connects again.
const lives = 3

// Run plays the world through the box, or on a bare wire when there is none.
func (t Twin) Run(seed uint64, s fault.Schedule) (*TwinResult, error) {
	p := &play{
		w: &t.World, recvs: map[uint64][]byte{}, got: map[[2]uint64]int{}, marked: map[uint32]int{}, notified: map[uint32]int{}, odds: map[uint32]int{}, spies: map[string]*Spy{}, taken: map[nicKey]bool{}, losses: losses{up: map[uint32]*loss{}, down: map[uint32]*loss{}},
		res: &TwinResult{Words: new(history.Log[history.Word, uint64])}, events: slices.Clone(t.Events), harm: make([]int, len(t.Queues)),
	}
	for range t.Queues {
		p.posts = append(p.posts, map[int][]clock.Time{})
	}
	for range t.Memories {
		p.memory = append(p.memory, make([]byte, t.memorySize()))
	}
	if len(t.Odd) > 0 { // nobody looks at their ICRC
		s = slices.Clone(s)
		for i := range s {
			if s[i].Action == fault.Corrupt {
				s[i].Action = fault.Drop
			}
		}
	}
	if t.Box != nil {
		b := *t.Box
		b.Late, b.Clean, b.Workers, b.Journal = t.Late, !t.Crash, t.Workers, t.Journal
		b.nameServers(&t.World)
		t.Box = &b
	}
	senders := 0
	if len(t.Spoofs)+len(t.Odd) > 0 {
		senders = 1
	}
	b, err := New(Config{
		Clients: t.Clients, Guests: senders, Sessions: len(t.Queues), MTU: t.MTU, Profile: t.Profile, IPv6: t.IPv6, Box: t.Box, Schedule: s, Seed: seed, Second: t.Second,
		Tune: func(_ string, c *rnic.Config) { c.AckCoalesce, c.Link = t.AckCoalesce, t.Link },
		Wrap: p.wrap, Serve: p.serve, App: p.app,
	})
	if err != nil {
		return nil, err
	}
	p.Bed = b
	b.sim.Workers = append(b.sim.Workers, p)
	p.cpu = p.res.Words.NewClient()
	for i, q := range t.Queues {
		q.Steps = slices.Clone(q.Steps) // leave changes them
		p.queues = append(p.queues, &queue{Queue: q, number: i, at: b.Clock.Now()})
	}
	if senders > 0 {
		at, mac, ip := b.Guest(0)
		h := &Sender{pool: b.Pool}
		for _, x := range t.Spoofs {
			h.At(b.start.Add(x.At), func() []byte { return p.spoof(&x, mac, ip) })
		}
		for i, o := range t.Odd {
			p.odd(h, firstOdd+uint32(i), o, mac, ip)
		}
		h.Sort()
		b.Attach(0, host.NewNode(at, h, nil))
	}
	err = b.Run(func() bool { return p.err != nil || p.through() }, t.limit())
	if errors.Is(err, host.ErrLate) || errors.Is(err, host.ErrStuck) {
		err = nil // the law tells who hangs
	}
	if err == nil && p.err == nil {
		err = b.Settle(time.Millisecond)
	}
	return p.end(errors.Join(err, p.err))
}

// nameServers has an app with servers= be told the server's addresses in a managed world, because it cannot remember the connection
// manager's datagrams of all connections to one that it does not know, and where they are said to be one server's.
func (x *Box) nameServers(w *World) {
	if !w.Managed && !w.Joined || !slices.ContainsFunc(x.Kind.Params, func(p graph.Param) bool { return p.Name == "servers" }) {
		return
	}
	x.Configure = func(b *Bed) graph.Args {
		args := graph.Args{"servers": b.Addr().String()}
		switch {
		case w.Joined:
			args["servers"] += "=" + b.Addr().Next().String()
		case w.Second != NoSecond:
			args["servers"] += "+" + b.Addr().Next().String()
		}
		maps.Copy(args, x.Args)
		return args
	}
}

// end takes the verdict of a run that is over.
func (p *play) end(err error) (*TwinResult, error) {
	res := p.res
	res.Took, res.Struck = p.Clock.Now().Sub(p.start), p.Struck()
	if p.Instance() != nil {
		res.Counts = map[string]uint64{}
		for _, c := range p.Instance().Counters() {
			if c.Node == "box" {
				res.Counts[c.Name] += c.Value
			}
		}
	}
	for _, r := range res.Records {
		res.Ops[ClassOf(r.status)]++
		if r.status == rnic.Success {
			res.Slowest = max(res.Slowest, r.done.Sub(r.posted))
		}
	}
	if err == nil {
		err = judge{p}.law()
	}
	if p.frozen != nil {
		p.server.node = p.frozen
	}
	return res, errors.Join(err, p.Close())
}

// limit is how long a run may take: what the steps and the settings can need.
func (w *World) limit() time.Duration {
	all := 2 * time.Second
	for i := range w.Queues {
		q := &w.Queues[i]
		for _, s := range q.Steps {
			all += s.Think
		}
		all += time.Duration(len(q.Steps)+lives) * (time.Millisecond + q.Gap)
		if q.Far.MinRNRTimer == 0 {
			all += 8 * 656 * time.Millisecond * time.Duration(min(len(q.Steps), 4))
		}
	}
	return all
}

func (w *World) memorySize() int { return firstBlock + len(w.Queues)*w.blockSize() }

// blockSize is that of a session's own cells: three packets where that is little.
func (w *World) blockSize() int {
	if w.MTU > 1024 {
		return w.MTU + 64
	}
	return 3 * w.MTU
}

// wrap looks at the congestion that frames meet and at what is told of it.
func (p *play) wrap(machine string, nic *rnic.NIC) host.Endpoint {
	server := machine[0] == 's'
	if server {
		p.nics = append(p.nics, nic)
	}
	spy := &Spy{Endpoint: nic, Pool: nic.Pool()}
	p.spies[machine] = spy
	if !server && p.w.loses() {
		spy.Lose, spy.LoseOut = p.losses.in, p.losses.out
	}
	if server && len(p.w.Odd) > 0 {
		k := len(p.nics) - 1
		spy.Endpoint = &Other{Endpoint: nic, Regions: func() []*rnic.MR { return p.regions(k) }, Only: firstOdd, Did: p.did}
	}
	if p.w.CE == 0 {
		return spy
	}
	n := 0
	if server {
		spy.In = func(_ clock.Time, b []byte) {
			var f hdr.Frame
			if hdr.Parse(b, &f) == hdr.IsRoCE && f.Net != hdr.NetGRH && f.Tags == 0 && ECN(b) == 3 {
				p.came++
			}
		}
		return spy
	}
	spy.Out = func(_ clock.Time, b []byte) {
		var f hdr.Frame
		if hdr.Parse(b, &f) != hdr.IsRoCE || f.Net == hdr.NetGRH || f.Tags != 0 || ECN(b) == 0 || !f.Op.Has(hdr.IsRequest) {
			return
		}
		if n++; n%p.w.CE == 0 {
			SetECN(b, 3)
			p.marked[f.BTHOf(b).DestQP()]++
		}
	}
	spy.In = func(_ clock.Time, b []byte) {
		var f hdr.Frame
		if hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.CNP {
			p.notified[f.BTHOf(b).DestQP()]++
		}
	}
	return spy
}

// firstOdd is the queue pair number of the first odd operation; each has its own.
const firstOdd = 0x777000

// odd has a sender send an odd operation.
func (p *play) odd(h *Sender, qpn uint32, o Odd, mac [6]byte, own netip.Addr) {
	r := &p.w.Regions[o.Region]
	var frames [][]byte
	first := func() []byte {
		keys := p.keys[o.Region]
		rkey, va := keys[len(keys)-1].rkey, r.VA+o.Offset
		to := p.nics[p.w.nic(r.Domain)].Config()
		f := Packet{SrcMAC: mac, DstMAC: to.MAC, Src: own, Dst: to.IP, QPN: qpn, PSN: 1, Op: hdr.WriteOnly, Ext: RETH(va, rkey, 8), Payload: binary.LittleEndian.AppendUint64(nil, o.Swap)}
		if o.Op != rnic.OpWrite {
			f.Op, f.Ext, f.Payload = hdr.FetchAdd, AtomicETH(va, rkey, o.Swap, o.Compare), nil
			if o.Op == rnic.OpCompareSwap {
				f.Op = hdr.CompareSwap
			}
		}
		switch o.Way {
		case ByXRC:
			f.Op, f.Ext = XRC|f.Op, append(make([]byte, 4), f.Ext...)
		case ByDC:
			f.Op, f.Ext = DC|f.Op, append(make([]byte, 8), f.Ext...)
		case ByUC:
			f.Op |= hdr.UC
		}
		frames = [][]byte{f.Bytes()}
		switch {
		case o.Way == ByPieces && own.Is6():
			frames[0] = Extended(frames[0], 60)
		case o.Way == ByPieces:
			frames = Fragments(frames[0], uint16(qpn), 40)
		}
		w := history.Word{Op: o.Op, Addr: wordAddr(r, o.Offset), Compare: o.Compare, Swap: o.Swap}
		p.odds[qpn] = p.res.Words.Call(p.res.Words.NewClient(), p.Clock.Now(), w)
		return frames[0]
	}
	at := p.start.Add(o.At)
	h.At(at, first)
	h.At(at, func() []byte {
		if len(frames) < 2 {
			return nil
		}
		return frames[1]
	})
}

// did notes that an odd operation was executed.
func (p *play) did(qpn uint32, original uint64) {
	if log, ok := p.odds[qpn]; ok {
		p.res.Words.Return(log, p.Clock.Now(), original)
		delete(p.odds, qpn)
	}
}

// regions are those that can be reached by a NIC.
func (p *play) regions(nic int) (all []*rnic.MR) {
	for i, k := range p.keys {
		if m := k[len(k)-1].mr; m != nil && p.w.nic(p.w.Regions[i].Domain) == nic {
			all = append(all, m)
		}
	}
	return all
}

func (p *play) serve(*rnic.PD) error {
	for _, nic := range p.nics {
		p.cqs = append(p.cqs, nic.CreateCQ(4096))
	}
	for d := range p.w.Domains {
		nic := p.nics[p.w.nic(d)]
		pd := nic.AllocPD()
		cq := nic.CreateCQ(64)
		q, err := nic.CreateQP(rnic.QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 16})
		if err != nil {
			return err
		}
		c := rnic.DefaultConn()
		c.RemoteMAC, c.RemoteIP, c.DestQPN, c.PathMTU = nic.Config().MAC, nic.Config().IP, q.QPN, 256
		if err := q.Connect(c); err != nil {
			return err
		}
		p.pds, p.binder = append(p.pds, pd), append(p.binder, q)
	}
	p.keys = make([][]epoch, len(p.w.Regions))
	p.under = make([]*rnic.MR, len(p.w.Regions))
	for i := range p.w.Regions {
		if err := p.register(i, clock.Time(0)); err != nil {
			return err
		}
	}
	return nil
}

// register gives region i an R_Key; a window of type 2B gets its own when its
// session is connected.
func (p *play) register(i int, now clock.Time) error {
	r := &p.w.Regions[i]
	pd, access, reg := p.pds[r.Domain], r.Access|rnic.LocalWrite, p.pds[r.Domain].RegMR
	if r.Window != 0 {
		if p.under[i] != nil {
			return p.bind(i, p.binder[r.Domain], now)
		}
		access = rnic.LocalWrite | rnic.MWBind
	} else if r.Fast {
		reg = pd.FastRegMR
	}
	m, err := reg(p.memory[r.Memory][:r.Length], r.VA, access)
	if err != nil || r.Window == 0 {
		p.keys[i] = append(p.keys[i], epoch{m, nil, keyOf(m), now, clock.Never})
		return err
	}
	p.under[i] = m
	return p.bind(i, p.binder[r.Domain], now)
}

func keyOf(m *rnic.MR) uint32 {
	if m == nil {
		return 0
	}
	return m.RKey
}

// bind binds the window of region i, through a queue pair of the server's.
func (p *play) bind(i int, q *rnic.QP, now clock.Time) error {
	r := &p.w.Regions[i]
	var w *rnic.MW
	if n := len(p.keys[i]); n > 0 && r.Window == rnic.WindowType1 {
		w = p.keys[i][n-1].mw
	} else {
		var err error
		if w, err = p.pds[r.Domain].AllocMW(r.Window); err != nil {
			return err
		}
	}
	if r.Window == rnic.WindowType1 || q != p.binder[r.Domain] {
		b := rnic.Bind{MW: w, MR: p.under[i], VA: r.VA, Length: uint64(r.Length), Access: r.Access, Key: uint8(w.RKey) + 1}
		if err := q.PostSend(&rnic.SendWR{Op: rnic.OpBindMW, Bind: &b}); err != nil {
			return err
		}
	}
	p.keys[i] = append(p.keys[i], epoch{nil, w, w.RKey, now, clock.Never})
	return nil
}

// app is nothing: the play moves all sessions of all clients itself.
func (p *play) app(*Bed, *Client) (host.App, error) { return Idle{}, nil }

// Breath implements host.Worker: everybody does what is to be done now.
func (p *play) Breath(now clock.Time) (int, error) {
	if p.err != nil {
		return 0, nil
	}
	n := p.happen(now)
	p.watchKeys(now)
	n += p.unfence(now) + takeAway(p, now)
	n += p.ask(now)
	n += p.collect(now)
	for _, q := range p.queues {
		k, err := p.step(q, now)
		if n += k; err != nil {
			p.err = err
			return n, nil
		}
	}
	return n, nil
}

// Deadline implements host.Worker.
func (p *play) Deadline() clock.Time {
	at := clock.Never
	if len(p.events) > 0 {
		at = p.start.Add(p.events[0].At)
	}
	at = min(at, asksAt(p), unfencesAt(p))
	for _, t := range []clock.Time{p.thaw, p.boxAt} {
		if t != 0 {
			at = min(at, t)
		}
	}
	for _, q := range p.queues {
		switch {
		case q.done || q.qp == nil && p.frozen != nil:
		case q.qp == nil:
			at = min(at, q.redialAt)
		default:
			if q.next < len(q.Steps) && len(q.open) < q.Outstanding && (len(q.open) == 0 || !q.Steps[q.next].Anew) {
				at = min(at, q.at)
			}
			if q.Gap > 0 {
				at = min(at, q.gap)
			}
		}
	}
	return at
}

func (p *play) through() bool {
	return len(p.events) == 0 && !p.asking() && p.thaw == 0 && p.boxAt == 0 && !slices.ContainsFunc(p.queues, func(q *queue) bool { return !q.done })
}

// happen lets the server's events happen.
func (p *play) happen(now clock.Time) (n int) {
	if p.thaw != 0 && p.thaw <= now {
		p.thaw, p.server.stalled = 0, false
		if p.frozen != nil {
			p.server.node, p.frozen = p.frozen, nil
		}
		n++
	}
	if p.boxAt != 0 && p.boxAt <= now {
		p.boxAt, p.err = 0, errors.Join(p.err, p.box.up())
		n++
	}
	for len(p.events) > 0 && p.start.Add(p.events[0].At) <= now {
		e := p.events[0]
		p.events = p.events[1:]
		n++
		switch e.What {
		case Reregister:
			k := &p.keys[e.Region][len(p.keys[e.Region])-1]
			if p.w.Regions[e.Region].Window == rnic.WindowType2B {
				continue
			}
			if k.mr != nil {
				p.err = errors.Join(p.err, k.mr.Dereg())
			}
			k.to, p.taken[nicKey{p.w.nic(p.w.Regions[e.Region].Domain), k.rkey}] = min(k.to, now), true
			p.err = errors.Join(p.err, p.register(e.Region, now))
		case CPUWrite:
			r := &p.w.Regions[e.Region]
			id := p.res.Words.Call(p.cpu, now, history.Word{Op: rnic.OpWrite, Addr: wordAddr(r, e.Offset), Swap: e.Value})
			binary.LittleEndian.PutUint64(p.memory[r.Memory][e.Offset:], e.Value)
			p.res.Words.Return(id, now, 0)
		case Stalled, Frozen:
			if p.thaw != 0 {
				continue
			}
			p.thaw = now.Add(e.For)
			if p.server.stalled = e.What == Stalled; !p.server.stalled {
				p.frozen, p.server.node = p.server.node, nil
			}
		case BoxReloads:
			p.reload(e.Value)
		case BoxComes:
			p.err = errors.Join(p.err, p.box.up())
		case BoxSleeps:
			p.box.asleep = now.Add(e.For)
		case BoxFences:
			p.fence(e, now)
		case BoxReboots:
			if p.box.inst != nil && p.box.disk != nil {
				p.err = errors.Join(p.err, p.box.reboot())
				p.reboots = append(p.reboots, now)
				p.boxAt = now.Add(e.For)
			}
		case BoxEnds:
			if p.box.inst != nil {
				p.err = errors.Join(p.err, p.box.down())
				p.boxAt = now.Add(e.For)
			}
		}
	}
	return n
}

// watchKeys notes R_Keys that were invalidated.
func (p *play) watchKeys(now clock.Time) {
	for i := range p.keys {
		if k := &p.keys[i][len(p.keys[i])-1]; k.to == clock.Never && !k.valid() {
			k.to = now
		}
	}
}

// wordAddr names a word of memory, by whatever address it is reached.
func wordAddr(r *Region, offset uint64) uint64 { return uint64(r.Memory)<<32 | offset }

// collect takes completions.
func (p *play) collect(now clock.Time) (n int) {
	var wc [32]rnic.WC
	for _, c := range p.clients {
		for k := c.CQ.Poll(wc[:]); k > 0; k = c.CQ.Poll(wc[:]) {
			n += k
			for _, w := range wc[:k] {
				if w.ID >= firstBack {
					continue
				}
				for _, q := range p.queues {
					if q.Client == c.Number && q.qp != nil && q.qp.QPN == w.QPN {
						p.complete(q, &w, now)
					}
				}
			}
		}
	}
	for _, cq := range p.cqs {
		for k := cq.Poll(wc[:]); k > 0; k = cq.Poll(wc[:]) {
			n += k
			for i := range wc[:k] {
				p.received(&wc[i], now)
			}
		}
	}
	return n
}

// received takes a completion of the server's.
func (p *play) received(w *rnic.WC, now clock.Time) {
	if w.ID >= firstBack {
		p.answered(w, now)
		return
	}
	if b := p.recvs[w.ID]; w.Status == rnic.Success && w.Op != rnic.OpRecvWriteImm && w.ByteLen >= 16 {
		p.got[[2]uint64{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}]++
	}
	delete(p.recvs, w.ID)
}

// complete notes a completion, of the oldest operation that is open: those before
// one with a completion succeeded.
func (p *play) complete(q *queue, w *rnic.WC, now clock.Time) {
	for len(q.open) > 0 {
		r := q.open[0]
		if uint64(r.id) > w.ID {
			p.err = errors.Join(p.err, fmt.Errorf("session %d: a second completion of operation %d", q.number, w.ID))
			return
		}
		q.open = q.open[1:]
		r.done, r.open = now, false
		if uint64(r.id) < w.ID {
			r.status = rnic.Success
		} else {
			r.status = w.Status
		}
		p.close(q, r, now)
		if uint64(r.id) == w.ID {
			break
		}
	}
	if q.qp.State() != rnic.StateReady && len(q.open) == 0 {
		p.broken(q, now)
	}
}

// close enters an operation that is over in the log of words.
func (p *play) close(q *queue, r *record, now clock.Time) {
	if r.log < 0 {
		return
	}
	switch class := ClassOf(r.status); {
	case class == OK && r.Op == rnic.OpWrite:
		p.res.Words.Return(r.log, now, 0)
	case class == OK:
		p.res.Words.Return(r.log, now, binary.LittleEndian.Uint64(r.data))
	case class == AccessError || class == InvalidRequest || class == RNRExceeded && p.Struck() == 0:
		p.res.Words.Forget(r.log)
	case class == Flushed && judge{p}.refused(r):
		p.res.Words.Forget(r.log)
	}
}

// broken ends a life of a session's.
func (p *play) broken(q *queue, now clock.Time) {
	if p.managed(q) {
		p.unmanage(q, now)
	}
	p.free(q, now)
	if q.life-q.left >= lives || q.next >= len(q.Steps) {
		q.done = true
		return
	}
	q.qp, q.redialAt = nil, now.Add(3*handshake)
}

// leave ends a life of a session's that nothing is wrong with. Without a connection manager the next one may
// begin at once.
func (p *play) leave(q *queue, now clock.Time) {
	q.Steps[q.next].Anew = false
	q.left++
	q.quits = append(q.quits, now)
	if p.managed(q) {
		p.broken(q, now)
		return
	}
	if q.qp, q.redialAt = nil, now; q.Again[1] {
		q.redialAt = now.Add(p.w.Alive)
	}
}

// managed reports whether the connection manager's datagrams tell of a session's connections.
func (p *play) managed(q *queue) bool { return p.w.Managed && !q.Unseen }

// step connects a session, posts what it posts now, and its server's receives.
func (p *play) step(q *queue, now clock.Time) (n int, err error) {
	if q.done {
		return 0, nil
	}
	if q.qp == nil {
		if q.redialAt > now || p.frozen != nil {
			return 0, nil
		}
		if err := p.dial(q, now); err != nil {
			return 0, err
		}
		n++
	}
	if q.qp.State() != rnic.StateReady && len(q.open) == 0 {
		p.broken(q, now)
		return n + 1, nil
	}
	for q.Gap > 0 && q.gap <= now {
		p.receive(q, 1, now)
		q.gap = q.gap.Add(q.Gap)
		n++
	}
	for q.next < len(q.Steps) && len(q.open) < q.Outstanding && q.at <= now && q.qp.State() == rnic.StateReady {
		s := q.Steps[q.next]
		if s.Anew {
			if len(q.open) == 0 {
				p.leave(q, now)
				n++
			}
			break
		}
		if q.next++; q.next < len(q.Steps) {
			q.at = max(now, q.at).Add(q.Steps[q.next].Think)
		}
		n++
		if err := p.post(q, s, now); err != nil {
			return n, err
		}
	}
	if q.qp != nil && q.next >= len(q.Steps) && len(q.open) == 0 {
		q.done = true
	}
	return n, nil
}

func (p *play) dial(q *queue, now clock.Time) error {
	c := p.clients[q.Client]
	far, near := q.Far, q.Near
	if q.life > 0 { // a real connection manager's PSNs are random then
		far.SQPSN, far.RQPSN = 0, 0
	}
	session := q.Client*len(p.w.Queues) + q.number
	mayAsk(q, &near, &far)
	l := Link{Sends: 64, PD: p.pds[q.Domain], Access: q.Gives | rnic.LocalWrite, ClientConn: &near, Recv: 64, CQ: p.cqs[p.w.nic(q.Domain)], NIC: p.nics[p.w.nic(q.Domain)]}
	if e := &p.conns[session]; q.life > 0 && q.left > 0 && e.client != nil && e.client.State() == rnic.StateReady {
		if q.Again[0] {
			l.Near = e.client
		}
		if q.Again[1] && e.server.State() == rnic.StateReady {
			l.Far = e.server
			p.harm[q.number]++ // a late frame of the connection before may be far ahead
		}
	}
	p.recycle(q, &l, now)
	q.life++
	far.PathMTU = p.w.path(&q.Queue, q.life)
	near.PathMTU, l.Conn = far.PathMTU, far
	qp, err := p.Connect(c, session, l)
	if err != nil {
		return err
	}
	q.qp, q.far = qp, p.conns[session].server
	p.watchLosses(q)
	if err := mayBeAsked(p, q); err != nil {
		return err
	}
	q.since = now
	q.logger = p.res.Words.NewClient()
	p.ends = append(p.ends, p.conns[session].Connection)
	q.gap = now.Add(q.Gap)
	q.end = len(p.ends) - 1
	if p.managed(q) {
		p.manage(q, now)
	}
	p.receive(q, q.Receives, now)
	for i := range p.w.Regions {
		if r := &p.w.Regions[i]; r.Window == rnic.WindowType2B && r.Owner == q.number && r.Domain == q.Domain {
			k := &p.keys[i][len(p.keys[i])-1]
			k.to = min(k.to, now)
			if err := p.bind(i, q.far, now); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *play) receive(q *queue, n int, now clock.Time) {
	for range n {
		p.recvID++
		b := make([]byte, 64)
		if q.far.PostRecv(&rnic.RecvWR{ID: p.recvID, Buf: b}) != nil {
			return
		}
		p.recvs[p.recvID] = b
		p.posts[q.number][q.life] = append(p.posts[q.number][q.life], now)
	}
}

// post posts a step.
func (p *play) post(q *queue, s Step, now clock.Time) error {
	r := &record{Step: s, queue: q.number, life: q.life, id: len(p.res.Records), region: &p.w.Regions[s.Region], since: q.since, mtu: q.qp.Conn().PathMTU, end: q.end, posted: now, done: clock.Never, status: Pending, log: -1, open: true}
	keys := p.keys[s.Region]
	k := &keys[len(keys)-1]
	if s.Stale && len(keys) > 1 {
		k = &keys[len(keys)-2]
	}
	r.rkey = k.rkey
	w := rnic.SendWR{ID: uint64(r.id), Op: s.Op, RemoteAddr: r.region.VA + s.Offset, RKey: r.rkey, Compare: s.Compare, Swap: s.Swap, CompareMask: s.Mask, SwapMask: s.Mask, Fence: s.Fence, Signaled: !s.Unsignal || q.next == len(q.Steps) || q.Steps[q.next].Anew || len(q.open)+1 >= q.Outstanding}
	switch s.Op {
	case rnic.OpCompareSwap, rnic.OpFetchAdd, rnic.OpMaskedCompareSwap:
		r.data = make([]byte, 8)
	case rnic.OpSend, rnic.OpSendInv:
		q.seq++
		r.seq = q.seq
		r.data = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(q.number)), r.seq)
	case rnic.OpWrite, rnic.OpWriteImm:
		r.data = make([]byte, s.Length)
		if s.Block {
			q.seq++
			r.seq = q.seq
			for i := 0; i+8 <= len(r.data); i += 8 {
				binary.LittleEndian.PutUint64(r.data[i:], stamp(q.number, r.seq))
			}
		} else if s.Length == 8 {
			binary.LittleEndian.PutUint64(r.data, s.Swap)
		}
	default:
		r.data = make([]byte, s.Length)
	}
	w.SGL = [][]byte{r.data}
	if r.isWord() {
		op := s.Op
		r.log = p.res.Words.Call(q.logger, now, history.Word{Op: op, Addr: wordAddr(r.region, s.Offset), Compare: s.Compare, Swap: s.Swap, CompareMask: s.Mask, SwapMask: s.Mask})
	}
	p.res.Records = append(p.res.Records, r)
	q.open = append(q.open, r)
	return q.qp.PostSend(&w)
}

// stamp is what every cell holds that WRITE seq of a session has written.
func stamp(queue int, seq uint64) uint64 { return uint64(queue+1)<<48 | seq }

// isWord reports whether r is an operation on one shared word, all of it.
func (r *record) isWord() bool {
	if r.Block || r.Offset&7 != 0 || int(r.Offset)+8 > r.region.Length {
		return false
	}
	switch r.Op {
	case rnic.OpCompareSwap, rnic.OpFetchAdd, rnic.OpMaskedCompareSwap:
		return true
	case rnic.OpRead, rnic.OpWrite:
		return r.Length == 8
	}
	return false
}
