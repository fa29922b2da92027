package engine

import (
	"errors"
	"sync"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/value"
)

// firstHidden is the first id of members and groups that action sets are made
// of; controllers see none of them.
const firstHidden = 1 << 31

// maxClass is the highest class of service: v1model's priority has three bits.
const maxClass = 7

// maxAtomic is how many updates may be made between two frames.
const maxAtomic = 10_000

// pipeline is a program with its state. While it is live, the switch and what
// stands below it are the worker's; see visit.
type pipeline struct {
	dev     *Device
	info    *p4info.Info
	config  []byte
	binding *binding

	// own is held for reading while a live pipeline is visited, and for
	// writing otherwise, and to change live.
	own  sync.RWMutex
	live bool

	sw     *p4.Switch
	groups map[uint64]*p4v1.ActionProfileGroup // by profile and id
	// hidden counts the action sets of a profile, shown those groups and
	// members that are the controller's: a profile has either.
	hidden  map[uint32]uint32
	nextSet uint32
	mcast   map[uint32]*p4v1.MulticastGroupEntry
	clones  map[uint32]*p4v1.CloneSessionEntry
}

// Info implements p4rt.Pipeline.
func (p *pipeline) Info() *p4info.Info { return p.info }

// Config implements p4rt.Pipeline.
func (p *pipeline) Config() []byte { return p.config }

// Atomic implements p4rt.Pipeline.
func (p *pipeline) Atomic(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) error {
	if a != p4v1.WriteRequest_DATAPLANE_ATOMIC {
		return nil
	}
	n := int64(0)
	for _, u := range updates {
		n += p.cost(u.GetEntity())
	}
	if n > maxAtomic {
		return refuse(codes.Unimplemented, "%d updates, of single elements of arrays, at most %d can be made between two frames", n, maxAtomic)
	}
	return nil
}

// cost is how many entries or elements of an array an update is about.
func (p *pipeline) cost(e *p4v1.Entity) int64 {
	var all *p4info.Array
	switch x := e.GetEntity().(type) {
	case *p4v1.Entity_CounterEntry:
		if x.CounterEntry.GetIndex() == nil {
			all = p.info.Counter(x.CounterEntry.GetCounterId())
		}
	case *p4v1.Entity_MeterEntry:
		if x.MeterEntry.GetIndex() == nil {
			all = p.info.Meter(x.MeterEntry.GetMeterId())
		}
	case *p4v1.Entity_RegisterEntry:
		if x.RegisterEntry.GetIndex() == nil {
			all = p.info.Register(x.RegisterEntry.GetRegisterId())
		}
	}
	if all == nil {
		return 1
	}
	return max(1, all.Size)
}

// visit calls step again and again while it returns true: between breaths, in slices
// of time, when the pipeline is live.
func (p *pipeline) visit(step func(*p4.Switch) bool) error {
	p.own.RLock()
	if p.live {
		defer p.own.RUnlock()
		d := p.dev
		err := d.work(func(_ *p4.App, slice clock.Duration) bool {
			if c := d.cfg.Clock; c != nil {
				p.sw.Advance(c.Now())
			}
			for start := d.wall.Now(); step(p.sw); {
				if d.wall.Now().Sub(start) >= slice {
					return true
				}
			}
			return false
		})
		if err != nil {
			return refuse(codes.Unavailable, "%v", err)
		}
		return nil
	}
	p.own.RUnlock()
	p.own.Lock()
	if p.live { // just committed
		p.own.Unlock()
		return p.visit(step)
	}
	defer p.own.Unlock()
	if c := p.dev.cfg.Clock; c != nil {
		p.sw.Advance(c.Now())
	}
	for step(p.sw) {
	}
	return nil
}

