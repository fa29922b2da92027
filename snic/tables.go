package snic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/snic/dag"
)

// Actions of the tables.
const (
	actSwitch = iota
	actDAG
	actControl
	actRefuse
)

// term is a field of the rules' key: a term of a match.
type term struct {
	name  string // in the text
	bits  int
	match table.Match
}

// terms are the fields of the key, in its order.
var terms = [...]term{
	{"in", 16, table.Optional}, {"vlan", 12, table.Optional}, {"type", 16, table.Optional}, {"proto", 8, table.Optional},
	{"src", 32, table.Ternary}, {"dst", 32, table.Ternary}, {"src", 128, table.Ternary}, {"dst", 128, table.Ternary},
	{"sport", 16, table.Range}, {"dport", 16, table.Range},
	{"vni", 24, table.Optional}, {"qpn", 24, table.Optional}, {"nsh", 24, table.Optional},
}

func tables() []table.Decl {
	word := func(name, help string) table.Field { return table.Field{Name: name, Form: table.Words, Help: help} }
	field := func(i int, name string, form table.Form, help string) table.Field {
		return table.Field{Name: name, Bits: terms[i].bits, Match: terms[i].match, Form: form, Help: help}
	}
	return []table.Decl{
		{
			Name: "rules", Help: "the match-action table behind the parser: as frames are that go forward; the rule with the highest priority counts",
			Keys: []table.Field{
				field(0, "meta.in_port", table.Decimal, "0 for p0"), field(1, "hdr.vlan.id", table.Decimal, ""), field(2, "hdr.ethernet.ether_type", table.Hex, "behind tags"),
				field(3, "meta.ip_protocol", table.Decimal, ""), field(4, "hdr.ipv4.src", table.IP, ""), field(5, "hdr.ipv4.dst", table.IP, ""),
				field(6, "hdr.ipv6.src", table.IP, ""), field(7, "hdr.ipv6.dst", table.IP, ""), field(8, "meta.l4_src", table.Decimal, ""), field(9, "meta.l4_dst", table.Decimal, ""),
				field(10, "hdr.vxlan.vni", table.Decimal, ""), field(11, "hdr.bth.dest_qp", table.Hex, ""), field(12, "hdr.nsh.spi", table.Decimal, ""),
			},
			Actions: []table.Action{
				actSwitch:  {Name: "to_switch", Help: "plain switching"},
				actDAG:     {Name: "to_dag", Params: []table.Field{{Name: "uid", Bits: 32}}, Help: "through the tasks of a DAG", Refers: []string{"dags.uid"}},
				actControl: {Name: "to_control", Help: "to the control core"},
				actRefuse:  {Name: "refuse", Help: "drop it"},
			},
			Size: 1 << 16, May: table.Insert | table.Modify | table.Delete,
			Setting: &table.Setting{Of: rulesOf, Set: setRules},
		},
		{
			Name: "dags", Help: "what tenants want packets to go through",
			Keys: []table.Field{{Name: "uid", Bits: 32}},
			Actions: []table.Action{{
				Name: "go", Params: []table.Field{word("tenant", "its name"), word("run", "its tasks, such as fw -> nat; fw -> count")},
				Help: "through tasks", Refers: []string{"tenants.tenant", "tasks.task"},
			}},
			Size: maxDAGs, May: table.Insert | table.Modify | table.Delete,
			Setting: &table.Setting{Of: dagsOf, Set: setDAGs},
		},
		{
			Name: "tasks", Help: "the network tasks that DAGs are made of",
			Keys: []table.Field{word("task", "its name")},
			Actions: []table.Action{{
				Name: "run", Help: "a network function", Params: []table.Field{
					word("kind", "the function"),
					word("args", `its arguments, a JSON object of strings by name, without spaces: {"default":"allow"}; empty: none`),
					word("more", `what else a deployment says of a task, in that form: {"area":"2","reads":"ip-addresses,ports"}; empty: nothing`),
				},
			}},
			Size: maxTasks, May: table.Insert | table.Modify | table.Delete,
			Setting: &table.Setting{Of: tasksOf, Set: setTasks},
		},
		{
			Name: "tenants", Help: "who shares the board",
			Keys: []table.Field{word("tenant", "its name")},
			Actions: []table.Action{
				{Name: "weight", Params: []table.Field{word("weight", "a number such as 2 or 0.5; 1 is usual")}, Help: "of its share"},
			},
			Size: maxTenants, May: table.Insert | table.Modify | table.Delete,
			Setting: &table.Setting{Of: tenantsOf, Set: setTenants},
		},
	}
}

