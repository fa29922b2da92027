package dag

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/yaml"
	"github.com/quillon/quillon/snic/mat"
)

// Spec is a deployment that has not been checked. It is a passive value; on disk it is YAML:
//
//	regions: {count: 3, area: 2}
//	tasks:
//	  fw:  {kind: firewall, reads: [ip-addresses, ports], drops: true, state: true, throughput: 40Gbit, latency: 64ns}
//	  nat: {kind: napt, reads: [ip-addresses, ports], writes: [ip-addresses, ports], drops: true, state: true}
//	tenants:
//	  alice: {weight: 2}
//	dags:
//	  - {uid: 7, tenant: alice, run: fw -> nat}
//	rules:
//	  - {match: "src:10.0.0.0/8", dag: 7}
//	  - {match: "all", road: switch}
//
// Bytes are numbers with k, M or G behind them, powers of 1024; rates are
// numbers with bit, kbit, Mbit, Gbit or Tbit.
type Spec struct {
	Regions RegionsSpec           `yaml:"regions" json:"regions"`
	Tasks   map[string]TaskSpec   `yaml:"tasks" json:"tasks"`
	Tenants map[string]TenantSpec `yaml:"tenants" json:"tenants"`
	DAGs    []DAGSpec             `yaml:"dags,omitempty" json:"dags,omitempty"`
	Rules   []RuleSpec            `yaml:"rules,omitempty" json:"rules,omitempty"`

	source []byte // what Parse read: errors point into it
}

// RegionsSpec describes the regions. See Regions.
type RegionsSpec struct {
	Count     int    `yaml:"count" json:"count"`
	Area      int    `yaml:"area" json:"area"`                               // of each
	Bitstream string `yaml:"bitstream,omitempty" json:"bitstream,omitempty"` // bytes that fill one; 4000000 unless told
}

// TaskSpec describes a task. See Task and effect.Effects.
type TaskSpec struct {
	Kind       string     `yaml:"kind" json:"kind"`
	Args       graph.Args `yaml:"args,omitempty" json:"args,omitempty"`
	Reads      []string   `yaml:"reads,omitempty" json:"reads,omitempty"`
	Writes     []string   `yaml:"writes,omitempty" json:"writes,omitempty"`
	Drops      bool       `yaml:"drops,omitempty" json:"drops,omitempty"`
	Answers    bool       `yaml:"answers,omitempty" json:"answers,omitempty"`
	State      bool       `yaml:"state,omitempty" json:"state,omitempty"`
	Memory     string     `yaml:"memory,omitempty" json:"memory,omitempty"`         // none unless told
	Throughput string     `yaml:"throughput,omitempty" json:"throughput,omitempty"` // not limited unless told
	Latency    string     `yaml:"latency,omitempty" json:"latency,omitempty"`       // such as 64ns; 0 unless told
	Area       *int       `yaml:"area,omitempty" json:"area,omitempty"`             // 1 unless told
	Bitstream  string     `yaml:"bitstream,omitempty" json:"bitstream,omitempty"`   // that it adds to a chain's; a chain of which a task does not tell has that of a region
	Credits    *int       `yaml:"credits,omitempty" json:"credits,omitempty"`       // DefaultCredits unless told
	Remote     *bool      `yaml:"remote,omitempty" json:"remote,omitempty"`         // true unless told
	Endpoint   bool       `yaml:"endpoint,omitempty" json:"endpoint,omitempty"`
	Fault      string     `yaml:"fault,omitempty" json:"fault,omitempty"`     // drop (unless told) or pass its packets
	Restart    int        `yaml:"restart,omitempty" json:"restart,omitempty"` // another number: it starts anew
}

// TenantSpec describes a tenant. See Tenant.
type TenantSpec struct {
	Weight *float64 `yaml:"weight,omitempty" json:"weight,omitempty"` // 1 unless told
}

// DAGSpec is a DAG. Run is the text that ParseOrder reads.
type DAGSpec struct {
	UID    uint32 `yaml:"uid" json:"uid"`
	Tenant string `yaml:"tenant" json:"tenant"`
	Run    string `yaml:"run" json:"run"`
}