// codeOf gives an engine's refusal its code.
func codeOf(err error) error {
	if err == nil {
		return nil
	}
	c := codes.Internal
	for _, x := range []struct {
		is   error
		code codes.Code
	}{
		{p4.ErrNotFound, codes.NotFound}, {p4.ErrExists, codes.AlreadyExists}, {p4.ErrFull, codes.ResourceExhausted},
		{p4.ErrConst, codes.PermissionDenied}, {p4.ErrInUse, codes.FailedPrecondition}, {p4.ErrInvalid, codes.InvalidArgument},
	} {
		if errors.Is(err, x.is) {
			c = x.code
		}
	}
	if _, ok := err.(*p4info.Error); ok {
		return err
	}
	return &p4info.Error{Code: c, Text: err.Error()}
}

// op makes one update, and returns what takes it back, if that was wanted. With errMore it has made a
// part of it, and is to be called again.
type op func(sw *p4.Switch) (undo func(), err error)

var errMore = errors.New("there is more to do")

// Write implements p4rt.Pipeline.
func (p *pipeline) Write(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) []error {
	ops := make([]op, len(updates))
	p.binding.newTurn()
	for n, u := range updates {
		e, err := p.binding.in(u.GetEntity(), u.GetType() != p4v1.Update_DELETE)
		if err != nil {
			ops[n] = refused(err)
			continue
		}
		ops[n] = p.prepare(&p4v1.Update{Type: u.GetType(), Entity: e}, a != p4v1.WriteRequest_CONTINUE_ON_ERROR)
	}
	errs := make([]error, len(ops))
	fail := func(from int, err error) {
		for n := from; n < len(errs); n++ {
			errs[n] = err
		}
	}
	bad := false
	at := 0
	if a == p4v1.WriteRequest_CONTINUE_ON_ERROR {
		if len(ops) == 0 {
			return nil
		}
		err := p.visit(func(sw *p4.Switch) bool {
			_, err := ops[at](sw)
			if err == errMore {
				return true
			}
			errs[at] = codeOf(err)
			bad = bad || err != nil
			at++
			return at < len(ops)
		})
		if err != nil {
			fail(at, err)
			return errs
		}
		if !bad {
			return nil
		}
		return errs
	}
	var undo []func()
	step := func(sw *p4.Switch) bool {
		switch {
		case !bad && at < len(ops):
			u, err := ops[at](sw)
			if err != nil && err != errMore {
				errs[at] = codeOf(err)
				bad = true
				break
			}
			undo = append(undo, u)
			if err == nil {
				at++
			}
		case bad && len(undo) > 0:
			undo[len(undo)-1]()
			undo = undo[:len(undo)-1]
		}
		return bad && len(undo) > 0 || !bad && at < len(ops)
	}
	if len(ops) == 0 {
		return nil
	}
	err := p.visit(func(sw *p4.Switch) bool {
		again := step(sw)
		for again && a == p4v1.WriteRequest_DATAPLANE_ATOMIC {
			again = step(sw)
		}
		return again
	})
	if err != nil {
		fail(0, err)
		return errs
	}
	if !bad {
		return nil
	}
	for n := range errs {
		if errs[n] == nil {
			errs[n] = refuse(codes.Aborted, "not made, as update %d of the request was refused", at+1)
		}
	}
	return errs
}

