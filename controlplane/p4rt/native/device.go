package native

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/table"
)

// Device is the P4Runtime device of a running graph.
type Device struct {
	inst  *graph.Instance
	files string // see Files

	mu   sync.Mutex
	pipe *pipeline
	made string // the specification from which pipe was made
	// notes holds the metadata that controllers gave to entries, by p4info.Key.
	notes map[string]note
	// ahead is added to a count when it is read, because a controller has written the counter.
	ahead map[cell]uint64
}

// cell is one count of a counter.
type cell struct {
	counter uint32
	index   int64
}

type note struct {
	metadata   []byte
	controller uint64
}

// New returns the device of inst. It returns an error if the declarations of the kinds contradict each other.
func New(inst *graph.Instance) (*Device, error) {
	d := &Device{inst: inst, notes: map[string]note{}, ahead: map[cell]uint64{}}
	_, err := d.pipeline()
	return d, err
}

// Files sets the directory whose files controllers may name in arguments of apps, by their full path. Without
// it controllers may name no file, because an app could read every file that the process may read. Files must
// be called before the device is served.
func (d *Device) Files(dir string) { d.files = filepath.Clean(dir) }

// allow returns an error if now has an argument that names a file outside of Files and that was does not have.
func (d *Device) allow(was, now *graph.Spec) error {
	old := d.inst.FileArgs(was)
	for _, a := range d.inst.FileArgs(now) {
		switch {
		case slices.Contains(old, a):
		case d.files == "":
			return table.Errorf(table.Denied, "app %s: %s=%s: a controller may not name files here (quillon run --p4-files)", a.App, a.Arg, a.Value)
		case filepath.Clean(a.Value) != a.Value || filepath.Dir(a.Value) != d.files:
			return table.Errorf(table.Denied, "app %s: %s=%s: a controller may name files in %s, and no others", a.App, a.Arg, a.Value, d.files)
		}
	}
	return nil
}

