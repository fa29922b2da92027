package xdp

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/internal/ir"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// ProgramName is the name of the XDP program that bpftool shows.
const ProgramName = afxdp.FrontProgram

// devices is the number of ports that frames may come from and go to: 0 to devices - 1.
const devices = inNumber + 1

// slots is the highest number of interfaces from which frames may come.
const slots = 512

// maxIndex is the highest interface index that may have a port.
const maxIndex = 1 << 16

// Executor is a P4 program in the kernel that follows a Switch: it has the Switch's tables and meters, and
// counters beside the Switch's.
type Executor struct {
	tree *ir.Program
	sw   *p4.Switch // nil: it follows none
	prog *ebpf.Program
	from []Source
	exits
	profiles
	copies
	meterCells
	valueSets

	mu      sync.Mutex // guards what follows
	on      bool
	watched []bool

	all []closer

	reasons  []Reason
	parts    *parts
	size     int // instructions
	state    *ebpf.Map
	in       *shared
	devices  *ebpf.Map
	own      *ebpf.Map // by slot, the interfaces' own programs
	counts   tallies
	defaults *shared
	tables   []*tableMaps
	meters   []*shared

	registers []*shared
	turnWord  *shared // whether somebody has the registers; nil: they are not used
	clock     *shared // what the Switch's time is ahead of the kernel's, in ns, and 1

	outer, inner *ebpf.Map // for a grace period
	owner        uint32
	outlives     bool
	suffix       int // of the names of maps that are made; negative: none
	heir
	changes uint64 // that it was told
	graces  *graces
	why     map[string]string
}

// exits are the ports that frames leave by.
type exits struct {
	to  map[uint32]Target
	out *shared // the longest frame of each, and noLink; 0: the engine's

	leaving sync.Mutex // guards what follows
	// Frames to these ports go to the engine.
	down map[uint32]bool
	lost map[uint32]error
}

// noLink says of a port that it has no link. Frames to it go to the engine, but not those to a multicast group that has other ports.
const noLink = 1 << 30

// Links sets the ports that have no link.
func (x *exits) Links(down map[uint32]bool) {
	x.leaving.Lock()
	defer x.leaving.Unlock()
	x.down = down
	x.leave()
}

// leave stores by which ports frames leave in the kernel. The caller holds leaving.
func (x *exits) leave() {
	for n, to := range x.to {
		longest := to.Longest
		switch {
		case x.lost[n] != nil:
			longest = 0
		case x.down[n]:
			longest |= noLink
		}
		if n < devices { // others are the engine's
			storeHalf(x.out, int(n), uint32(longest))
		}
	}
}

// Lose sets the ports at which frames from the kernel do not arrive, with the reason. Frames to them go to the
// engine.
func (x *exits) Lose(lost map[uint32]error) {
	x.leaving.Lock()
	defer x.leaving.Unlock()
	x.lost = lost
	x.leave()
}

// Lost returns what the last call of Lose has set, as text.
func (x *exits) Lost() (why []string) {
	x.leaving.Lock()
	defer x.leaving.Unlock()
	for _, n := range slices.Sorted(maps.Keys(x.lost)) {
		why = append(why, fmt.Sprintf("port %d: %v", n, x.lost[n]))
	}
	return why
}

type closer interface{ close() error }

type mapCloser struct{ *ebpf.Map }

func (m mapCloser) close() error { return m.Close() }

// Options are the interfaces of an Executor.
type Options struct {
	// From are the interfaces from which frames come, each with its index and the program's port number. The
	// Executor does not touch frames of other interfaces.
	From []Source
	// To are the interfaces to which frames go, by the program's port number. Frames to other ports go to the
	// engine.
	To map[uint32]Target
	// Outlives says that the program may stay attached when the process has died. It then drops the frames that the engine
	// should have.
	Outlives bool
	// Name is that of the program, as bpftool shows it; empty: ProgramName.
	Name string
	// Left are the maps of a program that another process has left. If that was the same P4 program, the Executor goes on
	// with its registers and counts (Inherits). The caller owns the maps. Left is read if Outlives is set.
	Left []*ebpf.Map
	// Source is the P4 program's file.
	Source []byte

	edit   func(m descriptors, code asm.Instructions) asm.Instructions // of tests: changes the program; nil: nothing
	counts int                                                         // of tests: the most memory of counts, in bytes; 0: maxCounts
}

