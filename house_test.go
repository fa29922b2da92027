package quillon

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/quillon/quillon/"

// doors says what the packages under a folder may import of this module; the
// longest matching folder counts. A folder may always look into itself; "*" is
// everything.
var doors = map[string][]string{
	"nf/packet":           {},
	"nf/arg":              {},
	"nf/hdr":              {},
	"nf/clock":            {"nf/packet"},
	"nf/counter":          {"nf/packet"},
	"nf/trace":            {"nf/packet"},
	"nf/port":             {"nf/packet", "nf/clock", "internal/xsk", "internal/ethtool"},
	"nf/port/afxdp":       {"nf/packet", "nf/clock", "nf/port", "nf/hdr", "internal/xsk", "internal/ethtool"},
	"nf/port/open":        {"nf"},
	"nf/port/pcap":        {"nf/packet", "nf/clock", "nf/port", "nf/hdr"},
	"nf/classify":         {},
	"nf/table":            {"nf/value"},
	"nf/effect":           {},
	"nf/value":            {},
	"nf/prefetch":         {},
	"nf/yaml":             {"nf/value"},
	"nf/track":            {"nf/hdr"},
	"nf/graph":            {"nf/track", "nf/arg", "nf/packet", "nf/port", "nf/clock", "nf/counter", "nf/trace", "nf/table", "nf/yaml", "nf/effect", "nf/offload", "nf/journal"},
	"nf/offload":          {"nf/hdr", "nf/clock", "nf/turn"},
	"nf/offload/xdp":      {"nf"},
	"nf":                  {"nf"},
	"tor":                 {"nf"},
	"snic":                {"nf", "internal/resident"},
	"rack":                {"nf/hdr", "nf/packet", "nf/clock", "nf/port", "internal/ethtool"},
	"internal/rack":       {"nf/hdr", "nf/packet", "nf/clock", "nf/port", "internal/ethtool", "internal/resident", "rack"},
	"internal/rack/clio":  {"nf/hdr", "nf/packet", "nf/clock", "nf/port", "nf/flow", "nf/gobackn/gbn", "rack", "internal/rack"},
	"internal/rack/demo":  {"*"}, // a program: wires rack, tor and controlplane together
	"internal/sim":        {"nf", "tor", "snic", "rack", "internal/rack"},
	"internal/sim/figure": {"nf", "tor", "snic", "rack", "internal/rack", "internal/sim", "internal/chart"},
	"internal/sim/plan":   {"nf", "snic", "internal/sim", "internal/chart"},
	"controlplane":        {"nf", "p4src", "internal/own"},
	"internal/admin":      {"nf", "internal/own"},
	"internal/bridge":     {"internal/ethtool", "internal/own"},
	"internal/doctor":     {"internal/xsk", "internal/ethtool"},
	"internal/metrics":    {"nf", "snic", "controlplane", "internal/httpd", "internal/version"},
	"internal/httpd":      {"internal/own"},
	"internal/dissector":  {"nf"},
	"internal/rates":      {"nf", "snic", "internal/admin"},
	"internal/ui":         {"nf", "internal/admin", "internal/rates", "internal/httpd", "internal/registry"},
	"bench":               {"*"},                                             // a module of its own
	"dpdk":                {"nf"},                                            // a module of its own
	"nffgo":               {"nf", "internal/registry", "internal/initramfs"}, // a module of its own
	"p4src":               {},
	"cmd":                 {"*"},
	"examples":            {"nf", "controlplane", "p4src"},
	"internal/bench":      {"*"},
	"internal":            {},
	"internal/registry":   {"nf", "tor", "snic"},
	"internal/state":      {"nf/journal", "internal/own"},
	"internal/xsk":        {"nf/clock", "nf/port", "internal/ethtool"},
	"tests":               {"nf", "tor", "snic", "rack", "internal/rack"},
	"tests/rxe":           {"nf", "tor", "snic", "rack", "internal/rack", "internal/initramfs"},
}

