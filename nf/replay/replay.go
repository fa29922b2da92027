package replay

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/pcap"
)

// Input is a capture that is replayed.
type Input struct {
	Reader *pcap.Reader
	// Name names the capture in messages.
	Name string
	// Port is the port of the Spec that the frames enter. If it is "", an interface enters the port with its
	// name, or else the first interface enters the first port by name, and the second one the second.
	Port string
}

// Config says which graph runs over which captures.
type Config struct {
	// Spec is the graph. The kinds of its ports do not matter.
	Spec   *graph.Spec
	Kinds  []graph.Kind
	Inputs []Input
	// AHosts, if not nil, says that the one input holds both directions between two ports. Frames that these
	// hosts sent enter the first port by name, all others the second one, whatever interface they were
	// captured on.
	AHosts *Hosts
	// Format is the format of the output. Pcapng has an interface for each port (one in all if there is one
	// input interface), and a comment for each packet: its verdict and the reason, as in "rewritten:
	// steered-cas".
	Format pcap.Format
	// All writes dropped packets, too, with the comment "dropped: REASON". It needs pcapng, because in a
	// classic file nothing would tell dropped packets from the others.
	All bool
	// Seed is the seed of the apps' random numbers.
	Seed uint64
	// Linger is how long timers still run after the last frame, while apps hold frames; 0: one second of the
	// captures' time.
	Linger clock.Duration
}

// Result is the result of a run.
type Result struct {
	Read    uint64 `json:"read"`    // frames read
	Written uint64 `json:"written"` // frames written, without dropped ones
	// Changed is the number of frames written with another verdict than forwarded.
	Changed uint64 `json:"changed"`
	Dropped uint64 `json:"dropped"`
	// FromA is the number of frames that AHosts sent; nil without AHosts.
	FromA *uint64 `json:"from_a,omitempty"`
	// Oversized is the number of frames that fit no buffer, and were written unchanged past the graph.
	Oversized uint64        `json:"oversized"`
	Start     clock.Time    `json:"start"`
	End       clock.Time    `json:"end"`
	Counters  []graph.Count `json:"counters"`
	// Comparison is the comparison with the expected file; see Files.
	Comparison *Comparison `json:"comparison,omitempty"`
}

