package native

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/table"
)

// noAction is the name of the default action of tables that declare none.
const noAction = "NoAction"

// place is a table of an app.
type place struct {
	app  string
	decl *table.Decl
	info *p4info.Table
	// Ids of the actions, by index in the declaration.
	actions []uint32
}

// block identifies a counter: a group of counts of one node.
type block struct{ node, group string }

// schema is a P4Info, with the tables and counters that its ids mean.
type schema struct {
	info   *p4info.Info
	tables map[uint32]*place
	counts map[uint32]block
	none   uint32 // id of noAction; 0: no table needs it
}

// hash returns Jenkins' one-at-a-time hash, from which p4c makes ids of names.
func hash(name string) uint32 {
	h := uint32(0)
	for i := range len(name) {
		h += uint32(name[i])
		h += h << 10
		h ^= h >> 6
	}
	h += h << 3
	h ^= h >> 11
	return h + h<<15
}

// namer assigns ids and short names.
type namer struct {
	taken map[uint32]string
	pre   []*configv1.Preamble
}

func (n *namer) preamble(prefix configv1.P4Ids_Prefix, name, help string) *configv1.Preamble {
	id := uint32(prefix)<<24 | hash(name)&0xFFFFFF
	for n.taken[id] != "" {
		id = uint32(prefix)<<24 | (id+1)&0xFFFFFF
	}
	n.taken[id] = name
	p := &configv1.Preamble{Id: id, Name: name}
	if help != "" {
		p.Doc = &configv1.Documentation{Brief: help}
	}
	n.pre = append(n.pre, p)
	return p
}

// alias gives every object the shortest end of its name that no other object's name ends with.
func (n *namer) alias() {
	ends := map[string]int{}
	each := func(name string, f func(end string) bool) {
		parts := strings.Split(name, ".")
		for i := len(parts) - 1; i >= 0; i-- {
			if !f(strings.Join(parts[i:], ".")) {
				return
			}
		}
	}
	for _, p := range n.pre {
		each(p.Name, func(end string) bool { ends[end]++; return true })
	}
	for _, p := range n.pre {
		p.Alias = p.Name
		each(p.Name, func(end string) bool {
			if ends[end] == 1 {
				p.Alias = end
				return false
			}
			return true
		})
	}
}

// newSchema makes the P4Info of apps and their counts.
func newSchema(apps []graph.AppTables, counts []graph.Count) (*schema, error) {
	b := &builder{
		schema: &schema{tables: map[uint32]*place{}, counts: map[uint32]block{}},
		n:      &namer{taken: map[uint32]string{}},
		p: &configv1.P4Info{PkgInfo: &configv1.PkgInfo{
			Name: "quillon", Arch: "quillon", Doc: &configv1.Documentation{Brief: "network functions in Go, with the tables of their P4 twins"},
		}},
		prefix: map[string]string{},
	}
	// An app with a P4 twin has the twin's name, unless two apps have the same twin.
	twins := map[string]int{}
	for _, a := range apps {
		twins[a.Control]++
	}
	for _, a := range apps {
		b.prefix[a.App] = a.App
		if a.Control != "" && twins[a.Control] == 1 {
			b.prefix[a.App] = a.Control
		}
	}
	for _, a := range apps {
		actions := map[string]*configv1.Action{}
		for t := range a.Tables {
			if err := b.table(&a, &a.Tables[t], actions); err != nil {
				return nil, err
			}
		}
	}
	for from := 0; from < len(counts); {
		to := from + 1
		for to < len(counts) && counts[to].Node == counts[from].Node && counts[to].Group == counts[from].Group {
			to++
		}
		b.counter(counts[from:to])
		from = to
	}
	b.n.alias()
	slices.SortFunc(b.p.Actions, func(a, b *configv1.Action) int { return cmp.Compare(a.Preamble.Name, b.Preamble.Name) })
	var err error
	if b.info, err = p4info.New(b.p); err != nil {
		return nil, err
	}
	for id, at := range b.tables {
		at.info = b.info.Table(id)
	}
	return b.schema, nil
}

// builder is a schema while newSchema makes it.
type builder struct {
	*schema
	p      *configv1.P4Info
	n      *namer
	prefix map[string]string // of the names of an app's objects
}