// Source is an interface from which frames come.
type Source struct {
	Index int
	Port  uint32
}

// Target is an interface to which frames go. Longest is the longest frame that it sends, in bytes.
type Target struct {
	Index, Longest int
}

// New loads a program into the kernel. The program gives all frames to the engine until Begin. tree is the tree
// of the program, and cfg the Config of the switches that it will follow.
func New(tree *ir.Program, cfg p4.Config, o Options) (_ *Executor, err error) {
	x := &Executor{tree: tree, from: o.From, why: map[string]string{}, suffix: -1}
	x.most = min(maxReplicas, cfg.MaxPasses-1)
	x.to = o.To
	x.profiles.x, x.copies.x, x.meterCells.x, x.valueSets.x = x, x, x, x
	x.graces = &graces{wait: x.pass, after: x.passed}
	defer func() {
		if err != nil {
			_ = x.Close()
		}
	}()
	s := &settings{DropPort: cfg.DropPort, Queues: cfg.Queues, Indices: 2, Seed: seed(), Outlives: o.Outlives, Owner: uint32(seed())&(1<<30-1) | 1<<30}
	if err = interleaves(); err != nil {
		return nil, err
	}
	if s.Processors, err = ebpf.PossibleCPU(); err != nil {
		return nil, fmt.Errorf("how many processors there may be: %w", err)
	}
	x.owner, x.outlives = s.Owner, s.Outlives
	if len(o.From) > slots {
		return nil, fmt.Errorf("%d interfaces are more than %d", len(o.From), slots)
	}
	for _, f := range o.From {
		if f.Index < 0 || f.Index >= maxIndex || f.Port >= devices {
			return nil, fmt.Errorf("interface %d cannot be port %d: in the kernel interface indices are below %d and ports below %d", f.Index, f.Port, maxIndex, devices)
		}
		s.Indices = max(s.Indices, f.Index+1)
	}
	c, err := compile(tree, s, dryMaps(tree, s))
	if err != nil {
		return nil, fmt.Errorf("the program cannot run in the kernel: %w", err)
	}
	if !c.finishes {
		return nil, errNothing{c.parts.engine()}
	}
	mark := markOf(tree, s, &c, o.Source)
	x.old = inherit(tree, mark, o.Left)
	m, err := x.maps(s, &c, o)
	if err != nil {
		return nil, err
	}
	s.Reasons = c.reasons
	for _, way := range ways(tree, &c) {
		s.FewExits, s.NoCopies = way.FewExits, way.NoCopies
		if c, err = compile(tree, s, m); err != nil {
			return nil, err
		}
		if o.edit != nil {
			c.code = o.edit(m, c.code)
		}
		x.reasons, x.parts, x.size = c.reasons, c.parts, len(c.code)
		if err = tooFar(c.code); err == nil {
			x.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: cmp.Or(o.Name, ProgramName), Type: ebpf.XDP, License: "GPL", Instructions: c.code, Flags: unix.BPF_F_XDP_HAS_FRAGS})
		}
		if err == nil { // else it may be too long for the verifier: by the ways out of searches, or by egress, once for each copy
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the kernel refuses the program of %d instructions (%s): %w", len(c.code), c.stages, err)
	}
	if o.Outlives {
		if err := mark.sign(x.prog); err != nil {
			return nil, fmt.Errorf("say which program it is: %w", err)
		}
	}
	for n, to := range o.To {
		if n >= devices {
			continue // the engine's
		}
		if err := x.devices.Put(n, uint32(to.Index)); err != nil {
			return nil, fmt.Errorf("port %d to interface %d: %w", n, to.Index, err)
		}
	}
	if x.old != nil && x.turnWord != nil {
		free(x.turnWord)
	}
	x.Links(nil)
	x.watched = make([]bool, len(o.From))
	for i := range o.From {
		x.tell(i)
	}
	return x, nil
}