// prepare takes an update apart, outside of the worker. Without undo nobody takes it back.
func (p *pipeline) prepare(u *p4v1.Update, undo bool) op {
	t := u.GetType()
	switch e := u.GetEntity().GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return p.prepareEntry(t, e.TableEntry, undo)
	case *p4v1.Entity_ActionProfileMember:
		return p.prepareMember(t, e.ActionProfileMember)
	case *p4v1.Entity_ActionProfileGroup:
		return p.prepareGroup(t, e.ActionProfileGroup)
	case *p4v1.Entity_CounterEntry:
		c := e.CounterEntry
		a := p.info.Counter(c.GetCounterId())
		if c.GetData() == nil {
			return nothing
		}
		v := count(c.GetData())
		return cells(a, c.GetIndex(), func(sw *p4.Switch, n int) (func(), error) {
			old, err := sw.Count(a.Name, n)
			if err == nil {
				err = sw.SetCount(a.Name, n, v)
			}
			return func() { _ = sw.SetCount(a.Name, n, old) }, err
		})
	case *p4v1.Entity_MeterEntry:
		m := e.MeterEntry
		a := p.info.Meter(m.GetMeterId())
		rates := rates(m.GetConfig())
		return cells(a, m.GetIndex(), func(sw *p4.Switch, n int) (func(), error) {
			old, err := sw.Meter(a.Name, n)
			if err == nil {
				err = sw.SetMeter(a.Name, n, rates...)
			}
			return func() { _ = sw.SetMeter(a.Name, n, old...) }, err
		})
	case *p4v1.Entity_RegisterEntry:
		r := e.RegisterEntry
		a := p.info.Register(r.GetRegisterId())
		v, err := registerBits(a, r.GetData())
		if err != nil {
			return refused(err)
		}
		return cells(a, r.GetIndex(), func(sw *p4.Switch, n int) (func(), error) {
			old, err := sw.Register(a.Name, n)
			if err == nil {
				err = sw.SetRegister(a.Name, n, v)
			}
			return func() { _ = sw.SetRegister(a.Name, n, old) }, err
		})
	case *p4v1.Entity_DirectCounterEntry:
		te := e.DirectCounterEntry.GetTableEntry()
		tb := p.binding.tables[te.GetTableId()]
		if te.GetIsDefaultAction() {
			data := e.DirectCounterEntry.GetData()
			if data == nil {
				return nothing
			}
			return func(sw *p4.Switch) (func(), error) {
				old, err := sw.DefaultCount(tb.name)
				if err == nil {
					err = sw.SetDefaultCount(tb.name, count(data))
				}
				return func() { _ = sw.SetDefaultCount(tb.name, old) }, err
			}
		}
		key, prio := tb.key(te)
		data := e.DirectCounterEntry.GetData()
		return func(sw *p4.Switch) (func(), error) {
			h, err := sw.Find(tb.name, key, prio)
			if err != nil || data == nil {
				return func() {}, err
			}
			old, err := sw.EntryCount(tb.name, h)
			if err == nil {
				err = sw.SetEntryCount(tb.name, h, count(data))
			}
			return func() { _ = sw.SetEntryCount(tb.name, h, old) }, err
		}
	case *p4v1.Entity_DirectMeterEntry:
		te := e.DirectMeterEntry.GetTableEntry()
		tb := p.binding.tables[te.GetTableId()]
		if te.GetIsDefaultAction() {
			rates := rates(e.DirectMeterEntry.GetConfig())
			return func(sw *p4.Switch) (func(), error) {
				old, err := sw.DefaultMeter(tb.name)
				if err == nil {
					err = sw.SetDefaultMeter(tb.name, rates...)
				}
				return func() { _ = sw.SetDefaultMeter(tb.name, old...) }, err
			}
		}
		key, prio := tb.key(te)
		rates := rates(e.DirectMeterEntry.GetConfig())
		return func(sw *p4.Switch) (func(), error) {
			h, err := sw.Find(tb.name, key, prio)
			if err != nil {
				return nil, err
			}
			old, err := sw.EntryMeter(tb.name, h)
			if err == nil {
				err = sw.SetEntryMeter(tb.name, h, rates...)
			}
			return func() { _ = sw.SetEntryMeter(tb.name, h, old...) }, err
		}
	case *p4v1.Entity_PacketReplicationEngineEntry:
		switch x := e.PacketReplicationEngineEntry.GetType().(type) {
		case *p4v1.PacketReplicationEngineEntry_MulticastGroupEntry:
			return p.prepareMulticast(t, x.MulticastGroupEntry)
		case *p4v1.PacketReplicationEngineEntry_CloneSessionEntry:
			return p.prepareClone(t, x.CloneSessionEntry)
		}
	case *p4v1.Entity_ValueSetEntry:
		return p.prepareValueSet(e.ValueSetEntry)
	}
	return refused(refuse(codes.Unimplemented, "the device has no such entities"))
}

