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

// firstHidden is the lowest id of the members and groups that action sets are made of. Controllers do not see
// them.
const firstHidden = 1 << 31

// maxAtomic is the highest number of updates that are made between two frames.
const maxAtomic = 10_000

// pipeline is a program with its state. While it is live, the switch and all fields below it belong to the
// worker; see visit.
type pipeline struct {
	dev     *Device
	info    *p4info.Info
	config  []byte
	binding *binding

	// own is read-locked by visits of a live pipeline. Visits of a pipeline that is not live, and changes of
	// live, lock it for writing.
	own  sync.RWMutex
	live bool

	sw *p4.Switch
	// kept holds groups, multicast groups and clone sessions by id, as controllers wrote them.
	kept map[place]map[uint32]*p4info.Entity
	// values holds the members of value sets by the set's id, with the program's values.
	values map[uint32][]*p4v1.ValueSetMember
	// hidden counts the action sets of a profile. A profile cannot have action sets beside groups and members
	// of controllers.
	hidden  map[uint32]uint32
	nextSet uint32
}

// place is a kind and an object whose entities are in kept.
type place struct {
	kind   p4info.Kind
	object uint32
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

// cost returns the number of entries, or of elements of an array, that an update changes.
func (p *pipeline) cost(e *p4v1.Entity) int64 {
	x := p4info.Of(e)
	if o := p.info.Object(x.Kind, x.Object); o != nil && x.Kind.Cells() && x.Index == nil {
		return max(1, p.info.Array(o.ID).Size)
	}
	return 1
}

// visit calls step until step returns false. If the pipeline is live, the worker calls step between breaths, in
// slices of bounded time.
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
	if p.live { // it was committed meanwhile
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

// codeOf gives an error of nf/p4 its canonical code.
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

// op does one update. It returns a function that undoes the update if that was asked for. The error errMore
// says that op has done a part of the update, and must be called again.
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
		x := p4info.Of(e)
		ops[n] = p.prepare(u.GetType(), &x, a != p4v1.WriteRequest_CONTINUE_ON_ERROR)
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

// prepare decodes an update, outside of the worker. undo asks for an op that returns an undo function.
func (p *pipeline) prepare(t p4v1.Update_Type, x *p4info.Entity, undo bool) op {
	switch x.Kind {
	case p4info.KindEntry:
		return p.prepareEntry(t, x.Entry, undo)
	case p4info.KindDirectCounter, p4info.KindDirectMeter:
		return p.prepareDirect(*x)
	case p4info.KindMember:
		return p.prepareMember(t, *x)
	case p4info.KindGroup:
		return p.prepareGroup(t, *x)
	case p4info.KindMulticast:
		return p.prepareMulticast(t, *x)
	case p4info.KindClone:
		return p.prepareClone(t, *x)
	case p4info.KindValueSet:
		return p.prepareValueSet(*x)
	case p4info.KindCounter:
		if x.Count == nil {
			return nothing
		}
		return writeCells(p.info.Counter(x.Object), x.Index, count(x.Count), (*p4.Switch).Count, (*p4.Switch).SetCount)
	case p4info.KindMeter:
		return writeCells(p.info.Meter(x.Object), x.Index, rates(x.Rates), (*p4.Switch).Meter, func(sw *p4.Switch, name string, n int, r []p4.Rate) error {
			return sw.SetMeter(name, n, r...)
		})
	case p4info.KindRegister:
		a := p.info.Register(x.Object)
		v, err := registerBits(a, x.Data)
		if err != nil {
			return refused(err)
		}
		return writeCells(a, x.Index, v, (*p4.Switch).Register, (*p4.Switch).SetRegister)
	}
	return refused(refuse(codes.Unimplemented, "the device has no such entities"))
}

// prepareDirect decodes an update of a direct counter or meter.
func (p *pipeline) prepareDirect(x p4info.Entity) op {
	t := p.binding.tables[x.Object]
	if t.gone {
		return refused(t.takenOut())
	}
	find := func(*p4.Switch) (p4.Handle, error) { return p4.DefaultEntry, nil }
	if !x.Entry.GetIsDefaultAction() {
		key, prio := t.key(x.Entry)
		find = func(sw *p4.Switch) (p4.Handle, error) { return sw.Find(t.name, key, prio) }
	}
	return func(sw *p4.Switch) (func(), error) {
		h, err := find(sw)
		switch {
		case err != nil:
			return nil, err
		case x.Kind == p4info.KindDirectMeter:
			return t.setMeter(sw, h, x.Rates)
		case x.Count == nil:
			return func() {}, nil
		}
		return t.setCount(sw, h, x.Count)
	}
}

// swap sets a value, and returns a function that sets the old value again.
func swap[V any](v V, get func() (V, error), set func(V) error) (undo func(), err error) {
	old, err := get()
	if err == nil {
		err = set(v)
	}
	return func() { _ = set(old) }, err
}

func refused(err error) op { return func(*p4.Switch) (func(), error) { return nil, err } }

func nothing(*p4.Switch) (func(), error) { return func() {}, nil }

// cellsAtOnce is the number of array elements that are read or written between two looks at the clock.
const cellsAtOnce = 16

// writeCells returns an op that sets one element of an array, or all if x is nil.
func writeCells[V any](a *p4info.Array, x *p4v1.Index, v V, get func(*p4.Switch, string, int) (V, error), set func(*p4.Switch, string, int, V) error) op {
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
			n := at
			u, err := swap(v, func() (V, error) { return get(sw, a.Name, n) }, func(v V) error { return set(sw, a.Name, n, v) })
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

// signedBits returns the width of a register of signed integers, or 0 if the elements are not signed integers.
func signedBits(a *p4info.Array) int { return int(a.Spec.GetBitstring().GetInt().GetBitwidth()) }

// registerBits returns a register's value as nf/p4 takes it.
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
		v := value.Ones(w) // negative: the sign is extended to the left
		for n := range x.Bitstring {
			if at := len(v) - len(x.Bitstring) + n; at >= 0 {
				v[at] &= x.Bitstring[n] | ^value.Ones(8 * len(x.Bitstring))[n]
			}
		}
		return v, nil
	}
	return nil, refuse(codes.Unimplemented, "register %s: values of this type", a.Name)
}

// registerData returns a register's value as P4Runtime has it.
func registerData(a *p4info.Array, v []byte) *p4v1.P4Data {
	if a.Spec.GetBool() != nil {
		return &p4v1.P4Data{Data: &p4v1.P4Data_Bool{Bool: !value.IsZero(v)}}
	}
	if a.Spec.GetSerializableEnum() != nil {
		return &p4v1.P4Data{Data: &p4v1.P4Data_EnumValue{EnumValue: value.Canonical(v)}}
	}
	if w := signedBits(a); w > 0 {
		return &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: value.Signed(v, w)}}
	}
	return &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: value.Canonical(v)}}
}