// specOf is the deployment of valid arguments.
func specOf(args table.Args) *dag.Spec {
	s, err := dag.Parse([]byte(args["deployment"]))
	if err != nil {
		return &dag.Spec{}
	}
	return s
}

func argsOf(s *dag.Spec) (table.Args, error) {
	text, err := s.Marshal()
	if err != nil {
		return nil, table.Errorf(table.Invalid, "%v", err)
	}
	return table.Args{"deployment": string(text)}, nil
}

func rulesOf(args table.Args) table.Rows {
	var rows table.Rows
	type position struct {
		match    string
		priority int
	}
	seen := map[position]bool{}
	for _, r := range specOf(args).Rules {
		e := table.Entry{Key: keyOf(r.Match), Priority: int32(r.Priority) + 1}
		switch {
		case r.DAG != 0:
			e.Call = table.Call{Action: actDAG, Params: []table.Value{table.Uint(uint64(r.DAG))}}
		case r.Road == "control":
			e.Action = actControl
		case r.Road == "refuse":
			e.Action = actRefuse
		}
		match, _ := matchOf(e.Key)                          // in one form; masks are prefixes here
		if at := (position{match, r.Priority}); !seen[at] { // the first counts
			seen[at] = true
			rows.Entries = append(rows.Entries, e)
		}
	}
	return rows
}

// keyOf is a match, in the form of mat.Parse, as a key.
func keyOf(match string) []table.Cond {
	key := make([]table.Cond, len(terms))
	for i := range key {
		key[i].Any = true
	}
	if match == "all" {
		return key
	}
	for _, x := range strings.Split(match, "+") {
		name, v, _ := strings.Cut(x, ":")
		for i, t := range terms {
			if t.name != name {
				continue
			}
			switch t.match {
			case table.Optional:
				n, _ := strconv.ParseUint(v, 0, 32)
				key[i] = table.Cond{V: table.Uint(n)}
			case table.Range:
				from, to, ok := strings.Cut(v, "-")
				if !ok {
					to = from
				}
				a, _ := strconv.ParseUint(from, 0, 16)
				b, _ := strconv.ParseUint(to, 0, 16)
				key[i] = table.Cond{V: table.Uint(a), M: table.Uint(b)}
			case table.Ternary:
				p, err := netip.ParsePrefix(v)
				if err != nil {
					a, _ := netip.ParseAddr(v)
					p = netip.PrefixFrom(a, a.BitLen())
				}
				if p.Addr().BitLen() == t.bits {
					key[i] = table.Cond{V: table.Addr(p.Addr()), M: table.Prefix(p.Bits(), t.bits)}
				}
			}
		}
	}
	return key
}

// matchOf is a key as a match.
func matchOf(key []table.Cond) (string, error) {
	var out []string
	for i, t := range terms {
		k := key[i]
		if k.Any {
			continue
		}
		switch t.match {
		case table.Optional:
			out = append(out, fmt.Sprintf("%s:%d", t.name, k.V.Lo))
		case table.Range:
			if k.V == k.M {
				out = append(out, fmt.Sprintf("%s:%d", t.name, k.V.Lo))
			} else {
				out = append(out, fmt.Sprintf("%s:%d-%d", t.name, k.V.Lo, k.M.Lo))
			}
		case table.Ternary:
			n := k.M.PrefixLen(t.bits)
			if n < 0 {
				return "", fmt.Errorf("the mask of %s is no prefix", t.name)
			}
			out = append(out, fmt.Sprintf("%s:%v", t.name, netip.PrefixFrom(k.V.Addr(t.bits), n)))
		}
	}
	if out == nil {
		return "all", nil
	}
	return strings.Join(out, "+"), nil
}