// pipeline returns the pipeline of the graph in its present state.
func (d *Device) pipeline() (*pipeline, error) {
	// A Write may add or remove apps inside others. It changes no pipeline.
	apps, counts := d.inst.Tables(), slices.DeleteFunc(d.inst.Counters(), func(c graph.Count) bool { return strings.Contains(c.Node, "/") })
	var made []byte
	for _, a := range apps {
		made = fmt.Appendf(made, "%s %s\n", a.App, a.Kind)
	}
	for _, c := range counts {
		made = append(append(append(made, c.Node...), ' '), c.Name...)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pipe != nil && d.made == string(made) {
		return d.pipe, nil
	}
	s, err := newSchema(apps, counts)
	if err != nil {
		return nil, err
	}
	d.pipe, d.made = &pipeline{d, s}, string(made)
	return d.pipe, nil
}

// Pipeline implements p4rt.Device.
func (d *Device) Pipeline() p4rt.Pipeline {
	p, err := d.pipeline()
	if err != nil {
		return nil // the kinds contradict themselves: New returned an error
	}
	return p
}

// Build implements p4rt.Device. It returns the pipeline of the graph if that has all objects of info.
func (d *Device) Build(info *p4info.Info, _ []byte) (p4rt.Pipeline, error) {
	p, err := d.pipeline()
	if err != nil {
		return nil, err
	}
	if err := p.within(info); err != nil {
		return nil, &p4info.Error{Code: codes.InvalidArgument, Text: fmt.Sprintf("the pipeline of a graph of Go apps is the graph: %v", err)}
	}
	return p, nil
}

// Commit implements p4rt.Device.
func (d *Device) Commit(p4rt.Pipeline) error { return nil }

// PacketOut implements p4rt.Device.
func (d *Device) PacketOut(*p4v1.PacketOut) error {
	return &p4info.Error{Code: codes.Unimplemented, Text: "a graph of Go apps takes no packets from the controller"}
}

// Listen implements p4rt.Device. There are no events.
func (d *Device) Listen(func(p4rt.Event)) (stop func(), err error) { return func() {}, nil }

// pipeline is the graph in the state for which its schema was made.
type pipeline struct {
	d *Device
	*schema
}

func (p *pipeline) Info() *p4info.Info { return p.info }

func (p *pipeline) Config() []byte { return nil }

// Atomic implements p4rt.Pipeline. It refuses DATAPLANE_ATOMIC for several apps, because a frame could meet one
// app after its change and another app before its change.
func (p *pipeline) Atomic(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) error {
	app := ""
	for _, u := range updates {
		at := p.tables[u.GetEntity().GetTableEntry().GetTableId()]
		if at == nil || a != p4v1.WriteRequest_DATAPLANE_ATOMIC {
			continue
		}
		if app != "" && app != at.app {
			return &p4info.Error{Code: codes.Unimplemented, Text: fmt.Sprintf("app %s cannot be changed at the same moment as app %s: use ROLLBACK_ON_ERROR, or two requests", at.app, app)}
		}
		app = at.app
	}
	return nil
}

// refusal returns err with a canonical code.
func refusal(err error) error {
	var e *table.Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	return &p4info.Error{Text: e.Msg, Code: map[table.Code]codes.Code{
		table.Invalid: codes.InvalidArgument, table.Exists: codes.AlreadyExists, table.Missing: codes.NotFound, table.Full: codes.ResourceExhausted,
		table.Denied: codes.PermissionDenied, table.Busy: codes.FailedPrecondition, table.Aborted: codes.Aborted, table.Unable: codes.Unimplemented,
	}[e.Code]}
}

var errAborted = &p4info.Error{Code: codes.Aborted, Text: "not made: another update of the same request failed"}

// Write implements p4rt.Pipeline.
func (p *pipeline) Write(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) []error {
	errs := make([]error, len(updates))
	together := a != p4v1.WriteRequest_CONTINUE_ON_ERROR
	var changes []graph.TableChange
	var from []int // the index of each change's update
	bad := false
	counters := false
	for n, u := range updates {
		if u.GetEntity().GetCounterEntry() != nil {
			counters = true
			continue
		}
		c, err := p.change(u)
		if err != nil {
			errs[n], bad = err, true
			continue
		}
		changes, from = append(changes, c), append(from, n)
	}
	if bad && together {
		for n := range errs {
			if errs[n] == nil {
				errs[n] = errAborted
			}
		}
		return errs
	}
	for n, err := range p.d.inst.WriteTablesIf(changes, together, p.d.allow) {
		errs[from[n]] = refusal(err)
		if err == nil {
			p.d.note(updates[from[n]])
		} else if together {
			bad = true
		}
	}
	if !counters {
		return errs
	}
	for n, u := range updates {
		if c := u.GetEntity().GetCounterEntry(); c != nil {
			if errs[n] = errAborted; !bad || !together {
				errs[n] = nil
				p.writeCounter(c)
			}
		}
	}
	return errs
}

// writeCounter changes what P4Runtime reads of a counter. The graph's own counts do not change, because other
// readers use them.
func (p *pipeline) writeCounter(c *p4v1.CounterEntry) {
	i := int64(0)
	b := p.counts[c.GetCounterId()]
	if c.GetData() == nil {
		return
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	for _, x := range p.d.inst.Counters() {
		if x.Node != b.node || x.Group != b.group {
			continue
		}
		if c.GetIndex() == nil || c.GetIndex().GetIndex() == i {
			p.d.ahead[cell{c.GetCounterId(), i}] = uint64(c.GetData().GetPacketCount()) - x.Value
		}
		i++
	}
}

// note stores an entry's metadata, or deletes it.
func (d *Device) note(u *p4v1.Update) {
	e := u.GetEntity().GetTableEntry()
	n := note{slices.Clone(e.GetMetadata()), e.GetControllerMetadata()}
	d.mu.Lock()
	defer d.mu.Unlock()
	if key := p4info.Key(u.GetEntity()); u.GetType() == p4v1.Update_DELETE || len(n.metadata) == 0 && n.controller == 0 {
		delete(d.notes, key)
	} else {
		d.notes[key] = n
	}
}

// change returns an update as a change of the graph's tables.
func (p *pipeline) change(u *p4v1.Update) (c graph.TableChange, err error) {
	e := u.GetEntity().GetTableEntry()
	if e == nil {
		return c, &p4info.Error{Code: codes.Unimplemented, Text: "a graph of Go apps has tables and counters, and nothing else that can be written"}
	}
	at := p.tables[e.GetTableId()]
	if at == nil {
		return c, &p4info.Error{Code: codes.NotFound, Text: fmt.Sprintf("there is no table 0x%08x any more", e.GetTableId())}
	}
	c.App, c.Table = at.app, at.decl.Name
	c.Action = -1
	if e.GetIsDefaultAction() {
		c.Op = table.Default
	} else {
		c.Op = map[p4v1.Update_Type]table.Ops{p4v1.Update_INSERT: table.Insert, p4v1.Update_MODIFY: table.Modify, p4v1.Update_DELETE: table.Delete}[u.GetType()]
		c.Key, c.Priority = at.key(e.GetMatch()), e.GetPriority()
	}
	a := e.GetAction().GetAction()
	switch {
	case a != nil:
		c.Action = slices.Index(at.actions, a.GetActionId())
		for n, x := range a.GetParams() {
			var v table.Value
			if c.Action >= 0 && n < len(at.decl.Actions[c.Action].Params) {
				v, _ = at.decl.Actions[c.Action].Params[n].FromBytes(x.GetValue())
			}
			c.Params = append(c.Params, v)
		}
	case c.Op == table.Default:
		c.Reset = true
	case c.Op == table.Modify:
		c.Keep = true
	}
	return c, nil
}

// key returns a key in the order of the table's declaration.
func (t *place) key(list []*p4v1.FieldMatch) []table.Cond {
	key := make([]table.Cond, len(t.decl.Keys))
	for i := range key {
		key[i].Any = true
	}
	for _, m := range list {
		i, c := int(m.GetFieldId())-1, p4info.CondOf(m)
		key[i] = table.Cond{}
		key[i].V, _ = t.decl.Keys[i].FromBytes(*c.Value)
		if c.More != nil {
			key[i].M, _ = t.decl.Keys[i].FromBytes(*c.More)
		}
		if c.Prefix != nil {
			key[i].M = table.Prefix(int(*c.Prefix), t.decl.Keys[i].Bits)
		}
	}
	return key
}

// match returns a key as P4Runtime matches.
func (t *place) match(key []table.Cond) []*p4v1.FieldMatch {
	out := make([]*p4v1.FieldMatch, 0, len(key))
	for i, c := range key {
		if c.Any {
			continue
		}
		f := &t.decl.Keys[i]
		var more []byte
		prefix := 0
		switch f.Match {
		case table.LPM:
			prefix = c.M.PrefixLen(f.Bits)
		case table.Ternary, table.Range:
			more = c.M.Bytes()
		}
		if m := t.info.Fields[i].Matching(f.Bytes(c.V), more, prefix); m != nil {
			out = append(out, m)
		}
	}
	return out
}

func (t *place) action(c table.Call) *p4v1.TableAction {
	a := &p4v1.Action{ActionId: t.actions[c.Action], Params: make([]*p4v1.Action_Param, len(c.Params))}
	for i, v := range c.Params {
		a.Params[i] = &p4v1.Action_Param{ParamId: uint32(i + 1), Value: t.decl.Actions[c.Action].Params[i].Bytes(v)}
	}
	return &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}}
}

