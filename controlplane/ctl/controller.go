package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/nf/clock"
)

// DeviceStatus is the state of a device of a Controller: its session, and how far it is at its intent.
type DeviceStatus struct {
	Status
	Aligned  bool       `json:"aligned"`            // it held the intent when it was last compared
	Compared clock.Time `json:"compared,omitempty"` // ns since the epoch; 0: never
	Entities int        `json:"entities"`           // of the intent
	Writes   int        `json:"writes"`             // updates that were done
	Loads    int        `json:"loads"`              // of the program
	Problem  string     `json:"problem,omitempty"`  // why it is not aligned
	Lost     int        `json:"lost,omitempty"`     // messages for which the app had no time
}

// ControllerOptions are the options of a Controller.
type ControllerOptions struct {
	Session Options // Changed and Event are the Controller's
	Limits  Limits
	// Every is the longest time between two comparisons of a device; 0: one minute.
	Every time.Duration
	// Workers is the number of devices that are compared at the same time; 0: 16.
	Workers int
	// App makes the application of a device; nil: no device has one.
	App func(*Device) App
	// Changed is called with each new status of a device. It must not block.
	Changed func(DeviceStatus)
}

// Controller keeps devices at an Intent. It compares a device when the device's session
// becomes primary (after a restart of either side, or when another controller has
// left), when the intent changes, at intervals (Every), and again after a failure.
//
// Each device has a goroutine for its session. A few workers do the comparing.
type Controller struct {
	dialer *Dialer
	opt    ControllerOptions

	mu      sync.Mutex
	devices map[string]*managed // by name
	stopped bool
	ctx     context.Context // Run's; nil before it
	apps    sync.WaitGroup

	waiting sync.Mutex
	queue   []*managed    // devices to compare
	more    chan struct{} // holds a token when the queue may not be empty
}

// managed is a device of a Controller.
type managed struct {
	c       *Controller
	session *Session
	app     App // nil: none
	stopApp func()
	begin   chan struct{} // the device came to its intent
	events  chan *p4v1.StreamMessageResponse

	mu       sync.Mutex
	want     *Device
	status   DeviceStatus
	term     int  // how often the session has stopped being primary
	queued   bool // is in the queue, or will be when the worker that compares it is done
	busy     bool
	failures int
	again    *time.Timer
}

// NewController opens sessions to the intent's devices. Run does the work; Close ends the sessions.
func NewController(d *Dialer, in *Intent, o ControllerOptions) (*Controller, error) {
	if o.Every <= 0 {
		o.Every = time.Minute
	}
	if o.Workers <= 0 {
		o.Workers = 16
	}
	c := &Controller{dialer: d, opt: o, more: make(chan struct{}, 1), devices: map[string]*managed{}}
	if err := c.Set(in); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Set gives the Controller another intent; it may be called while Run runs. Devices that are in both intents
// keep their sessions.
func (c *Controller) Set(in *Intent) error {
	for _, d := range in.Devices {
		if err := c.dialer.Check(d.Address); err != nil {
			return fmt.Errorf("%s: %w", d.Target, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return errors.New("the controller was closed")
	}
	wanted := map[string]*Device{}
	for _, d := range in.Devices {
		wanted[d.Name] = d
	}
	apps := map[string]App{}
	if c.opt.App != nil {
		for name, d := range wanted {
			apps[name] = c.opt.App(d)
			if err := apps[name].Claim(d); err != nil {
				return err
			}
		}
	}
	for name, m := range c.devices {
		if d := wanted[name]; d == nil || d.Target != m.session.Target {
			go m.close()
			delete(c.devices, name)
		}
	}
	for _, d := range in.Devices {
		if m := c.devices[d.Name]; m != nil {
			m.endApp() // else the app before would get the signal that the device is at d
			m.mu.Lock()
			m.want, m.app = d, apps[d.Name]
			m.status.Aligned, m.status.Entities, m.failures = false, len(d.Entities), 0
			m.mu.Unlock()
			c.startApp(m)
			m.enqueue()
			continue
		}
		m := &managed{c: c, want: d}
		m.status.Entities = len(d.Entities)
		o := c.opt.Session
		o.Changed = m.changed
		o.Event = nil
		if m.app = apps[d.Name]; m.app != nil {
			m.begin, m.events = make(chan struct{}, 1), make(chan *p4v1.StreamMessageResponse, maxWaiting)
			o.Event = m.deliver
		}
		err := m.open(c.dialer, d.Target, o)
		if err != nil {
			return err
		}
		c.devices[d.Name] = m
		c.startApp(m)
	}
	return nil
}

// startApp starts a device's app if Run has been called.
func (c *Controller) startApp(m *managed) {
	if c.ctx == nil || m.app == nil {
		return
	}
	ctx, stop := context.WithCancel(c.ctx)
	done := make(chan struct{})
	m.stopApp = func() { stop(); <-done }
	app := m.app
	c.apps.Go(func() { defer close(done); m.runApp(ctx, app) })
}

func (m *managed) endApp() {
	if m.stopApp != nil {
		m.stopApp()
		m.stopApp = nil
	}
}

// open opens the session. Its callbacks block until m.session is set.
func (m *managed) open(d *Dialer, t Target, o Options) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := Open(d, t, o)
	if err == nil {
		m.session, m.status.Status = s, s.Status()
	}
	return err
}

func (m *managed) close() {
	m.endApp()
	m.session.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.again != nil {
		m.again.Stop()
	}
}

// changed handles a new status of the session.
func (m *managed) changed(st Status) {
	m.mu.Lock()
	m.status.Status = st
	if st.State != Primary {
		m.status.Aligned = false
		m.term++
	}
	now := m.status
	m.mu.Unlock()
	m.report(now)
	if st.State == Primary {
		m.enqueue()
	}
}

func (m *managed) report(now DeviceStatus) {
	if m.c.opt.Changed != nil {
		m.c.opt.Changed(now)
	}
}

// enqueue puts the device into the queue of devices to compare, unless it is there already.
func (m *managed) enqueue() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queued {
		return
	}
	m.queued = true
	if !m.busy {
		m.busy = true
		m.c.push(m)
	}
}

// push adds a device to the queue of devices to compare, and pop takes one out. Each device is in the queue at
// most once.
func (c *Controller) push(m *managed) {
	c.waiting.Lock()
	c.queue = append(c.queue, m)
	c.waiting.Unlock()
	c.wake()
}

func (c *Controller) wake() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *Controller) pop(ctx context.Context) *managed {
	for ctx.Err() == nil {
		c.waiting.Lock()
		var m *managed
		if len(c.queue) > 0 {
			m, c.queue = c.queue[0], c.queue[1:]
		}
		left := len(c.queue)
		c.waiting.Unlock()
		if left > 0 {
			c.wake()
		}
		if m != nil {
			return m
		}
		select {
		case <-c.more:
		case <-ctx.Done():
		}
	}
	return nil
}

