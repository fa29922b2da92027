package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
	"github.com/quillon/quillon/nf/port/open"
)

const (
	// lookEvery is the interval at which ports are looked at.
	lookEvery = 250 * time.Millisecond
	// lookWaits is how long a worker may wait for a processor between two looks: after that time frames cross
	// in the kernel. The kernel counts a wait only when it has ended.
	lookWaits = afxdp.DefaultStale
	// lookQuiet is how long no frame must have been missed before the lookout prints that frames are taken
	// again. It bounds the output to one line in that time.
	lookQuiet = 2 * time.Second
	// lookBare is how long an interface may be without its XDP program: when a port is taken out of the
	// graph, its program is detached first.
	lookBare = time.Second
	// lookLoud is the longest time between two lines about what somebody else does again and again (repeats).
	lookLoud = 30 * time.Second
	// lookSlow is the longest time between two looks at settings that somebody changes again and again: each time
	// a record is written. TCP tries again often enough to live with it.
	lookSlow = time.Second
	// linksBuffer is the size of the socket's receive buffer for news of links, in bytes: the default holds about
	// a hundred messages, and a machine that starts containers makes many at once.
	linksBuffer = 4 << 20
)

// lookout prints, once for each case, that frames which apps want crossed in the kernel or were dropped, that
// workers get no processor, that links went down or came up, that an XDP program was taken away, and that
// tasks have panicked.
type lookout struct {
	log     *slog.Logger
	faults  []*graph.PanicError
	ports   map[string]*lookedAt
	workers map[int]*waiting  // by thread
	up      map[string]bool   // by interface
	names   map[int]string    // names of interfaces, by their number
	bare    map[string]*bare  // by interface
	unkept  map[string]string // by port, the last error about its settings
	repeats map[event]*repeats
	tries   map[string]*tries // by port
	next    int               // port whose settings are looked at next
	// updates is nil if the kernel gives no news of links: then they are looked at every time.
	updates  chan netlink.LinkUpdate
	again    <-chan time.Time // when fresh is to be called, if something is due; nil otherwise
	unlinked string           // why updates was nil when that was printed
	buffer   int              // receive buffer of updates in bytes; 0: the default
	// replaced reports whether the XDP program of an interface, by its number, is not that of its port.
	replaced func(dev string, program uint32) bool
}

// bare is an interface whose XDP program is gone.
type bare struct {
	index int
	from  clock.Time
	said  bool   // it was printed
	why   string // taken or replaced
}

// waiting is what a lookout knows about a worker.
type waiting struct {
	worker int
	last   clock.Duration // total time for which it had waited for a processor at the last look
	over   clock.Duration // the same total at the look before the first long wait
	at     clock.Time     // time of the last look
	from   clock.Time     // time of the look before the first long wait; 0: there is none
	seen   clock.Time     // time of the last look with a long wait
}

// lookedAt is what a lookout knows about a port.
type lookedAt struct {
	last  port.Stats // totals of all queues at the last look
	since port.Stats // totals before the first missed frame
	at    clock.Time // time of the last look
	from  clock.Time // time of the look before the first missed frame; 0: no frame is missed
	seen  clock.Time // time of the last look with missed frames
}

// stamp formats an absolute time in UTC.
func stamp(t clock.Time) string {
	return time.Unix(0, int64(t)).UTC().Format("2006-01-02T15:04:05.000Z")
}

func (l *lookout) logPort(level slog.Level, t clock.Time, p graph.PortInfo, format string, args ...any) {
	l.log.Log(context.Background(), level, fmt.Sprintf("%s (%s): %s", p.Name, p.Args["dev"], fmt.Sprintf(format, args...)), at(t), "port", p.Name, "dev", p.Args["dev"])
}

// tries is how often a port's settings were changed back at one look after the other.
type tries struct {
	row  int
	next clock.Time // time of the next look
	news clock.Time // time of the last look because of news
	due  bool       // there was news since
}

// event is a kind of event at the port of this name.
type event struct{ what, port string }