// RuleSpec is a line of the match-action table. Frames that match (Match has the form of mat.Parse)
// go to the DAG with the UID DAG, or take a road: switch, control or refuse.
type RuleSpec struct {
	Match    string `yaml:"match" json:"match"`
	Priority int    `yaml:"priority,omitempty" json:"priority,omitempty"`
	DAG      uint32 `yaml:"dag,omitempty" json:"dag,omitempty"`
	Road     string `yaml:"road,omitempty" json:"road,omitempty"`
}

// Limits of a deployment.
const (
	maxTasks     = 1 << 10
	maxTenants   = 1 << 16
	maxDAGs      = 1 << 16
	maxRules     = 1 << 16
	maxRegions   = 1 << 10
	maxArea      = 1 << 20
	maxBitstream = 1 << 30
	maxMemory    = 1 << 40
	maxLatency   = time.Second
	maxCredits   = 1 << 15
	maxPriority  = 1 << 30
	// maxWeight is the largest weight, and 1/maxWeight the smallest, so that snic/drf can divide
	// any weight by any other.
	maxWeight = 1 << 10
)

// DefaultBitstream is the size in bytes of a bitstream that fills a region, unless the deployment
// sets another. At 800 MB/s it is loaded in 5 ms, the time that the source gives.
const DefaultBitstream = 4_000_000

// SpecError is an error in a Spec. Its Error method returns one line; Excerpt is the place in the source with
// the lines around it, and is empty if the Spec did not come from Parse.
type SpecError yaml.Error

func (e *SpecError) Error() string {
	if e.Line == 0 {
		return "deployment: " + e.Msg
	}
	return "deployment:" + (*yaml.Error)(e).Error()
}

// Parse reads YAML. Unknown and repeated fields are errors; all errors are
// *SpecError.
func Parse(src []byte) (*Spec, error) {
	s := &Spec{source: slices.Clone(src)}
	if err := yaml.Unmarshal(src, s, wholeNumbers); err != nil {
		return nil, (*SpecError)(err)
	}
	return s, nil
}

// ParseDeployment reads YAML and checks it.
func ParseDeployment(src []byte, known Known) (*Deployment, error) {
	s, err := Parse(src)
	if err != nil {
		return nil, err
	}
	return s.Check(known)
}

// Marshal writes the Spec as YAML that Parse reads back to an equal Spec.
func (s *Spec) Marshal() ([]byte, error) { return yaml.Marshal(s) }

// wholeNumbers returns an error for a number with a fraction in a field of whole numbers, because
// the YAML library would round it.
func wholeNumbers(f *ast.File) *yaml.Error {
	v := &fractions{anchors: map[string]ast.Node{}}
	for _, d := range f.Docs {
		if d.Body != nil {
			ast.Walk(v, d.Body)
		}
	}
	return v.found
}

type fractions struct {
	anchors map[string]ast.Node
	found   *yaml.Error
}

func (v *fractions) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok {
		v.anchors[a.Name.String()] = a.Value
	}
	m, ok := n.(*ast.MappingValueNode)
	if !ok {
		return v
	}
	switch key := m.Key.String(); key {
	case "args":
		return nil
	case "count", "area", "uid", "dag", "priority", "credits", "restart":
		value := ast.Node(m.Value)
		switch x := value.(type) {
		case *ast.AnchorNode:
			value = x.Value
		case *ast.AliasNode:
			value = v.anchors[x.Value.String()]
		}
		switch value.(type) {
		case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
			if v.found == nil {
				v.found = yaml.On(m.Value, fmt.Sprintf("%s %s: want a whole number", key, clip(value.String())))
			}
		}
	}
	return v
}

// Errorf returns an error at a place of the Spec, such as "tasks", "fw", "kind" or "dags", 3. Boards
// use it for checks that only they can make.
func (s *Spec) Errorf(place []any, format string, args ...any) *SpecError {
	return (*SpecError)(yaml.At(s.source, place, fmt.Sprintf(format, args...)))
}

// Known holds checks that need knowledge of the board.
type Known struct {
	// Kind returns an error for a network function that does not exist or that has wrong
	// arguments. If Kind is nil, all functions are accepted.
	Kind func(kind string, args map[string]string) error
}

