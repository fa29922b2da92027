package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/rates"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/dag"
)

// snicKind is the kind of apps that are boards.
const snicKind = "snic"

func newSNICCmd() *cobra.Command {
	cmd := group(snicKind, "Deploy network tasks on a running SuperNIC, and watch it",
		"  quillon snic check tasks.yaml\n  quillon snic deploy tasks.yaml\n  quillon snic dag add 9 bob 'fw -> count'\n  quillon snic regions",
		newSNICCheckCmd(), newSNICDeployCmd(), newSNICShowCmd(), newSNICTaskCmd(), newSNICDAGCmd(), newSNICRuleCmd(), newSNICTenantsCmd(),
		newSNICRegionsCmd(), newSNICTasksCmd(), newSNICRestartCmd(), newSNICPoolCmd(), newSNICTraceCmd())
	cmd.Long = `Deploys network tasks, DAGs of them, rules and tenants on a running board (an app
of kind snic), and shows what it does with them. What is wrong is refused, and
what runs stays. What does not change keeps its state and its packets.

A deployment is YAML: see quillon nf describe snic. quillon apply, quillon set,
quillon table and, by P4Runtime, quillon ctl change the same.`
	return cmd
}

// boardOf returns the name and the arguments of the board that a command addresses.
func boardOf(c *admin.Client, app string) (string, graph.Args, error) {
	g, err := c.Graph()
	if err != nil {
		return "", nil, err
	}
	var found []string
	for name, a := range g.Spec.Apps {
		if a.Kind == snicKind && (app == "" || app == name) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	switch {
	case len(found) == 1:
		return found[0], g.Spec.Apps[found[0]].Args, nil
	case app != "":
		return "", nil, fmt.Errorf("no app of kind snic is named %q; quillon show graph lists the apps", app)
	case len(found) == 0:
		return "", nil, errors.New("no board runs there: give the spec an app of kind snic (quillon nf describe snic)")
	}
	return "", nil, fmt.Errorf("several boards run there: choose one with --app: %s", strings.Join(found, ", "))
}

// onBoard is asking, for commands about a board.
func onBoard[V any](cmd *cobra.Command, ask func(c *admin.Client, app string, is graph.Args, args []string) (V, error), text func(io.Writer, V)) *cobra.Command {
	var app string
	cmd = asking(cmd, func(c *admin.Client, args []string) (V, error) {
		name, is, err := boardOf(c, app)
		if err != nil {
			var none V
			return none, err
		}
		return ask(c, name, is, args)
	}, text)
	cmd.Flags().StringVar(&app, "app", "", "the board's `name` in the graph (default: the only one)")
	return cmd
}

// change is what a command has changed in a deployment.
type change struct {
	App string `json:"app"`
	// Changes are lines such as "dag 9 added".
	Changes []string `json:"changes"`
}

// editing is onBoard, for commands that edit the deployment.
func editing(cmd *cobra.Command, f func(s *dag.Spec, args []string) error) *cobra.Command {
	return onBoard(cmd, func(c *admin.Client, app string, is graph.Args, args []string) (change, error) {
		return edit(c, app, is, func(s *dag.Spec) error { return f(s, args) })
	}, changeText)
}

func changeText(w io.Writer, v change) {
	if len(v.Changes) == 0 {
		fmt.Fprintf(w, "%s: nothing changes\n", v.App)
	}
	for _, s := range v.Changes {
		fmt.Fprintf(w, "%s: %s\n", v.App, s)
	}
}

// edit changes the deployment of a board. f may replace entries of the deployment, but must not modify an
// entry in place.
func edit(c *admin.Client, app string, is graph.Args, f func(*dag.Spec) error) (change, error) {
	next, err := dag.Parse([]byte(is["deployment"]))
	if err != nil {
		return change{}, err
	}
	was := &dag.Spec{
		Regions: next.Regions, Tasks: maps.Clone(next.Tasks), Tenants: maps.Clone(next.Tenants),
		DAGs: slices.Clone(next.DAGs), Rules: slices.Clone(next.Rules),
	}
	if err := f(next); err != nil {
		return change{}, err
	}
	text, err := next.Marshal()
	if err != nil {
		return change{}, err
	}
	if _, err := c.Set(app, graph.Args{"deployment": string(text)}); err != nil {
		return change{}, err
	}
	return change{app, differences(was, next)}, nil
}

// differences describes what was added to, changed in and removed from a deployment, a line each.
func differences(was, now *dag.Spec) []string {
	out := []string{}
	compare(&out, "task", was.Tasks, now.Tasks)
	compare(&out, "tenant", was.Tenants, now.Tenants)
	byUID := func(s *dag.Spec) map[string]dag.DAGSpec {
		m := map[string]dag.DAGSpec{}
		for _, d := range s.DAGs {
			m[strconv.Itoa(int(d.UID))] = d
		}
		return m
	}
	compare(&out, "dag", byUID(was), byUID(now))
	byText := func(s *dag.Spec) map[string]dag.RuleSpec {
		m := map[string]dag.RuleSpec{}
		for _, r := range s.Rules {
			m[ruleText(r)] = r
		}
		return m
	}
	compare(&out, "rule", byText(was), byText(now))
	if was.Regions != now.Regions {
		out = append(out, "regions changed")
	}
	return out
}

func compare[V any](out *[]string, what string, was, now map[string]V) {
	same := func(a, b V) bool {
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		return string(x) == string(y)
	}
	for _, k := range slices.Sorted(maps.Keys(now)) {
		switch old, ok := was[k]; {
		case !ok:
			*out = append(*out, what+" "+k+" added")
		case !same(old, now[k]):
			*out = append(*out, what+" "+k+" changed")
		}
	}
	for _, k := range slices.Sorted(maps.Keys(was)) {
		if _, ok := now[k]; !ok {
			*out = append(*out, what+" "+k+" taken away")
		}
	}
}

func ruleText(r dag.RuleSpec) string {
	s := r.Match + " => "
	if r.DAG != 0 {
		s += fmt.Sprintf("dag %d", r.DAG)
	} else {
		s += r.Road
	}
	if r.Priority != 0 {
		s += fmt.Sprintf(" priority %d", r.Priority)
	}
	return s
}

// deploymentIn returns the deployment in src: src itself, or if src is a spec, the deployment of its only
// board.
func deploymentIn(file string, src []byte) ([]byte, error) {
	if !slices.ContainsFunc(slices.Collect(bytes.Lines(src)), func(l []byte) bool { return bytes.HasPrefix(l, []byte("apps:")) }) {
		return src, nil
	}
	s, err := graph.ParseSpec(src)
	if err != nil {
		return nil, specError(file, err)
	}
	var found []byte
	boards := 0
	for _, a := range s.Apps {
		if a.Kind == snicKind {
			found = []byte(a.Args["deployment"])
			boards++
		}
	}
	if boards != 1 {
		return nil, fmt.Errorf("%s is a spec with %d boards: give a deployment, or a spec with one app of kind snic", file, boards)
	}
	return found, nil
}

// readDeployment reads a deployment from a file, or from standard input if file is "-".
func readDeployment(cmd *cobra.Command, file string) (*dag.Spec, []byte, error) {
	var src []byte
	var err error
	if file == "-" {
		src, err = io.ReadAll(cmd.InOrStdin())
	} else {
		src, err = os.ReadFile(file)
	}
	if err == nil {
		src, err = deploymentIn(file, src)
	}
	if err != nil {
		return nil, nil, err
	}
	s, err := dag.Parse(src)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, src, nil
}

// knownTasks refuses a kind, or arguments, that cannot be a task's.
func knownTasks(kind string, args map[string]string) error {
	k, err := kindByName(kind)
	if err != nil {
		return err
	}
	for name := range args {
		if !slices.ContainsFunc(k.Params, func(p graph.Param) bool { return p.Name == name }) {
			return fmt.Errorf("%s has no argument %q; quillon nf describe %s", kind, name, kind)
		}
	}
	if k.Inside != nil || !slices.Equal(k.In, []string{"a", "b"}) || !slices.Equal(k.Out, k.In) {
		return fmt.Errorf("%s cannot be a task: it has not the ports a and b", kind)
	}
	return nil
}

// checked is the result of checking a deployment.
type checked struct {
	Regions int          `json:"regions"`
	Tasks   int          `json:"tasks"`
	Tenants int          `json:"tenants"`
	Rules   int          `json:"rules"`
	Chains  int          `json:"chains"` // bitstreams that must be made
	Bytes   int64        `json:"bytes"`  // of all bitstreams
	DAGs    []checkedDAG `json:"dags"`
}

type checkedDAG struct {
	UID    uint32 `json:"uid"`
	Tenant string `json:"tenant"`
	Run    string `json:"run"`
	// Stages are the DAG's stages, each with the branches of tasks that may run side by side.
	Stages [][]string `json:"stages"`
	Fits   bool       `json:"fits"` // all tasks fit into one region
}

func check(spec *dag.Spec) (checked, error) {
	d, err := snic.Check(spec, registry.Functions(), knownTasks)
	if err != nil {
		return checked{}, err
	}
	chains, err := d.Chains(0)
	if err != nil {
		return checked{}, err
	}
	v := checked{Regions: d.Regions.Count, Tasks: len(d.Tasks), Tenants: len(d.Tenants), Rules: len(d.Rules), Chains: len(chains)}
	for _, c := range chains {
		v.Bytes += c.Bitstream
	}
	for i, x := range d.DAGs {
		c := checkedDAG{UID: x.UID, Tenant: d.Tenants[x.Tenant].Name, Run: d.Text(dag.DAGID(i))}
		area := 0
		for _, stage := range d.Stages(dag.DAGID(i), 0) {
			var branches []string
			for _, b := range stage {
				branches = append(branches, d.Names(b...))
			}
			c.Stages = append(c.Stages, branches)
		}
		for _, t := range x.Tasks {
			area += d.Tasks[t].Area
		}
		c.Fits = area <= d.Regions.Area && len(x.Tasks) <= dag.MaxChain
		v.DAGs = append(v.DAGs, c)
	}
	return v, nil
}

func newSNICCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "Check a deployment, and show what becomes of it",
		Long: `Reads a deployment, or the spec of a board with one (- reads standard input), and
shows its DAGs: which tasks may run in parallel (in braces), whether a DAG fits
one region, and how many bitstreams there are to make.`,
		Example: "  quillon snic check tasks.yaml\n  quillon snic check nic.yaml --json",
		Args:    exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := readDeployment(cmd, args[0])
			if err != nil {
				return err
			}
			v, err := check(s)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return show(cmd, v, func(w io.Writer) {
				for _, d := range v.DAGs {
					fits := "in one region"
					if !d.Fits {
						fits = "in several regions"
					}
					fmt.Fprintf(w, "dag %d\t%s\t%s\t%s\n", d.UID, d.Tenant, stagesText(d.Stages), fits)
				}
				fmt.Fprintf(w, "%d regions, %d tasks, %d tenants, %d rules; %d bitstreams, %.0f MB\n", v.Regions, v.Tasks, v.Tenants, v.Rules, v.Chains, float64(v.Bytes)/1e6)
			})
		},
	}
}