// Run compares devices and applies the changes until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	c.mu.Lock()
	c.ctx = ctx
	for _, m := range c.devices {
		c.startApp(m)
	}
	c.mu.Unlock()
	defer c.apps.Wait()
	var workers sync.WaitGroup
	for range c.opt.Workers {
		workers.Go(func() {
			for {
				m := c.pop(ctx)
				if m == nil {
					return
				}
				m.work(ctx)
			}
		})
	}
	tick := time.NewTicker(c.opt.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, m := range c.all() {
				m.enqueue()
			}
		case <-ctx.Done():
			workers.Wait()
			return
		}
	}
}

func (c *Controller) all() []*managed {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.devices))
}

// Close ends the sessions.
func (c *Controller) Close() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	var all sync.WaitGroup
	for _, m := range c.all() {
		all.Go(m.close)
	}
	all.Wait()
}

// Status returns the state of each device, sorted by name.
func (c *Controller) Status() []DeviceStatus {
	var out []DeviceStatus
	for _, m := range c.all() {
		m.mu.Lock()
		out = append(out, m.status)
		m.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b DeviceStatus) int { return cmp.Compare(a.Device, b.Device) })
	return out
}

// work compares one device and applies the changes.
func (m *managed) work(ctx context.Context) {
	m.mu.Lock()
	m.queued = false
	want, st, term := m.want, m.status.State, m.term
	m.mu.Unlock()
	var o *Outcome
	var err error
	if st == Primary {
		var d *Diff
		if d, err = m.session.Compare(ctx, want, LeaveValues); err == nil {
			if o, err = m.session.Apply(ctx, d, m.c.opt.Limits); err == nil {
				err = m.problem(o, want)
			}
		}
	}
	m.mu.Lock()
	if o != nil {
		m.status.Writes += o.Done
		if o.Loaded {
			m.status.Loads++
		}
	}
	if st == Primary {
		before := m.status.Aligned
		m.status.Compared = m.c.opt.Session.Clock.Now()
		m.status.Aligned, m.status.Problem = err == nil && m.want == want && m.term == term, ""
		if err != nil {
			m.status.Problem = err.Error()
			if ctx.Err() == nil && m.status.State == Primary {
				m.again = time.AfterFunc(m.c.opt.Session.Backoff.delay(m.failures, rand.Float64), m.enqueue)
			}
			m.failures++
		} else {
			m.failures = 0
			if !before && m.status.Aligned && m.app != nil {
				select {
				case m.begin <- struct{}{}:
				default:
				}
			}
		}
	}
	if m.busy = m.queued; m.busy {
		m.c.push(m)
	}
	now := m.status
	m.mu.Unlock()
	m.report(now)
}

// unwell notes that the app failed, and has the device compared again after a while.
func (m *managed) unwell(err error) {
	m.mu.Lock()
	m.status.Aligned, m.status.Problem = false, err.Error()
	if m.status.State == Primary {
		m.again = time.AfterFunc(m.c.opt.Session.Backoff.delay(m.failures, rand.Float64), m.enqueue)
		m.failures++
	}
	now := m.status
	m.mu.Unlock()
	m.report(now)
}

// problem returns an error that counts the failed updates and shows the first of them; nil: none failed.
func (m *managed) problem(o *Outcome, d *Device) error {
	if len(o.Failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d updates failed: %s", len(o.Failed), o.Done+len(o.Failed), o.Failed[0].Text(d.Info))
}