func refused(err error) op { return func(*p4.Switch) (func(), error) { return nil, err } }

func nothing(*p4.Switch) (func(), error) { return func() {}, nil }

// cellsAtOnce is how many elements of an array are read or written before the
// time is looked at.
const cellsAtOnce = 16

// cells does f for the element of an array, or for all of them.
func cells(a *p4info.Array, x *p4v1.Index, f func(sw *p4.Switch, n int) (func(), error)) op {
	at, end := 0, int(a.Size)
	if x != nil {
		at = int(x.GetIndex())
		end = at + 1
	}
	return func(sw *p4.Switch) (func(), error) {
		var undo []func()
		back := func() {
			for _, u := range undo {
				u()
			}
		}
		for ; at < end && len(undo) < cellsAtOnce; at++ {
			u, err := f(sw, at)
			if err != nil {
				back()
				return nil, err
			}
			undo = append(undo, u)
		}
		if at < end {
			return back, errMore
		}
		return back, nil
	}
}

func count(c *p4v1.CounterData) p4.Count {
	return p4.Count{Packets: uint64(c.GetPacketCount()), Bytes: uint64(c.GetByteCount())}
}

func counterData(c p4.Count) *p4v1.CounterData {
	return &p4v1.CounterData{PacketCount: int64(c.Packets), ByteCount: int64(c.Bytes)}
}

func rates(c *p4v1.MeterConfig) []p4.Rate {
	if c == nil {
		return nil
	}
	return []p4.Rate{{PerSecond: uint64(c.GetCir()), Burst: uint64(c.GetCburst())}, {PerSecond: uint64(c.GetPir()), Burst: uint64(c.GetPburst())}}
}

func meterConfig(r []p4.Rate) *p4v1.MeterConfig {
	if len(r) != 2 {
		return nil
	}
	return &p4v1.MeterConfig{Cir: int64(r[0].PerSecond), Cburst: int64(r[0].Burst), Pir: int64(r[1].PerSecond), Pburst: int64(r[1].Burst)}
}

// signedBits is the width of a register of signed integers; 0: it has none.
func signedBits(a *p4info.Array) int { return int(a.Spec.GetBitstring().GetInt().GetBitwidth()) }

// registerBits is a value as the engine keeps it.
func registerBits(a *p4info.Array, d *p4v1.P4Data) ([]byte, error) {
	switch x := d.GetData().(type) {
	case *p4v1.P4Data_Bool:
		if x.Bool {
			return []byte{1}, nil
		}
		return []byte{0}, nil
	case *p4v1.P4Data_EnumValue:
		return x.EnumValue, nil
	case *p4v1.P4Data_Bitstring:
		w := signedBits(a)
		if w == 0 || x.Bitstring[0] < 0x80 {
			return x.Bitstring, nil
		}
		v := value.Ones(w) // negative: its sign to the left
		for n := range x.Bitstring {
			if at := len(v) - len(x.Bitstring) + n; at >= 0 {
				v[at] &= x.Bitstring[n] | ^value.Ones(8 * len(x.Bitstring))[n]
			}
		}
		return v, nil
	}
	return nil, refuse(codes.Unimplemented, "register %s: values of this type", a.Name)
}

// registerData is a value of the engine.
func registerData(a *p4info.Array, v []byte) *p4v1.P4Data {
	if a.Spec.GetBool() != nil {
		return &p4v1.P4Data{Data: &p4v1.P4Data_Bool{Bool: !value.IsZero(v)}}
	}
	if a.Spec.GetSerializableEnum() != nil {
		return &p4v1.P4Data{Data: &p4v1.P4Data_EnumValue{EnumValue: value.Canonical(v)}}
	}
	if w := signedBits(a); w > 0 {
		v = append([]byte(nil), v...)
		if r := (w - 1) % 8; v[0]>>r&1 != 0 {
			v[0] |= 0xff << r
		}
		for len(v) > 1 && (v[0] == 0 && v[1] < 0x80 || v[0] == 0xff && v[1] >= 0x80) {
			v = v[1:]
		}
		return &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: v}}
	}
	return &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: value.Canonical(v)}}
}