// stagesText writes stages in order; branches that may run side by side are in braces.
func stagesText(all [][]string) string {
	var stages []string
	for _, s := range all {
		if len(s) > 1 {
			stages = append(stages, "{"+strings.Join(s, " | ")+"}")
		} else {
			stages = append(stages, s[0])
		}
	}
	return strings.Join(stages, " -> ")
}

func newSNICDeployCmd() *cobra.Command {
	cmd := onBoard(&cobra.Command{
		Use: "deploy FILE", Short: "Put a deployment in force, under traffic",
		Long: `Puts a deployment (YAML; - reads standard input), or that in the spec of a
board, in place of the one that is in force. Tasks of the same name, kind and
arguments keep their state, DAGs of the same uid their packets.`,
		Example: "  quillon snic deploy tasks.yaml\n  quillon snic show | sed s/40Gbit/80Gbit/ | quillon snic deploy -",
		Args:    exactly("FILE"),
	}, func(c *admin.Client, app string, is graph.Args, args []string) (change, error) {
		s, src, err := readDeployment(&cobra.Command{}, args[0])
		if err != nil {
			return change{}, err
		}
		if _, err := check(s); err != nil {
			return change{}, fmt.Errorf("%s: %w", args[0], err)
		}
		was, err := dag.Parse([]byte(is["deployment"]))
		if err != nil {
			return change{}, err
		}
		_, err = c.Set(app, graph.Args{"deployment": string(src)})
		return change{app, differences(was, s)}, err
	}, changeText)
	return cmd
}