// ways returns the settings that make other programs of tree, c being that of the first ones: the longest program first.
func ways(tree *ir.Program, c *compiled) (all []settings) {
	for _, way := range []settings{{}, {FewExits: true}, {NoCopies: true}, {FewExits: true, NoCopies: true}} {
		if (!way.FewExits || searchesVectors(tree)) && (!way.NoCopies || c.copies) {
			all = append(all, way)
		}
	}
	return all
}

// errNothing says that the kernel could finish no frame of the program, and why.
type errNothing struct{ why []string }

func (e errNothing) Error() string {
	return "no frame can come to its end in the kernel: " + strings.Join(e.why, "; ")
}

// Begin makes the kernel run frames with the entries of a Switch, and follows the Switch from that time on. now
// is the Switch's time. Only the goroutine that calls Begin may change or read the Switch afterwards.
func (x *Executor) Begin(sw *p4.Switch, now clock.Time) {
	x.Now(now.Sub(sw.Config().Start))
	sw.Follow(x)
	x.sw = sw
	x.turn(true)
}

// Now tells the program the Switch's time since its start. It must be called from time to time, because the
// kernel's clock drifts from the Switch's.
func (x *Executor) Now(since clock.Duration) {
	const apart = 1e6 // a breath may have lasted so long
	if ahead := int64(since) - clock.Kernel(); *x.clock.word(1) == 0 || max(ahead-int64(*x.clock.word(0)), int64(*x.clock.word(0))-ahead) > apart {
		x.clock.store(0, uint64(ahead))
		x.clock.store(1, 1)
	}
}

// End gives all frames to the engine, and ends following. The Switch takes over the kernel's counts.
func (x *Executor) End() {
	x.turn(false)
	if x.sw != nil {
		_ = x.graces.now() // else frames that are still being run are not counted
		x.sw.Follow(nil)
		x.sw = nil
	}
}

func (x *Executor) turn(on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.on = on
	for i := range x.from {
		x.tell(i)
	}
}

// Watch sets whether all frames of an interface go to the engine because somebody watches them. source is its
// index in Options.From.
func (x *Executor) Watch(source int, watched bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.watched[source] = watched
	x.tell(source)
}

// tell stores in the kernel what is done with frames of an interface.
func (x *Executor) tell(source int) {
	w := inKnown | uint32(source)<<inSlot | x.from[source].Port
	switch {
	case x.on && x.watched[source]:
		w |= inSeen
	case x.on:
		w |= inOn
	}
	storeHalf(x.in, x.from[source].Index, w)
}

// Own sets the program that gets the frames of an interface that the kernel does not finish.
func (x *Executor) Own(source int, prog *ebpf.Program) error {
	if err := x.own.Put(uint32(source), uint32(prog.FD())); err != nil {
		return fmt.Errorf("leave frames to the engine: %w", err)
	}
	return nil
}

// seed returns a random number for the hashes, so that nobody who chooses keys can predict their places.
func seed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return binary.NativeEndian.Uint64(b[:])
}

// Close calls End and closes the program. Where the program is still attached, it gives frames to the
// interfaces' own programs.
func (x *Executor) Close() error {
	if x.in != nil {
		x.End()
	}
	errs := []error{x.graces.collect(true)}
	if x.prog != nil {
		errs = append(errs, x.prog.Close())
	}
	for _, m := range x.all {
		errs = append(errs, m.close())
	}
	x.prog, x.all, x.in = nil, nil, nil
	return errors.Join(errs...)
}

// Program returns the XDP program.
func (x *Executor) Program() *ebpf.Program { return x.prog }

// Outcome is a kind of end of a frame, and the number of frames that had it.
type Outcome struct {
	Name   string `json:"name"`
	Engine bool   `json:"engine"` // the frames went to the engine
	Frames uint64 `json:"frames"`
}

