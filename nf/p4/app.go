package p4

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	apptable "github.com/quillon/quillon/nf/table"
)

// Ports is the number of numbered ports of the app: all numbers of v1model's 9-bit ports.
const Ports = 1 << 9

// cpuInput is the input for frames from the controller.
const cpuInput = Ports

// Reasons of the app. The numbers below numReasons are reasons of the engine.
const (
	reasonPacketIn graph.Reason = graph.Reason(numReasons) + iota - 1
	reasonNoPort
	reasonTooLong
	reasonProcessed
	reasonNoProgram
)

var reasonHelp = [numReasons]string{
	ParserError: "dropped by the program after its parser had failed",
	NoTableHit:  "dropped by the program after the last table with a key was missed",
	IngressDrop: "dropped by the program in ingress",
	EgressDrop:  "dropped by the program in egress",
	NoReplica:   "sent to a multicast group without members",
	NoQueue:     "sent with a priority that ports do not have",
	PassLimit:   "recirculated, resubmitted or cloned too often (passes=)",
	LoopLimit:   "an action went round in a loop too often",
	Asserted:    "an assert or an assume did not hold",
}

// reasonOf returns the app's number for a reason of the engine.
func reasonOf(r Reason) graph.Reason { return graph.Reason(r) - 1 }

// Counters of the app.
const (
	countDigests counter.ID = iota
	countCopies
	countCopiesDropped
	countFinished
	countGiven
	countHeadless
)

// Kind returns the declaration of the app.
func Kind() *graph.Kind {
	k := &graph.Kind{
		Name:    "p4",
		Alone:   true,
		Summary: "runs a compiled P4 program (v1model or PSA, JSON of p4c's bmv2 back ends)",
		Doc: `A frame that comes in at input N has standard_metadata.ingress_port N; what the
program sends to port N leaves at output N. What it sends to the CPU port goes to
the controller, and frames of the controller come in at input cpu with that port's
number. Behaviour is that of bmv2's simple_switch. The program may also be one for
PSA (JSON of p4c-bm2-psa), with psa_switch's metadata and behaviour. Without program=
it drops every frame until a controller gives it one.

Tables, registers, counters and meters belong to one worker: run it with one.`,
		Params: []graph.Param{
			{Name: "program", File: true, Help: "file with the JSON that p4c-bm2-ss or p4c-bm2-psa wrote; in a spec, as seen from the spec's directory; none: a controller gives it"},
			{Name: "cpu", Default: "510", Help: "number of the CPU port (default of a PSA program: PSA_PORT_CPU); none: there is no such port"},
			{Name: "drop-port", Default: "511", Help: "the egress_spec that drops a packet"},
			{Name: "passes", Default: "1024", Help: "how often a frame with all its copies may pass a pipeline"},
			{Name: "seed", Default: "0", Help: "seed of random()"},
			{Name: "exec", Default: "engine", Help: "engine runs all frames; xdp: the kernel finishes those that it can, at afxdp ports that are not pairs, and it is an error if it can none; auto: the same, and no error"},
			{Name: "fail", Default: "open", Help: "with exec=xdp or auto, when the process has died: open leaves the interfaces as if it had not been there; closed drops all frames; headless: the kernel goes on with the program and the entries that it had, and drops what the engine should have"},
		},
		Counters: []counter.Def{
			countDigests:       {Name: "digests", Help: "messages to the controller"},
			countCopies:        {Name: "copies", Help: "frames emitted beyond one for each received: clones, replicas"},
			countCopiesDropped: {Name: "copies-dropped", Help: "clones, replicas and originals that ended while another copy left"},
			countFinished:      {Name: "kernel-finished", Help: "with exec=xdp or auto: frames that came to their end in the kernel, and never to the app"},
			countGiven:         {Name: "kernel-given", Help: "with exec=xdp or auto: frames that the kernel gave to the app; quillon report has the reasons"},
			countHeadless:      {Name: "headless-dropped", Help: "with fail=headless: frames that the kernel dropped because there was no process to have them"},
		},
		Describe: describe,
		Declared: declared,
		New:      func(env graph.Env, args graph.Args) (graph.App, error) { return newApp(env, args, nil) },
	}
	for r := NotDropped + 1; r < numReasons; r++ {
		k.Reasons = append(k.Reasons, counter.Def{Name: r.String(), Help: reasonHelp[r]})
	}
	k.Reasons = append(k.Reasons,
		counter.Def{Name: "packet-in", Help: "sent to the CPU port: to the controller"},
		counter.Def{Name: "no-port", Help: "sent to a port that the app does not have"},
		counter.Def{Name: "too-long", Help: "longer than a buffer"},
		counter.Def{Name: "processed", Help: "forwarded by the program"},
		counter.Def{Name: "no-program", Help: "received before a controller gave a program"})
	for n := range Ports {
		k.In = append(k.In, strconv.Itoa(n))
	}
	k.Out = append(k.Out, k.In...)
	k.In = append(k.In, "cpu")
	return k
}

