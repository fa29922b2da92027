package p4

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/quillon/quillon/nf/clock"
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

// meter is bmv2's two-rate three-color marker. The buckets fill from the time at which the meter was
// configured, in whole microseconds. The marker is the color-blind one of RFC 2698, and looks at the peak rate
// first.
type meter struct {
	since clock.Time
	rates []bucket // by ascending rate
}

type bucket struct {
	Rate
	tokens uint64
	seen   uint64 // tokens that came since the meter was configured
}

// configure sets the rates, the slowest first. Without rates every packet is green.
func (m *meter) configure(now clock.Time, rates []Rate) {
	m.since, m.rates = now, nil
	for _, r := range rates {
		m.rates = append(m.rates, bucket{Rate: r, tokens: r.Burst})
	}
}

func (m *meter) config() []Rate {
	var all []Rate
	for _, b := range m.rates {
		all = append(all, b.Rate)
	}
	return all
}

// execute returns the color of a packet: 0 is green, and each rate that the packet exceeds adds one.
func (m *meter) execute(d *meterDef, now clock.Time, size int) uint64 {
	need := uint64(1)
	if d.Byte {
		need = uint64(size)
	}
	micros := uint64(max(0, now.Sub(m.since))) / 1000
	for i := len(m.rates) - 1; i >= 0; i-- {
		b := &m.rates[i]
		hi, lo := bits.Mul64(micros, b.PerSecond)
		fresh := ^uint64(0) // more tokens than can be counted
		if hi < 1_000_000 {
			total, _ := bits.Div64(hi, lo, 1_000_000)
			fresh = total - b.seen
			b.seen = total
		}
		if fresh > b.Burst || b.tokens+fresh > b.Burst {
			b.tokens = b.Burst
		} else {
			b.tokens += fresh
		}
		if b.tokens < need {
			return uint64(i + 1)
		}
		b.tokens -= need
	}
	return 0
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
		s.meters = append(s.meters, make([]meter, n))
	}
}

// sendDigest sends the fields of a digest to the controller.
func (s *Switch) sendDigest(k *packetState) {
	if s.cfg.Digest == nil {
		return
	}
	i := slices.IndexFunc(s.prog.digests, func(d *digestDef) bool { return d.ID == int(k.digest) })
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