func newSNICShowCmd() *cobra.Command {
	return onBoard(&cobra.Command{
		Use: "show", Short: "Print the deployment that is in force", Args: exactly(),
		Example: "  quillon snic show >tasks.yaml",
	}, func(_ *admin.Client, _ string, is graph.Args, _ []string) (string, error) {
		return is["deployment"], nil
	},
		func(w io.Writer, v string) { fmt.Fprintln(w, strings.TrimRight(v, "\n")) })
}

// onViews is asking, for a part of the view that each worker has of a board.
func onViews[V any](cmd *cobra.Command, part func(worker int, v snic.View) V, text func(io.Writer, V)) *cobra.Command {
	return onBoard(cmd, func(c *admin.Client, app string, _ graph.Args, _ []string) ([]V, error) {
		return parts(c, app, part)
	}, perWorker(text))
}

func parts[V any](c *admin.Client, app string, part func(worker int, v snic.View) V) ([]V, error) {
	all, err := rates.Boards(c, app)
	out := make([]V, len(all))
	for i, v := range all {
		out[i] = part(i, v)
	}
	return out, err
}

// perWorker prints a part of each worker's view, with headings if there are several workers.
func perWorker[V any](text func(io.Writer, V)) func(io.Writer, []V) {
	return func(w io.Writer, all []V) {
		for i, v := range all {
			if len(all) > 1 {
				fmt.Fprintf(w, "worker %d\n", i)
			}
			text(w, v)
		}
	}
}

// The commands below print a list of these with --json, one for each worker.
type (
	boardRegions struct {
		Worker  int               `json:"worker"`
		Regions []snic.RegionView `json:"regions"`
		snic.RegionTotals
	}
	boardEvents struct {
		Worker int              `json:"worker"`
		Events []snic.EventView `json:"events"` // oldest first
	}
	boardTasks struct {
		Worker int               `json:"worker"`
		Tasks  []snic.TaskView   `json:"tasks"`
		Memory *snic.BoardMemory `json:"memory,omitempty"` // nil: the board has no memory
	}
	boardDAGs struct {
		Worker int            `json:"worker"`
		DAGs   []snic.DAGView `json:"dags"`
	}
	boardTenants struct {
		Worker  int               `json:"worker"`
		Tenants []snic.TenantView `json:"tenants"`
	}
)