// banned says which foreign packages may not be imported under a folder.
var banned = map[string][]string{
	"nf/packet":      {"google.golang.org/grpc", "github.com/google/gopacket", "log/slog", "github.com/prometheus"},
	"nf/hdr/hdrtest": {}, // of tests
	"nf/hdr":         {"google.golang.org/grpc", "github.com/google/gopacket", "log/slog", "github.com/prometheus"},
	"nf/graph":       {"google.golang.org/grpc", "github.com/google/gopacket", "log/slog", "github.com/prometheus"},
	// etcd's client is for those who name a store there.
	"controlplane":                {"go.etcd.io"},
	"controlplane/ctl/store/etcd": {},
	"tor":                         {"google.golang.org/grpc", "github.com/google/gopacket", "log/slog", "github.com/prometheus"},
	"snic":                        {"google.golang.org/grpc", "github.com/google/gopacket", "log/slog", "github.com/prometheus"},
}

// parts are those of a live board. The simulator runs a board as a whole, and has no second one.
var parts = []string{"snic/drf", "snic/fair", "snic/mat", "snic/merge", "snic/sched", "snic/vmem"}

// maxFunc is how many lines a function has at most. The functions of mayBeLonger have a reason.
const maxFunc = 100

var mayBeLonger = map[string]string{"nf/hdr.parse": "the headers of each frame in one go: a call costs nanoseconds"}

// maxMethods is how many methods a type has at most. The doc comments of those of mayHaveMore say why they have more.
const maxMethods = 40

var mayHaveMore = []string{"snic.catalog", "snic.placement", "snic/pool.Node"}

var badNames = []string{"util", "utils", "common", "helper", "helpers", "manager", "base", "types"}

// under reports whether p is folder or lies in it.
func under(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// longest is the longest folder of m that p is under; "" when none is.
func longest[V any](m map[string]V, p string) string {
	best := ""
	for folder := range m {
		if under(p, folder) && len(folder) > len(best) {
			best = folder
		}
	}
	return best
}

// mayImport says why package from must not import to ("" when it may).
func mayImport(from, to string) string {
	if own, ok := strings.CutPrefix(to, module); ok {
		room := longest(doors, from)
		if room == "" {
			return "this folder has no row in the table of doors"
		}
		if under(own, room) && room != "nf" {
			return ""
		}
		for _, p := range parts {
			if under(from, "internal/sim") && under(own, p) {
				return "a simulated board is snic's app, which has it inside"
			}
		}
		for _, d := range doors[room] {
			if d == "*" || under(own, d) {
				return ""
			}
		}
		return room + " may look into " + strings.Join(doors[room], ", ") + " only"
	}
	if room := longest(banned, from); room != "" {
		for _, b := range banned[room] {
			if under(to, b) {
				return "not in " + room
			}
		}
	}
	return ""
}

// wallClockCalls are the calls of f that read the wall clock.
func wallClockCalls(f *ast.File) []token.Pos {
	name := ""
	for _, im := range f.Imports {
		if im.Path.Value == `"time"` {
			name = "time"
			if im.Name != nil {
				name = im.Name.Name
			}
		}
	}
	var at []token.Pos
	if name == "" {
		return nil
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == name && (s.Sel.Name == "Now" || s.Sel.Name == "Since" || s.Sel.Name == "Until") {
				at = append(at, s.Pos())
			}
		}
		return true
	})
	return at
}

// leftovers are calls of the built-in print and println in f: what somebody who
// looked for a fault forgot.
func leftovers(f *ast.File) []token.Pos {
	var at []token.Pos
	ast.Inspect(f, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if x, ok := c.Fun.(*ast.Ident); ok && (x.Name == "print" || x.Name == "println") {
				at = append(at, c.Pos())
			}
		}
		return true
	})
	return at
}

// receiver is the name of the type that fn is a method of; "" when it is none.
func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	name := ""
	ast.Inspect(fn.Recv.List[0].Type, func(n ast.Node) bool {
		if x, ok := n.(*ast.Ident); ok && name == "" {
			name = x.Name
		}
		return true
	})
	return name
}