func replicas(list []*p4v1.Replica) ([]p4.Replica, error) {
	var out []p4.Replica
	for _, r := range list {
		if r.GetInstance() > 0xffff {
			return nil, refuse(codes.InvalidArgument, "instance %d: the highest is %d", r.GetInstance(), 0xffff)
		}
		out = append(out, p4.Replica{Port: p4info.ReplicaPort(r), Rid: uint16(r.GetInstance())})
	}
	return out, nil
}

func (p *pipeline) prepareMulticast(t p4v1.Update_Type, g *p4v1.MulticastGroupEntry) op {
	id := g.GetMulticastGroupId()
	list, err := replicas(g.GetReplicas())
	if t != p4v1.Update_DELETE && err != nil {
		return refused(err)
	}
	return func(sw *p4.Switch) (func(), error) {
		old := p.mcast[id]
		if err := exists(t, old != nil, "multicast group", id); err != nil {
			return nil, err
		}
		before := sw.Multicast(id)
		if t == p4v1.Update_DELETE {
			list = nil
		}
		if err := sw.SetMulticast(id, list); err != nil {
			return nil, err
		}
		put(p.mcast, id, g, t)
		return func() {
			_ = sw.SetMulticast(id, before)
			back(p.mcast, id, old)
		}, nil
	}
}

func (p *pipeline) prepareClone(t p4v1.Update_Type, s *p4v1.CloneSessionEntry) op {
	id := s.GetSessionId()
	list, err := replicas(s.GetReplicas())
	if err == nil && s.GetClassOfService() > maxClass {
		err = refuse(codes.InvalidArgument, "clone session %d: class of service %d: the highest is %d", id, s.GetClassOfService(), maxClass)
	}
	if t != p4v1.Update_DELETE && err != nil {
		return refused(err)
	}
	return func(sw *p4.Switch) (func(), error) {
		old := p.clones[id]
		if err := exists(t, old != nil, "clone session", id); err != nil {
			return nil, err
		}
		before, was := sw.Session(id)
		var err error
		if t == p4v1.Update_DELETE {
			err = sw.DeleteSession(id)
		} else {
			err = sw.SetSession(id, p4.Session{Replicas: list, Length: int(s.GetPacketLengthBytes()), Priority: int(s.GetClassOfService())})
		}
		if err != nil {
			return nil, err
		}
		put(p.clones, id, s, t)
		return func() {
			if was {
				_ = sw.SetSession(id, before)
			} else {
				_ = sw.DeleteSession(id)
			}
			back(p.clones, id, old)
		}, nil
	}
}

// exists checks that what is inserted is not there, and what is modified or
// deleted is.
func exists(t p4v1.Update_Type, there bool, what string, id uint32) error {
	switch {
	case t == p4v1.Update_INSERT && there:
		return refuse(codes.AlreadyExists, "%s %d is there already", what, id)
	case t != p4v1.Update_INSERT && !there:
		return refuse(codes.NotFound, "there is no %s %d", what, id)
	}
	return nil
}

func put[K comparable, V any](m map[K]*V, k K, v *V, t p4v1.Update_Type) {
	if t == p4v1.Update_DELETE {
		delete(m, k)
	} else {
		m[k] = v
	}
}

func back[K comparable, V any](m map[K]*V, k K, old *V) {
	if old == nil {
		delete(m, k)
	} else {
		m[k] = old
	}
}

