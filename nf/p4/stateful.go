package p4

import (
	"cmp"
	"slices"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

type arrayDef struct{ ArrayInfo }

type registerDef struct {
	ArrayInfo
	words int // number of words of a cell
	place ir.Place
}

func (r *registerDef) lower() ir.Registers {
	return ir.Registers{Name: r.Name, Size: r.Size, Bits: r.Bits, Words: r.words, Place: r.place}
}

// placeRegisters sets the places of the cells of all registers.
func (p *Program) placeRegisters() {
	all := make([]ir.Registers, len(p.registers))
	for i, r := range p.registers {
		all[i] = r.lower()
	}
	p.groups = ir.PlaceRegisters(all)
	for i, r := range p.registers {
		r.place = all[i].Place
	}
}

// at returns the words of a cell. memory is the memory of all groups.
func (r *registerDef) at(memory [][]uint64, index int) []uint64 {
	return memory[r.place.Group][index*r.place.Stride+r.place.At:][:r.words]
}

type meterDef struct {
	ArrayInfo
	direct bool
	target stdField // of a direct meter: the field that gets the color
	rates  int
	psa    bool // its colors have PSA's numbers
}

type valueSetDef struct {
	name  string
	bits  int
	parts []int // widths of the parts of the key that is compared with the set
}

type digestDef struct {
	DigestInfo
	fields []slotField
}

// slotField is a field of the packet's state.
type slotField struct{ slot, bits int }

type profileDef struct {
	ProfileInfo
	index   int
	actions []*action
	dw      int
	hash    *calculation // of a selector: the hash that selects a member
}

// Rate is a token bucket: the rate of tokens in packets or bytes a second, and the highest number of tokens.
type Rate struct{ PerSecond, Burst uint64 }

// Meters are bmv2's: each is a color-blind marker of RFC 2698, with any number of rates, which looks at the peak rate first. The
// buckets fill from the time at which the meter was configured, in whole microseconds of the switch's time (ir.Meter).

// words returns the number of words of a cell.
func (d *meterDef) words() int { return ir.MeterWords(d.rates) }

// at returns a cell of an array.
func (d *meterDef) at(cells []uint64, i int) ir.Meter {
	n := d.words()
	return cells[n*i:][:n]
}

// elapsed returns the time since the start, in µs.
func (s *common) elapsed() uint64 { return uint64(s.now.Sub(s.cfg.Start)) / 1000 }

// color meters a packet.
func (s *common) color(d *meterDef, m ir.Meter, size int) uint64 {
	need := uint64(1)
	if d.Byte {
		need = uint64(size)
	}
	if d.psa {
		return (m.Color(s.elapsed(), need) + 1) % 3 // PSA: red, green, yellow
	}
	if s.follow == nil {
		return m.Color(s.elapsed(), need)
	}
	m.Take(s.follow.Owner())
	c := m.Color(s.elapsed(), need)
	m.Free()
	return c
}

// configure sets the rates of a meter.
func (s *common) configure(m ir.Meter, rates []Rate) {
	all := make([]ir.Rate, len(rates))
	for i, r := range rates {
		all[i] = ir.Rate(r)
	}
	if s.follow == nil {
		m.Configure(s.elapsed(), all)
		return
	}
	m.Take(s.follow.Owner())
	m.Configure(s.elapsed(), all)
	m.Free()
	s.follow.Metered()
}

// configured returns the rates of a meter.
func configured(m ir.Meter) (all []Rate) {
	for _, r := range m.Rates() {
		all = append(all, Rate(r))
	}
	return all
}

// valueSet holds the members of a parser's value set.
type valueSet struct {
	def     *valueSetDef
	members []vsetMember
}

// vsetMember is a ValueMember as words.
type vsetMember struct {
	value, mask []uint64
	ranges      []vsetRange
	from        ValueMember
}

// vsetRange is a ValueRange as words, as many as the key has.
type vsetRange struct {
	shift     uint64
	bits      int
	low, high []uint64
}

// hits reports whether a key matches the member, in the bits of keep, or in all bits if keep is nil. part is
// scratch memory, as long as the key.
func (m *vsetMember) hits(key, keep, part []uint64) bool {
	for j, w := range key {
		d := (w ^ m.value[j]) & m.mask[j]
		if keep != nil {
			d &= keep[j]
		}
		if d != 0 {
			return false
		}
	}
	for i := range m.ranges {
		r := &m.ranges[i]
		wShr(part, key, r.shift, 0)
		wKeep(part, r.bits, false)
		if wCmp(part, r.low) < 0 || wCmp(part, r.high) > 0 {
			return false
		}
	}
	return true
}

// member is a member of an action profile: an action with its data.
type member struct {
	id   uint32
	at   uint32 // its place in profile.memberAt
	act  *action
	data []uint64
	uses int // number of entries and groups that use it
}

// GroupMember is a member of a group of an action selector. A member of weight 2 gets twice as many packets as
// a member of weight 1; weight 0 counts as 1. With HasWatch the member gets no packets while port Watch is
// down.
type GroupMember struct {
	ID       uint32
	Weight   int
	Watch    uint32
	HasWatch bool
}

type group struct {
	id      uint32
	at      uint32 // its place in profile.groupAt
	members []GroupMember
	live    []share
	uses    int
}

// share is a member whose port is up, with its part of the packets: the numbers from the end of the share
// before it up to its own end, exclusive.
type share struct {
	*member
	end uint64
}

// pick returns the member whose share has the number n, modulo the sum of all shares; nil: no member is up.
func (g *group) pick(n uint64) *member {
	if len(g.live) == 0 {
		return nil
	}
	total := g.live[len(g.live)-1].end
	n %= total
	if total == uint64(len(g.live)) {
		return g.live[n].member
	}
	i, _ := slices.BinarySearchFunc(g.live, n+1, func(s share, end uint64) int { return cmp.Compare(s.end, end) })
	return g.live[i].member
}

// profile is an action profile with its members and groups.
type profile struct {
	def     *profileDef
	members map[uint32]*member
	groups  map[uint32]*group
	// Entries refer to members and groups by their places.
	memberAt places[member]
	groupAt  places[group]
}

func newProfile(d *profileDef) *profile {
	return &profile{def: d, members: map[uint32]*member{}, groups: map[uint32]*group{}}
}

// pick returns the action of a member, or of the member of a group that the hash of the packet selects.
// memberAt and groupAt are places, which begin with 1; 0 means none. The action is nil if no member of the
// group is up.
func (p *profile) pick(k *packetState, memberAt, groupAt uint32) (*action, []uint64) {
	if groupAt == 0 {
		m := p.memberAt.list[memberAt-1]
		return m.act, m.data
	}
	m := p.groupAt.list[groupAt-1].pick(p.def.hash.output(k))
	if m == nil {
		return nil, nil
	}
	return m.act, m.data
}

// places gives objects numbers from 1 on, which they keep until they are removed.
type places[T any] struct {
	list []*T
	free []uint32
}

func (p *places[T]) put(x *T) uint32 {
	if n := len(p.free); n > 0 {
		at := p.free[n-1]
		p.free = p.free[:n-1]
		p.list[at-1] = x
		return at
	}
	p.list = append(p.list, x)
	return uint32(len(p.list))
}

func (p *places[T]) drop(at uint32) {
	p.list[at-1] = nil
	p.free = append(p.free, at)
}

// refresh finds the members of a group whose port is up.
func (p *profile) refresh(g *group, down map[uint32]bool) {
	g.live = g.live[:0]
	end := uint64(0)
	for _, gm := range g.members {
		if gm.HasWatch && down[gm.Watch] {
			continue
		}
		end += uint64(max(1, gm.Weight))
		g.live = append(g.live, share{p.members[gm.ID], end})
	}
}

// resetArrays zeroes counters, registers and meters.
func (s *arrays) resetArrays() {
	s.registers, s.counters, s.meters = nil, nil, nil
	for _, n := range s.prog.groups {
		s.registers = append(s.registers, make([]uint64, n))
	}
	for _, c := range s.prog.counters {
		s.counters = append(s.counters, make([]Count, c.Size))
	}
	for _, m := range s.prog.meters {
		n := m.Size
		if m.direct {
			n = 0
		}
		s.meters = append(s.meters, make([]uint64, n*m.words()))
	}
}

// sendDigest sends the fields of a digest to the controller.
func (s *Switch) sendDigest(k *packetState, id int) {
	s.event(EventDigest, id, 0)
	if s.cfg.Digest == nil {
		return
	}
	i := slices.IndexFunc(s.prog.digests, func(d *digestDef) bool { return d.ID == id })
	if i < 0 {
		return
	}
	d := s.prog.digests[i]
	b := s.buf[:0]
	for _, f := range d.fields {
		v := k.v[f.slot : f.slot+words(f.bits)]
		for at := (f.bits+7)/8 - 1; at >= 0; at-- {
			b = append(b, byte(v[at/8]>>uint(at%8*8)))
		}
	}
	s.buf = b
	s.cfg.Digest(Digest{ID: d.ID, Name: d.Name, Data: b})
}