// repeats bounds the lines about one event at one port, because somebody outside, for example at the other end of
// a cable, can cause the event as often as he likes. The first event is printed at once. Later ones are counted,
// and the last of them is printed with their number. While events go on, the time between two lines doubles from
// lookQuiet to lookLoud.
type repeats struct {
	level  slog.Level
	port   graph.PortInfo
	text   string     // of the last event
	events string     // what events are called
	last   clock.Time // time of the last event
	first  clock.Time // time of the first event without a line
	n      int        // events without a line
	at     clock.Time // time of the last line
	pause  clock.Duration
}

// tell prints an event at once, or leaves it to later.
func (l *lookout) tell(level slog.Level, now clock.Time, p graph.PortInfo, what, events, text string) {
	if l.repeats == nil {
		l.repeats = map[event]*repeats{}
	}
	key := event{what, p.Name}
	x := l.repeats[key]
	if x == nil || now.Sub(x.last) >= x.pause && x.n == 0 {
		x = &repeats{}
		l.repeats[key] = x
	}
	if x.n == 0 {
		x.first = now
	}
	x.level, x.port, x.text, x.events, x.last = level, p, text, events, now
	x.n++
	l.line(now, x)
}

// line prints the events that have not been printed, if the pause is over.
func (l *lookout) line(now clock.Time, x *repeats) {
	if x.n == 0 || now.Sub(x.at) < x.pause {
		return
	}
	text := x.text
	if x.n > 1 {
		text += fmt.Sprintf(" (%d %s since %s)", x.n, x.events, stamp(x.first))
	}
	l.logPort(x.level, x.last, x.port, "%s", text)
	x.n, x.at, x.pause = 0, now, min(max(2*x.pause, lookQuiet), lookLoud)
}

// later prints the events whose pause is over.
func (l *lookout) later(now clock.Time) {
	for _, x := range l.repeats {
		l.line(now, x)
	}
}

// look compares the ports' totals with those of the last look. The first look at a port only stores its
// totals.
func (l *lookout) look(now clock.Time, ports []graph.PortInfo) {
	before := l.ports
	l.ports = make(map[string]*lookedAt, len(ports))
	for _, p := range ports {
		var all port.Stats
		for _, q := range p.Queues {
			all.Add(q)
		}
		x := before[p.Name]
		if x == nil || all.Missed+all.ShutOut < x.last.Missed+x.last.ShutOut { // another port took this name
			x = &lookedAt{last: all, at: now}
		}
		l.ports[p.Name] = x
		if all.Missed+all.ShutOut > x.last.Missed+x.last.ShutOut {
			if x.from == 0 {
				x.from, x.since = x.at, x.last
				what := "cross unseen"
				if all.ShutOut > x.last.ShutOut {
					what = "are dropped"
				}
				l.logPort(slog.LevelWarn, now, p, "frames go past the apps: no worker takes them in time, or they are longer than the MTU was; they %s", what)
			}
			x.seen = now
		}
		x.last, x.at = all, now
		if x.from != 0 && now.Sub(x.seen) >= lookQuiet {
			l.end(now, p, x)
		}
	}
}

// times compares with the last look how long workers have waited for a processor. A worker that waits for a
// processor is not stuck: a stuck one runs, or sleeps.
func (l *lookout) times(now clock.Time, workers []graph.WorkerTimes) {
	before := l.workers
	l.workers = make(map[int]*waiting, len(workers))
	for _, w := range workers {
		x := before[w.Thread]
		if x == nil {
			x = &waiting{worker: w.Worker, last: w.Waited, at: now}
		}
		l.workers[w.Thread] = x
		more := w.Waited - x.last
		switch {
		case more >= lookWaits:
			if x.from == 0 {
				x.from, x.over = x.at, x.last
				l.log.Warn(fmt.Sprintf("worker %d is not scheduled: it was ready to run and waited %v for a processor; others run there (quillon help run: --priority, --cpu)",
					w.Worker, more.Round(time.Millisecond)), at(now), "worker", w.Worker)
			}
			x.seen = now
		case x.from != 0 && now.Sub(x.seen) >= lookQuiet:
			l.log.Info(fmt.Sprintf("worker %d is scheduled again; from %s to %s it waited %v for a processor",
				w.Worker, stamp(x.from), stamp(x.seen), (w.Waited-x.over).Round(time.Millisecond)), at(now), "worker", w.Worker)
			x.from = 0
		}
		x.last, x.at = w.Waited, now
	}
}

