package p4

import "slices"

// pipelineLoader loads action profiles, tables and conditions, and their order.
type pipelineLoader struct {
	*compiler
	nodes map[string]int // by name
}

// pipelines reads action profiles, tables, conditions and their order.
func (l *pipelineLoader) pipelines() {
	for _, j := range l.Pipelines {
		for _, jp := range j.Profiles {
			l.actionProfile(jp)
		}
	}
	for _, j := range l.Pipelines { // first: they refer to each other
		for _, t := range j.Tables {
			l.addNode(nodeTable, t.Name)
			l.p.tables = append(l.p.tables, &tableDef{index: len(l.p.tables)})
		}
		for _, c := range j.Conditionals {
			l.addNode(nodeTest, c.Name)
		}
		for _, c := range j.ActionCalls {
			l.addNode(nodeAction, c.Name)
		}
	}
	for _, j := range l.Pipelines {
		for _, t := range j.Tables {
			l.in("table "+t.Name, func() { l.tableNode(l.named(t.Name), t) })
		}
		for _, c := range j.Conditionals {
			l.in("condition "+c.Name, func() {
				n := l.named(c.Name)
				n.about = fragment{c.Source.Text, c.Source.line()}
				n.test = l.g.test(l.expression(&c.Expression, sortBool))
				n.yes, n.no = l.node(c.True), l.node(c.False)
			})
		}
		for _, c := range j.ActionCalls {
			l.in("action call "+c.Name, func() {
				n := l.named(c.Name)
				n.act, n.yes = l.actionByID(c.Action), l.node(c.Next)
				if len(n.act.params) > 0 {
					l.fail("action %s has parameters", n.act.Name)
				}
			})
		}
		switch j.Name {
		case "ingress":
			l.p.ingress = l.node(j.Init)
		case "egress":
			l.p.egress = l.node(j.Init)
		default:
			l.fail("a pipeline called %q: want ingress and egress", j.Name)
		}
	}
	l.membersNext()
	l.acyclic()
}

func (l *pipelineLoader) addNode(kind nodeKind, name string) {
	if _, ok := l.nodes[name]; ok {
		l.fail("two tables or conditions are called %q", name)
	}
	l.nodes[name] = len(l.p.nodes)
	l.p.nodes = append(l.p.nodes, node{kind: kind, name: name, table: len(l.p.tables), yes: noNode, no: noNode})
}

func (l *pipelineLoader) named(name string) *node { return &l.p.nodes[l.nodes[name]] }

// node returns the node with a name; nil stands for the end of the pipeline.
func (l *pipelineLoader) node(name *string) int {
	if name == nil {
		return noNode
	}
	return find(l.document, l.nodes, "table or condition", *name)
}

// tableNode reads a table. A table that can only run one action becomes that action.
func (l *pipelineLoader) tableNode(n *node, j jsonTable) {
	d := l.p.tables[n.table]
	l.table(d, j)
	if len(d.keys) == 0 && d.ConstDefault && d.initial != nil {
		n.kind, n.act, n.data, n.yes = nodeAction, d.initial, d.initData, d.next[d.initial.index]
		if d.branches {
			n.yes = d.miss
		}
	}
}

// membersNext sets which node follows an action that a member of a table's action profile may run although the
// table itself does not have the action. It is the node after the table's own action of the same name, or else
// the node after a miss without an action.
func (l *pipelineLoader) membersNext() {
	for _, d := range l.p.tables {
		if d.profile < 0 || d.branches {
			continue
		}
		for _, a := range l.p.profiles[d.profile].actions {
			if slices.Contains(d.actions, a) {
				continue
			}
			d.next[a.index] = d.baseMiss
			if i := slices.IndexFunc(d.actions, a.sameName); i >= 0 {
				d.next[a.index] = d.next[d.actions[i].index]
			}
		}
	}
}

func (a *action) sameName(b *action) bool { return a.Name == b.Name }