func replicas(list []*p4v1.Replica) ([]p4.Replica, error) {
	var out []p4.Replica
	one := func(port, instance uint32) (p4.Replica, error) {
		if instance > 0xffff {
			return p4.Replica{}, refuse(codes.InvalidArgument, "instance %d: the highest is %d", instance, 0xffff)
		}
		return p4.Replica{Port: port, Rid: uint16(instance)}, nil
	}
	for _, r := range list {
		x, err := one(p4info.ReplicaPort(r), r.GetInstance())
		if err != nil {
			return nil, err
		}
		for _, b := range r.GetBackupReplicas() {
			y, err := one(p4info.PortNumber(b.GetPort()), b.GetInstance())
			if err != nil {
				return nil, err
			}
			x.Backups = append(x.Backups, y)
		}
		out = append(out, x)
	}
	return out, nil
}

// keep returns an op that calls do for an update of an entity of kept, and then updates kept.
func (p *pipeline) keep(t p4v1.Update_Type, x p4info.Entity, do func(sw *p4.Switch, old *p4info.Entity) (undo func(), err error)) op {
	at := place{x.Kind, x.Object}
	return func(sw *p4.Switch) (func(), error) {
		old := p.kept[at][x.ID]
		if err := exists(t, old != nil, &x); err != nil {
			return nil, err
		}
		undo, err := do(sw, old)
		if err != nil {
			return nil, err
		}
		put := func(e *p4info.Entity) {
			if p.kept[at] == nil {
				p.kept[at] = map[uint32]*p4info.Entity{}
			}
			if p.kept[at][x.ID] = e; e == nil {
				delete(p.kept[at], x.ID)
			}
		}
		if t == p4v1.Update_DELETE {
			put(nil)
		} else {
			put(&x)
		}
		return func() {
			undo()
			put(old)
		}, nil
	}
}