// end prints that a port's frames are taken again, and how many were missed.
func (l *lookout) end(now clock.Time, p graph.PortInfo, x *lookedAt) {
	l.logPort(slog.LevelInfo, now, p, "frames are taken again; from %s to %s %d crossed unseen, %d were dropped", stamp(x.from), stamp(x.seen),
		x.last.Missed-x.since.Missed, x.last.ShutOut-x.since.ShutOut)
	x.from = 0
}

// link prints that the link of a port's interface has gone down or come up. A port keeps its interface when
// that is renamed.
func (l *lookout) link(now clock.Time, ports []graph.PortInfo, a *netlink.LinkAttrs) {
	dev, known := l.names[a.Index]
	if !known {
		dev = a.Name
	}
	l.program(now, dev, a)
	up := linkUp(a)
	was, known := l.up[dev]
	l.up[dev] = up
	if !known || was == up {
		return
	}
	for _, p := range ports {
		if p.Args["dev"] != dev {
			continue
		}
		if up {
			l.tell(slog.LevelInfo, now, p, "link", "changes", "the link is up")
		} else {
			l.tell(slog.LevelWarn, now, p, "link", "changes", "the link is down")
		}
	}
}

// program notes whether an interface has its XDP program.
func (l *lookout) program(now clock.Time, dev string, a *netlink.LinkAttrs) {
	is := l.bare[dev]
	why := ""
	if a.Xdp == nil || !a.Xdp.Attached {
		why = taken
	} else if l.replaced(dev, a.Xdp.ProgId) {
		why = replaced
	}
	switch {
	case why == "":
		delete(l.bare, dev)
	case is == nil || is.why != why:
		l.bare[dev] = &bare{index: a.Index, from: now, why: why}
	}
}

// programs prints interfaces of AF_XDP ports that have not had their XDP programs for a while: somebody took it away.
func (l *lookout) programs(now clock.Time, ports []graph.PortInfo) {
	for dev, is := range l.bare {
		n := slices.IndexFunc(ports, func(p graph.PortInfo) bool { return p.Kind == open.AFXDP && p.Args["dev"] == dev })
		if n < 0 {
			delete(l.bare, dev)
			continue
		}
		if is.said || now.Sub(is.from) < lookBare {
			continue
		}
		i, err := netlink.LinkByIndex(is.index)
		if err != nil { // the interface is gone, which the port reports
			continue
		}
		if l.program(now, dev, i.Attrs()); l.bare[dev] == is {
			is.said = true
			l.logPort(slog.LevelError, now, ports[n], "%s", is.why)
		}
	}
}

// settings makes one port, another one each time, put back settings of its interface that somebody else has
// changed, and prints them. It is only one port, because that may have to enter another network namespace.
func (l *lookout) settings(now clock.Time, ports []graph.PortInfo, keep func(port string) ([]string, error)) {
	if len(ports) == 0 {
		return
	}
	l.next = (l.next + 1) % len(ports)
	l.setting(now, ports[l.next], keep)
}

// triesOf returns the tries of port p.
func (l *lookout) triesOf(p graph.PortInfo) *tries {
	x := l.tries[p.Name]
	if x == nil {
		x = &tries{}
		l.tries[p.Name] = x
	}
	return x
}