// table adds a table of an app. actions holds the actions of the app so far, by name.
func (b *builder) table(a *graph.AppTables, d *table.Decl, actions map[string]*configv1.Action) error {
	x := &configv1.Table{
		Preamble:     b.n.preamble(configv1.P4Ids_TABLE, b.prefix[a.App]+"."+d.Name, d.Help),
		Size:         int64(d.Size),
		IsConstTable: d.Setting == nil, // state of the app: a controller must not bring it to an intent
	}
	at := &place{app: a.App, decl: d}
	for i := range d.Keys {
		m := matchField(&d.Keys[i], uint32(i+1))
		m.TypeName = typeOf(b.p, &d.Keys[i])
		x.MatchFields = append(x.MatchFields, m)
	}
	for i := range d.Actions {
		act := &d.Actions[i]
		id, err := b.action(a, act, actions)
		if err != nil {
			return err
		}
		scope := map[table.Scope]configv1.ActionRef_Scope{table.EntryOnly: configv1.ActionRef_TABLE_ONLY, table.DefaultOnly: configv1.ActionRef_DEFAULT_ONLY}
		x.ActionRefs = append(x.ActionRefs, &configv1.ActionRef{Id: id, Scope: scope[act.Scope]})
		at.actions = append(at.actions, id)
	}
	if d.Default == nil {
		if b.none == 0 {
			none := &configv1.Action{Preamble: b.n.preamble(configv1.P4Ids_ACTION, noAction, "")}
			b.none = none.Preamble.Id
			b.p.Actions = append(b.p.Actions, none)
		}
		x.ActionRefs = append(x.ActionRefs, &configv1.ActionRef{Id: b.none, Scope: configv1.ActionRef_DEFAULT_ONLY})
		x.ConstDefaultActionId = b.none
		x.InitialDefaultAction = &configv1.TableActionCall{ActionId: b.none}
	} else {
		call := &configv1.TableActionCall{ActionId: at.actions[d.Default.Action]}
		for i, v := range d.Default.Params {
			call.Arguments = append(call.Arguments, &configv1.TableActionCall_Argument{ParamId: uint32(i + 1), Value: d.Actions[d.Default.Action].Params[i].Bytes(v)})
		}
		x.InitialDefaultAction = call
		if d.May&table.Default == 0 {
			x.ConstDefaultActionId = call.ActionId
		}
	}
	b.p.Tables = append(b.p.Tables, x)
	b.tables[x.Preamble.Id] = at
	return nil
}

// action adds an action of an app, unless another table of the app has it already.
func (b *builder) action(a *graph.AppTables, act *table.Action, known map[string]*configv1.Action) (id uint32, err error) {
	y := &configv1.Action{}
	for k := range act.Params {
		f := &act.Params[k]
		y.Params = append(y.Params, &configv1.Action_Param{Id: uint32(k + 1), Name: f.Name, Bitwidth: int32(f.Bits), TypeName: typeOf(b.p, f), Annotations: format(f), Doc: doc(f.Help)})
	}
	if old := known[act.Name]; old != nil {
		y.Preamble = old.Preamble
		if !proto.Equal(y, old) {
			return 0, fmt.Errorf("%s: tables have different actions called %s", a.Kind, act.Name)
		}
		return old.Preamble.Id, nil
	}
	y.Preamble = b.n.preamble(configv1.P4Ids_ACTION, b.prefix[a.App]+"."+act.Name, act.Help)
	for _, r := range act.Refers {
		of, field, _ := strings.Cut(r, ".")
		y.Preamble.Annotations = append(y.Preamble.Annotations, fmt.Sprintf("@refers_to(%s.%s, %s)", b.prefix[a.App], of, field))
	}
	known[act.Name] = y
	b.p.Actions = append(b.p.Actions, y)
	return y.Preamble.Id, nil
}

// counter adds a counter for one group of counts of a node.
func (b *builder) counter(c []graph.Count) {
	name := b.prefix[c[0].Node]
	name = cmp.Or(name, c[0].Node)
	what := groups[c[0].Group]
	pre := b.n.preamble(configv1.P4Ids_COUNTER, name+"."+what.name, what.help)
	var lines strings.Builder
	for i, x := range c {
		pre.Annotations = append(pre.Annotations, fmt.Sprintf("@index(%d, %s)", i, strconv.Quote(x.Name)))
		fmt.Fprintf(&lines, "%d %s: %s\n", i, x.Name, x.Help)
	}
	pre.Doc.Description = lines.String()
	b.p.Counters = append(b.p.Counters, &configv1.Counter{Preamble: pre, Size: int64(len(c)), Spec: &configv1.CounterSpec{Unit: configv1.CounterSpec_PACKETS}})
	b.counts[pre.Id] = block{c[0].Node, c[0].Group}
}