func uid(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("UID is %q: want a number from 1 to 4294967295", s)
	}
	return uint32(n), nil
}

func newSNICTaskCmd() *cobra.Command {
	var t dag.TaskSpec
	var area, credits int
	var remote bool
	add := onBoard(&cobra.Command{
		Use: "add NAME KIND [ARGUMENT=VALUE...]", Short: "Deploy a task, or change one",
		Long: `Deploys a task: a network function (quillon nf list) with its arguments. A task
of that name is another one from then on; it keeps its state if function and
arguments stay, and its memory if that stays or grows.`,
		Example: "  quillon snic task add fw firewall default=allow --throughput 40Gbit --area 2",
		Args:    atLeast("NAME", "KIND"),
	}, func(c *admin.Client, app string, is graph.Args, args []string) (change, error) {
		t.Kind = args[1]
		for _, a := range args[2:] {
			name, v, ok := strings.Cut(a, "=")
			if !ok {
				return change{}, fmt.Errorf("%s is not of the form NAME=VALUE", a)
			}
			if t.Args == nil {
				t.Args = map[string]string{}
			}
			t.Args[name] = v
		}
		if err := knownTasks(t.Kind, t.Args); err != nil {
			return change{}, err
		}
		return edit(c, app, is, func(s *dag.Spec) error {
			if s.Tasks == nil {
				s.Tasks = map[string]dag.TaskSpec{}
			}
			t.Restart = s.Tasks[args[0]].Restart // a different value would start the task anew
			s.Tasks[args[0]] = t
			return nil
		})
	}, changeText)
	f := add.Flags()
	f.StringSliceVar(&t.Reads, "reads", nil, "`fields` that it reads, with commas between (default: what is known of the function)")
	f.StringSliceVar(&t.Writes, "writes", nil, "`fields` that it writes")
	f.BoolVar(&t.Drops, "drops", false, "it may drop packets")
	f.BoolVar(&t.Answers, "answers", false, "it may send packets back, or make some")
	f.BoolVar(&t.State, "state", false, "it has state")
	f.StringVar(&t.Memory, "memory", "", "`bytes` of memory, such as 4M")
	f.StringVar(&t.Throughput, "throughput", "", "the `rate` of an instance, such as 40Gbit (default: not limited)")
	f.StringVar(&t.Latency, "latency", "", "the `time` that it takes, such as 64ns")
	f.StringVar(&t.Bitstream, "bitstream", "", "`bytes` that it adds to a chain's bitstream (default: a chain has that of a region)")
	f.IntVar(&area, "area", 1, "its area, of a region's")
	f.IntVar(&credits, "credits", dag.DefaultCredits, "packets that an instance has inside at most")
	f.BoolVar(&remote, "remote", true, "other boards of the pool may run it")
	f.BoolVar(&t.Endpoint, "endpoint", false, "the endpoint may do its work")
	f.StringVar(&t.Fault, "fault", "", "what becomes of its packets when a fault of its memory has stopped it, or it has panicked: `drop` or pass (default: drop)")
	add.PreRun = func(cmd *cobra.Command, _ []string) { // leaves out flags that were not given
		if cmd.Flags().Changed("area") {
			t.Area = &area
		}
		if cmd.Flags().Changed("credits") {
			t.Credits = &credits
		}
		if cmd.Flags().Changed("remote") {
			t.Remote = &remote
		}
	}
	del := editing(&cobra.Command{
		Use: "delete NAME", Short: "Take a task away", Args: exactly("NAME"), Example: "  quillon snic task delete fw",
	}, func(s *dag.Spec, args []string) error {
		if _, ok := s.Tasks[args[0]]; !ok {
			return fmt.Errorf("no task is named %s; quillon snic tasks", args[0])
		}
		for _, d := range s.DAGs {
			if o, err := dag.ParseOrder(d.Run); err == nil && slices.Contains(o.Tasks, args[0]) {
				return fmt.Errorf("DAG %d runs task %s: change or delete it first (quillon snic dag)", d.UID, args[0])
			}
		}
		delete(s.Tasks, args[0])
		return nil
	})
	return group("task", "Deploy tasks, and take them away", "  quillon snic task add fw firewall default=allow\n  quillon snic task delete fw", add, del)
}