func setRules(args table.Args, rows table.Rows) (table.Args, error) {
	s := specOf(args)
	s.Rules = nil
	for i := range rows.Entries {
		e := &rows.Entries[i]
		m, err := matchOf(e.Key)
		if err != nil {
			return nil, table.Errorf(table.Invalid, "table rules: %v", err)
		}
		r := dag.RuleSpec{Match: m, Priority: int(e.Priority) - 1}
		switch e.Action {
		case actDAG:
			if r.DAG = uint32(e.Params[0].Lo); r.DAG == 0 {
				return nil, table.Errorf(table.Invalid, "table rules: %s: DAGs have uids from 1 on", m)
			}
		case actControl:
			r.Road = "control"
		case actRefuse:
			r.Road = "refuse"
		default:
			r.Road = "switch"
		}
		s.Rules = append(s.Rules, r)
	}
	return argsOf(s)
}

func dagsOf(args table.Args) table.Rows {
	var rows table.Rows
	for _, d := range specOf(args).DAGs {
		rows.Entries = append(rows.Entries, table.Entry{
			Key:  []table.Cond{{V: table.Uint(uint64(d.UID))}},
			Call: table.Call{Params: []table.Value{table.String(d.Tenant), table.String(d.Run)}},
		})
	}
	return rows
}

func setDAGs(args table.Args, rows table.Rows) (table.Args, error) {
	s := specOf(args)
	s.DAGs = nil
	for i := range rows.Entries {
		e := &rows.Entries[i]
		d := dag.DAGSpec{UID: uint32(e.Key[0].V.Lo), Tenant: e.Params[0].Str(), Run: e.Params[1].Str()}
		if d.UID == 0 {
			return nil, table.Errorf(table.Invalid, "table dags: DAGs have uids from 1 on")
		}
		if _, err := dag.ParseOrder(d.Run); err != nil {
			return nil, table.Errorf(table.Invalid, "table dags: DAG %d: %v", d.UID, err)
		}
		s.DAGs = append(s.DAGs, d)
	}
	return faithful(s)
}

// faithful are the arguments of s, if they say again what s does: not all bytes that a
// client may send come through YAML.
func faithful(s *dag.Spec) (table.Args, error) {
	args, err := argsOf(s)
	if err != nil {
		return nil, err
	}
	if !sameJSON(s, specOf(args)) {
		return nil, table.Errorf(table.Invalid, "a text has characters that cannot be kept in a deployment")
	}
	return args, nil
}

func sameJSON(a, b *dag.Spec) bool {
	text := func(s *dag.Spec) []byte {
		c := *s
		if len(c.Tasks) == 0 {
			c.Tasks = nil
		}
		if len(c.Tenants) == 0 {
			c.Tenants = nil
		}
		out, err := json.Marshal(&c)
		if err != nil { // no weight that is a number
			return nil
		}
		return out
	}
	x := text(a)
	return x != nil && bytes.Equal(x, text(b))
}

func tasksOf(args table.Args) table.Rows {
	var rows table.Rows
	s := specOf(args)
	for _, name := range slices.Sorted(maps.Keys(s.Tasks)) {
		t := s.Tasks[name]
		rows.Entries = append(rows.Entries, table.Entry{
			Key:  []table.Cond{{V: table.String(name)}},
			Call: table.Call{Params: []table.Value{table.String(t.Kind), table.String(object(t.Args)), table.String(object(moreOf(t)))}},
		})
	}
	return rows
}

func setTasks(args table.Args, rows table.Rows) (table.Args, error) {
	s := specOf(args)
	s.Tasks = map[string]dag.TaskSpec{}
	for i := range rows.Entries {
		name, p := rows.Entries[i].Key[0].V.Str(), rows.Entries[i].Params
		wrong := func(err error) (table.Args, error) {
			return nil, table.Errorf(table.Invalid, "table tasks: task %q: %v", name, err)
		}
		t := dag.TaskSpec{Kind: p[0].Str()}
		var err error
		if t.Args, err = parseObject(p[1].Str()); err != nil {
			return wrong(fmt.Errorf("args: %w", err))
		}
		more, err := parseObject(p[2].Str())
		if err == nil {
			err = setMore(&t, more)
		}
		if err != nil {
			return wrong(fmt.Errorf("more: %w", err))
		}
		s.Tasks[name] = t
	}
	return faithful(s)
}