// checking is a Spec that is being checked, with the Deployment that is made of it.
type checking struct {
	*Spec
	d       *Deployment
	tasks   map[string]TaskID
	tenants map[string]TenantID
	dags    map[uint32]DAGID
}

// Check checks a Spec and makes a Deployment of it. All errors are *SpecError.
func (s *Spec) Check(known Known) (*Deployment, error) {
	c := &checking{s, &Deployment{chains: &chains{}}, map[string]TaskID{}, map[string]TenantID{}, map[uint32]DAGID{}}
	for _, check := range []func(Known) *SpecError{c.checkRegions, c.checkTasks, c.checkTenants, c.checkDAGs, c.checkRules} {
		if err := check(known); err != nil {
			return nil, err
		}
	}
	c.d.rank = ranks(c.d.Tasks, c.d.DAGs)
	return c.d, nil
}

func at(place ...any) []any { return place }

// most returns an error if n is greater than most, or nil.
func (c *checking) most(what string, n, most int) *SpecError {
	if n > most {
		return c.Errorf(at(what), "%d %s, at most %d", n, what, most)
	}
	return nil
}

func (c *checking) checkRegions(Known) *SpecError {
	r := Regions{Count: c.Regions.Count, Area: c.Regions.Area, Bitstream: DefaultBitstream}
	switch {
	case r.Count < 1 || r.Count > maxRegions:
		return c.Errorf(at("regions", "count"), "regions: count %d: want 1 to %d", r.Count, maxRegions)
	case r.Area < 1 || r.Area > maxArea:
		return c.Errorf(at("regions", "area"), "regions: area %d: want 1 to %d", r.Area, maxArea)
	}
	if v := c.Regions.Bitstream; v != "" {
		n, err := parseBytes(v, maxBitstream)
		if err != nil || n == 0 {
			return c.Errorf(at("regions", "bitstream"), "regions: bitstream %s: %s", clip(v), wantBytes)
		}
		r.Bitstream = n
	}
	c.d.Regions = r
	return nil
}

func (c *checking) checkTasks(known Known) *SpecError {
	if err := c.most("tasks", len(c.Tasks), maxTasks); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Tasks)) {
		x := c.Tasks[name]
		wrong := func(field, format string, args ...any) *SpecError {
			return c.Errorf(at("tasks", name, field), "task %s: "+format, append([]any{name}, args...)...)
		}
		if !graph.ValidName(name) {
			return c.Errorf(at("tasks", name), "task name %q: use letters, digits, '_' and '-', at most 64", clip(name))
		}
		t := Task{
			Name: name, Kind: x.Kind, Args: maps.Clone(x.Args), Area: 1, Credits: DefaultCredits,
			Remote: x.Remote == nil || *x.Remote, Endpoint: x.Endpoint,
		}
		t.Drops, t.Answers, t.State = x.Drops, x.Answers, x.State
		if t.Kind == "" {
			return c.Errorf(at("tasks", name), "task %s: kind is missing", name)
		}
		if known.Kind != nil {
			if err := known.Kind(t.Kind, t.Args); err != nil {
				return wrong("kind", "%v", err)
			}
		}
		var err error
		if t.Reads, err = effect.ParseField(strings.Join(x.Reads, ",")); err != nil {
			return wrong("reads", "reads: %v", err)
		}
		if t.Writes, err = effect.ParseField(strings.Join(x.Writes, ",")); err != nil {
			return wrong("writes", "writes: %v", err)
		}
		if x.Memory != "" {
			if t.Memory, err = parseBytes(x.Memory, maxMemory); err != nil {
				return wrong("memory", "memory %s: %v", clip(x.Memory), err)
			}
		}
		if x.Throughput != "" {
			n, err := arg.ParseRate(x.Throughput, 1, arg.Fastest)
			if err != nil {
				return wrong("throughput", "throughput %s: %v", clip(x.Throughput), err)
			}
			t.Throughput = int64(n)
		}
		if x.Latency != "" {
			t.Latency, err = time.ParseDuration(x.Latency)
			if err != nil || t.Latency < 0 || t.Latency > maxLatency {
				return wrong("latency", "latency %s: want a time such as 64ns or 1.3us, at most %v", clip(x.Latency), maxLatency)
			}
		}
		if x.Area != nil {
			t.Area = *x.Area
		}
		switch {
		case t.Area < 1 || t.Area > maxArea:
			return wrong("area", "area %d: want 1 to %d", t.Area, maxArea)
		case t.Area > c.d.Regions.Area:
			return wrong("area", "area %d never fits: a region has %d", t.Area, c.d.Regions.Area)
		}
		if x.Bitstream != "" {
			if t.Bitstream, err = parseBytes(x.Bitstream, maxBitstream); err != nil || t.Bitstream == 0 {
				return wrong("bitstream", "bitstream %s: %s", clip(x.Bitstream), wantBytes)
			}
		}
		if x.Credits != nil {
			t.Credits = *x.Credits
		}
		if t.Credits < 1 || t.Credits > maxCredits {
			return wrong("credits", "credits %d: want 1 to %d", t.Credits, maxCredits)
		}
		switch x.Fault {
		case "", "drop":
		case "pass":
			t.Pass = true
		default:
			return wrong("fault", "fault %s: want drop or pass", clip(x.Fault))
		}
		if t.Restart = x.Restart; t.Restart < 0 || t.Restart > maxPriority {
			return wrong("restart", "restart %d: want 0 to %d", t.Restart, maxPriority)
		}
		c.tasks[name] = TaskID(len(c.d.Tasks))
		c.d.Tasks = append(c.d.Tasks, t)
	}
	return nil
}