func newSNICDAGCmd() *cobra.Command {
	list := onViews(&cobra.Command{
		Use: "list", Short: "Show the DAGs, the chains that they go through, and their traffic", Args: exactly(),
		Long: `Shows the DAGs as they run: tasks in braces run side by side, each branch on a copy
of the frame (parallel= of the board; quillon snic check shows what could). Tasks of
a chain that a DAG skips are in parentheses. Where a DAG has more than its chain can
do, some of its flows go through another one. With --json a list with {worker, dags}
of each worker.`,
		Example: "  quillon snic dag list",
	}, func(worker int, v snic.View) boardDAGs { return boardDAGs{worker, v.DAGs} }, func(w io.Writer, v boardDAGs) {
		fmt.Fprintln(w, "UID\tTENANT\tSTATE\tPACKETS\tTHROTTLED\tOFFERED\tRUN\tTHROUGH")
		for _, d := range v.DAGs {
			fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", d.UID, d.Tenant, d.State, d.Packets, d.Throttled, bitRate(d.Rate), stagesText(d.Stages), throughText(d))
		}
	})
	add := editing(&cobra.Command{
		Use: "add UID TENANT RUN", Short: "Deploy a DAG, or change one",
		Long: `Deploys a DAG of tasks that are deployed: sequences with -> between, and ; between
sequences. A DAG of that uid is changed. A tenant that is not there gets weight 1.`,
		Example: "  quillon snic dag add 9 bob 'fw -> nat; fw -> count'",
		Args:    exactly("UID", "TENANT", "RUN"),
	}, func(s *dag.Spec, args []string) error {
		id, err := uid(args[0])
		if err != nil {
			return err
		}
		if _, ok := s.Tenants[args[1]]; !ok {
			if s.Tenants == nil {
				s.Tenants = map[string]dag.TenantSpec{}
			}
			s.Tenants[args[1]] = dag.TenantSpec{}
		}
		d := dag.DAGSpec{UID: id, Tenant: args[1], Run: args[2]}
		if i := slices.IndexFunc(s.DAGs, func(x dag.DAGSpec) bool { return x.UID == id }); i >= 0 {
			s.DAGs[i] = d
		} else {
			s.DAGs = append(s.DAGs, d)
		}
		return nil
	})
	del := editing(&cobra.Command{
		Use: "delete UID", Short: "Take a DAG away, with the rules that lead to it", Args: exactly("UID"),
		Example: "  quillon snic dag delete 9",
	}, func(s *dag.Spec, args []string) error {
		id, err := uid(args[0])
		if err != nil {
			return err
		}
		n := len(s.DAGs)
		s.DAGs = slices.DeleteFunc(s.DAGs, func(d dag.DAGSpec) bool { return d.UID == id })
		if len(s.DAGs) == n {
			return fmt.Errorf("no DAG has uid %d; quillon snic dag list", id)
		}
		s.Rules = slices.DeleteFunc(s.Rules, func(r dag.RuleSpec) bool { return r.DAG == id })
		return nil
	})
	return group("dag", "Show and change the DAGs", "  quillon snic dag list\n  quillon snic dag add 9 bob 'fw -> count'", list, add, del)
}

func newSNICRuleCmd() *cobra.Command {
	var priority int
	parse := func(args []string) (dag.RuleSpec, error) {
		r := dag.RuleSpec{Match: args[0], Priority: priority, Road: args[1]}
		var err error
		if args[1] == "dag" {
			if len(args) < 3 {
				return r, errors.New("dag needs a UID: MATCH dag UID")
			}
			r.Road = ""
			r.DAG, err = uid(args[2])
		} else if len(args) > 2 {
			return r, fmt.Errorf("%q %q: want dag UID, or one of switch, control and refuse", args[1], args[2])
		}
		return r, err
	}
	list := onBoard(&cobra.Command{
		Use: "list", Short: "Show the rules", Args: exactly(), Example: "  quillon snic rule list",
	}, func(_ *admin.Client, _ string, is graph.Args, _ []string) ([]dag.RuleSpec, error) {
		s, err := dag.Parse([]byte(is["deployment"]))
		if err != nil {
			return nil, err
		}
		return list(s.Rules), nil
	}, func(w io.Writer, v []dag.RuleSpec) {
		for _, r := range v {
			fmt.Fprintln(w, ruleText(r))
		}
	})
	add := editing(&cobra.Command{
		Use: "add MATCH dag UID|switch|control|refuse", Short: "Add a rule",
		Long: `Adds a rule behind those of its priority. MATCH is all, or terms with + between of
in (a port's number), vlan, type, proto, src, dst, sport, dport, vni, qpn and nsh.`,
		Example: "  quillon snic rule add src:10.2.0.0/16+proto:6 dag 9 --priority 10",
		Args:    optional(2, "MATCH", "dag|switch|control|refuse", "UID"),
	}, func(s *dag.Spec, args []string) error {
		r, err := parse(args)
		s.Rules = append(s.Rules, r)
		return err
	})
	del := editing(&cobra.Command{
		Use: "delete MATCH dag UID|switch|control|refuse", Short: "Take a rule away",
		Example: "  quillon snic rule delete src:10.2.0.0/16+proto:6 dag 9 --priority 10",
		Args:    optional(2, "MATCH", "dag|switch|control|refuse", "UID"),
	}, func(s *dag.Spec, args []string) error {
		r, err := parse(args)
		if err != nil {
			return err
		}
		n := len(s.Rules)
		s.Rules = slices.DeleteFunc(s.Rules, func(x dag.RuleSpec) bool { return ruleText(x) == ruleText(r) })
		if len(s.Rules) == n {
			return fmt.Errorf("there is no rule %q; quillon snic rule list", ruleText(r))
		}
		return nil
	})
	for _, c := range []*cobra.Command{add, del} {
		c.Flags().IntVar(&priority, "priority", 0, "the rule's priority: the highest counts")
	}
	return group("rule", "Show and change the rules", "  quillon snic rule list\n  quillon snic rule add src:10.2.0.0/16 dag 9", list, add, del)
}