// Read implements p4rt.Pipeline.
func (p *pipeline) Read(q *p4v1.Entity, yield func(*p4v1.Entity) error) error {
	switch x := p4info.Of(q); x.Kind {
	case p4info.KindEntry:
		if at := p.tables[x.Object]; at != nil {
			return p.readTable(at, x.Entry, yield)
		}
	case p4info.KindCounter:
		return p.readCounter(&x, yield)
	}
	return nil // there are none
}

func (p *pipeline) readTable(at *place, q *p4v1.TableEntry, yield func(*p4v1.Entity) error) error {
	give := func(e *p4v1.TableEntry) error {
		x := p4info.EntryOf(e)
		p.d.mu.Lock()
		if len(p.d.notes) > 0 {
			n := p.d.notes[p4info.Key(x)]
			e.Metadata, e.ControllerMetadata = slices.Clone(n.metadata), n.controller
		}
		p.d.mu.Unlock()
		return yield(x)
	}
	if q.GetIsDefaultAction() {
		e := &p4v1.TableEntry{TableId: q.GetTableId(), IsDefaultAction: true}
		c, err := p.d.inst.TableDefault(at.app, at.decl.Name)
		switch {
		case err != nil:
			return refusal(err)
		case c != nil:
			e.Action = at.action(*c)
		case p.none != 0:
			e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: &p4v1.Action{ActionId: p.none}}}
		}
		return give(e)
	}
	if len(at.decl.Keys) == 0 {
		return nil
	}
	var only *table.Entry
	if len(q.GetMatch()) > 0 {
		only = &table.Entry{Key: at.key(q.GetMatch()), Priority: q.GetPriority()}
	}
	return refusal(p.d.inst.ReadTable(at.app, at.decl.Name, func(e *table.Entry) error {
		if only != nil && !slices.Equal(only.Key, e.Key) {
			return nil
		}
		return give(&p4v1.TableEntry{TableId: q.GetTableId(), Match: at.match(e.Key), Priority: e.Priority, Action: at.action(e.Call)})
	}))
}

func (p *pipeline) readCounter(q *p4info.Entity, yield func(*p4v1.Entity) error) error {
	b, ok := p.counts[q.Object]
	if !ok {
		return nil
	}
	i := int64(0)
	for _, c := range p.d.inst.Counters() {
		if c.Node != b.node || c.Group != b.group {
			continue
		}
		if q.Index == nil || q.Index.GetIndex() == i {
			p.d.mu.Lock()
			v := c.Value + p.d.ahead[cell{q.Object, i}]
			p.d.mu.Unlock()
			one := p4info.Entity{Kind: q.Kind, Object: q.Object, Index: &p4v1.Index{Index: i}, Count: &p4v1.CounterData{PacketCount: max(0, int64(v))}}
			if err := yield(one.Message()); err != nil {
				return err
			}
		}
		i++
	}
	return nil
}