// groups names the groups of graph.Count.
var groups = map[string]struct{ name, help string }{
	"frames":  {"frames", "frames that came and went"},
	"reason":  {"reasons", "why frames were dropped, or what was done to them"},
	"counter": {"counters", "what the app counts by itself; not all count frames"},
}

func doc(help string) *configv1.Documentation {
	if help == "" {
		return nil
	}
	return &configv1.Documentation{Brief: help}
}

// words is the type of fields that are texts: controllers and the device use the same strings, and no numbers
// stand for them.
const words = "words_t"

// typeOf returns the named type of a field, or nil if it has none.
func typeOf(p *configv1.P4Info, f *table.Field) *configv1.P4NamedType {
	if f.Form != table.Words {
		return nil
	}
	if p.TypeInfo == nil {
		p.TypeInfo = &configv1.P4TypeInfo{NewTypes: map[string]*configv1.P4NewTypeSpec{words: {
			Representation: &configv1.P4NewTypeSpec_TranslatedType{TranslatedType: &configv1.P4NewTypeTranslation{
				Uri: "quillon/words", SdnType: &configv1.P4NewTypeTranslation_SdnString_{SdnString: &configv1.P4NewTypeTranslation_SdnString{}},
			}},
		}}}
	}
	return &configv1.P4NamedType{Name: words}
}

// format returns the annotation that says how people write values of a field.
func format(f *table.Field) []string {
	switch {
	case f.Form == table.IP && f.Bits == 32:
		return []string{"@format(IPV4_ADDRESS)"}
	case f.Form == table.IP && f.Bits == 128:
		return []string{"@format(IPV6_ADDRESS)"}
	case f.Form == table.MAC:
		return []string{"@format(MAC_ADDRESS)"}
	}
	return nil
}

func matchField(f *table.Field, id uint32) *configv1.MatchField {
	return &configv1.MatchField{
		Id: id, Name: f.Name, Bitwidth: int32(f.Bits), Annotations: format(f), Doc: doc(f.Help),
		Match: &configv1.MatchField_MatchType_{MatchType: []configv1.MatchField_MatchType{
			table.Exact: configv1.MatchField_EXACT, table.LPM: configv1.MatchField_LPM, table.Ternary: configv1.MatchField_TERNARY,
			table.Range: configv1.MatchField_RANGE, table.Optional: configv1.MatchField_OPTIONAL,
		}[f.Match]},
	}
}

// within returns an error if info has an object that s does not have, or has in another form.
func (s *schema) within(info *p4info.Info) error {
	have, want := s.info.Proto, info.Proto
	for _, err := range []error{
		subset("table", have.Tables, want.Tables), subset("action", have.Actions, want.Actions), subset("counter", have.Counters, want.Counters),
		subset("action profile", have.ActionProfiles, want.ActionProfiles), subset("direct counter", have.DirectCounters, want.DirectCounters),
		subset("meter", have.Meters, want.Meters), subset("direct meter", have.DirectMeters, want.DirectMeters),
		subset("header", have.ControllerPacketMetadata, want.ControllerPacketMetadata), subset("value set", have.ValueSets, want.ValueSets),
		subset("register", have.Registers, want.Registers), subset("digest", have.Digests, want.Digests),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func subset[T interface {
	proto.Message
	GetPreamble() *configv1.Preamble
}](kind string, have, want []T) error {
	for _, w := range want {
		at := slices.IndexFunc(have, func(h T) bool { return h.GetPreamble().GetId() == w.GetPreamble().GetId() })
		switch {
		case at < 0:
			return fmt.Errorf("the graph has no %s %s (0x%08x)", kind, w.GetPreamble().GetName(), w.GetPreamble().GetId())
		case !proto.Equal(have[at], w):
			return fmt.Errorf("%s %s of the graph is another: get the P4Info from the device", kind, w.GetPreamble().GetName())
		}
	}
	return nil
}