func newSNICTenantsCmd() *cobra.Command {
	var add bool
	cmd := onBoard(&cobra.Command{
		Use: "tenants [NAME=WEIGHT...]", Short: "Show the tenants and their shares, or change weights",
		Long: `Shows the tenants: their weights; SHARE, their dominant shares, and GRANT, the part
that they get of what they ask for, both as means of the last 100 ms; LIMIT, and BY
what, of those that got less in the last epoch (20 us or more). On a board with memory
also what they have of it, and how much of that is their share (none with fair=off).
With NAME=WEIGHT it sets weights first, with --add also of tenants that are not there.
With --json a list with {worker, tenants} of each worker, shares and grants from 0 to 1.`,
		Example: "  quillon snic tenants\n  quillon snic tenants alice=2 bob=1\n  quillon snic tenants carol=1 --add",
	}, func(c *admin.Client, app string, is graph.Args, args []string) ([]boardTenants, error) {
		if len(args) > 0 {
			if _, err := edit(c, app, is, func(s *dag.Spec) error {
				for _, a := range args {
					name, v, ok := strings.Cut(a, "=")
					w, err := strconv.ParseFloat(v, 64)
					if !ok || err != nil {
						return fmt.Errorf("%q is not of the form NAME=WEIGHT", a)
					}
					if _, known := s.Tenants[name]; !known && !add {
						return unknownTenant(name, s)
					}
					if s.Tenants == nil {
						s.Tenants = map[string]dag.TenantSpec{}
					}
					s.Tenants[name] = dag.TenantSpec{Weight: &w}
				}
				return nil
			}); err != nil {
				return nil, err
			}
		}
		return parts(c, app, func(worker int, v snic.View) boardTenants { return boardTenants{worker, v.Tenants} })
	}, perWorker(func(w io.Writer, v boardTenants) { tenantsText(w, v.Tenants) }))
	cmd.Flags().BoolVar(&add, "add", false, "make tenants that are not there")
	return cmd
}

// unknownTenant returns the error about a name that no tenant of a deployment has.
func unknownTenant(name string, s *dag.Spec) error {
	return fmt.Errorf("no tenant is called %q%s; --add makes one", name, graph.Suggest(name, slices.Sorted(maps.Keys(s.Tenants))))
}

func tenantsText(w io.Writer, all []snic.TenantView) {
	memory := slices.ContainsFunc(all, func(t snic.TenantView) bool { return t.Memory != nil })
	head := "TENANT\tWEIGHT\tSHARE\tGRANT\tLIMIT\tBY\tWAITING"
	if memory {
		head += "\tMEMORY\tOF ITS SHARE"
	}
	fmt.Fprintln(w, head)
	for _, t := range all {
		limit := "-"
		if t.Limit > 0 {
			limit = bitRate(t.Limit)
		}
		by := t.Bottleneck
		by = cmp.Or(by, "-")
		line := fmt.Sprintf("%s\t%g\t%.0f %%\t%.0f %%\t%s\t%s\t%d", t.Tenant, t.Weight, 100*t.Share, 100*t.Grant, limit, by, t.Inside)
		if t.Memory != nil {
			share := byteCount(t.Memory.Share)
			if t.Memory.Held > 0 && t.Memory.Share == 0 {
				share = "-" // no tenant has a share
			}
			line += fmt.Sprintf("\t%s\t%s", byteCount(t.Memory.Held), share)
		} else if memory {
			line += "\t-\t-"
		}
		fmt.Fprintln(w, line)
	}
}