func (p *pipeline) prepareValueSet(e *p4v1.ValueSetEntry) op {
	v := p.info.ValueSet(e.GetValueSetId())
	width := p.binding.valueSets[v.ID]
	var members [][]byte
	for _, m := range e.GetMembers() {
		b := make([]byte, (width+7)/8)
		end := 0 // bits of the fields so far
		for n, f := range v.Fields {
			end += f.Type.Bits
			orShifted(b, m.GetMatch()[n].GetExact().GetValue(), width-end)
		}
		members = append(members, b)
	}
	return func(sw *p4.Switch) (func(), error) {
		old, err := sw.ValueSet(v.Name)
		if err == nil {
			err = sw.SetValueSet(v.Name, members)
		}
		return func() { _ = sw.SetValueSet(v.Name, old) }, err
	}
}

// orShifted sets the bits of v, shifted to the left, in b.
func orShifted(b, v []byte, by int) {
	for n := range 8 * len(v) {
		if v[len(v)-1-n/8]>>(n%8)&1 != 0 {
			if at := n + by; at < 8*len(b) {
				b[len(b)-1-at/8] |= 1 << (at % 8)
			}
		}
	}
}

// bitsOf are width bits of b, of which so many follow.
func bitsOf(b []byte, after, width int) []byte {
	v := make([]byte, (width+7)/8)
	for n := range width {
		if at := n + after; b[len(b)-1-at/8]>>(at%8)&1 != 0 {
			v[len(v)-1-n/8] |= 1 << (n % 8)
		}
	}
	return value.Canonical(v)
}

func (p *pipeline) prepareMember(t p4v1.Update_Type, m *p4v1.ActionProfileMember) op {
	pr := p.info.Profile(m.GetActionProfileId())
	id := m.GetMemberId()
	if id >= firstHidden {
		return tooHigh(t, "member", id, pr)
	}
	var act p4.Action
	if t != p4v1.Update_DELETE {
		act = p.binding.tables[pr.Tables[0].ID].action(m.GetAction())
	}
	return func(sw *p4.Switch) (func(), error) {
		old, e := sw.Member(pr.Name, id)
		there := e == nil
		if err := exists(t, there, "member", id); err != nil {
			return nil, err
		}
		if t == p4v1.Update_DELETE {
			err := sw.DeleteMember(pr.Name, id)
			return func() { _ = sw.SetMember(pr.Name, id, old) }, err
		}
		if err := p.mixed(pr, false); err != nil {
			return nil, err
		}
		if err := sw.SetMember(pr.Name, id, act); err != nil {
			return nil, err
		}
		return func() {
			if there {
				_ = sw.SetMember(pr.Name, id, old)
			} else {
				_ = sw.DeleteMember(pr.Name, id)
			}
		}, nil
	}
}

// tooHigh refuses an id that controllers do not have.
func tooHigh(t p4v1.Update_Type, what string, id uint32, pr *p4info.Profile) op {
	if t != p4v1.Update_INSERT {
		return refused(refuse(codes.NotFound, "there is no %s %d of %s", what, id, pr.Name))
	}
	return refused(refuse(codes.InvalidArgument, "%s %d of %s: the highest is %d", what, id, pr.Name, firstHidden-1))
}

// mixed refuses members and groups in a profile with action sets.
func (p *pipeline) mixed(pr *p4info.Profile, set bool) error {
	if !set && p.hidden[pr.ID] > 0 {
		return refuse(codes.InvalidArgument, "action profile %s has action sets: members and groups cannot be mixed with them", pr.Name)
	}
	if set {
		if ids, err := p.sw.Members(pr.Name); err == nil && len(ids) > 0 && ids[0] < firstHidden {
			return refuse(codes.InvalidArgument, "action profile %s has members: action sets cannot be mixed with them", pr.Name)
		}
	}
	return nil
}

func groupKey(profile, id uint32) uint64 { return uint64(profile)<<32 | uint64(id) }

