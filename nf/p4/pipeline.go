package p4

import "slices"

// pipelines reads tables, conditions and their order.
func (l *loader) pipelines(root any) {
	all := list(get(root, "pipelines"))
	for _, j := range all {
		for _, jp := range list(get(j, "action_profiles")) {
			l.actionProfile(jp)
		}
	}
	// Names of nodes first: they refer to each other.
	for _, j := range all {
		for _, part := range []struct {
			key  string
			kind nodeKind
		}{{"tables", nodeTable}, {"conditionals", nodeTest}, {"action_calls", nodeAction}} {
			for _, jn := range list(get(j, part.key)) {
				name := text(get(jn, "name"))
				if _, ok := l.nodes[name]; ok {
					l.fail("two tables or conditions are called %q", name)
					return
				}
				l.nodes[name] = len(l.p.nodes)
				n := node{kind: part.kind, name: name, table: len(l.p.tables), yes: noNode, no: noNode}
				if part.kind == nodeTable {
					l.p.tables = append(l.p.tables, &tableDef{index: len(l.p.tables)})
				}
				l.p.nodes = append(l.p.nodes, n)
			}
		}
	}
	for _, j := range all {
		for _, jn := range list(get(j, "tables")) {
			name := text(get(jn, "name"))
			n := &l.p.nodes[l.nodes[name]]
			d := l.p.tables[n.table]
			l.in("table "+name, func() { l.table(d, jn) })
			if l.err != nil {
				return
			}
			if len(d.keys) == 0 && d.ConstDefault && d.initial != nil {
				n.act, n.data, n.yes = d.initial, d.initData, d.next[d.initial.index]
				n.kind = nodeAction
				if d.branches {
					n.yes = d.miss
				}
			}
		}
		for _, jn := range list(get(j, "conditionals")) {
			name := text(get(jn, "name"))
			n := &l.p.nodes[l.nodes[name]]
			l.in("condition "+name, func() {
				n.about = sourceOf(jn)
				n.test = l.g.test(l.expression(get(jn, "expression"), sortBool))
				n.yes, n.no = l.node(get(jn, "true_next")), l.node(get(jn, "false_next"))
			})
		}
		for _, jn := range list(get(j, "action_calls")) {
			name := text(get(jn, "name"))
			n := &l.p.nodes[l.nodes[name]]
			l.in("action call "+name, func() {
				n.act, n.yes = l.actionByID(get(jn, "action_id")), l.node(get(jn, "next_node"))
				if n.act != nil && len(n.act.params) > 0 {
					l.fail("action %s has parameters", n.act.Name)
				}
			})
		}
		start := l.node(get(j, "init_table"))
		switch name := text(get(j, "name")); name {
		case "ingress":
			l.p.ingress = start
		case "egress":
			l.p.egress = start
		default:
			l.fail("a pipeline called %q: want ingress and egress", name)
		}
		if l.err != nil {
			return
		}
	}
	l.membersNext()
	l.acyclic()
}