// TestHouse holds the rules of the house in every Go file of the module.
func TestHouse(t *testing.T) {
	fset := token.NewFileSet()
	files := 0
	methods := map[string]int{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); name != "." && (strings.HasPrefix(n, ".") || n == "testdata" || n == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		files++
		pkg := path.Dir(filepath.ToSlash(name))
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Errorf("%v", err)
			return nil
		}
		for _, bad := range badNames {
			if strings.TrimSuffix(f.Name.Name, "_test") == bad {
				t.Errorf("%s: no package is called %s", name, bad)
			}
		}
		if strings.HasSuffix(name, "_test.go") || pkg == "." {
			return nil
		}
		for _, im := range f.Imports {
			to, _ := strconv.Unquote(im.Path.Value)
			if why := mayImport(pkg, to); why != "" {
				t.Errorf("%s imports %s: %s", fset.Position(im.Pos()), to, why)
			}
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if of := receiver(fn); of != "" {
				methods[pkg+"."+of]++
			}
			if mayBeLonger[pkg+"."+fn.Name.Name] == "" {
				if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > maxFunc {
					t.Errorf("%s: %s has %d lines, at most %d", fset.Position(fn.Pos()), fn.Name.Name, n, maxFunc)
				}
			}
		}
		for _, p := range leftovers(f) {
			t.Errorf("%s writes to standard error by print or println", fset.Position(p))
		}
		if pkg != "nf/clock" {
			for _, p := range wallClockCalls(f) {
				t.Errorf("%s reads the wall clock: only nf/clock does", fset.Position(p))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Error("no Go files found")
	}
	for of, n := range methods {
		if n > maxMethods && !slices.Contains(mayHaveMore, of) {
			t.Errorf("%s has %d methods, at most %d", of, n, maxMethods)
		}
	}
	for _, of := range mayHaveMore {
		if n := methods[of]; n <= maxMethods {
			t.Errorf("%s is listed as a type with more than %d methods, and has %d", of, maxMethods, n)
		}
	}
}

func TestHouseRulesCatchOffenders(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"nf/packet", module + "nf/hdr", false},
		{"nf/port/afxdp", module + "internal/xsk", true},
		{"nf/port/afxdp", module + "nf/port", true},
		{"nf/port/afxdp", module + "nf/graph", false},
		{"nf/replay", module + "nf/graph", true},
		{"nf/replay", module + "tor/clover", false},
		{"tor/clover", module + "nf/hdr", true},
		{"tor/clover", module + "rack/rnic", false},
		{"rack/rnic", module + "nf/graph", false},
		{"internal/admin", module + "nf/graph", true},
		{"internal/admin", module + "cmd/quillon", false},
		{"cmd/quillon", module + "tor/clover", true},
		{"elsewhere", module + "nf/packet", false},
		{"nf/graph", "log/slog", false},
		{"nf/hdr", "github.com/google/gopacket/layers", false},
		{"nf/port/pcap", "github.com/google/gopacket/pcapgo", true},
		{"tor/clover", "google.golang.org/grpc", false},
		{"controlplane/ctl", "go.etcd.io/etcd/client/v3", false},
		{"controlplane/ctl/store", "go.etcd.io/etcd/client/v3", false},
		{"controlplane/ctl/store/etcd", "go.etcd.io/etcd/client/v3", true},
	} {
		if why := mayImport(c.from, c.to); (why == "") != c.ok {
			t.Errorf("%s -> %s: %q", c.from, c.to, why)
		}
	}
	const src = `package x
import clock "time"
var a, b, c = clock.Now(), clock.Since(clock.Time{}), clock.Second
func f() { println(a); y.println(a) }`
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(wallClockCalls(f)); n != 2 {
		t.Errorf("found %d of 2 readings of the wall clock", n)
	}
	if n := len(leftovers(f)); n != 1 {
		t.Errorf("found %d of 1 leftovers", n)
	}
}

// maxInterfaces is how many interfaces an app may have beside graph.App. What few apps do is a field of graph.Hooks.
const maxInterfaces = 9

// TestOptionalInterfaces: the architecture's tables list the interfaces that an app may have beside graph.App, and the
// hooks, and no others. The interfaces are few.
func TestOptionalInterfaces(t *testing.T) {
	pkgs, err := filepath.Glob("nf/graph/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var interfaces, hooks []string
	for _, name := range pkgs {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() || strings.HasSuffix(name, "_test.go") {
				return true
			}
			switch x := spec.Type.(type) {
			case *ast.InterfaceType:
				if spec.Name.Name != "App" {
					interfaces = append(interfaces, spec.Name.Name)
				}
			case *ast.StructType:
				for _, field := range x.Fields.List {
					for _, id := range field.Names {
						if spec.Name.Name == "Hooks" {
							hooks = append(hooks, id.Name)
						}
					}
				}
			}
			return true
		})
	}
	text, err := os.ReadFile("docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for what, have := range map[string][]string{"interface": interfaces, "hook": hooks} {
		var want []string
		_, table, _ := strings.Cut(string(text), "| "+what+" | an app that |\n|---|---|\n")
		table, _, _ = strings.Cut(table, "\n\n")
		for row := range strings.Lines(table) {
			for i, part := range strings.Split(strings.Split(row, "|")[1], "`") {
				if i%2 == 1 {
					want = append(want, part)
				}
			}
		}
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) {
			t.Errorf("%ss of nf/graph: %v; of the table in docs/ARCHITECTURE.md: %v", what, have, want)
		}
	}
	if len(interfaces) > maxInterfaces {
		t.Errorf("an app may have %d interfaces, at most %d: %v", len(interfaces), maxInterfaces, interfaces)
	}
}

