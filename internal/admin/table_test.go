package admin_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/tor/clover"
)

// steering is an instance with tables, and a client of it.
func steering(t *testing.T, only string) (*graph.Instance, *admin.Client) {
	t.Helper()
	inst, err := graph.New(graph.Config{Kinds: []graph.Kind{*clover.Kind()},
		Spec: &graph.Spec{Apps: map[string]graph.AppSpec{"steer": {Kind: "clover-steer", Args: graph.Args{"only": only}}}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := admin.Listen(t.Context(), admin.Config{Name: "test", Path: filepath.Join(t.TempDir(), "test.sock"), Instance: inst})
	if err != nil {
		t.Fatal(err)
	}
	c, err := admin.Dial(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := errors.Join(s.Close(), inst.Close()); err != nil {
			t.Error(err)
		}
	})
	return inst, c
}

// A large table comes in several answers, and the connection goes on after it,
// and after a refusal.
func TestTable(t *testing.T) {
	var only []string
	for n := range 600 {
		only = append(only, fmt.Sprintf("%d#%d", n, n+1))
	}
	inst, c := steering(t, strings.Join(only, "+"))
	for range 2 {
		seen := map[string]bool{}
		defaults := 0
		err := c.Table("steer", "steered_keys", func(e table.Text) error {
			if e.Default {
				defaults++
				if e.Action != "leave" {
					t.Errorf("default: %v", e)
				}
				return nil
			}
			if e.Action != "steer" || e.Match["meta.key"] != fmt.Sprintf("%d..%d", e.Priority-1, e.Priority-1) || len(e.Match) != 1 {
				t.Errorf("%v", e)
			}
			seen[e.Match["meta.key"]] = true
			return nil
		})
		if err != nil || len(seen) != 600 || defaults != 1 {
			t.Errorf("%d entries, %d defaults, %v", len(seen), defaults, err)
		}
		if err := c.Table("steer", "steered", nil); err == nil || !strings.Contains(err.Error(), "there is no table steer.steered; quillon table list") {
			t.Errorf("%v", err)
		}
		stop := errors.New("enough")
		if err := c.Table("steer", "steered_keys", func(table.Text) error { return stop }); err != stop {
			t.Errorf("%v", err)
		}
	}
	change := func(what string, e table.Text) error { return c.Change("steer", "steered_keys", what, e) }
	key := func(k string) map[string]string { return map[string]string{"key": k} }
	for _, err := range []error{
		change("default", table.Text{Action: "steer"}),
		change("insert", table.Text{Match: key("1000..2000"), Priority: 7, Action: "leave"}),
		change("insert", table.Text{Match: key("5000"), Action: "leave"}), // priority 1
		change("modify", table.Text{Match: key("5000"), Action: "steer"}),
		change("delete", table.Text{Match: key("3"), Priority: 4}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	got := inst.Spec().Apps["steer"].Args["only"]
	if strings.Contains(got, "+3#4+") || !strings.HasSuffix(got, "+1000-2000#7:leave+5000+all") && !strings.HasSuffix(got, "+5000+all") || !strings.Contains(got, "+1000-2000#7:leave+") {
		t.Errorf("only=%s", got)
	}
	if err := change("default", table.Text{}); err != nil || !strings.HasSuffix(inst.Spec().Apps["steer"].Args["only"], "+all") {
		t.Errorf("%v", err)
	}
	for want, err := range map[string]error{
		"is no change of a table":                     change("replace", table.Text{}),
		"the action is missing":                       change("insert", table.Text{Match: key("1")}),
		"by its key alone":                            change("delete", table.Text{Match: key("1"), Action: "steer"}),
		"app steer: table steered_keys has no entry":  change("delete", table.Text{Match: key("9999")}),
		"table steered_keys: meta.key=x: want a numb": change("delete", table.Text{Match: key("x")}),
		"there is no table steer.x":                   c.Change("steer", "x", "insert", table.Text{}),
		"table tails: no insert: it takes delete":     c.Change("steer", "tails", "insert", table.Text{Match: map[string]string{"dst": "10.0.0.1", "key": "1"}, Action: "unknown", Params: map[string]string{"open": "0", "uses": "0"}}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	all, err := c.Tables()
	if err != nil || len(all) != 6 {
		t.Fatalf("%v, %v", all, err)
	}
	want := clover.Kind().Tables[1]
	want.Setting = nil
	if d := cmp.Diff(admin.Table{App: "steer", Kind: "clover-steer", Decl: want}, all[1]); d != "" {
		t.Error(d)
	}
}