func (p *pipeline) prepareMulticast(t p4v1.Update_Type, x p4info.Entity) op {
	list, err := replicas(x.Replicas)
	switch {
	case t == p4v1.Update_DELETE:
		list = nil
	case err != nil:
		return refused(err)
	}
	return p.keep(t, x, func(sw *p4.Switch, _ *p4info.Entity) (func(), error) {
		before := sw.Multicast(x.ID)
		return func() { _ = sw.SetMulticast(x.ID, before) }, sw.SetMulticast(x.ID, list)
	})
}

func (p *pipeline) prepareClone(t p4v1.Update_Type, x p4info.Entity) op {
	list, err := replicas(x.Replicas)
	if most := uint32(p.sw.Program().Classes()) - 1; err == nil && x.Class > most {
		err = refuse(codes.InvalidArgument, "clone session %d: class of service %d: the highest is %d", x.ID, x.Class, most)
	}
	if t != p4v1.Update_DELETE && err != nil {
		return refused(err)
	}
	return p.keep(t, x, func(sw *p4.Switch, _ *p4info.Entity) (func(), error) {
		before, was := sw.Session(x.ID)
		undo := func() {
			if was {
				_ = sw.SetSession(x.ID, before)
			} else {
				_ = sw.DeleteSession(x.ID)
			}
		}
		if t == p4v1.Update_DELETE {
			return undo, sw.DeleteSession(x.ID)
		}
		return undo, sw.SetSession(x.ID, p4.Session{Replicas: list, Length: int(x.Length), Priority: int(x.Class)})
	})
}

// exists returns an error if an entity to be inserted exists already, or if an entity to be modified or deleted
// does not exist.
func exists(t p4v1.Update_Type, there bool, x *p4info.Entity) error {
	switch {
	case t == p4v1.Update_INSERT && there:
		return refuse(codes.AlreadyExists, "%v %d is there already", x.Kind, x.ID)
	case t != p4v1.Update_INSERT && !there:
		return refuse(codes.NotFound, "there is no %v %d", x.Kind, x.ID)
	}
	return nil
}

func (p *pipeline) prepareValueSet(x p4info.Entity) op {
	v := p.binding.valueSets[x.Object]
	members := make([]p4.ValueMember, 0, len(x.Values))
	for _, m := range x.Values {
		members = append(members, v.member(m))
	}
	return func(sw *p4.Switch) (func(), error) {
		old := p.values[x.Object]
		undo, err := swap(members, func() ([]p4.ValueMember, error) { return sw.ValueSet(v.info.Name) }, func(m []p4.ValueMember) error { return sw.SetValueSet(v.info.Name, m) })
		if err != nil {
			return nil, err
		}
		p.values[x.Object] = x.Values
		return func() { undo(); p.values[x.Object] = old }, nil
	}
}

// orShifted sets in b the bits of v, shifted to the left. Both are big-endian.
func orShifted(b, v []byte, by int) {
	for n := range 8 * len(v) {
		if v[len(v)-1-n/8]>>(n%8)&1 != 0 {
			if at := n + by; at < 8*len(b) {
				b[len(b)-1-at/8] |= 1 << (at % 8)
			}
		}
	}
}