// object is a JSON object of m; "" when there is nothing in it.
func object(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil { // of strings: cannot be
		return ""
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// parseObject reads what object writes, and nothing else: what a client reads is
// what it wrote.
func parseObject(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	var m map[string]string
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		return nil, fmt.Errorf("want a JSON object of strings: %w", err)
	}
	if o := object(m); o != s {
		return nil, fmt.Errorf("want it with sorted names and without spaces: %s", o)
	}
	return m, nil
}

// moreFields are the fields of a task in a deployment beside its kind and arguments, by the words of the YAML.
var moreFields = func() (all []reflect.StructField) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[dag.TaskSpec]()) {
		if f.Name != "Kind" && f.Name != "Args" {
			f.Name, _, _ = strings.Cut(f.Tag.Get("yaml"), ",")
			all = append(all, f)
		}
	}
	return all
}()

// moreOf is what a deployment says of a task beside its kind and arguments.
func moreOf(t dag.TaskSpec) map[string]string {
	m := map[string]string{}
	for _, f := range moreFields {
		v := reflect.ValueOf(t).FieldByIndex(f.Index)
		if v.IsZero() {
			continue
		}
		if list, ok := v.Interface().([]string); ok {
			m[f.Name] = strings.Join(list, ",")
		} else {
			m[f.Name] = fmt.Sprint(reflect.Indirect(v))
		}
	}
	return m
}

// setMore is the way back. What moreOf leaves out has to be left out.
func setMore(t *dag.TaskSpec, m map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		i := slices.IndexFunc(moreFields, func(f reflect.StructField) bool { return f.Name == name })
		if i < 0 {
			var names []string
			for _, f := range moreFields {
				names = append(names, f.Name)
			}
			last := len(names) - 1
			return fmt.Errorf("a task has no %q; it has %s and %s", name, strings.Join(names[:last], ", "), names[last])
		}
		text, at := m[name], reflect.ValueOf(t).Elem().FieldByIndex(moreFields[i].Index)
		want := "a value, or to be left out"
		v, optional := at, at.Kind() == reflect.Pointer
		if optional {
			at.Set(reflect.New(at.Type().Elem()))
			v = at.Elem()
		}
		switch v.Kind() {
		case reflect.String:
			v.SetString(text)
		case reflect.Slice:
			v.Set(reflect.ValueOf(strings.Split(text, ",")))
		case reflect.Bool:
			v.SetBool(text == "true")
			if want = "true, or to be left out"; optional {
				want = "true or false"
			}
		case reflect.Int:
			n, _ := strconv.Atoi(text)
			v.SetInt(int64(n))
			if want = "a number, or to be left out"; optional {
				want = "a number"
			}
		}
		if text == "" || moreOf(*t)[name] != text {
			return fmt.Errorf("%s %q: want %s", name, text, want)
		}
	}
	return nil
}

// weight is how a tenant's weight is written.
func weight(t dag.TenantSpec) string {
	if t.Weight == nil {
		return "1"
	}
	return strconv.FormatFloat(*t.Weight, 'g', -1, 64)
}

func tenantsOf(args table.Args) table.Rows {
	var rows table.Rows
	s := specOf(args)
	for _, name := range slices.Sorted(maps.Keys(s.Tenants)) {
		rows.Entries = append(rows.Entries, table.Entry{
			Key:  []table.Cond{{V: table.String(name)}},
			Call: table.Call{Params: []table.Value{table.String(weight(s.Tenants[name]))}},
		})
	}
	return rows
}

func setTenants(args table.Args, rows table.Rows) (table.Args, error) {
	s := specOf(args)
	was := s.Tenants
	s.Tenants = map[string]dag.TenantSpec{}
	for i := range rows.Entries {
		name, text := rows.Entries[i].Key[0].V.Str(), rows.Entries[i].Params[0].Str()
		if t, ok := was[name]; ok && weight(t) == text {
			s.Tenants[name] = t
			continue
		}
		w, err := strconv.ParseFloat(text, 64)
		t := dag.TenantSpec{Weight: &w}
		if err != nil || weight(t) != text {
			return nil, table.Errorf(table.Invalid, "table tenants: tenant %q: weight %q: want a number such as 2 or 0.5, in as few digits as there may be", name, text)
		}
		s.Tenants[name] = t
	}
	return faithful(s)
}
