package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
)

const (
	// pollEvery is the interval at which the device looks for packets for controllers while packets come,
	// pollIdle the interval while none come.
	pollEvery = time.Millisecond
	pollIdle  = 8 * time.Millisecond
	// scanEvery is the interval at which the device looks for idle entries, checkEvery the interval at which it
	// checks whether the app was rebuilt.
	scanEvery  = 100 * time.Millisecond
	checkEvery = time.Second
	// maxDigests is the highest number of digest messages that wait.
	maxDigests = 4096
)

// Config holds the parts and settings of a Device.
type Config struct {
	Instance *graph.Instance
	App      string // the name of an app of kind p4, which runs in worker 0
	// Punts delivers the packets for controllers. All devices of an instance share it. With nil there are no
	// such packets.
	Punts *Punts
	// Clock is the clock of a live instance. With it idle timeouts pass also while no packet comes; with nil
	// they pass only with packets.
	Clock clock.Clock
	// Info and Program are the P4Info and the JSON with which the app was started, if they are known.
	Info    *p4info.Info
	Program []byte
}

// Device is a p4rt.Device for an app of kind p4.
type Device struct {
	cfg     Config
	wall    clock.Clock
	current atomic.Pointer[pipeline]
	digests chan digestMessage
	lost    atomic.Uint64 // digests lost since the last event

	mu   sync.Mutex
	stop func() // ends listening; nil: there is no listener
}

type digestMessage struct {
	sw   *p4.Switch // the switch that sent the digest
	id   int
	n    int
	data [96]byte
	long []byte // instead of data
}

// New returns a device for an app of a graph.
func New(cfg Config) (*Device, error) {
	d := &Device{cfg: cfg, wall: clock.NewWall(), digests: make(chan digestMessage, maxDigests)}
	var sw *p4.Switch
	if err := d.app(func(a *p4.App) { sw = a.Switch() }); err != nil {
		return nil, err
	}
	if cfg.Info == nil {
		return d, nil
	}
	if sw == nil {
		return nil, fmt.Errorf("app %s: it has a P4Info and no program", cfg.App)
	}
	p, err := d.pipeline(cfg.Info, cfg.Program, sw)
	if err != nil {
		return nil, fmt.Errorf("app %s: %w", cfg.App, err)
	}
	if err := d.app(func(*p4.App) { p.binding.settle(sw) }); err != nil {
		return nil, err
	}
	p.live = true
	d.current.Store(p)
	return d, nil
}

// app calls f with the app between two breaths, and waits for it.
func (d *Device) app(f func(*p4.App)) error {
	return d.work(func(a *p4.App, _ clock.Duration) bool {
		f(a)
		return false
	})
}

// work calls f with the app between two breaths, and again between later ones as long as f returns true. Each
// call may take as long as its second argument says.
func (d *Device) work(f func(*p4.App, clock.Duration) bool) error {
	kind := error(nil)
	ran := false
	err := d.cfg.Instance.Work(d.cfg.App, 0, func(a graph.App, slice clock.Duration) bool {
		x, ok := a.(*p4.App)
		if !ok {
			kind = fmt.Errorf("app %s is not of kind p4", d.cfg.App)
			return false
		}
		more := f(x, slice)
		ran = !more
		return more
	})
	if err == nil {
		err = kind
	}
	if err == nil && !ran {
		err = fmt.Errorf("app %s panicked", d.cfg.App)
	}
	return err
}

// Pipeline implements p4rt.Device.
func (d *Device) Pipeline() p4rt.Pipeline {
	if p := d.current.Load(); p != nil {
		return p
	}
	return nil
}

// Build implements p4rt.Device. It compiles the program in the caller's goroutine.
func (d *Device) Build(info *p4info.Info, config []byte) (p4rt.Pipeline, error) {
	if len(config) == 0 {
		return nil, refuse(codes.InvalidArgument, "the device's program is missing: the JSON that p4c-bm2-ss or p4c-bm2-psa writes")
	}
	prog, err := p4.Load(config)
	if err != nil {
		return nil, refuse(codes.InvalidArgument, "the device's program: %v", err)
	}
	if _, err := bind(info, prog); err != nil {
		return nil, err
	}
	var app *p4.App
	if err := d.app(func(a *p4.App) { app = a }); err != nil {
		return nil, refuse(codes.Unavailable, "%v", err)
	}
	sw, err := app.NewSwitch(prog)
	if err != nil {
		return nil, refuse(codes.InvalidArgument, "the device's program: %v", err)
	}
	p, err := d.pipeline(info, config, sw)
	if err != nil {
		return nil, err
	}
	p.binding.settle(sw)
	return p, nil
}