// App is an app of kind p4.
type App struct {
	sw *Switch // nil: no program yet
	// programs counts the switches, so that trace records of an older switch are not taken for records of this
	// one.
	programs uint16
	decls    []apptable.Decl // of its tables
	cfg      Config
	cpu      uint32          // number of the CPU port; ^0: there is none
	ownCPU   bool            // cpu is that of the program's architecture
	down     map[uint32]bool // ports that have no link

	onDigest func(Digest)
	args     graph.Args

	makeAhead func(must bool, fail string) Ahead // nil: there is no way to run frames ahead
	ahead     Ahead                              // nil: the engine runs all frames
	clock     clock.Clock                        // of a graph with interfaces
	joined    *graph.Joined                      // nil: it is not told yet
	counted   clock.Time                         // when what runs ahead was asked for its counts
	finished  uint64                             // what it said then
	given     uint64
	dropped   uint64

	onEmit  Emit // a.emit, bound once
	onTrace func(Event)

	// During a push:
	c       *graph.Ctx
	cur     *packet.Buf
	done    bool // cur holds the first frame that left
	first   outgoing
	scratch []byte // bytes of that frame, while cur is still read
	copies  []outgoing
}

// outgoing is a frame that leaves. If buf is nil, the frame leaves in the buffer that came in.
type outgoing struct {
	port uint32
	buf  *packet.Buf
}

func newApp(env graph.Env, args graph.Args, ahead func(must bool, fail string) Ahead) (graph.App, error) {
	if env.Workers > 1 {
		return nil, fmt.Errorf("a program's tables and registers belong to one worker, there are %d: run with one", env.Workers)
	}
	a := &App{}
	a.onEmit, a.onTrace = a.emit, a.trace
	a.cfg.Digest = a.digest
	var err error
	number := func(name string, highest uint64) uint64 {
		s := args[name]
		if s == "" || err != nil {
			return 0
		}
		v, e := strconv.ParseUint(s, 10, 64)
		if e != nil || v > highest {
			err = fmt.Errorf("%s=%s: want a number from 0 to %d", name, s, highest)
		}
		return v
	}
	switch args["cpu"] {
	case "none":
		a.cpu = ^uint32(0)
	case "":
		a.ownCPU = true
	default:
		a.cpu = uint32(number("cpu", 1<<16-1))
	}
	a.cfg.DropPort = uint32(number("drop-port", 1<<16-1))
	a.cfg.MaxPasses = int(number("passes", 1<<20))
	a.cfg.Seed = number("seed", 1<<63)
	if err != nil {
		return nil, err
	}
	a.args = args
	if !env.Inside && env.Clock != nil { // otherwise there are no interfaces
		a.makeAhead, a.clock = ahead, env.Clock
	}
	if a.ahead, err = a.frontOf(args); err != nil {
		return nil, err
	}
	if name := args["program"]; name != "" {
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("program=: %w", err)
		}
		if err := a.Load(src); err != nil {
			return nil, fmt.Errorf("program=%s: %w", name, err)
		}
	}
	return a, nil
}

// Switch returns the switch that runs, or nil if the app has no program. Only the worker's goroutine may use
// the switch, until the app gets another program.
func (a *App) Switch() *Switch { return a.sw }

// Load gives the app the program in a file that p4c-bm2-ss or p4c-bm2-psa wrote. If it returns an error, the app keeps its
// program.
func (a *App) Load(json []byte) error {
	p, err := Load(json)
	if err != nil {
		return err
	}
	sw, err := a.NewSwitch(p)
	if err == nil {
		a.Use(sw)
	}
	return err
}

// NewSwitch returns a switch with the app's settings, for Use. Any goroutine may call it at any time.
func (a *App) NewSwitch(p *Program) (*Switch, error) { return NewSwitch(p, a.cfg) }

// Use makes the app run another switch from the next frame on; nil: none. It must be called between two
// breaths.
func (a *App) Use(sw *Switch) {
	if sw != nil {
		sw.cfg.Digest = a.digest // the switch may have been made by the app before this one
		a.decls = declare(sw.prog)
		if a.ownCPU {
			_, a.cpu = sw.prog.arch.ports()
		}
		sw.setLinks(a.down)
	}
	a.sw = sw
	a.programs++
	if a.ahead != nil {
		a.ahead.Use(sw)
	}
}

// SetLinks sets which of the app's ports have no link, for this and later programs. Members of groups that
// watch such a port get no packets, and the kernel sends no frames to it. It must be called between two
// breaths.
func (a *App) SetLinks(down map[uint32]bool) {
	if maps.Equal(a.down, down) {
		return
	}
	a.down = maps.Clone(down)
	if a.sw != nil {
		a.sw.setLinks(down)
	}
	if a.ahead != nil {
		a.ahead.Links(a.down)
	}
}

// OnDigest sets the function that the worker's goroutine calls with each digest of the program; nil: none. The
// digest's data is valid only during the call.
func (a *App) OnDigest(f func(Digest)) { a.onDigest = f }

func (a *App) digest(d Digest) {
	a.c.Count(countDigests, 1)
	if a.onDigest != nil {
		a.onDigest(d)
	}
}

