package native

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/tor/clover"
	"github.com/quillon/quillon/tor/swordbox"
)

func programs(t *testing.T) map[string]*p4info.Info {
	t.Helper()
	files, err := filepath.Glob("../../../p4src/*.p4info.txtpb")
	if err != nil || len(files) == 0 {
		t.Fatalf("no P4Info in p4src: %v", err)
	}
	out := map[string]*p4info.Info{}
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		i, err := p4info.Parse(src)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".p4info.txtpb")] = i
	}
	return out
}

// Ids are those that p4c gives the same names.
func TestIDs(t *testing.T) {
	n := 0
	for program, i := range programs(t) {
		check := func(o *p4info.Object, prefix configv1.P4Ids_Prefix) {
			n++
			if id := uint32(prefix)<<24 | hash(o.Name)&0xFFFFFF; id != o.ID {
				t.Errorf("%s: %s is 0x%08x, p4c says 0x%08x", program, o.Name, id, o.ID)
			}
		}
		for _, x := range i.Tables {
			check(&x.Object, configv1.P4Ids_TABLE)
		}
		for _, x := range i.Actions {
			check(&x.Object, configv1.P4Ids_ACTION)
		}
		for _, x := range i.Counters {
			check(&x.Object, configv1.P4Ids_COUNTER)
		}
	}
	if n < 20 {
		t.Errorf("%d objects only", n)
	}
	taken := &namer{taken: map[uint32]string{}}
	a := taken.preamble(configv1.P4Ids_TABLE, "x", "")
	if b := taken.preamble(configv1.P4Ids_TABLE, "x", ""); b.Id != a.Id+1 {
		t.Errorf("an id that is taken: %d after %d", b.Id, a.Id)
	}
}

// both are the apps that have tables, each of them twice when doubled.
func both(doubled bool) []graph.AppTables {
	var out []graph.AppTables
	for _, k := range []*graph.Kind{clover.Kind(), swordbox.Kind()} {
		out = append(out, graph.AppTables{App: k.Name, Kind: k.Name, Control: k.Control, Tables: k.Tables})
		if doubled {
			out = append(out, graph.AppTables{App: k.Name + "2", Kind: k.Name, Control: k.Control, Tables: k.Tables})
		}
	}
	return out
}

// What an app's P4 twin has, too, has the same id there, the same key and the
// same parameters first; the app may show more.
func TestTwins(t *testing.T) {
	s, err := newSchema(both(false), nil)
	if err != nil {
		t.Fatal(err)
	}
	all := programs(t)
	same := func(where string, a, b []p4info.Field) {
		if len(a) > len(b) {
			t.Errorf("%s: %d fields, the twin's has %d", where, len(b), len(a))
			return
		}
		for n := range a {
			if a[n].ID != b[n].ID || a[n].Name != b[n].Name || a[n].Match != b[n].Match || a[n].Type.Bits > b[n].Type.Bits {
				t.Errorf("%s: field %v, the twin's is %v", where, b[n], a[n])
			}
		}
	}
	for program, names := range map[string][]string{
		"swordbox_steer": {"connections", "mode", "steered_keys"},
		"swordbox_mux":   {"clients", "answers", "shared", "words"},
	} {
		for _, name := range names {
			twin, err := p4info.ByName(all[program].Tables, "table", name)
			if err != nil {
				t.Fatal(err)
			}
			mine := s.info.Table(twin.ID)
			if mine == nil || mine.Name != twin.Name {
				t.Errorf("%s: no table %s of the id", program, twin.Name)
				continue
			}
			same(twin.Name, twin.Fields, mine.Fields)
			if name != "steered_keys" && len(twin.Fields) != len(mine.Fields) {
				t.Errorf("%s: the key has %d fields", twin.Name, len(mine.Fields))
			}
			for _, a := range twin.Actions {
				b := mine.ActionID(a.ID)
				if b == nil || b.Name != a.Name {
					t.Errorf("%s: no action %s of the id", twin.Name, a.Name)
					continue
				}
				same(twin.Name+" "+a.Name, a.Params, b.Params)
			}
		}
	}
}

// Names differ, aliases are their shortest ends, and two apps of a kind get
// along.
func TestNames(t *testing.T) {
	counts := []graph.Count{{Node: "clover-steer", Group: "frames", Name: "in", Help: "in"}, {Node: "clover-steer", Group: "frames", Name: "out"},
		{Node: "clover-steer", Group: "reason", Name: "roce"}, {Node: "port", Group: "frames", Name: "in"}}
	s, err := newSchema(both(false), counts)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, alias string }{
		{"steer_ingress.steered_keys", "steered_keys"}, {"steer_ingress.mode", "steer_ingress.mode"}, {"mux_ingress.mode", "mux_ingress.mode"},
	} {
		if x, err := p4info.ByName(s.info.Tables, "table", c.name); err != nil || x.Alias != c.alias {
			t.Errorf("%s: %v, %v", c.name, x, err)
		}
	}
	for name, size := range map[string]int64{"steer_ingress.frames": 2, "reasons": 1, "port.frames": 1} {
		if x, err := p4info.ByName(s.info.Counters, "counter", name); err != nil || x.Size != size || !strings.HasPrefix(x.Annotations[0], `@index(0, "`) {
			t.Errorf("%s: %v, %v", name, x, err)
		}
	}
	if s, err = newSchema(both(true), nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"clover-steer.mode", "clover-steer2.mode", "swordbox.words", "swordbox2.words"} {
		if x, err := p4info.ByName(s.info.Tables, "table", name); err != nil || x.Name != name {
			t.Errorf("%s: %v, %v", name, x, err)
		}
	}
	bad := []graph.AppTables{{App: "a", Kind: "k", Tables: []table.Decl{
		{Name: "x", Actions: []table.Action{{Name: "do"}}}, {Name: "y", Actions: []table.Action{{Name: "do", Params: []table.Field{{Name: "p", Bits: 1}}}}},
	}}}
	if _, err := newSchema(bad, nil); err == nil || !strings.Contains(err.Error(), "different actions called do") {
		t.Errorf("%v", err)
	}
}

// What declarations say is what the apps do: an app without arguments has the
// declared defaults and no entries, values fit, and every table has a help.
func TestDeclarations(t *testing.T) {
	for _, a := range both(false) {
		for i := range a.Tables {
			d := &a.Tables[i]
			if d.Help == "" || len(d.Actions) == 0 {
				t.Errorf("%s.%s: no help, or no actions", a.App, d.Name)
			}
			if (d.Setting == nil) != (d.May&^table.Delete == 0) {
				t.Errorf("%s.%s: only settings may be changed, but for deleting", a.App, d.Name)
			}
			if d.Setting == nil {
				continue
			}
			r := d.Setting.Of(nil)
			if len(r.Entries) > 0 || d.Default != nil && !r.Default.Equal(*d.Default) {
				t.Errorf("%s.%s: without arguments it is %v", a.App, d.Name, r)
			}
			if d.Default != nil {
				if err := d.Check(&table.Change{Op: table.Default, Entry: table.Entry{Call: *d.Default}}); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