// pipeline makes a pipeline of a switch and its P4Info.
func (d *Device) pipeline(info *p4info.Info, config []byte, sw *p4.Switch) (*pipeline, error) {
	b, err := bind(info, sw.Program())
	if err != nil {
		return nil, err
	}
	p := &pipeline{
		dev: d, info: info, config: config, sw: sw, binding: b,
		kept:    map[place]map[uint32]*p4info.Entity{},
		values:  map[uint32][]*p4v1.ValueSetMember{},
		hidden:  map[uint32]uint32{},
		nextSet: firstHidden,
	}
	for _, n := range b.names {
		n.sweep = func(f func(uint64)) error { return p.used(n, f) }
	}
	for _, t := range b.tables {
		if (t.info.Const || t.info.Initial) && t.top != 0 {
			t.top = programTop(sw, t.name)
		}
	}
	return p, nil
}

// programTop returns the top of a table with entries of the program (table.top). The last of these entries has
// priority 1 in P4Runtime, as p4c says, and the priorities of controllers' entries are compared with theirs.
// The JSON does not contain the priorities that the program's text gives the entries.
func programTop(sw *p4.Switch, name string) int64 {
	top := int64(0)
	_ = sw.Entries(name, func(_ p4.Handle, e p4.Entry) bool {
		top = max(top, int64(e.Priority))
		return true
	})
	return top + 1
}

// Commit implements p4rt.Device.
func (d *Device) Commit(x p4rt.Pipeline) error {
	p, ok := x.(*pipeline)
	if !ok || p.dev != d {
		return refuse(codes.Internal, "a pipeline of another device")
	}
	old := d.current.Load()
	if old != nil && old != p {
		old.own.Lock()
		defer old.own.Unlock()
	}
	p.own.Lock()
	defer p.own.Unlock()
	err := d.app(func(a *p4.App) {
		d.use(a, p)
		d.current.Store(p) // in the same step as use: restore compares both on the worker
	})
	if err != nil {
		return refuse(codes.Unavailable, "%v", err)
	}
	if old != nil {
		old.live = false
	}
	p.live = true
	return nil
}

// use makes the app run a pipeline. The worker calls it.
func (d *Device) use(a *p4.App, p *pipeline) {
	if d.cfg.Clock != nil {
		p.sw.Advance(d.cfg.Clock.Now())
	}
	a.Use(p.sw)
}

// PacketOut implements p4rt.Device.
func (d *Device) PacketOut(m *p4v1.PacketOut) error {
	p := d.current.Load()
	if p == nil {
		return refuse(codes.FailedPrecondition, "there is no pipeline")
	}
	meta, err := p.info.PacketOut.Metadata(m.GetMetadata())
	if err != nil {
		return err
	}
	for n, s := range p.binding.packetOutSlots {
		if s == nil {
			continue
		}
		if meta[n].Value, err = s.toDevice(meta[n].GetValue(), false); err != nil {
			return err
		}
	}
	frame := p.binding.packetOut.Pack(nil, meta)
	frame = append(frame, m.GetPayload()...)
	if d.cfg.Instance.Spec().Apps[d.cfg.App].Args["cpu"] == "none" {
		return refuse(codes.FailedPrecondition, "app %s has no CPU port", d.cfg.App)
	}
	err = d.cfg.Instance.Inject(d.cfg.App, "cpu", 0, frame)
	switch {
	case errors.Is(err, graph.ErrNoBuffer):
		return refuse(codes.ResourceExhausted, "%v", err)
	case err != nil:
		return refuse(codes.InvalidArgument, "%v", err)
	}
	return nil
}

// Listen implements p4rt.Device.
func (d *Device) Listen(f func(p4rt.Event)) (func(), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		return nil, errors.New("somebody listens already")
	}
	if err := d.app(d.hookDigests); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { d.run(f, done) })
	d.cfg.Punts.add(d.cfg.App, func(frame []byte) { d.packetIn(f, frame) })
	d.stop = func() {
		d.cfg.Punts.remove(d.cfg.App)
		_ = d.app(func(a *p4.App) { a.OnDigest(nil) })
		close(done)
		wg.Wait()
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.stop != nil {
			d.stop()
			d.stop = nil
		}
	}, nil
}

func (d *Device) hookDigests(a *p4.App) {
	a.OnDigest(func(x p4.Digest) {
		m := digestMessage{sw: a.Switch(), id: x.ID, n: len(x.Data)}
		if len(x.Data) > len(m.data) {
			m.long = append([]byte(nil), x.Data...)
		} else {
			copy(m.data[:], x.Data)
		}
		select {
		case d.digests <- m:
		default:
			d.lost.Add(1)
		}
	})
}