// membersNext is where a table goes behind an action that a member of its profile
// has from another table: behind its own of that name, or as after no action.
func (l *loader) membersNext() {
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

func (l *loader) node(v any) int {
	if v == nil {
		return noNode
	}
	i, ok := l.nodes[text(v)]
	if !ok {
		l.fail("no table or condition is called %s", short(v))
		return noNode
	}
	return i
}

func (l *loader) actionByID(v any) *action {
	a := l.acts[l.number(v, "an action id", 0, 1<<31-1)]
	if a == nil {
		l.fail("no action has id %s", short(v))
	}
	return a
}

// successors are the nodes that may follow a node.
func (p *Program) successors(i int) []int {
	n := &p.nodes[i]
	if n.kind != nodeTable {
		return []int{n.yes, n.no}
	}
	d := p.tables[n.table]
	return append([]int{d.hit, d.miss, d.baseMiss}, d.next...)
}

// acyclic refuses a pipeline that would not end.
func (l *loader) acyclic() {
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

func (l *loader) actionProfile(j any) *profileDef {
	d := &profileDef{index: len(l.p.profiles)}
	d.Name = text(get(j, "name"))
	if slices.ContainsFunc(l.p.profiles, func(x *profileDef) bool { return x.Name == d.Name }) {
		l.fail("two action profiles are called %q", d.Name)
	}
	l.in("action profile "+d.Name, func() {
		d.ID = l.number(get(j, "id"), "id", 0, 1<<31-1)
		if has(j, "max_size") {
			d.Size = l.number(get(j, "max_size"), "max_size", 0, maxArray)
		}
		if has(j, "selector") {
			d.Selector, d.hash = true, &calculation{name: d.Name, index: -1}
			l.calculation(d.hash, get(j, "selector"))
		}
	})
	l.p.profiles = append(l.p.profiles, d)
	return d
}

var matchKinds = map[string]MatchKind{"exact": Exact, "lpm": LPM, "ternary": Ternary, "range": Range, "valid": Valid, "optional": Ternary}

// maxPrefix is the widest field with prefixes.
const maxPrefix = 1 << 14

func (l *loader) table(d *tableDef, j any) {
	d.Name = text(get(j, "name"))
	d.ID = l.number(get(j, "id"), "id", 0, 1<<31-1)
	d.Counters = truth(get(j, "with_counters"), false)
	d.Timeout = truth(get(j, "support_timeout"), false)
	d.profile, d.meter = -1, -1
	d.hit, d.miss, d.baseMiss = noNode, noNode, noNode
	d.next = make([]int, len(l.p.actions))
	for i := range d.next {
		d.next[i] = noNode
	}
	kind, ok := matchKinds[text(get(j, "match_type"))]
	if !ok || kind == Valid {
		l.fail("unknown match_type %s", short(get(j, "match_type")))
	}
	d.kind, d.Priority = kind, kind == Ternary || kind == Range
	for _, jk := range list(get(j, "key")) {
		l.tableKey(d, jk)
	}
	switch t := text(get(j, "type")); t {
	case "simple":
	case "indirect", "indirect_ws":
		d.Profile = text(get(j, "action_profile"))
		if d.Profile == "" && has(j, "act_prof_name") {
			d.Profile = text(get(j, "act_prof_name"))
			l.actionProfile(map[string]any{"name": d.Profile, "id": get(j, "id"), "selector": get(j, "selector")})
		}
		d.profile = slices.IndexFunc(l.p.profiles, func(p *profileDef) bool { return p.Name == d.Profile })
		d.Selector = t == "indirect_ws"
		if d.profile < 0 || d.Selector && !l.p.profiles[d.profile].Selector {
			l.fail("no action profile (with a selector) is called %q", d.Profile)
			return
		}
	default:
		l.fail("unknown type %q", t)
	}
	if name := get(j, "direct_meters"); name != nil {
		i, ok := l.mtrs[text(name)]
		if !ok || !l.p.meters[i].direct {
			l.fail("no direct meter is called %s", short(name))
			return
		}
		d.meter, d.Meters = i, true
		l.p.meters[i].Size = 0
	}
	l.tableActions(d, j)
	if l.err != nil {
		return
	}
	if e := get(j, "default_entry"); e != nil {
		l.in("default_entry", func() { l.defaultEntry(d, e) })
	}
	entries, constant := get(j, "entries").([]any)
	if constant {
		d.Const = len(entries) > 0
		for i, e := range entries {
			l.in("an entry", func() { l.presetEntry(d, e, i, list(get(j, "key"))) })
			if l.err != nil {
				return
			}
		}
	}
	if has(j, "max_size") {
		d.Size = l.number(get(j, "max_size"), "max_size", 0, 1<<31-1)
	}
	d.Size = max(d.Size, len(d.preset))
	d.Hidden = len(d.keys) == 0 && len(d.actions) == 1 && d.ConstDefault && d.initial != nil && len(d.initial.params) == 0
}

func (l *loader) tableKey(d *tableDef, j any) {
	kind, ok := matchKinds[text(get(j, "match_type"))]
	if !ok {
		l.fail("unknown match_type %s of a key", short(get(j, "match_type")))
		return
	}
	k := keyDef{kind: kind, at: d.kw, validity: -1}
	var name string
	target := get(j, "target")
	if kind == Valid {
		if s, ok := target.(string); ok {
			h := l.header(s)
			k.bits, k.slot, name = 1, h.base, h.name
		} else {
			h := l.header(elem(target, 0))
			k.bits, k.slot, name = 1, h.base, h.name
		}
	} else {
		h, f := l.field(target)
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
	if m := get(j, "mask"); m != nil {
		k.mask = l.hexWords(m, (k.bits+7)/8*8)
		k.mask = k.mask[:k.words]
	}
	if n, ok := get(j, "name").(string); ok && n != "" {
		name = n
	}
	d.kw += k.words
	for range k.words {
		d.ranged = append(d.ranged, kind == Range)
	}
	d.hasRange = d.hasRange || kind == Range
	d.keys = append(d.keys, k)
	d.Keys = append(d.Keys, KeyInfo{name, kind, k.bits})
}

func (l *loader) tableActions(d *tableDef, j any) {
	next := get(j, "next_tables")
	if has(j, "base_default_next") {
		d.baseMiss = l.node(get(j, "base_default_next"))
	}
	branches, _ := next.(map[string]any)
	if _, ok := branches["__HIT__"]; ok {
		d.branches = true
	}
	if _, ok := branches["__MISS__"]; ok {
		d.branches = true
	}
	if d.branches {
		d.hit, d.miss = l.node(branches["__HIT__"]), l.node(branches["__MISS__"])
	}
	names := list(get(j, "actions"))
	ids := list(get(j, "action_ids"))
	for i := range max(len(names), len(ids)) {
		var a *action
		if ids != nil {
			a = l.actionByID(elem(ids, i))
		} else if k := slices.IndexFunc(l.p.actions, func(a *action) bool { return a.Name == text(names[i]) }); k >= 0 {
			a = l.p.actions[k]
		}
		if a == nil {
			l.fail("no action is called %s", short(elem(names, i)))
			return
		}
		d.actions = append(d.actions, a)
		d.Actions = append(d.Actions, a.ActionInfo)
		d.dw = max(d.dw, a.words)
		if !d.branches {
			d.next[a.index] = l.node(branches[a.Name])
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

// actionData reads the arguments of an entry of the program.
func (l *loader) actionData(d *tableDef, j any) (*action, []uint64) {
	a := l.actionByID(get(j, "action_id"))
	if a == nil {
		return nil, nil
	}
	if !slices.Contains(d.actions, a) {
		l.fail("action %s is none of the table's", a.Name)
		return nil, nil
	}
	args := list(get(j, "action_data"))
	if len(args) != len(a.params) {
		l.fail("action %s takes %d arguments, not %d", a.Name, len(a.params), len(args))
		return nil, nil
	}
	data := make([]uint64, d.dw)
	for i, p := range a.params {
		n := l.hex(args[i])
		w := bigWords(n, words(p.bits))
		wKeep(w, p.bits, false)
		copy(data[p.at:], w)
	}
	return a, data
}

func (l *loader) defaultEntry(d *tableDef, j any) {
	a, data := l.actionData(d, j)
	if a == nil {
		return
	}
	d.initial, d.initData = a, data
	d.ConstDefault = truth(get(j, "action_entry_const"), false)
	if truth(get(j, "action_const"), false) {
		d.constAction = a
	}
}

func (l *loader) presetEntry(d *tableDef, j any, at int, keys []any) {
	e := presetEntry{key: make([]uint64, d.kw), mask: make([]uint64, d.kw), priority: int32(at + 1)}
	if has(j, "priority") {
		e.priority = int32(l.number(get(j, "priority"), "priority", -1<<31, 1<<31-1))
	}
	match := list(get(j, "match_key"))
	if len(match) != len(d.keys) {
		l.fail("%d match fields, the key has %d", len(match), len(d.keys))
		return
	}
	for i, kd := range d.keys {
		m := match[i]
		v, mask := e.key[kd.at:kd.at+kd.words], e.mask[kd.at:kd.at+kd.words]
		if t := text(get(m, "match_type")); t != text(get(keys[i], "match_type")) {
			l.fail("field %s: match_type %q", d.Keys[i].Name, t)
			return
		}
		read := func(to []uint64, what string) {
			w := l.hexWords(get(m, what), (kd.bits+7)/8*8)
			copy(to, w)
			wKeep(to, kd.bits, false)
		}
		prefixMask(mask, kd.bits, kd.bits)
		switch kd.kind {
		case Valid:
			v[0] = b2u(truth(get(m, "key"), false))
		case Exact:
			read(v, "key")
		case LPM:
			read(v, "key")
			e.prefix = l.number(get(m, "prefix_length"), "prefix_length", 0, kd.bits)
			prefixMask(mask, e.prefix, kd.bits)
		case Ternary:
			read(v, "key")
			read(mask, "mask")
		case Range:
			read(v, "start")
			read(mask, "end")
		}
		if kd.kind != Range {
			for i := range v {
				v[i] &= mask[i]
			}
		}
	}
	if e.act, e.data = l.actionData(d, get(j, "action_entry")); e.act != nil {
		d.preset = append(d.preset, e)
	}
}