// roomsOf are the folders that the architecture's table of rooms names.
func roomsOf(text string) (rooms []string) {
	_, table, _ := strings.Cut(text, "\n## Rooms\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		for i, part := range strings.Split(cells[1], "`") {
			if i%2 == 1 {
				rooms = append(rooms, strings.TrimSuffix(part, "/<case>"))
			}
		}
	}
	return rooms
}

// folders are the folders of the module, and of those inside it, with Go files.
func folders(t *testing.T) (all []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if n := d.Name(); d.IsDir() && name != "." && (strings.HasPrefix(n, ".") || n == "testdata" || n == "bin") {
			return fs.SkipDir
		}
		if p := path.Dir(filepath.ToSlash(name)); !d.IsDir() && strings.HasSuffix(name, ".go") && p != "." && !slices.Contains(all, p) {
			all = append(all, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRooms: each folder with Go files lies in a room of the architecture's table, and each room is there. A network function needs no
// row: its doors are those of nf.
func TestRooms(t *testing.T) {
	text, err := os.ReadFile("docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	rooms, all := roomsOf(string(text)), folders(t)
	for _, folder := range all {
		if longest(doors, folder) != "nf" && !slices.ContainsFunc(rooms, func(room string) bool { return under(folder, room) }) {
			t.Errorf("%s lies in no room of docs/ARCHITECTURE.md", folder)
		}
	}
	for _, room := range rooms {
		if _, err := os.Stat(room); err != nil {
			t.Errorf("docs/ARCHITECTURE.md has a room that is not there: %v", err)
		}
	}
}

// public are the folders that other programs import. Their packages have Go examples; withoutExample says why some have none.
var public = []string{"nf", "controlplane/ctl", "controlplane/p4rt", "rack/rnic"}

var withoutExample = map[string]string{
	"nf/graph/graphtest":          "of tests: it needs a testing.TB",
	"nf/hdr/hdrtest":              "of tests: it needs a testing.TB",
	"nf/mtu/mtutest":              "of tests: it needs a testing.TB",
	"controlplane/ctl/ctltest":    "of tests: it needs a testing.TB",
	"nf/classify/classifytest":    "of tests",
	"nf/port":                     "interfaces: nf/port/mem has one",
	"nf/memory":                   "interfaces, which a board implements",
	"controlplane/ctl/store":      "an interface: file has one",
	"controlplane/ctl/store/etcd": "needs an etcd",
	"nf/port/afxdp":               "needs root and an interface: nf/port/open has one",
	"nf/port/afpacket":            "needs root and an interface: nf/port/open has one",
	"nf/port/tap":                 "needs root and an interface: nf/port/open has one",
	"nf/port/poll":                "needs files of the kernel",
	"nf/hold":                     "needs a breath",
	"nf/journal":                  "declares what tor/swordbox uses and internal/state does",
	"nf/gobackn/gbn":              "needs a network: its package comment shows the calls",
	"nf/offload":                  "its callers are functions of a graph: nf/firewall/ahead.go is one",
	"nf/offload/xdp":              "needs root and interfaces: nf/port/open opens it",
}

// TestPublicPackagesHaveExamples: what others import shows how it is used, by code that is compiled.
func TestPublicPackagesHaveExamples(t *testing.T) {
	for _, folder := range folders(t) {
		if !slices.ContainsFunc(public, func(p string) bool { return under(folder, p) }) || strings.Contains(folder, "/internal/") {
			continue
		}
		files, err := filepath.Glob(folder + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		has := slices.ContainsFunc(files, func(name string) bool {
			text, err := os.ReadFile(name)
			return err == nil && strings.Contains(string(text), "\nfunc Example")
		})
		if why := withoutExample[folder]; has == (why != "") {
			t.Errorf("%s: has an example: %v; why it has none: %q", folder, has, why)
		}
	}
}