func (d *Device) packetIn(f func(p4rt.Event), frame []byte) {
	p := d.current.Load()
	if p == nil {
		return
	}
	meta, payload, err := p.binding.packetIn.Unpack(frame)
	for n := range meta {
		if s := p.binding.packetInSlots[n]; s != nil {
			meta[n].Value = s.toSDN(meta[n].GetValue())
		}
	}
	if err != nil { // the frame is shorter than the program's own header
		f(p4rt.Event{PacketInsLost: 1})
		return
	}
	f(p4rt.Event{PacketIn: &p4v1.PacketIn{Payload: payload, Metadata: meta}})
}

// run passes on digests, and looks for idle entries.
func (d *Device) run(f func(p4rt.Event), done <-chan struct{}) {
	scan, check := time.NewTicker(scanEvery), time.NewTicker(checkEvery)
	defer scan.Stop()
	defer check.Stop()
	for {
		select {
		case <-done:
			return
		case m := <-d.digests:
			p := d.current.Load()
			if p == nil || p.sw != m.sw { // its program was replaced
				d.lost.Add(1)
				continue
			}
			data := m.data[:m.n]
			if m.long != nil {
				data = m.long
			}
			if x := p.binding.digests[m.id]; x != nil {
				f(p4rt.Event{DigestID: x.info.ID, Digest: x.message(data)})
			}
		case <-scan.C:
			d.idle(f)
		case <-check.C:
			d.restore()
			if n := d.lost.Swap(0); n > 0 {
				f(p4rt.Event{DigestsLost: n})
			}
		}
	}
}

// restore gives the app its pipeline back after a plan that changed the app's arguments has rebuilt the app, so
// that what controllers wrote is kept.
func (d *Device) restore() {
	p := d.current.Load()
	_ = d.app(func(a *p4.App) {
		if p != nil && a.Switch() != p.sw && d.current.Load() == p {
			d.use(a, p)
			d.hookDigests(a)
		}
	})
}

// idle reports entries whose timeout has passed.
func (d *Device) idle(f func(p4rt.Event)) {
	p := d.current.Load()
	if p == nil {
		return
	}
	for _, t := range p.binding.tables {
		if !t.info.IdleTimeout || t.gone {
			continue
		}
		from, more := p4.Handle(0), true
		for more {
			var found []*p4v1.TableEntry
			err := p.visit(func(sw *p4.Switch) bool {
				var err error
				from, more, err = sw.ExpiredFrom(t.name, from, 1024, func(h p4.Handle, e p4.Entry) {
					x := t.entry(h, e, t.states[h])
					x.Action = nil
					found = append(found, x)
				})
				return err == nil && more && len(found) < 64
			})
			if err != nil {
				return
			}
			for n, x := range found { // not on the worker, for which those that choose names wait
				found[n] = p.binding.out(p4info.EntryOf(x)).GetTableEntry()
			}
			if len(found) > 0 {
				f(p4rt.Event{Idle: found})
			}
		}
	}
}

// Punts takes the frames that apps of an instance punt, and gives each frame to the device of its app.
type Punts struct {
	mu   sync.RWMutex
	to   map[string]func(frame []byte)
	tap  *graph.Tap
	done chan struct{}
	wg   sync.WaitGroup
}

// ListenPunts starts to take the frames that an instance punts. An instance has at most one listener at a time.
func ListenPunts(inst *graph.Instance) (*Punts, error) {
	tap, err := inst.Listen()
	if err != nil {
		return nil, err
	}
	p := &Punts{to: map[string]func([]byte){}, tap: tap, done: make(chan struct{})}
	p.wg.Go(func() {
		wait := pollEvery
		t := time.NewTimer(wait)
		defer t.Stop()
		for {
			wait = min(2*wait, pollIdle)
			for {
				f, ok := tap.Next()
				if !ok {
					break
				}
				wait = pollEvery
				p.mu.RLock()
				to := p.to[f.App]
				p.mu.RUnlock()
				if to != nil {
					to(f.Data)
				}
			}
			select {
			case <-p.done:
				return
			case <-t.C:
				t.Reset(wait)
			}
		}
	})
	return p, nil
}

// Close stops taking frames.
func (p *Punts) Close() {
	close(p.done)
	p.wg.Wait()
	p.tap.Close()
}

func (p *Punts) add(app string, f func([]byte)) {
	if p != nil {
		p.mu.Lock()
		p.to[app] = f
		p.mu.Unlock()
	}
}

func (p *Punts) remove(app string) {
	if p != nil {
		p.mu.Lock()
		delete(p.to, app)
		p.mu.Unlock()
	}
}