// setting does what settings does, for port p.
func (l *lookout) setting(now clock.Time, p graph.PortInfo, keep func(port string) ([]string, error)) {
	x := l.triesOf(p)
	if now < x.next {
		return
	}
	changed, err := keep(p.Name)
	if len(changed) > 0 {
		x.next = now.Add(min(lookEvery<<min(x.row, 8), lookSlow))
		x.row++
		l.tell(slog.LevelWarn, now, p, "settings", "times", "somebody changed settings without which frames are lost or come in unfinished; changed back until this instance ends: "+strings.Join(changed, ", "))
	} else {
		x.row = 0
	}
	if err == nil || errors.Is(err, unix.ENODEV) {
		delete(l.unkept, p.Name)
		return
	}
	if l.unkept[p.Name] == err.Error() {
		return
	}
	l.unkept[p.Name] = err.Error()
	text := fmt.Sprintf("whether its interface's settings are as they must be is not known: %v", err)
	switch {
	case errors.Is(err, port.ErrOutgrown):
		text = err.Error()
	case offload.NoRoom(err):
		text = fmt.Sprintf("settings were changed back, and stay so if this instance is killed: %v: make room there", err)
	}
	l.tell(slog.LevelWarn, now, p, "unkept", "errors", text)
}

// Reasons why an interface is without its XDP program.
const (
	taken    = "its XDP program was taken away: no frame comes to the apps, and all go to the kernel's stack; stop this instance, and run it again"
	replaced = "its XDP program was replaced by another one: no frame comes to the apps; take that one off, and stop this instance, and run it again"
)

// links returns, for the ports whose link state is known, whether the link is up.
func (l *lookout) links(ports []graph.PortInfo) map[string]bool {
	up := map[string]bool{}
	for _, p := range ports {
		if is, known := l.up[p.Args["dev"]]; known && p.Args["dev"] != "" {
			up[p.Name] = is
		}
	}
	return up
}

// panics prints the apps inside others that have panicked since the last look.
func (l *lookout) panics(now clock.Time, all []*graph.PanicError) {
	for _, f := range all {
		if !slices.Contains(l.faults, f) {
			l.log.Error(fmt.Sprintf("%v (%s); it has ended alone, and %d frames that it held are dropped: to start it again quillon snic restart %s",
				f, f.At, f.Frames, path.Base(f.App)), at(now), "app", f.App)
		}
	}
	l.faults = all
}

// troubles returns, for people, what was wrong at the last look.
func (l *lookout) troubles() []string {
	all := []string{}
	for name, x := range l.ports {
		if x.from != 0 {
			all = append(all, "port "+name+": frames go past the apps")
		}
	}
	for _, x := range l.workers {
		if x.from != 0 {
			all = append(all, fmt.Sprintf("worker %d waits for a processor", x.worker))
		}
	}
	for _, dev := range l.names {
		if !l.up[dev] {
			all = append(all, dev+": the link is down")
		}
	}
	for dev, is := range l.bare {
		if is.said {
			all = append(all, dev+": "+is.why)
		}
	}
	for _, f := range l.faults {
		all = append(all, f.App+" has panicked")
	}
	slices.Sort(all)
	return all
}

// linkUp reports whether frames can pass: the interface is up and has a carrier.
func linkUp(a *netlink.LinkAttrs) bool {
	return a.Flags&net.FlagUp != 0 && a.Flags&net.FlagRunning != 0
}

// listen subscribes to news of links, if that is not done yet, and then looks at the links of all ports, because news was missed.
func (l *lookout) listen(ctx context.Context, now clock.Time, ports []graph.PortInfo) {
	if l.updates != nil {
		return
	}
	links, err := l.subscribe(ctx)
	if err != nil && l.buffer != 0 { // a process may need a privilege for that size
		l.buffer = 0
		links, err = l.subscribe(ctx)
	}
	if err != nil && l.unlinked != err.Error() {
		l.unlinked = err.Error()
		l.log.Warn(fmt.Sprintf("the kernel gives no news of links, which are looked at every %v: %v", lookEvery, err))
	}
	l.updates = links
	for _, p := range ports {
		if i, err := l.linkOf(p.Args["dev"]); err == nil {
			l.names[i.Attrs().Index] = p.Args["dev"]
			l.link(now, ports, i.Attrs())
		}
	}
}