func (l *pipelineLoader) actionByID(id *float64) *action {
	a := l.acts[l.integer(id, "an action id", 0, maxID)]
	if a == nil {
		l.fail("no action has id %s", short(id))
	}
	return a
}

// successors returns the nodes that may follow a node.
func (p *Program) successors(i int) []int {
	n := &p.nodes[i]
	if n.kind != nodeTable {
		return []int{n.yes, n.no}
	}
	d := p.tables[n.table]
	return append([]int{d.hit, d.miss, d.baseMiss}, d.next...)
}

// acyclic makes loading fail if a pipeline contains a cycle.
func (l *pipelineLoader) acyclic() {
	const unseen, open, done = 0, 1, 2
	state := make([]uint8, len(l.p.nodes))
	type frame struct {
		node int
		next []int
	}
	for i := range l.p.nodes {
		if state[i] != unseen {
			continue
		}
		state[i] = open
		path := []frame{{i, l.p.successors(i)}}
		for len(path) > 0 {
			f := &path[len(path)-1]
			if len(f.next) == 0 {
				state[f.node] = done
				path = path[:len(path)-1]
				continue
			}
			n := f.next[0]
			f.next = f.next[1:]
			if n == noNode || state[n] == done {
				continue
			}
			if state[n] == open {
				l.fail("%s leads back to itself", l.p.nodes[n].name)
				return
			}
			state[n] = open
			path = append(path, frame{n, l.p.successors(n)})
		}
	}
}

func (l *pipelineLoader) actionProfile(j jsonProfile) {
	d := &profileDef{index: len(l.p.profiles)}
	d.Name = j.Name
	if l.profile(d.Name) >= 0 {
		l.fail("two action profiles are called %q", d.Name)
	}
	l.in("action profile "+d.Name, func() {
		d.ID = l.integer(j.ID, "id", 0, maxID)
		d.Size = l.optional(j.MaxSize, "max_size", 0, 0, maxArray)
		if j.Selector != nil {
			d.Selector, d.hash = true, &calculation{name: d.Name, index: -1}
			l.calculation(d.hash, *j.Selector)
		}
	})
	l.p.profiles = append(l.p.profiles, d)
}

// profile returns the index of an action profile, or -1 if there is none.
func (l *pipelineLoader) profile(name string) int {
	return slices.IndexFunc(l.p.profiles, func(p *profileDef) bool { return p.Name == name })
}

var matchKinds = map[string]MatchKind{"exact": Exact, "lpm": LPM, "ternary": Ternary, "range": Range, "valid": Valid, "optional": Ternary}

// maxPrefix is the widest field that may be matched by prefixes, in bits.
const maxPrefix = 1 << 14

func (l *pipelineLoader) table(d *tableDef, j jsonTable) {
	d.Name, d.ID, d.Counters, d.Timeout = j.Name, l.integer(j.ID, "id", 0, maxID), j.Counters, j.Timeout
	d.profile, d.meter = -1, -1
	kind, ok := matchKinds[j.Match]
	if !ok || kind == Valid {
		l.fail("unknown match_type %q", j.Match)
	}
	d.kind, d.Priority = kind, kind == Ternary || kind == Range
	for _, jk := range j.Key {
		l.tableKey(d, jk)
	}
	switch j.Type {
	case "simple":
	case "indirect", "indirect_ws":
		d.Profile = j.Profile
		if d.Profile == "" && j.OldProfile != "" {
			d.Profile = j.OldProfile
			l.actionProfile(jsonProfile{jsonObject: jsonObject{Name: d.Profile, ID: j.ID}, Selector: j.Selector})
		}
		d.profile = l.profile(d.Profile)
		d.Selector = j.Type == "indirect_ws"
		if d.profile < 0 || d.Selector && !l.p.profiles[d.profile].Selector {
			l.fail("no action profile (with a selector) is called %q", d.Profile)
		}
	default:
		l.fail("unknown type %q", j.Type)
	}
	if j.DirectMeters != nil {
		d.meter, d.Meters = find(l.document, l.mtrs, "direct meter", *j.DirectMeters), true
		if !l.p.meters[d.meter].direct {
			l.fail("no direct meter is called %q", *j.DirectMeters)
		}
	}
	l.tableActions(d, j)
	if e := j.Default; e != nil {
		l.in("default_entry", func() {
			d.initial, d.initData = l.actionData(d, e.jsonCall)
			d.ConstDefault = e.EntryConst
			if e.Const {
				d.constAction = d.initial
			}
		})
	}
	d.Const = len(j.Entries) > 0
	for i, e := range j.Entries {
		l.in("an entry", func() { l.presetEntry(d, e, i, j.Key) })
	}
	d.Size = max(l.optional(j.MaxSize, "max_size", 0, 0, maxID), len(d.preset))
	d.Hidden = len(d.keys) == 0 && len(d.actions) == 1 && d.ConstDefault && d.initial != nil && len(d.initial.params) == 0
}

