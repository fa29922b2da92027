package ctl

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/p4info"
)

// run runs a Controller until the end of the test.
func run(t testing.TB, in *Intent, o ControllerOptions) *Controller {
	t.Helper()
	o.Session = options()
	c, err := NewController(&Dialer{}, in, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done; c.Close() })
	return c
}

// watch collects what a Controller tells.
type watch struct {
	mu   sync.Mutex
	last map[string]DeviceStatus
	more chan struct{}
}

func newWatch() *watch { return &watch{last: map[string]DeviceStatus{}, more: make(chan struct{}, 1)} }

func (w *watch) changed(s DeviceStatus) {
	w.mu.Lock()
	w.last[s.Device] = s
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// until waits until all of n devices are as ok says.
func (w *watch) until(t testing.TB, n int, what string, ok func(DeviceStatus) bool) {
	t.Helper()
	limit := time.After(60 * time.Second)
	for {
		w.mu.Lock()
		yes := 0
		var other DeviceStatus
		for _, s := range w.last {
			if ok(s) {
				yes++
			} else {
				other = s
			}
		}
		w.mu.Unlock()
		if yes >= n {
			return
		}
		select {
		case <-w.more:
		case <-limit:
			t.Fatalf("%d of %d devices are %s; one is %+v", yes, n, what, other)
		}
	}
}

func aligned(s DeviceStatus) bool { return s.Aligned }

func TestControllerKeepsDevicesAtTheIntent(t *testing.T) {
	f := ctltest.New(1)
	at, stop := f.Start(t, "127.0.0.1:0", nil)
	d := mustIntent(t, at, "ipv4_router", routerEntities)
	w := newWatch()
	c := run(t, &Intent{Devices: []*Device{d}}, ControllerOptions{Changed: w.changed, Every: 20 * time.Millisecond})
	w.until(t, 1, "aligned", func(s DeviceStatus) bool { return s.Aligned && s.Loads == 1 && s.Writes == 15 })

	// The device restarts and has nothing any more.
	f.Restart(1)
	w.until(t, 1, "aligned again", func(s DeviceStatus) bool { return s.Aligned && s.Loads == 2 && s.Writes == 30 })

	// So does its server, on the same address.
	stop()
	w.until(t, 1, "lost", func(s DeviceStatus) bool { return s.State == Connecting && !s.Aligned })
	f2 := ctltest.New(1)
	f2.Start(t, at, nil)
	w.until(t, 1, "aligned after a new server", func(s DeviceStatus) bool { return s.Aligned && s.Loads == 3 })

	// Somebody else's entry goes.
	other := entity(t, d.Info, "{table: ipv4_lpm, match: {dst: 11.0.0.0/8}, action: refuse}")
	f2.Lock()
	e := f2.Devices[1].Update(&p4v1.Update{Type: p4v1.Update_INSERT, Entity: other})
	f2.Unlock()
	if e != nil {
		t.Fatal(e)
	}
	w.until(t, 1, "cleaned", func(s DeviceStatus) bool { return s.Aligned && s.Writes == 46 })

	// What fails is told, and tried again.
	f2.Lock()
	f2.Refuse = func(*p4v1.Update) *p4v1.Error { return ctltest.Failed(codes.ResourceExhausted, "no room") }
	f2.Unlock()
	next := *d
	next.Entities = d.Entities[:len(d.Entities)-2]
	if err := c.Set(&Intent{Devices: []*Device{&next}}); err != nil {
		t.Fatal(err)
	}
	w.until(t, 1, "failing", func(s DeviceStatus) bool {
		return strings.HasPrefix(s.Problem, "1 of 1 updates failed: delete table router_ingress.ipv4_multicast hdr.ipv4.dst=224.0.0.6") && strings.HasSuffix(s.Problem, "ResourceExhausted: no room")
	})
	f2.Lock()
	f2.Refuse = nil
	f2.Unlock()
	w.until(t, 1, "aligned to the new intent", func(s DeviceStatus) bool { return s.Aligned && s.Entities == 13 && s.Problem == "" })

	// Another controller: ours stands back, and comes back.
	s := open(t, &Dialer{}, at, 1, options())
	if err := s.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	w.until(t, 1, "backup", func(s DeviceStatus) bool { return s.State == Backup && !s.Aligned })
	s.Close()
	w.until(t, 1, "aligned after another", func(s DeviceStatus) bool { return s.State == Primary && s.Aligned })

	if err := c.Set(&Intent{}); err != nil || len(c.Status()) != 0 {
		t.Errorf("%v %v", err, c.Status())
	}
}

// slowApp ends a while after it is told to.
type slowApp struct{ begun chan struct{} }

func (slowApp) Claim(*Device) error { return nil }
func (a slowApp) Begin(ctx context.Context, _ *Session) error {
	close(a.begun)
	<-ctx.Done()
	time.Sleep(20 * time.Millisecond)
	return nil
}
func (slowApp) Handle(context.Context, *Session, []*p4v1.StreamMessageResponse) error { return nil }
func (slowApp) Tick(context.Context, *Session) error                                  { return nil }

// Each new intent has its app begin, though the device is compared while the one
// before ends.
func TestAppsBeginWithEachIntent(t *testing.T) {
	at, _ := ctltest.New(1).Start(t, "127.0.0.1:0", nil)
	d := mustIntent(t, at, "ipv4_router", "")
	apps := make(chan slowApp, 100)
	c := run(t, &Intent{Devices: []*Device{d}}, ControllerOptions{App: func(*Device) App {
		a := slowApp{make(chan struct{})}
		apps <- a
		return a
	}})
	m := c.all()[0]
	stop := make(chan struct{})
	var often sync.WaitGroup
	defer often.Wait()
	defer close(stop)
	often.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.enqueue()
			case <-stop:
				return
			}
		}
	})
	for n := range 10 {
		select {
		case <-(<-apps).begun:
		case <-time.After(60 * time.Second):
			t.Fatalf("the app of intent %d did not begin", n)
		}
		next := *d
		if err := c.Set(&Intent{Devices: []*Device{&next}}); err != nil {
			t.Fatal(err)
		}
	}
}