func (c *checking) checkTenants(Known) *SpecError {
	if err := c.most("tenants", len(c.Tenants), maxTenants); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		if !graph.ValidName(name) {
			return c.Errorf(at("tenants", name), "tenant name %q: use letters, digits, '_' and '-', at most 64", clip(name))
		}
		t := Tenant{Name: name, Weight: 1}
		if w := c.Tenants[name].Weight; w != nil {
			t.Weight = *w
		}
		if !(t.Weight >= 1./maxWeight && t.Weight <= maxWeight) {
			return c.Errorf(at("tenants", name, "weight"), "tenant %s: weight %v: want 1/%d to %d", name, t.Weight, maxWeight, maxWeight)
		}
		c.tenants[name] = TenantID(len(c.d.Tenants))
		c.d.Tenants = append(c.d.Tenants, t)
	}
	return nil
}

func (c *checking) checkDAGs(Known) *SpecError {
	if err := c.most("dags", len(c.DAGs), maxDAGs); err != nil {
		return err
	}
	for i, x := range c.DAGs {
		if x.UID == 0 {
			return c.Errorf(at("dags", i), "a DAG needs a uid, from 1 on")
		}
		if _, ok := c.dags[x.UID]; ok {
			return c.Errorf(at("dags", i, "uid"), "DAG %d is there twice", x.UID)
		}
		tenant, ok := c.tenants[x.Tenant]
		if !ok {
			return c.Errorf(at("dags", i, "tenant"), "DAG %d: unknown tenant %q%s", x.UID, clip(x.Tenant), among(c.tenants))
		}
		o, err := ParseOrder(x.Run)
		if err != nil {
			return c.Errorf(at("dags", i, "run"), "DAG %d: %v", x.UID, err)
		}
		g := DAG{UID: x.UID, Tenant: tenant}
		for _, name := range o.Tasks {
			id, ok := c.tasks[name]
			if !ok {
				return c.Errorf(at("dags", i, "run"), "DAG %d: unknown task %q%s", x.UID, name, among(c.tasks))
			}
			g.Tasks = append(g.Tasks, id)
		}
		if circle := o.circle(); circle != nil {
			return c.Errorf(at("dags", i, "run"), "DAG %d goes round in a circle: %s", x.UID, strings.Join(circle, " -> "))
		}
		for _, e := range o.Edges {
			g.Edges = append(g.Edges, [2]TaskID{g.Tasks[e[0]], g.Tasks[e[1]]})
		}
		c.dags[x.UID] = DAGID(i)
		c.d.DAGs = append(c.d.DAGs, g)
	}
	return nil
}