func (l *pipelineLoader) tableKey(d *tableDef, j jsonKey) {
	kind, ok := matchKinds[j.Match]
	if !ok {
		l.fail("unknown match_type %q of a key", j.Match)
	}
	k := keyDef{kind: kind, at: d.kw, validity: -1}
	var name string
	if kind == Valid {
		of := &j.Target
		if of.text == "" {
			of = of.at(0)
		}
		h := find(l.document, l.names, "header", of.text)
		k.bits, k.slot, name = 1, h.base, h.name
	} else if j.Target.op != "" {
		name = l.stackKey(&k, &j.Target)
	} else {
		h, f := l.fieldOf(&j.Target)
		if f.varbit {
			l.fail("field %s has a variable length and cannot be matched", f.name)
		}
		k.bits, k.slot, name = f.bits, h.base+f.off, h.name+"."+f.name
		if !h.meta && f != validity {
			k.validity = h.base
		}
	}
	if kind == LPM && k.bits > maxPrefix {
		l.fail("an LPM field of %d bits: at most %d", k.bits, maxPrefix)
	}
	allowed := kind == Exact || kind == Valid || kind == d.kind || kind == LPM && d.Priority || kind == Ternary && d.kind == Range
	if !allowed {
		l.fail("a key of kind %s in a table of kind %s", kind, d.kind)
	}
	if kind == LPM && slices.ContainsFunc(d.keys, func(x keyDef) bool { return x.kind == LPM }) {
		l.fail("two LPM fields")
	}
	k.words = words(k.bits)
	if j.Mask != nil {
		k.mask = l.hexWords(*j.Mask, (k.bits+7)/8*8)[:k.words]
	}
	if j.Name != "" {
		name = j.Name
	}
	d.kw += k.words
	d.keys = append(d.keys, k)
	d.Keys = append(d.Keys, KeyInfo{name, kind, k.bits})
}

// stackKey reads a key that is a field of a stack element which the packet chooses. The JSON has an operation
// there, where other keys have the names of a header and a field. It returns the field's name.
func (l *pipelineLoader) stackKey(k *keyDef, target *jsonValue) string {
	e := l.sorted(l.operation(target), sortData, target)
	if (e.op != opMember && e.op != opField) || e.fld.varbit {
		l.fail("a key that is no field of a fixed length: %s", short(target))
	}
	holder, where := l.g.holder(e), l.g.where(e)
	check := e.fld != validity
	k.bits = e.fld.bits
	k.where = func(p *packetState) (bool, []uint64) {
		b := holder(p)
		if b < 0 || check && p.v[b] == 0 {
			return false, nil
		}
		return true, where(p)
	}
	return e.fld.name
}