// Outcomes returns the counts of all kinds of ends.
func (x *Executor) Outcomes() ([]Outcome, error) {
	if x.in == nil {
		return nil, errors.New("it is closed")
	}
	var all []Outcome
	for i := range firstReason + len(x.reasons) {
		o := Outcome{Engine: i >= firstReason}
		if o.Engine {
			o.Name = x.reasons[i-firstReason].String()
		} else {
			o.Name = outcomeNames[i]
		}
		o.Frames = x.counts.frames(i)
		all = append(all, o)
	}
	return all, nil
}

// dryMaps returns descriptors that stand for maps that do not exist yet.
func dryMaps(p *ir.Program, s *settings) descriptors {
	ones := func(n int) []int {
		l := make([]int, n)
		for i := range l {
			l[i] = 1
		}
		return l
	}
	n := len(p.Tables)
	m := descriptors{state: 1, in: 1, out: 1, devices: 1, own: 1, counts: 1, defaults: 1, crc: 1, turn: 1, clock: 1, multicast: 1, lists: 1, sets: 1, registers: ones(len(p.Registers)), tables: ones(n), slots: ones(n), masks: ones(n), hits: ones(n),
		members: ones(len(p.Profiles)), actions: ones(len(p.Profiles)), groups: ones(len(p.Profiles)), blocks: ones(len(p.Profiles)), meters: ones(len(p.Meters)), entryMeters: ones(n), values: ones(len(p.ValueSets))}
	m.defaultAt, _ = placeDefaults(p)
	m.places, _ = placeCounts(p, s.Processors, maxCounts, s.Outlives, 0) // an error comes again, with the maps
	return m
}

// placeDefaults returns the offset of each table's word, behind which the two places of its default entry are.
func placeDefaults(p *ir.Program) (at []int, size int) {
	for i := range p.Tables {
		at = append(at, size)
		size += 8 + 2*entrySize(&p.Tables[i])
	}
	return at, size
}

// newMap makes a map that Close closes.
func (x *Executor) newMap(spec ebpf.MapSpec) (*ebpf.Map, error) {
	spec.Name = numbered(spec.Name, x.suffix)
	m, err := x.old.take(spec.Name)
	if err == nil && m == nil {
		m, err = ebpf.NewMap(&spec)
	}
	if err != nil {
		return nil, fmt.Errorf("make the map %s of %d entries: %w", spec.Name, spec.MaxEntries, err)
	}
	x.all = append(x.all, mapCloser{m})
	return m, nil
}

func (x *Executor) newShared(name string, size int) (*shared, error) {
	name = numbered(name, x.suffix)
	var s *shared
	m, err := x.old.take(name)
	switch {
	case err != nil:
	case m != nil:
		s, err = openShared(m)
	default:
		s, err = newShared(name, size)
	}
	if err == nil {
		x.all = append(x.all, s)
	}
	return s, err
}