func (p *pipeline) prepareMember(t p4v1.Update_Type, x p4info.Entity) op {
	pr, id := p.info.Profile(x.Object), x.ID
	if id >= firstHidden {
		return tooHigh(t, &x, pr)
	}
	var act p4.Action
	if t != p4v1.Update_DELETE {
		act = p.binding.tables[pr.Tables[0].ID].action(x.Action)
	}
	return func(sw *p4.Switch) (func(), error) {
		old, e := sw.Member(pr.Name, id)
		there := e == nil
		if err := exists(t, there, &x); err != nil {
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

// tooHigh returns an op that refuses an id from firstHidden on.
func tooHigh(t p4v1.Update_Type, x *p4info.Entity, pr *p4info.Profile) op {
	if t != p4v1.Update_INSERT {
		return refused(refuse(codes.NotFound, "there is no %v %d of %s", x.Kind, x.ID, pr.Name))
	}
	return refused(refuse(codes.InvalidArgument, "%v %d of %s: the highest is %d", x.Kind, x.ID, pr.Name, firstHidden-1))
}

// mixed returns an error if an action profile would have members or groups beside action sets. set says that an
// action set is to be added.
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

func (p *pipeline) prepareGroup(t p4v1.Update_Type, x p4info.Entity) op {
	pr, id := p.info.Profile(x.Object), x.ID
	if id >= firstHidden {
		return tooHigh(t, &x, pr)
	}
	var members []p4.GroupMember
	for _, m := range x.Members {
		members = append(members, member(m.GetMemberId(), m))
	}
	return p.keep(t, x, func(sw *p4.Switch, old *p4info.Entity) (func(), error) {
		before, _ := sw.Group(pr.Name, id)
		undo := func() {
			if old == nil {
				_ = sw.DeleteGroup(pr.Name, id)
			} else {
				_ = sw.SetGroup(pr.Name, id, before)
			}
		}
		if t == p4v1.Update_DELETE {
			return undo, sw.DeleteGroup(pr.Name, id)
		}
		if t == p4v1.Update_MODIFY && x.MaxSize != old.MaxSize {
			return nil, refuse(codes.InvalidArgument, "group %d of %s: its maximum size is %d, and stays", id, pr.Name, old.MaxSize)
		}
		if err := p.mixed(pr, false); err != nil {
			return nil, err
		}
		return undo, sw.SetGroup(pr.Name, id, members)
	})
}

// member returns a member of a group, or an action of an action set, as nf/p4 takes it.
func member(id uint32, m interface {
	GetWeight() int32
	GetWatch() int32
	GetWatchPort() []byte
}) p4.GroupMember {
	x := p4.GroupMember{ID: id, Weight: int(m.GetWeight())}
	if port := m.GetWatchPort(); len(port) > 0 {
		x.Watch, x.HasWatch = p4info.PortNumber(port), true
	} else if port := m.GetWatch(); port != 0 { // clients of before 1.1 use it
		x.Watch, x.HasWatch = uint32(port), true
	}
	return x
}

// makeSet adds the members and the group that an action set is made of.
func (p *pipeline) makeSet(sw *p4.Switch, t *table, s *p4v1.ActionProfileActionSet, m *more) error {
	pr := t.info.Profile
	if err := p.mixed(pr, true); err != nil {
		return err
	}
	var list []p4.GroupMember
	m.set, m.members, m.group = s, nil, 0
	for _, a := range s.GetActionProfileActions() {
		id := p.setID(sw, pr.Name)
		if err := sw.SetMember(pr.Name, id, t.action(a.GetAction())); err != nil {
			p.dropSet(sw, t, m)
			return err
		}
		m.members = append(m.members, id)
		list = append(list, member(id, a))
	}
	m.group = p.setID(sw, pr.Name)
	if err := sw.SetGroup(pr.Name, m.group, list); err != nil {
		m.group = 0
		p.dropSet(sw, t, m)
		return err
	}
	p.hidden[pr.ID]++
	return nil
}

// setID returns an id from firstHidden on that no member and no group of a profile has.
func (p *pipeline) setID(sw *p4.Switch, profile string) uint32 {
	for {
		id := p.nextSet
		p.nextSet = max(p.nextSet+1, firstHidden) // behind the highest id comes firstHidden
		_, member := sw.Member(profile, id)
		_, group := sw.Group(profile, id)
		if member != nil && group != nil {
			return id
		}
	}
}

// dropSet deletes the members and the group of an action set that no entry uses.
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