func (c *checking) checkRules(Known) *SpecError {
	if err := c.most("rules", len(c.Rules), maxRules); err != nil {
		return err
	}
	for i, x := range c.Rules {
		r := mat.Rule{Priority: x.Priority}
		var err error
		if x.Match == "" {
			return c.Errorf(at("rules", i), "rule %d: match is missing (all: every frame)", i+1)
		}
		if r.In, r.Match, err = mat.Parse(x.Match); err != nil {
			return c.Errorf(at("rules", i, "match"), "rule %d: %v", i+1, err)
		}
		if x.Priority < -maxPriority || x.Priority > maxPriority {
			return c.Errorf(at("rules", i, "priority"), "rule %d: priority %d: want -%d to %d", i+1, x.Priority, maxPriority, maxPriority)
		}
		switch {
		case (x.DAG != 0) == (x.Road != ""):
			return c.Errorf(at("rules", i), "rule %d: want dag: UID or road: switch, control or refuse, one of both", i+1)
		case x.DAG != 0:
			id, ok := c.dags[x.DAG]
			if !ok {
				return c.Errorf(at("rules", i, "dag"), "rule %d: there is no DAG %d", i+1, x.DAG)
			}
			r.Road, r.DAG = mat.Tasks, int(id)
		case x.Road == "switch":
			r.Road = mat.Switch
		case x.Road == "control":
			r.Road = mat.Control
		case x.Road == "refuse":
			r.Road = mat.Refuse
		default:
			return c.Errorf(at("rules", i, "road"), "rule %d: road %q: want switch, control or refuse", i+1, clip(x.Road))
		}
		c.d.Rules = append(c.d.Rules, r)
	}
	return nil
}

// among returns the known names for an error message, or only their number if there are more than 12.
func among[V any](known map[string]V) string {
	switch names := slices.Sorted(maps.Keys(known)); {
	case len(names) == 0:
		return " (there are none)"
	case len(names) <= 12:
		return " (known: " + strings.Join(names, ", ") + ")"
	default:
		return fmt.Sprintf(" (%d are known)", len(names))
	}
}

const wantBytes = "want bytes such as 9000, 64k, 2M or 1G"

// parseBytes reads bytes; k, M and G are powers of 1024.
func parseBytes(s string, most int64) (int64, error) {
	v, shift := s, 0
	for i, unit := range []string{"k", "M", "G"} {
		if x, ok := strings.CutSuffix(s, unit); ok {
			v, shift = x, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil {
		return 0, errors.New(wantBytes)
	}
	if n > uint64(most)>>shift {
		return 0, fmt.Errorf("at most %d", most)
	}
	return int64(n) << shift, nil
}

// Task returns the task with this name, and whether it exists.
func (d *Deployment) Task(name string) (TaskID, bool) {
	i, ok := slices.BinarySearchFunc(d.Tasks, name, func(t Task, n string) int { return cmp.Compare(t.Name, n) })
	return TaskID(i), ok
}

// Tenant returns the tenant with this name, and whether it exists.
func (d *Deployment) Tenant(name string) (TenantID, bool) {
	i, ok := slices.BinarySearchFunc(d.Tenants, name, func(t Tenant, n string) int { return cmp.Compare(t.Name, n) })
	return TenantID(i), ok
}

// Names returns the names of tasks as text: a -> b.
func (d *Deployment) Names(tasks ...TaskID) string {
	names := make([]string, len(tasks))
	for i, t := range tasks {
		names[i] = d.Tasks[t].Name
	}
	return strings.Join(names, " -> ")
}

// Text returns the text of a DAG, in the form of Order.
func (d *Deployment) Text(id DAGID) string {
	g := &d.DAGs[id]
	at := map[TaskID]int{}
	var o Order
	for i, t := range g.Tasks {
		at[t] = i
		o.Tasks = append(o.Tasks, d.Tasks[t].Name)
	}
	for _, e := range g.Edges {
		o.Edges = append(o.Edges, [2]int{at[e[0]], at[e[1]]})
	}
	return o.String()
}

// clip returns s, cut after 40 bytes so that a line of an error message is not too long.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}