// maps makes the kernel's maps.
func (x *Executor) maps(s *settings, c *compiled, o Options) (m descriptors, err error) {
	made := func(to **ebpf.Map, spec ebpf.MapSpec) {
		if err == nil {
			*to, err = x.newMap(spec)
		}
	}
	memory := func(to **shared, name string, size int) {
		if err == nil {
			*to, err = x.newShared(name, size)
		}
	}
	made(&x.state, ebpf.MapSpec{Name: "p4_state", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: uint32(c.size), MaxEntries: 1})
	made(&x.devices, ebpf.MapSpec{Name: "p4_ports", Type: ebpf.DevMap, KeySize: 4, ValueSize: 4, MaxEntries: devices})
	made(&x.own, ebpf.MapSpec{Name: "p4_own", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: slots})
	made(&x.inner, ebpf.MapSpec{Name: "p4_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err == nil {
		made(&x.outer, ebpf.MapSpec{Name: "p4_outer", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1,
			InnerMap: &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}})
	}
	if err == nil && c.copies {
		err = x.addCopies()
	}
	m.defaultAt, _ = placeDefaults(x.tree)
	_, size := placeDefaults(x.tree)
	if err == nil {
		x.counts.countPlaces, err = placeCounts(x.tree, s.Processors, cmp.Or(o.counts, maxCounts), x.outlives, len(c.reasons)+1)
	}
	memory(&x.counts.mem, "p4_counts", x.counts.size())
	memory(&x.in, "p4_in", 4*s.Indices)
	memory(&x.out, "p4_out", 4*devices)
	memory(&x.defaults, "p4_defaults", size)
	memory(&x.clock, "p4_clock", 16)
	if c.registers {
		memory(&x.turnWord, "p4_turn", 8)
		for i, n := range ir.PlaceRegisters(x.tree.Registers) {
			x.suffix = i
			var w *shared
			if n <= ir.MaxGroup {
				memory(&w, "p4_register", 8*n)
			}
			x.registers = append(x.registers, w)
		}
		x.suffix = -1
	}
	if len(x.tree.Hashes)+len(x.tree.Profiles) > 0 {
		var tables *shared
		if memory(&tables, "p4_crc", crcSize); err == nil {
			crcTables(tables.mem)
			m.crc = tables.m.FD()
		}
	}
	for i, p := range x.tree.Profiles {
		if x.suffix = i; err == nil {
			err = x.addProfile(p)
		}
	}
	for i := range x.tree.Tables {
		if x.suffix = i; err == nil {
			err = x.addTable(i, m.defaultAt[i], s.Seed)
		}
	}
	x.suffix = -1
	for i := range x.tree.Meters {
		a := &x.tree.Meters[i]
		var w *shared
		if n := meterSize(a, a.Size); n > 0 {
			memory(&w, "p4_meter", n)
		}
		x.meters = append(x.meters, w)
	}
	if err == nil {
		err = x.addValueSets()
	}
	if err == nil {
		m.of(x)
	}
	return m, err
}

// of takes the file descriptors of x's maps.
func (m *descriptors) of(x *Executor) {
	m.state, m.devices, m.own = x.state.FD(), x.devices.FD(), x.own.FD()
	m.counts, m.places = x.counts.mem.m.FD(), x.counts.countPlaces
	m.in, m.out, m.defaults = x.in.m.FD(), x.out.m.FD(), x.defaults.m.FD()
	m.ofProfiles(x.profiles.profiles)
	for _, t := range x.tables {
		m.masks = append(m.masks, sharedFD(t.masks))
		entries, slots := fd(t.entries), 0
		switch {
		case t.cuckoo != nil:
			entries, slots = sharedFD(t.cuckoo.records), sharedFD(t.cuckoo.slots)
		case t.strides != nil:
			entries, slots = sharedFD(t.strides.records), sharedFD(t.strides.nodes)
		case t.vectors != nil:
			entries, slots = sharedFD(t.vectors.records), sharedFD(t.vectors.mem)
		}
		m.tables, m.slots = append(m.tables, entries), append(m.slots, slots)
		m.hits = append(m.hits, sharedFD(t.hits))
		m.entryMeters = append(m.entryMeters, sharedFD(t.meters))
	}
	m.clock, m.turn, m.multicast, m.lists, m.sets = x.clock.m.FD(), sharedFD(x.turnWord), sharedFD(x.groups), sharedFD(x.lists), fd(x.sets)
	for _, s := range x.vsets {
		m.values = append(m.values, sharedFD(s.mem))
	}
	m.registers = make([]int, len(x.tree.Registers)) // without memory for what only passes whose code is thrown away use
	for i, w := range x.registers {
		m.registers[i] = sharedFD(w)
	}
	for _, w := range x.meters {
		m.meters = append(m.meters, sharedFD(w))
	}
}

func fd(m *ebpf.Map) int {
	if m == nil {
		return 0
	}
	return m.FD()
}

func sharedFD(s *shared) int {
	if s == nil {
		return 0
	}
	return s.m.FD()
}

// storeHalf stores a number of 32 bits.
func storeHalf(s *shared, i int, v uint32) {
	atomic.StoreUint32(s.half(i), v)
}