// Push implements graph.App.
func (a *App) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if a.sw == nil {
		for _, x := range b.Bufs() {
			c.Drop(x, reasonNoProgram)
		}
		return
	}
	a.c = c
	port := uint32(in)
	if in == cpuInput {
		port = a.cpu
	}
	for _, x := range b.Bufs() {
		a.process(x, port)
	}
	a.c = nil
}

func (a *App) process(x *packet.Buf, port uint32) {
	a.cur, a.done, a.first.port = x, false, ^uint32(0)
	traced := a.c.Traced(x)
	if traced {
		a.sw.SetTrace(a.onTrace)
	}
	r := a.sw.Process(a.c.Now(), port, x.Bytes(), a.onEmit)
	if traced {
		a.sw.SetTrace(nil)
	}
	if r.Emitted == 0 {
		a.c.Drop(x, reasonOf(max(r.Dropped, NotDropped+1)))
		return
	}
	if r.Dropped != NotDropped {
		a.c.Count(countCopiesDropped, 1)
	}
	if !a.done && !x.SetBytes(a.scratch) {
		a.c.Drop(x, reasonTooLong)
	} else {
		a.send(a.first.port, x)
	}
	for _, o := range a.copies {
		a.send(o.port, o.buf)
	}
	a.copies = a.copies[:0]
}

// emit handles a frame that leaves the switch. The first one goes into the buffer of the frame that came in, as
// soon as the switch does not need that buffer.
func (a *App) emit(port uint32, frame []byte) {
	if a.first.port == ^uint32(0) {
		a.first.port = port
		if a.sw.idle() && a.cur.SetBytes(frame) {
			a.done = true
			return
		}
		a.scratch = append(a.scratch[:0], frame...)
		return
	}
	a.c.Count(countCopies, 1)
	x := a.c.Get()
	if x == nil {
		a.c.Count(countCopiesDropped, 1)
		return
	}
	if !x.SetBytes(frame) {
		a.c.Drop(x, reasonTooLong)
		return
	}
	a.copies = append(a.copies, outgoing{port, x})
}

func (a *App) send(port uint32, x *packet.Buf) {
	switch {
	case port == a.cpu:
		a.c.Punt(x, reasonPacketIn)
	case port >= Ports:
		a.c.Drop(x, reasonNoPort)
	default:
		if x.Verdict != packet.Generated {
			a.c.Mark(x, packet.Rewritten, reasonProcessed)
		}
		a.c.Emit(int(port), x)
	}
}

func (a *App) trace(e Event) {
	args := [3]uint64{e.Value}
	if e.Kind == EventAction { // has no value
		copy(args[:], e.Data)
	} else {
		copy(args[1:], e.Data)
	}
	object := uint64(uint32(e.Object)) | uint64(uint16(e.Copy))<<32 | uint64(a.programs)<<48
	a.c.Trace(a.cur, uint16(e.Kind), object, args[0], args[1], args[2])
}

// describe returns the text of a trace record (graph.Kind.Describe). A record does not hold keys of more than
// two words and arguments of more than three. An entry is shown in its present state.
func describe(app graph.App, kind uint16, args [4]uint64) string {
	a := app.(*App)
	if a.sw == nil || uint16(args[0]>>48) != a.programs {
		return "a step of a program that was replaced"
	}
	e := Event{Kind: EventKind(kind), Object: int(uint32(args[0])), Value: args[1], Data: args[2:], Copy: int(uint16(args[0] >> 32))}
	if e.Kind == EventAction {
		e.Data = args[1:]
	}
	text := a.sw.Step(e).String()
	if e.Copy > 0 {
		return fmt.Sprintf("copy %d: %s", e.Copy, text)
	}
	return text
}

// Report is the state of an App that graph.Reporter shows.
type Report struct {
	Tables  []TableReport     `json:"tables"`
	Dropped map[string]uint64 `json:"dropped"`        // packets and copies, by reason
	Down    []uint32          `json:"down,omitempty"` // ports that have no link
	Now     clock.Time        `json:"now"`
	Kernel  any               `json:"kernel,omitempty"` // with exec=xdp or auto: what runs there
}

// Warns returns a warning for the user at the start, or "" if there is none.
func (r Report) Warns() string {
	if w, ok := r.Kernel.(interface{ Warns() string }); ok {
		return w.Warns()
	}
	return ""
}

// TableReport is the number of entries of a table.
type TableReport struct {
	Name    string `json:"name"`
	Entries int    `json:"entries"`
	Size    int    `json:"size"`
}

// Report implements graph.Reporter.
func (a *App) Report() any {
	var r Report
	if a.ahead != nil {
		r.Kernel = a.ahead.Report()
	}
	if a.sw == nil {
		return r
	}
	r.Dropped, r.Now, r.Down = map[string]uint64{}, a.sw.now, slices.Sorted(maps.Keys(a.down))
	for _, t := range a.sw.tables {
		if !t.def.Hidden {
			r.Tables = append(r.Tables, TableReport{t.def.Name, t.n, t.size})
		}
	}
	for d := NotDropped + 1; d < numReasons; d++ {
		if n := a.sw.Dropped(d); n > 0 {
			r.Dropped[d.String()] = n
		}
	}
	return r
}