func (l *pipelineLoader) tableActions(d *tableDef, j jsonTable) {
	d.baseMiss = l.node(j.BaseNext)
	hit, onHit := j.Next["__HIT__"]
	miss, onMiss := j.Next["__MISS__"]
	d.branches, d.hit, d.miss = onHit || onMiss, l.node(hit), l.node(miss)
	d.next = slices.Repeat([]int{noNode}, len(l.p.actions))
	for i := range max(len(j.Actions), len(j.ActionIDs)) {
		a := l.tableAction(j, i)
		d.actions = append(d.actions, a)
		d.Actions = append(d.Actions, a.ActionInfo)
		d.dw = max(d.dw, a.words)
		if !d.branches {
			d.next[a.index] = l.node(j.Next[a.Name])
		}
		if d.profile >= 0 {
			p := l.p.profiles[d.profile]
			if !slices.ContainsFunc(p.actions, a.sameName) {
				p.actions = append(p.actions, a)
				p.Actions = append(p.Actions, a.ActionInfo)
				p.dw = max(p.dw, a.words)
			}
		}
	}
}

// tableAction returns an action of a table, by its id, or by its name in old programs.
func (l *pipelineLoader) tableAction(j jsonTable, i int) *action {
	switch {
	case i < len(j.ActionIDs):
		return l.actionByID(j.ActionIDs[i])
	case j.ActionIDs != nil:
		l.fail("%d actions with %d ids", len(j.Actions), len(j.ActionIDs))
	}
	k := slices.IndexFunc(l.p.actions, func(a *action) bool { return a.Name == j.Actions[i] })
	if k < 0 {
		l.fail("no action is called %q", j.Actions[i])
	}
	return l.p.actions[k]
}

// actionData reads the action of an entry of the program, with its arguments.
func (l *pipelineLoader) actionData(d *tableDef, j jsonCall) (*action, []uint64) {
	a := l.actionByID(j.Action)
	if !slices.Contains(d.actions, a) {
		l.fail("action %s is none of the table's", a.Name)
	}
	if len(j.Data) != len(a.params) {
		l.fail("action %s takes %d arguments, not %d", a.Name, len(a.params), len(j.Data))
	}
	data := make([]uint64, d.dw)
	for i, p := range a.params {
		w := bigWords(l.hex(j.Data[i]), words(p.bits))
		wKeep(w, p.bits, false)
		copy(data[p.at:], w)
	}
	return a, data
}

func (l *pipelineLoader) presetEntry(d *tableDef, j jsonEntry, at int, keys []jsonKey) {
	e := presetEntry{parsedKey: parsedKey{key: make([]uint64, d.kw), mask: make([]uint64, d.kw)}}
	e.priority = int32(l.optional(j.Priority, "priority", at+1, -1<<31, 1<<31-1))
	if len(j.Match) != len(d.keys) {
		l.fail("%d match fields, the key has %d", len(j.Match), len(d.keys))
	}
	for i, kd := range d.keys {
		m := j.Match[i]
		v, mask := e.key[kd.at:kd.at+kd.words], e.mask[kd.at:kd.at+kd.words]
		if m.Type != keys[i].Match {
			l.fail("field %s: match_type %q", d.Keys[i].Name, m.Type)
		}
		read := func(to []uint64, hex string) {
			copy(to, l.hexWords(hex, (kd.bits+7)/8*8))
			wKeep(to, kd.bits, false)
		}
		prefixMask(mask, kd.bits, kd.bits)
		switch kd.kind {
		case Valid:
			v[0] = b2u(m.Key.truth)
		case Exact:
			read(v, m.Key.text)
		case LPM:
			read(v, m.Key.text)
			e.prefix = l.integer(m.Prefix, "prefix_length", 0, kd.bits)
			prefixMask(mask, e.prefix, kd.bits)
		case Ternary:
			read(v, m.Key.text)
			read(mask, m.Mask)
		case Range:
			read(v, m.Start)
			read(mask, m.End)
		}
		if kd.kind != Range {
			for i := range v {
				v[i] &= mask[i]
			}
		}
	}
	switch d.kind {
	case LPM:
		e.order = int32(maxBits - e.prefix)
	case Ternary, Range:
		e.order = e.priority
	}
	e.act, e.data = l.actionData(d, j.Call)
	d.preset = append(d.preset, e)
}
