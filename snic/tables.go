package snic

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/snic/dag"
)

// NameID is the number that stands for the name of a task or a tenant in tables:
// a name that is a number below 2^31 is that number, any other has bit 31 set, and
// below it the FNV-1a hash of its bytes.
func NameID(name string) uint32 {
	if n, err := strconv.ParseUint(name, 10, 31); err == nil && strconv.FormatUint(n, 10) == name {
		return uint32(n)
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	return 1<<31 | h.Sum32()
}

// Actions of the tables.
const (
	actSwitch = iota
	actDAG
	actControl
	actRefuse
)

const (
	actRun = iota
	actOther
)

// steps is how many tasks the action run has parameters for.
const steps = 8

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
	run := []table.Field{{Name: "tenant", Bits: 32, Help: "its number"}}
	for i := range steps {
		run = append(run, table.Field{Name: fmt.Sprintf("task%d", i+1), Bits: 32, Help: "its number; 0: no more"})
	}
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
				actDAG:     {Name: "to_dag", Params: []table.Field{{Name: "uid", Bits: 32}}, Help: "through the tasks of a DAG"},
				actControl: {Name: "to_control", Help: "to the control core"},
				actRefuse:  {Name: "refuse", Help: "drop it"},
			},
			Size: 1 << 16, May: table.Insert | table.Modify | table.Delete,
			Setting: &table.Setting{Of: rulesOf, Set: setRules},
		},
		{
			Name: "dags", Help: "what tenants want packets to go through; numbers of tasks and tenants: quillon snic tasks, quillon snic tenants",
			Keys: []table.Field{{Name: "uid", Bits: 32}},
			Actions: []table.Action{
				actRun:   {Name: "run", Params: run, Help: "one task after the other"},
				actOther: {Name: "other", Params: run[:1], Help: "a DAG that is no sequence of so many tasks: shown, and changed by other means"},
			},
			Size: maxDAGs, May: table.Insert | table.Modify | table.Delete,
			Setting: &table.Setting{Of: dagsOf, Set: setDAGs},
		},
		{
			Name: "tenants", Help: "who shares the board",
			Keys: []table.Field{{Name: "tenant", Bits: 32, Help: "its number"}},
			Actions: []table.Action{
				{Name: "weight", Params: []table.Field{{Name: "milli", Bits: 32, Help: "thousandths: 1000 is usual"}}, Help: "of its share"},
			},
			Size: maxTenants, May: table.Insert | table.Modify | table.Delete,
			Setting: &table.Setting{Of: tenantsOf, Set: setTenants},
		},
	}
}