func newSNICPoolCmd() *cobra.Command {
	return onBoard(&cobra.Command{
		Use: "pool", Short: "Show the boards of the pool, and what runs where",
		Example: "  quillon snic pool", Args: exactly(),
	}, func(c *admin.Client, app string, _ graph.Args, _ []string) (*snic.PoolView, error) {
		v, err := rates.Boards(c, app)
		if err != nil {
			return nil, err
		}
		if v[0].Pool == nil {
			return nil, errors.New("the board is in no pool: give it pool-port=, and quillon run --pool")
		}
		all := v[0].Pool
		for i := range v[1:] {
			all.Add(v[1+i].Pool)
		}
		return all, nil
	}, func(w io.Writer, v *snic.PoolView) {
		fmt.Fprintf(w, "board %d: %d frames to peers, %d back; %d given back to peers\n", v.Board, v.Sent, v.Answered, v.Served)
		if v.Failed > 0 {
			fmt.Fprintf(w, "%d times the state of a task could not be moved\n", v.Failed)
		}
		fmt.Fprintln(w, "PEER\tADDRESS\tDEPLOYMENT\tFREE REGIONS\tDAGS\tLOAD")
		for _, p := range v.Peers {
			same := "another: not used"
			switch {
			case p.Leaving:
				same = "leaves"
			case p.Same:
				same = "the same"
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\n", p.Board, p.Address, same, p.Free, p.DAGs, bitRate(p.Load))
		}
		for _, a := range v.Away {
			at := ""
			if a.Peer >= 0 {
				at = fmt.Sprintf("at board %d: ", a.Peer)
			}
			fmt.Fprintf(w, "DAG %d (%s): %s%s\n", a.UID, a.Run, at, a.State)
		}
		for _, a := range v.Guests {
			copied := ""
			if a.Copied > 0 {
				copied = fmt.Sprintf(", copied %.1f s ago", a.Copied)
			}
			fmt.Fprintf(w, "DAG %d (%s) of board %d: %s here%s\n", a.UID, a.Run, a.Peer, a.State, copied)
		}
		for _, a := range v.Stays {
			fmt.Fprintf(w, "DAG %d (%s) stays: %s\n", a.UID, a.Run, a.State)
		}
	})
}

func newSNICRegionsCmd() *cobra.Command {
	var events bool
	cmd := onViews(&cobra.Command{
		Use: "regions", Short: "Show the regions: their chains, credits and queues",
		Long: `Shows the regions: the chain in each, its load, and the packets and credits of its
tasks; then what they have, and have done, together, and how much of its time the
worker needs for what comes, where that is measured. With --json a list of what each
worker has: {worker, regions, and that}, or with --events {worker, events}.`,
		Example: "  quillon snic regions\n  quillon snic regions --events", Args: exactly(),
	}, func(worker int, v snic.View) any {
		if events {
			return boardEvents{worker, v.Events}
		}
		return boardRegions{worker, v.Regions, v.Board.RegionTotals}
	}, func(w io.Writer, v any) {
		switch v := v.(type) {
		case boardEvents:
			for _, e := range v.Events {
				fmt.Fprintf(w, "%.6f s ago\t%s\n", e.AgoSec, e.Text)
			}
		case boardRegions:
			regionsText(w, v.Regions)
			fmt.Fprintf(w, "%d packets inside, %d of %d bytes in the packet store; %d loads, %d without PR, %d switches, scaled %d out and %d in; %d groups of flows moved to instances with room\n",
				v.Inside, v.Stored, v.Store, v.Loaded, v.Revived, v.Switched, v.ScaledOut, v.ScaledIn, v.Moved)
			if v.Busy > 0 {
				fmt.Fprintf(w, "what comes takes %.0f %% of the worker's time\n", 100*v.Busy)
			}
			if v.Copied+v.InLine > 0 {
				fmt.Fprintf(w, "%d times a packet ran side by side on copies; %d packets ran in line for want of frames\n", v.Copied, v.InLine)
			}
		}
	})
	cmd.Flags().BoolVar(&events, "events", false, "show what has happened to them, the latest last")
	return cmd
}

// throughText names the chains that a DAG goes through.
func throughText(d snic.DAGView) string {
	s := strings.Join(d.Through, " | ")
	if len(d.Aside) > 0 {
		s += fmt.Sprintf(", and %.0f %% through %s", 100*d.AsidePart, strings.Join(d.Aside, " | "))
	}
	return s
}

func regionsText(w io.Writer, all []snic.RegionView) {
	fmt.Fprintln(w, "REGION\tSTATE\tFOR\tCHAIN\tLOAD\tINSIDE\tWAITING\tCREDITS")
	for _, r := range all {
		chain := r.Chain
		chain = cmp.Or(chain, "-")
		var credits []string
		for _, c := range r.Credits {
			credits = append(credits, fmt.Sprintf("%d/%d", c.Free, c.Of))
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%.0f %%\t%d\t%d\t%s\n", r.Region, r.State, clip(time.Duration(r.SinceSec*1e9)), chain, 100*r.Load, r.Inside, r.Waiting, strings.Join(credits, " "))
	}
}

// bitRate formats a rate in bits a second.
func bitRate(v float64) string { return short(v) + "bit/s" }

// clip rounds a time so that few digits are printed.
func clip(d time.Duration) time.Duration {
	switch {
	case d > time.Minute:
		return d.Round(time.Second)
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Microsecond)
}

func newSNICTasksCmd() *cobra.Command {
	return onViews(&cobra.Command{
		Use: "tasks", Short: "Show the network tasks, their instances, their load, and their memory", Args: exactly(),
		Long: `Shows the network tasks: the load of all instances together, and of the fullest one. A
flow that alone is too much for an instance is told of. On a board with memory
(memory=) also what each has of it: what is on the board, what was swapped out
to others, and what it declares (memory:). A task that a fault of its memory has
stopped, or that has panicked, is shown with what it was, and where. The machine gives
a board its memory as it is used: the last line says how much at most it has given,
and what the whole process has. With --json a list with {worker, tasks, memory} of
each worker.`,
		Example: "  quillon snic tasks",
	}, func(worker int, v snic.View) boardTasks { return boardTasks{worker, v.Tasks, v.Board.Memory} }, tasksText)
}

func tasksText(w io.Writer, v boardTasks) {
	m := v.Memory
	head := "TASK\tKIND\tINSTANCES\tEACH\tLOAD\tFULLEST"
	if m != nil {
		head += "\tMEMORY\tSWAPPED\tDECLARED"
	}
	stopped := m != nil || slices.ContainsFunc(v.Tasks, func(t snic.TaskView) bool { return t.Fault != "" })
	if stopped {
		head += "\tSTOPPED BY"
	}
	fmt.Fprintln(w, head)
	for _, t := range v.Tasks {
		each, load, fullest := "-", "-", "-"
		if t.Throughput > 0 {
			each, load, fullest = bitRate(float64(t.Throughput)), fmt.Sprintf("%.2f", t.Load), fmt.Sprintf("%.2f", t.Fullest)
		}
		line := fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%s", t.Task, t.Kind, t.Instances, each, load, fullest)
		if m != nil {
			resident, swapped, declared := "-", "-", "-"
			if m := t.Memory; m != nil {
				resident, swapped, declared = byteCount(m.Resident), byteCount(m.Swapped), byteCount(m.Declared)
			}
			line += fmt.Sprintf("\t%s\t%s\t%s", resident, swapped, declared)
		}
		if stopped {
			line += "\t" + cmp.Or(t.Fault, "-")
		}
		fmt.Fprintln(w, line)
	}
	for _, t := range v.Tasks {
		if t.OneFlow > 0 {
			fmt.Fprintf(w, "%s: one flow alone has %.2f of what an instance can; as %s has state, more of them would not help\n", t.Task, t.OneFlow, t.Task)
		}
	}
	if m != nil {
		fmt.Fprintf(w, "%s of memory in pages of %s: %s free, %s lent to other boards; tasks of several tenants have %s\n",
			byteCount(m.Bytes), byteCount(m.Page), byteCount(m.Free), byteCount(m.Lent), byteCount(m.Shared.Held))
		resident := ""
		if m.Process > 0 {
			resident = fmt.Sprintf("; the process has %d MiB resident", m.Process>>20)
		}
		fmt.Fprintf(w, "%s of it have been in use: the machine has given no more for it%s\n", byteCount(m.Used), resident)
	}
}

// byteCount formats a number of bytes, in the largest unit in which it is whole.
func byteCount(n int64) string {
	unit := ""
	for _, u := range []string{"k", "M", "G"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return strconv.FormatInt(n, 10) + unit
}

func newSNICRestartCmd() *cobra.Command {
	return onBoard(&cobra.Command{
		Use: "restart TASK", Short: "Start a network task anew, as after a fault",
		Long: `Starts a network task anew, without what it knew, with memory of its own that is
empty: one that a fault of its memory has stopped, or that has panicked (quillon snic
tasks), or any other. It is the number restart: of the task in the deployment that
changes.`,
		Example: "  quillon snic restart cache",
		Args:    exactly("TASK"),
	}, func(c *admin.Client, app string, is graph.Args, args []string) (change, error) {
		return edit(c, app, is, func(s *dag.Spec) error {
			t, ok := s.Tasks[args[0]]
			if !ok {
				return fmt.Errorf("no task is named %q; quillon snic tasks lists them", args[0])
			}
			t.Restart++
			s.Tasks[args[0]] = t
			return nil
		})
	}, changeText)
}

func newSNICTraceCmd() *cobra.Command {
	var wait time.Duration
	cmd := onBoard(&cobra.Command{
		Use: "trace PORT N", Short: "Show the way of the next N frames from PORT through the board's tasks",
		Long: `Shows the way of the next N frames from PORT through the board's tasks. Of a frame
that runs side by side on copies it shows all of them, in the order of time.`,
		Example: "  quillon snic trace eth1 5", Args: exactly("PORT", "N"),
	}, func(c *admin.Client, app string, _ graph.Args, args []string) ([]graph.Traced, error) {
		n, err := strconv.Atoi(args[1])
		if err != nil || n < 1 {
			return nil, fmt.Errorf("N is %q: want a number from 1", args[1])
		}
		if wait < 0 {
			return nil, fmt.Errorf("--wait %v: want a time from 0", wait)
		}
		if err := c.ClearTrace(); err != nil {
			return nil, err
		}
		if err := c.AddTrace(args[0], n, ""); err != nil {
			return nil, err
		}
		var v []graph.Traced
		for range int(wait / (20 * time.Millisecond)) {
			if v, err = c.Trace(); err != nil || len(v) >= n {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		return list(v), errors.Join(err, c.ClearTrace())
	}, func(w io.Writer, v []graph.Traced) {
		if len(v) == 0 {
			fmt.Fprintln(w, "no frame came to its end meanwhile (--wait)")
		}
		for _, t := range v {
			fmt.Fprint(w, t)
		}
	})
	cmd.Flags().DurationVar(&wait, "wait", 2*time.Second, "how long to wait for the frames")
	return cmd
}