// CounterText returns the counters that are not zero, sorted, in the form of golden data: a line
// "NODE.GROUP.NAME VALUE" each.
func (r *Result) CounterText() string {
	var lines []string
	for _, c := range r.Counters {
		if c.Value != 0 {
			lines = append(lines, fmt.Sprintf("%s.%s.%s %d\n", c.Node, c.Group, c.Name, c.Value))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

const (
	// maxTicks bounds the timers that run in one gap between frames, so that a gap of years does not take
	// years. Timers of 10 ms run for 10 minutes.
	maxTicks = 1 << 16
	// poolBytes is the memory for frames, as far as minSlots and maxSlots allow.
	poolBytes          = 64 << 20
	minSlots, maxSlots = 1024, 4096
)

// Replay is a run that is ready. It can be used once.
type Replay struct {
	cfg    Config
	inst   *graph.Instance
	pool   *packet.Pool
	slots  *pcap.Slots
	in     []source
	sides  []*side // by name
	single bool    // all frames enter one port
	w      *pcap.Writer
	// declared has the interfaces of a pcapng output.
	declared []pcap.Interface
	now      clock.Time
	seq      uint64  // Seq of the frame under way; 0: none
	from     *source // source of the frame under way
	out      pcap.Packet
	batch    packet.Batch
	drops    []drop // frames dropped in this breath
	arena    []byte // the bytes of these frames
	notes    map[note][][]byte
	damage   []error
	res      Result
}

// source is an Input with its next packet.
type source struct {
	Input
	next  pcap.Packet
	err   error
	sides []*side // by interface: the port that its frames enter
}

// side is a port of the graph. Frames that were sent in this breath wait in out.
type side struct {
	name  string
	index int // index among the sides
	pool  *packet.Pool
	out   []*packet.Buf
	info  *pcap.Interface // the interface whose frames enter it first; nil: none
	stats port.Stats
}

// note has what a comment is made from.
type note struct {
	verdict     packet.Verdict
	app, reason uint16
}

type drop struct {
	note
	p pcap.Packet
	n int // bytes in the arena
}

// New checks cfg and builds the graph. It reads only the captures' headers.
func New(cfg Config) (*Replay, error) {
	if cfg.All && cfg.Format != pcap.NG {
		return nil, errors.New("dropped packets can be written to pcapng only: name the output *.pcapng")
	}
	if len(cfg.Inputs) == 0 {
		return nil, errors.New("no capture to replay")
	}
	if cfg.Spec == nil || len(cfg.Spec.Ports) == 0 {
		return nil, errors.New("the graph has no port that frames could enter")
	}
	cfg.Linger = cmp.Or(cfg.Linger, 1e9)
	if n := len(cfg.Inputs); cfg.AHosts != nil && (n > 1 || cfg.Inputs[0].Port != "" || len(cfg.Spec.Ports) != 2) {
		return nil, fmt.Errorf("the hosts of side a are for one capture and a graph of two ports: there are %d captures, with ports %t, and %d ports",
			n, cfg.Inputs[0].Port != "", len(cfg.Spec.Ports))
	}
	r := &Replay{cfg: cfg, notes: map[note][][]byte{}}
	if cfg.AHosts != nil {
		r.res.FromA = new(uint64)
	}
	var ifaces []pcap.Interface
	for _, i := range cfg.Inputs {
		ifaces = append(ifaces, i.Reader.Interfaces()...)
		r.in = append(r.in, source{Input: i})
	}
	var err error
	if r.pool, err = pcap.NewPool(ifaces, 1); err != nil {
		return nil, err
	}
	n := min(max(poolBytes/r.pool.SlotSize(), minSlots), maxSlots)
	if r.pool, err = pcap.NewPool(ifaces, n); err != nil {
		return nil, err
	}
	r.slots = pcap.NewSlots(r.pool)
	ports := map[string][]port.Port{}
	for _, name := range slices.Sorted(maps.Keys(cfg.Spec.Ports)) {
		s := &side{name: name, index: len(r.sides), pool: r.pool}
		r.sides = append(r.sides, s)
		ports[name] = []port.Port{s}
	}
	if err := r.connect(); err != nil {
		return nil, err
	}
	gc := graph.Config{Spec: cfg.Spec, Kinds: cfg.Kinds, Ports: ports, Seed: cfg.Seed}
	gc.OnDrop = r.dropped
	r.inst, err = graph.New(gc)
	return r, err
}

// connect finds the ports that the known interfaces enter.
func (r *Replay) connect() error {
	fed := 0
	for i := range r.in {
		s := &r.in[i]
		if s.Port != "" && r.side(s.Port) == nil {
			return fmt.Errorf("%s: the graph has no port %q; it has %s", s.Name, s.Port, r.portNames())
		}
		if s.Port == "" && len(r.in) > 1 {
			return fmt.Errorf("%s: say which port it enters, as in a=%s", s.Name, s.Name)
		}
		for n := range s.Reader.Interfaces() {
			if _, err := r.sideOf(s, n); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
	}
	for _, s := range r.sides {
		if s.info != nil {
			fed++
		}
	}
	r.single = len(r.in) == 1 && fed <= 1 && r.cfg.AHosts == nil
	return nil
}

func (r *Replay) side(name string) *side {
	for _, s := range r.sides {
		if s.name == name {
			return s
		}
	}
	return nil
}

func (r *Replay) portNames() string {
	var names []string
	for _, s := range r.sides {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// sideOf returns the port that frames of interface n of s enter.
func (r *Replay) sideOf(s *source, n int) (*side, error) {
	if n < len(s.sides) {
		return s.sides[n], nil
	}
	ifaces := s.Reader.Interfaces()
	for k := len(s.sides); k <= n; k++ {
		f := &ifaces[k]
		switch {
		case pcap.IsCooked(f.Link):
			// The output has Ethernet headers in place of cooked ones.
			i := *f
			i.Link = pcap.LinkEthernet
			f = &i
		case f.Link != pcap.LinkEthernet:
			return nil, fmt.Errorf("interface %d has link type %d: only Ethernet (1) and Linux cooked captures (113, 276) can be replayed", k, f.Link)
		}
		if r.cfg.AHosts != nil {
			for _, x := range r.sides {
				if x.info == nil {
					i := *f
					i.Name = x.name
					x.info = &i
				}
			}
			s.sides = append(s.sides, r.sides[1])
			continue
		}
		to := r.side(s.Port)
		if to == nil && f.Name != "" {
			to = r.side(f.Name)
			// A later section of the file declares its interfaces again.
			for j := range s.sides {
				if to == nil && ifaces[j].Name == f.Name {
					to = s.sides[j]
				}
			}
		}
		if to == nil {
			if k >= len(r.sides) {
				return nil, fmt.Errorf("interface %d: the graph has %d ports (%s)", k, len(r.sides), r.portNames())
			}
			to = r.sides[k]
		}
		if to.info == nil {
			to.info = f
		}
		s.sides = append(s.sides, to)
	}
	return s.sides[n], nil
}

// Run replays all inputs, and writes the output to w, or nowhere if w is nil. If a capture is damaged, all
// packets before the damage are processed and written, and the error says where the damage is. The Result is
// valid then, too.
func (r *Replay) Run(w io.Writer) (*Result, error) {
	err := r.start(w)
	if err == nil {
		err = r.run()
		if end := r.finish(); err == nil {
			err = end
		}
	}
	if r.w != nil {
		e := r.w.Flush()
		if to := seekable(w); e == nil && to != nil {
			e = r.w.Correct(to)
		}
		if err == nil {
			err = e
		}
	}
	return &r.res, err
}

// seekable returns w if what was written can be changed, else nil.
func seekable(w io.Writer) io.WriterAt {
	to, ok := w.(io.WriterAt)
	if s, is := w.(io.Seeker); ok && is {
		_, err := s.Seek(0, io.SeekCurrent)
		ok = err == nil
	}
	if !ok {
		return nil
	}
	return to
}

// wholeFrames is the least snapshot length, in bytes, that is taken to cut no frame.
const wholeFrames = 1<<16 - 1

// snapLen returns the snapshot length of the output for that of an input, in bytes; 0: none. An output that cannot be
// changed afterwards (seekable) gets the longest one that there is instead, because apps may make frames longer.
func snapLen(of uint32, w io.Writer) uint32 {
	if of > 0 && of < wholeFrames && seekable(w) == nil {
		return pcap.MaxCapLen
	}
	return of
}

// start makes the writer, with the output's header.
func (r *Replay) start(w io.Writer) error {
	if w == nil {
		return nil
	}
	h := pcap.NewHeader(r.cfg.Format)
	var err error
	if r.cfg.Format == pcap.NG {
		if r.w, err = pcap.NewWriter(w, h); err != nil {
			return err
		}
		sides := r.sides
		if r.single {
			sides = []*side{{info: r.firstInterface()}}
		}
		for _, s := range sides {
			i := pcap.Interface{Name: s.name, Link: pcap.LinkEthernet, Resol: 9}
			if s.info != nil {
				i = *s.info
				i.Name, i.SnapLen = cmp.Or(i.Name, s.name), snapLen(i.SnapLen, w)
				if i.Resol < 9 {
					i.Resol = 9
				}
			}
			if _, err := r.w.AddInterface(i); err != nil {
				return err
			}
			r.declared = append(r.declared, i)
		}
		return nil
	}
	for n, s := range r.in {
		g := s.Reader.Header()
		if pcap.IsCooked(uint16(g.Link)) {
			g.Link = pcap.LinkEthernet
		}
		if g.Format != pcap.Classic {
			h = pcap.NewHeader(pcap.Classic)
			break
		}
		switch {
		case n == 0:
			h = g
		case g.Nano != h.Nano || g.Link != h.Link:
			h = pcap.NewHeader(pcap.Classic)
		case g.SnapLen == 0 || h.SnapLen == 0:
			h.SnapLen = 0
		default:
			h.SnapLen = max(h.SnapLen, g.SnapLen)
		}
	}
	h.SnapLen = snapLen(h.SnapLen, w)
	r.w, err = pcap.NewWriter(w, h)
	return err
}

func (r *Replay) firstInterface() *pcap.Interface {
	for _, s := range r.sides {
		if s.info != nil {
			return s.info
		}
	}
	return nil
}

func (r *Replay) run() error {
	for i := range r.in {
		r.advance(&r.in[i])
	}
	for {
		var s *source
		for i := range r.in {
			x := &r.in[i]
			if x.err == nil && (s == nil || x.next.Time < s.next.Time) {
				s = x
			}
		}
		if s == nil {
			break
		}
		if err := r.frame(s); err != nil {
			return fmt.Errorf("%s: packet %d: %w", s.Name, s.next.Number, err)
		}
		r.advance(s)
	}
	return errors.Join(r.damage...)
}

// advance reads the next packet of s. Damage ends s; the other captures go on.
func (r *Replay) advance(s *source) {
	s.err = s.Reader.Next(&s.next)
	if s.err == nil {
		if link := s.Reader.Interfaces()[s.next.Interface].Link; pcap.IsCooked(link) {
			if err := s.next.Uncook(link); err != nil {
				s.err = fmt.Errorf("packet %d: %w", s.next.Number, err)
			}
		}
	}
	if s.err != nil && s.err != io.EOF {
		r.damage = append(r.damage, fmt.Errorf("%s: %w", s.Name, s.err))
	}
}

// frame runs the timers that are due before s.next, and then pushes s.next.
func (r *Replay) frame(s *source) error {
	p := &s.next
	to, err := r.sideOf(s, p.Interface)
	if err != nil {
		return err
	}
	if h := r.cfg.AHosts; h != nil && h.Sent(p.Data) {
		to = r.sides[0]
		*r.res.FromA++
	}
	if r.res.Read == 0 {
		r.now, r.res.Start = p.Time, p.Time
	} else if err := r.ticks(p.Time); err != nil {
		return err
	}
	r.now = max(r.now, p.Time)
	r.from = s
	r.res.Read++
	number := p.Number
	p.Number = r.res.Read // one numbering for all captures
	defer func() { p.Number = number }()
	b, err := r.slots.Load(p)
	switch {
	case err == pcap.ErrTooLong:
		return r.pass(p, to)
	case err != nil:
		return fmt.Errorf("the apps hold all %d buffers", r.pool.Slots())
	}
	b.Port = uint16(to.index)
	r.seq = p.Number
	r.batch.Reset()
	r.batch.Add(b)
	err = r.inst.Push(to.name, r.now, &r.batch)
	if e := r.flush(); err == nil {
		err = e
	}
	r.seq = 0
	return err
}

// sameTime reports whether a timestamp of the frame under way has the same meaning in interface out of the
// output.
func (r *Replay) sameTime(out int) bool {
	if r.w == nil || r.from.Reader.Header().Format != r.cfg.Format {
		return false
	}
	if r.cfg.Format == pcap.Classic {
		return pcap.SameTime(r.from.Reader, r.w)
	}
	f, to := &r.from.Reader.Interfaces()[r.from.next.Interface], &r.declared[out]
	return f.Resol == to.Resol && f.Offset == to.Offset
}

// ticks runs the timers that are due before t, each at its deadline.
func (r *Replay) ticks(t clock.Time) error {
	for range maxTicks {
		at := r.inst.NextTick()
		if at >= t {
			return nil
		}
		r.now = max(r.now, at)
		_, err := r.inst.Step(r.now)
		if e := r.flush(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finish lets the apps give up the frames that they hold, and checks the counts.
func (r *Replay) finish() error {
	var err error
	end := r.now.Add(r.cfg.Linger)
	for n := 0; n < maxTicks && err == nil && r.inst.Held() > 0; n++ {
		at := r.inst.NextTick()
		if at > end {
			break
		}
		if err = r.ticks(at + 1); err == nil && r.inst.NextTick() <= at {
			break
		}
	}
	if e := r.inst.Close(); err == nil {
		err = e
	}
	if e := r.flush(); err == nil {
		err = e
	}
	r.res.End = r.now
	r.res.Counters = r.inst.Counters()
	if err == nil {
		err = r.inst.Conservation()
	}
	if n := r.pool.InUse(); err == nil && n != 0 {
		err = fmt.Errorf("%d frames were neither sent nor dropped", n)
	}
	return err
}

// flush writes the frames that were dropped and sent in this breath: first the dropped ones, then those of
// the port by which the frame under way went out, then those of the other ports.
func (r *Replay) flush() error {
	var err error
	data := r.arena
	for i := range r.drops {
		d := &r.drops[i]
		d.p.Data = data[:d.n:d.n]
		data = data[d.n:]
		d.p.Comments = r.comment(d.note)
		if err == nil {
			err = r.w.Write(&d.p)
		}
	}
	r.drops, r.arena = r.drops[:0], r.arena[:0]
	first := slices.IndexFunc(r.sides, func(s *side) bool {
		return slices.ContainsFunc(s.out, func(b *packet.Buf) bool { return r.seq != 0 && b.Seq == r.seq })
	})
	if first >= 0 {
		err = r.send(r.sides[first], err)
	}
	for _, s := range r.sides {
		err = r.send(s, err)
	}
	return err
}

// send writes the frames that a port sent. After an error it only frees them.
func (r *Replay) send(s *side, err error) error {
	for _, b := range s.out {
		if err == nil {
			err = r.write(s, b)
		}
		b.Put()
	}
	s.out = s.out[:0]
	return err
}

func (r *Replay) write(s *side, b *packet.Buf) error {
	r.res.Written++
	if b.Verdict != packet.Forwarded {
		r.res.Changed++
	}
	if r.w == nil {
		return nil
	}
	r.fill(&r.out, b, r.interfaceOf(s.index))
	if r.cfg.Format == pcap.NG {
		r.out.Comments = r.comment(note{b.Verdict, b.ReasonApp, b.Reason})
	}
	return r.w.Write(&r.out)
}

// interfaceOf returns the output's interface for a port.
func (r *Replay) interfaceOf(side int) int {
	if r.single || r.cfg.Format == pcap.Classic {
		return 0
	}
	return side
}

// fill makes packet p from b. Only the frame under way keeps its time.
func (r *Replay) fill(p *pcap.Packet, b *packet.Buf, out int) {
	r.slots.Store(b, p)
	p.Interface = out
	switch {
	case r.seq == 0 || b.Seq != r.seq:
		p.Time, p.Stamp = r.now, 0
	case !r.sameTime(out):
		p.Stamp = 0
	}
}

// pass writes a frame that fits no buffer, unchanged.
func (r *Replay) pass(p *pcap.Packet, to *side) error {
	r.res.Oversized++
	r.res.Written++
	if r.w == nil {
		return nil
	}
	r.out = *p
	r.out.Interface, r.out.Comments = r.interfaceOf(to.index), nil
	if !r.sameTime(r.out.Interface) {
		r.out.Stamp = 0
	}
	if r.cfg.Format == pcap.NG {
		r.out.Comments = [][]byte{[]byte("forwarded: oversized")}
	}
	return r.w.Write(&r.out)
}

// dropped counts a dropped frame and, with All, keeps a copy of it until the end of the breath.
func (r *Replay) dropped(b *packet.Buf) {
	r.res.Dropped++
	if !r.cfg.All || r.w == nil {
		return
	}
	d := drop{note: note{b.Verdict, b.ReasonApp, b.Reason}, n: b.Len()}
	r.fill(&d.p, b, r.interfaceOf(int(b.Port)))
	r.arena = append(r.arena, b.Bytes()...)
	r.drops = append(r.drops, d)
}

// comment returns the comment with a verdict and its reason; the app's name is added if there are several
// apps.
func (r *Replay) comment(n note) [][]byte {
	c, ok := r.notes[n]
	if !ok {
		text := n.verdict.String()
		app, reason := r.inst.ReasonOf(&packet.Meta{ReasonApp: n.app, Reason: n.reason})
		if reason != "" {
			if len(r.cfg.Spec.Apps) > 1 {
				reason = app + "." + reason
			}
			text += ": " + reason
		}
		c = [][]byte{[]byte(text)}
		r.notes[n] = c
	}
	return c
}