func (p *pipeline) prepareGroup(t p4v1.Update_Type, g *p4v1.ActionProfileGroup) op {
	pr := p.info.Profile(g.GetActionProfileId())
	id := g.GetGroupId()
	if id >= firstHidden {
		return tooHigh(t, "group", id, pr)
	}
	var members []p4.GroupMember
	if t != p4v1.Update_DELETE {
		for _, m := range g.GetMembers() {
			x := p4.GroupMember{ID: m.GetMemberId(), Weight: int(m.GetWeight())}
			switch w := m.GetWatchKind().(type) {
			case *p4v1.ActionProfileGroup_Member_WatchPort:
				x.Watch, x.HasWatch = p4info.PortNumber(w.WatchPort), len(w.WatchPort) > 0
			case *p4v1.ActionProfileGroup_Member_Watch:
				x.Watch, x.HasWatch = uint32(w.Watch), w.Watch != 0 //nolint:staticcheck // clients of before 1.1 use it
			}
			members = append(members, x)
		}
	}
	k := groupKey(pr.ID, id)
	return func(sw *p4.Switch) (func(), error) {
		old := p.groups[k]
		if err := exists(t, old != nil, "group", id); err != nil {
			return nil, err
		}
		before, _ := sw.Group(pr.Name, id)
		if t == p4v1.Update_DELETE {
			if err := sw.DeleteGroup(pr.Name, id); err != nil {
				return nil, err
			}
		} else {
			if t == p4v1.Update_MODIFY && g.GetMaxSize() != old.GetMaxSize() {
				return nil, refuse(codes.InvalidArgument, "group %d of %s: its maximum size is %d, and stays", id, pr.Name, old.GetMaxSize())
			}
			if err := p.mixed(pr, false); err != nil {
				return nil, err
			}
			if err := sw.SetGroup(pr.Name, id, members); err != nil {
				return nil, err
			}
		}
		put(p.groups, k, g, t)
		return func() {
			if old == nil {
				_ = sw.DeleteGroup(pr.Name, id)
			} else {
				_ = sw.SetGroup(pr.Name, id, before)
			}
			back(p.groups, k, old)
		}, nil
	}
}

// makeSet makes the members and the group of an action set.
func (p *pipeline) makeSet(sw *p4.Switch, t *table, s *p4v1.ActionProfileActionSet, m *more) error {
	pr := t.info.Profile
	if err := p.mixed(pr, true); err != nil {
		return err
	}
	var list []p4.GroupMember
	m.set, m.members, m.group = s, nil, 0
	for _, a := range s.GetActionProfileActions() {
		id := p.nextSet
		p.nextSet++
		if err := sw.SetMember(pr.Name, id, t.action(a.GetAction())); err != nil {
			p.dropSet(sw, t, m)
			return err
		}
		m.members = append(m.members, id)
		x := p4.GroupMember{ID: id, Weight: int(a.GetWeight())}
		switch w := a.GetWatchKind().(type) {
		case *p4v1.ActionProfileAction_WatchPort:
			x.Watch, x.HasWatch = p4info.PortNumber(w.WatchPort), len(w.WatchPort) > 0
		case *p4v1.ActionProfileAction_Watch:
			x.Watch, x.HasWatch = uint32(w.Watch), w.Watch != 0 //nolint:staticcheck // clients of before 1.1 use it
		}
		list = append(list, x)
	}
	m.group = p.nextSet
	p.nextSet++
	if p.nextSet < firstHidden {
		p.nextSet = firstHidden
	}
	if err := sw.SetGroup(pr.Name, m.group, list); err != nil {
		m.group = 0
		p.dropSet(sw, t, m)
		return err
	}
	p.hidden[pr.ID]++
	return nil
}

// dropSet takes the members and the group of an action set away, which no entry
// uses any more.
func (p *pipeline) dropSet(sw *p4.Switch, t *table, m *more) {
	pr := t.info.Profile
	if m.group != 0 {
		_ = sw.DeleteGroup(pr.Name, m.group)
		p.hidden[pr.ID]--
	}
	for _, id := range m.members {
		_ = sw.DeleteMember(pr.Name, id)
	}
}