// bare reports that an entry is looked at by itself, without a deployment: what it
// refers to is not known.
func bare(args table.Args) bool { return args["deployment"] == "" }

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
		if !slices.ContainsFunc(rows.Entries, func(o table.Entry) bool { return o.Same(&e) }) { // the first counts
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
			r.DAG = uint32(e.Params[0].Lo)
			if !bare(args) && !slices.ContainsFunc(s.DAGs, func(d dag.DAGSpec) bool { return d.UID == r.DAG }) {
				return nil, table.Errorf(table.Invalid, "table rules: no DAG has uid %d", r.DAG)
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

// sequence is the tasks of a DAG that is one sequence of at most steps; false
// for any other.
func sequence(run string) ([]string, bool) {
	o, err := dag.ParseOrder(run)
	if err != nil || len(o.Tasks) > steps || len(o.Edges) != len(o.Tasks)-1 {
		return nil, false
	}
	for i, e := range o.Edges {
		if e != [2]int{i, i + 1} {
			return nil, false
		}
	}
	return o.Tasks, true
}

func dagsOf(args table.Args) table.Rows {
	var rows table.Rows
	for _, d := range specOf(args).DAGs {
		e := table.Entry{Key: []table.Cond{{V: table.Uint(uint64(d.UID))}}}
		e.Action, e.Params = actOther, []table.Value{table.Uint(uint64(NameID(d.Tenant)))}
		if tasks, ok := sequence(d.Run); ok {
			e.Action = actRun
			for i := range steps {
				id := uint32(0)
				if i < len(tasks) {
					id = NameID(tasks[i])
				}
				e.Params = append(e.Params, table.Uint(uint64(id)))
			}
		}
		rows.Entries = append(rows.Entries, e)
	}
	return rows
}

// named is which of names has a number.
func named[V any](names map[string]V, id uint32) (string, bool) {
	for name := range names {
		if NameID(name) == id {
			return name, true
		}
	}
	return "", false
}

func setDAGs(args table.Args, rows table.Rows) (table.Args, error) {
	s := specOf(args)
	var out []dag.DAGSpec
	for i := range rows.Entries {
		e := &rows.Entries[i]
		uid := uint32(e.Key[0].V.Lo)
		at := slices.IndexFunc(s.DAGs, func(d dag.DAGSpec) bool { return d.UID == uid })
		tenant, ok := named(s.Tenants, uint32(e.Params[0].Lo))
		if !ok && !bare(args) {
			return nil, table.Errorf(table.Invalid, "table dags: DAG %d: no tenant has the number %d", uid, e.Params[0].Lo)
		}
		d := dag.DAGSpec{UID: uid, Tenant: tenant}
		switch {
		case e.Action == actOther && at >= 0:
			d.Run = s.DAGs[at].Run
		case e.Action == actOther && !bare(args):
			return nil, table.Errorf(table.Unable, "table dags: DAG %d: other shows DAGs that are no sequence; use run", uid)
		case e.Action == actRun:
			var run []string
			for n, p := range e.Params[1:] {
				if p.Lo == 0 {
					if slices.ContainsFunc(e.Params[1+n:], func(v table.Value) bool { return v.Lo != 0 }) {
						return nil, table.Errorf(table.Invalid, "table dags: DAG %d: a task behind the last one", uid)
					}
					break
				}
				name, ok := named(s.Tasks, uint32(p.Lo))
				if !ok && !bare(args) {
					return nil, table.Errorf(table.Invalid, "table dags: DAG %d: no task has the number %d", uid, p.Lo)
				}
				run = append(run, name)
			}
			if run == nil {
				return nil, table.Errorf(table.Invalid, "table dags: DAG %d: it has no task", uid)
			}
			d.Run = strings.Join(run, " -> ")
			if at >= 0 && sameRun(s.DAGs[at].Run, run) {
				d.Run = s.DAGs[at].Run // in the words that it was written in
			}
		}
		out = append(out, d)
	}
	s.DAGs = out
	for _, r := range s.Rules {
		if r.DAG != 0 && !slices.ContainsFunc(out, func(d dag.DAGSpec) bool { return d.UID == r.DAG }) {
			return nil, table.Errorf(table.Busy, "table dags: a rule leads to DAG %d: delete it first", r.DAG)
		}
	}
	return argsOf(s)
}

func sameRun(text string, run []string) bool {
	tasks, ok := sequence(text)
	return ok && slices.Equal(tasks, run)
}

func tenantsOf(args table.Args) table.Rows {
	var rows table.Rows
	s := specOf(args)
	for name, t := range s.Tenants {
		w := 1.0
		if t.Weight != nil {
			w = *t.Weight
		}
		rows.Entries = append(rows.Entries, table.Entry{Key: []table.Cond{{V: table.Uint(uint64(NameID(name)))}}, Call: table.Call{Params: []table.Value{table.Uint(uint64(w*1000 + 0.5))}}})
	}
	slices.SortFunc(rows.Entries, func(a, b table.Entry) int { return a.Key[0].V.Compare(b.Key[0].V) })
	return rows
}

func setTenants(args table.Args, rows table.Rows) (table.Args, error) {
	s := specOf(args)
	out := map[string]dag.TenantSpec{}
	for i := range rows.Entries {
		id, milli := uint32(rows.Entries[i].Key[0].V.Lo), rows.Entries[i].Params[0].Lo
		name, ok := named(s.Tenants, id)
		if !ok {
			if id >= 1<<31 && !bare(args) {
				return nil, table.Errorf(table.Missing, "table tenants: no tenant has the number %d; new ones have numbers below 2^31, and are named by them", id)
			}
			name = strconv.FormatUint(uint64(id), 10)
		}
		w := float64(milli) / 1000
		t := s.Tenants[name]
		if was := t.Weight; was == nil && milli == 1000 || was != nil && uint64(*was*1000+0.5) == milli {
			out[name] = t
			continue
		}
		out[name] = dag.TenantSpec{Weight: &w}
	}
	for _, d := range s.DAGs {
		if _, ok := out[d.Tenant]; !ok {
			return nil, table.Errorf(table.Busy, "table tenants: DAG %d is %s's: delete it first", d.UID, d.Tenant)
		}
	}
	s.Tenants = out
	return argsOf(s)
}