// subscribe returns news of links. The channel is closed when the kernel had more news than the socket holds.
func (l *lookout) subscribe(ctx context.Context) (chan netlink.LinkUpdate, error) {
	ctx, end := context.WithCancel(ctx)
	links, all := make(chan netlink.LinkUpdate, 16), make(chan netlink.LinkUpdate, 16)
	if err := netlink.LinkSubscribeWithOptions(all, ctx.Done(), netlink.LinkSubscribeOptions{
		ReceiveBufferSize: l.buffer, ReceiveBufferForceSize: true,
	}); err != nil {
		end()
		return nil, err
	}
	go func() {
		defer end() // closes the socket
		defer close(links)
		for u := range all {
			select {
			case links <- u:
			case <-ctx.Done(): // who sends to all goes on until the socket is closed
			}
		}
	}()
	return links, nil
}

// linkOf returns the interface of a port, which may have been renamed.
func (l *lookout) linkOf(dev string) (netlink.Link, error) {
	for index, name := range l.names {
		if name == dev {
			return netlink.LinkByIndex(index)
		}
	}
	return netlink.LinkByName(dev)
}

// newsEvery is the shortest time between two looks at the settings of a port because of news: everybody who may
// change a link can cause such news.
const newsEvery = 20 * time.Millisecond

// news handles an update of a link and all updates that wait behind it, so that the apps hear of them together.
// Then it looks at the settings of these interfaces' ports, because Linux reports by such an update, too, that a
// veth has other receive queues. If ok is false, some news was lost, and it may have been about any port.
func (l *lookout) news(now clock.Time, ports []graph.PortInfo, u netlink.LinkUpdate, ok bool, keep func(port string) ([]string, error)) {
	of := map[string]bool{} // interfaces
	defer func() {
		for _, p := range ports {
			if !ok || of[p.Args["dev"]] {
				l.triesOf(p).due = true
			}
		}
		l.fresh(now, ports, keep)
	}()
	for n := len(l.updates); ; n-- {
		if !ok {
			l.updates = nil // listen subscribes anew
			return
		}
		if u.Header.Type != unix.RTM_DELLINK { // the port reports it
			l.link(now, ports, u.Attrs())
			of[cmp.Or(l.names[u.Attrs().Index], u.Attrs().Name)] = true
		}
		if n <= 0 {
			return
		}
		u, ok = <-l.updates
	}
}

// fresh looks at the settings of ports about which there was news. If the last look at one of them was less than
// newsEvery ago, it sets again for a later call.
func (l *lookout) fresh(now clock.Time, ports []graph.PortInfo, keep func(port string) ([]string, error)) {
	l.again = nil
	for _, p := range ports {
		switch x := l.triesOf(p); {
		case !x.due || now < x.next:
		case x.news != 0 && now.Sub(x.news) < newsEvery:
			l.again = time.After(newsEvery)
		default:
			x.due, x.news = false, now
			l.setting(now, p, keep)
		}
	}
}

// lookOut runs a lookout on an instance until ctx ends or the instance stops, and calls troubles after each look.
func lookOut(ctx context.Context, stopping <-chan struct{}, log *slog.Logger, inst *graph.Instance, ports *open.Ports, clk clock.Clock, troubles func([]string)) {
	l := &lookout{log: log, up: map[string]bool{}, names: map[int]string{}, bare: map[string]*bare{}, unkept: map[string]string{}, tries: map[string]*tries{}, replaced: ports.Replaced, buffer: linksBuffer}
	l.listen(ctx, clk.Now(), inst.Ports())
	tell := tellLinks(ctx, inst)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		tell(l.links(inst.Ports()))
		select {
		case <-ctx.Done():
			return
		case <-stopping: // the ports' programs are being detached
			return
		case <-tick.C:
			l.listen(ctx, clk.Now(), inst.Ports())
			l.later(clk.Now())
			l.programs(clk.Now(), inst.Ports())
			l.times(clk.Now(), inst.Times())
			l.look(clk.Now(), inst.Ports())
			l.fresh(clk.Now(), inst.Ports(), inst.Keep)
			l.settings(clk.Now(), inst.Ports(), inst.Keep)
			l.panics(clk.Now(), inst.Faults())
			troubles(l.troubles())
		case u, ok := <-l.updates:
			l.news(clk.Now(), inst.Ports(), u, ok, inst.Keep)
		case <-l.again:
			l.fresh(clk.Now(), inst.Ports(), inst.Keep)
		}
	}
}