// A device that another controller took while it was compared is not known to be
// at the intent.
func TestDemotedWhileComparing(t *testing.T) {
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	c, err := NewController(&Dialer{}, &Intent{Devices: []*Device{mustIntent(t, at, "ipv4_router", "")}}, ControllerOptions{Session: options()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := c.all()[0]
	ctltest.Eventually(t, "to be compared", func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.queued })
	f.Lock() // it does not answer
	done := make(chan struct{})
	go func() { m.work(within(t)); close(done) }()
	ctltest.Eventually(t, "at work", func() bool { m.mu.Lock(); defer m.mu.Unlock(); return !m.queued })
	st := m.session.Status()
	st.State = Backup
	m.changed(st)
	f.Unlock()
	<-done
	if st := c.Status()[0]; st.Aligned || st.Problem != "" {
		t.Errorf("%+v", st)
	}
}

// thousand is the number of devices that one controller holds in a test; their
// servers and it are one process.
const thousand = 1000

// TestThousandDevices measures: 1,000 devices, each behind a listener, a server and
// a connection of its own, in the same process as their controller.
func TestThousandDevices(t *testing.T) {
	dir := t.TempDir()
	info, config := program(t, dir, "ipv4_router")
	var text strings.Builder
	text.WriteString("devices:\n")
	f := make([]*ctltest.Server, thousand)
	shared := ctltest.New()
	for i := range f {
		f[i] = shared.Like(1)
		at, _ := f[i].Start(t, "127.0.0.1:0", nil)
		first := "&all"
		if i > 0 {
			first = "*all"
		}
		fmt.Fprintf(&text, "  s%d:\n    address: %s\n    p4info: %s\n    config: %s\n    entries: %s\n", i, at, info, config, first)
		if i == 0 {
			for p := range 10 {
				fmt.Fprintf(&text, "      - {table: ipv4_lpm, match: {dst: 10.%d.0.0/16}, action: set_next_hop, params: {next_hop: %d}}\n", p, p)
			}
		}
	}
	file := filepath.Join(dir, "intent.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	in, err := ReadIntent(file)
	if err != nil {
		t.Fatal(err)
	}
	if in.Devices[0].Info != in.Devices[1].Info || in.Devices[0].Pipeline != in.Devices[1].Pipeline {
		t.Error("the devices do not share their program")
	}
	before := runtime.NumGoroutine()
	w := newWatch()
	c := run(t, in, ControllerOptions{Changed: w.changed})
	w.until(t, thousand, "aligned", aligned)
	for _, s := range c.Status() {
		if s.Writes != 10 || s.Loads != 1 {
			t.Errorf("%+v", s)
		}
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	goroutines := runtime.NumGoroutine() - before
	size := (m.Sys - m.HeapReleased) >> 20
	t.Logf("%d devices aligned: %d MiB of memory (%d MiB of heap, %d MiB of stacks; %d MiB resident) for controller and devices, %d goroutines (%.1f a device, both sides)",
		thousand, size, m.HeapInuse>>20, m.StackInuse>>20, residentMiB(t), goroutines, float64(goroutines)/thousand)
	if size > 500 {
		t.Errorf("%d MiB of memory, want at most 500", size)
	}
}

// residentMiB is the memory that the process has in use now.
func residentMiB(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skipf("no /proc: %v", err)
	}
	lines := strings.Split(string(b), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "VmRSS:") })
	if i < 0 {
		t.Skip("no VmRSS in /proc/self/status")
	}
	var kib int
	if _, err := fmt.Sscanf(lines[i], "VmRSS: %d kB", &kib); err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// TestControllerSurvives: whatever happens to devices, to their servers and to who
// is primary, in the end all hold the intent and nothing else.
func TestControllerSurvives(t *testing.T) {
	f := ctltest.New(1, 2)
	at, stop := f.Start(t, "127.0.0.1:0", nil)
	var text strings.Builder
	text.WriteString(routerEntities + "\n  s2:\n    address: " + at + "\n    device_id: 2\n    p4info: ipv4_router.p4info.txtpb\n    config: ipv4_router.json\n")
	dir := t.TempDir()
	program(t, dir, "ipv4_router")
	in, err := parseIntent(filepath.Join(dir, "i.yaml"), []byte("devices:\n  s1:\n    address: "+at+"\n    p4info: ipv4_router.p4info.txtpb\n    config: ipv4_router.json\n"+text.String()))
	if err != nil {
		t.Fatal(err)
	}
	in.Devices[1].Entities = in.Devices[0].Entities[:9]
	w := newWatch()
	run(t, in, ControllerOptions{Changed: w.changed, Every: 10 * time.Millisecond, Limits: Limits{Updates: 2}})
	foreign := entity(t, in.Devices[0].Info, "{table: ipv4_lpm, match: {dst: 11.0.0.0/8}, action: refuse}")
	var d Dialer
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 60 {
		id := uint64(1 + random.IntN(2))
		switch what := random.IntN(6); what {
		case 0:
			f.Restart(id)
		case 1: // the whole server, and what it held
			stop()
			old := f
			f = old.Like(1, 2)
			if random.IntN(2) == 0 {
				old.Lock()
				for id, dev := range old.Devices {
					f.Devices[id] = &ctltest.Device{Info: dev.Info, Pipeline: dev.Pipeline, Entities: maps.Clone(dev.Entities)}
				}
				old.Unlock()
			}
			_, stop = f.Start(t, at, nil)
		case 2: // another controller, for a moment
			s := open(t, &d, at, id, options())
			if err := s.Await(within(t)); err != nil {
				t.Fatal(err)
			}
			s.Close()
		case 3, 4: // things come and go behind its back
			f.Lock()
			if dev := f.Devices[id]; dev.Info != nil {
				if what == 3 {
					dev.Update(&p4v1.Update{Type: p4v1.Update_INSERT, Entity: foreign})
				}
				for k := range dev.Entities {
					if random.IntN(3) == 0 {
						delete(dev.Entities, k)
					}
				}
			}
			f.Unlock()
		case 5: // half of the updates fail
			f.Lock()
			n := 0
			f.Refuse = func(*p4v1.Update) *p4v1.Error {
				if n++; n%2 == 0 {
					return ctltest.Failed(codes.Internal, "not now")
				}
				return nil
			}
			f.Unlock()
			w.until(t, 2, "known", func(s DeviceStatus) bool { return s.Device != "" })
			f.Lock()
			f.Refuse = nil
			f.Unlock()
		}
		if step%10 != 9 {
			continue
		}
		for _, dev := range in.Devices {
			ctltest.Eventually(t, fmt.Sprintf("%s holds its intent after step %d", dev.Name, step), func() bool { return holds(f, dev) })
		}
	}
}

// holds reports whether a device holds what it shall and nothing else; counters are
// the program's.
func holds(f *ctltest.Server, d *Device) bool {
	f.Lock()
	defer f.Unlock()
	dev := f.Devices[d.DeviceID]
	n := 0
	for _, e := range d.Entities {
		if isValue(e) {
			continue
		}
		n++
		if have := dev.Entities[p4info.Key(e)]; have == nil || !equal(e, have) {
			return false
		}
	}
	for _, e := range dev.Entities {
		if !isValue(e) {
			n--
		}
	}
	return n == 0
}
