package demo

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sample is a made-up result.
func sample() *Result {
	return &Result{
		Setting: Setting{
			Machine:  Machine{CPU: "Example CPU", Cores: 2, MemoryMB: 8192, OS: "Debian GNU/Linux 12"},
			Command:  []string{"quillon", "demo"},
			Versions: Versions{Quillon: "v0", Go: "go1.26", Kernel: "6.1"},
			Wire:     "AF_XDP on veth",
		},
		Config: Default(),
		Phases: []Phase{
			{
				Name: "off", Seconds: 5, Ops: 500000, OpsPerS: 100000, FirstTry: 0.61, PacketsPerOp: 9.5, BytesPerOp: 1100,
				ReadP50: 80, ReadP99: 640.5, ReadP999: 1800, WriteP50: 160, WriteP99: 1450, WriteP999: 4000,
			},
			{
				Name: "write", Seconds: 5, Ops: 900000, OpsPerS: 180000, FirstTry: 0.84, PacketsPerOp: 6.4, BytesPerOp: 760,
				ReadP50: 70, ReadP99: 420, ReadP999: 900, WriteP50: 100, WriteP99: 300, WriteP999: 700, Steered: 420000,
			},
			{
				Name: "read-write", Seconds: 5, Ops: 1250000, OpsPerS: 250000, FirstTry: 0.9912, PacketsPerOp: 4.1, BytesPerOp: 520,
				ReadP50: 50, ReadP99: 110, ReadP999: 260, WriteP50: 90, WriteP99: 210, WriteP999: 500, Steered: 990000,
			},
		},
		Integrity: Integrity{Keys: 1024, AckedWrites: 1300000},
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	want := `                           off          write              read-write
operations/s           100,000        180,000    1.80x        250,000    2.50x
first try              61.00 %        84.00 %                 99.12 %
packets/op                9.50           6.40    0.67x           4.10    0.43x
bytes/op                 1,100            760    0.69x            520    0.47x
read p50 us               80.0           70.0    0.88x           50.0    0.62x
read p99 us                640            420    0.66x            110    0.17x
read p99.9 us            1,800            900    0.50x            260    0.14x
write p50 us               160            100    0.62x           90.0    0.56x
write p99 us             1,450            300    0.21x            210    0.14x
write p99.9 us           4,000            700    0.17x            500    0.12x
steered packets              0        420,000                 990,000
integrity: OK: 1,024 keys walked, 1,300,000 acknowledged writes, none lost, no broken link
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestTableOfReadsOnlyAndLoss(t *testing.T) {
	r := sample()
	for i := range r.Phases {
		r.Phases[i].WriteP50, r.Phases[i].WriteP99, r.Phases[i].WriteP999 = None(), None(), None()
	}
	r.Phases[1].Missed, r.Phases[2].Errors = 12, 3
	r.Integrity.Lost = 2
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"write p99 us                 -              -                       -\n",
		"write: 12 packets went past the middlebox in the kernel\n",
		"read-write: 3 operations failed\n",
		"integrity: FAILED: 1,024 keys walked, 1,300,000 acknowledged writes, 2 lost, 0 broken links\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if r.Integrity.OK() {
		t.Error("a loss is OK")
	}
}

// The names are an interface: other programs read the file.
func TestJSON(t *testing.T) {
	r := sample()
	r.Phases[0].WriteP99 = None()
	name := filepath.Join(t.TempDir(), "r.json")
	if err := r.SaveJSON(name); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Phases    []map[string]any
		Integrity map[string]any
		Machine   map[string]any
		Command   []string
		Versions  map[string]any
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Phases) != 3 {
		t.Fatalf("%d phases", len(got.Phases))
	}
	for i, name := range []string{"off", "write", "read-write"} {
		if got.Phases[i]["name"] != name {
			t.Errorf("phase %d is %v", i, got.Phases[i]["name"])
		}
		for _, f := range []string{
			"ops_per_s", "first_try", "packets_per_op", "bytes_per_op", "read_p50_us", "read_p99_us",
			"read_p999_us", "write_p50_us", "write_p99_us", "write_p999_us", "steered",
		} {
			if _, ok := got.Phases[i][f]; !ok {
				t.Errorf("phase %s has no %s", name, f)
			}
		}
	}
	if got.Phases[0]["write_p99_us"] != nil {
		t.Errorf("no writes: write_p99_us is %v", got.Phases[0]["write_p99_us"])
	}
	if got.Phases[0]["read_p99_us"] != 640.5 {
		t.Errorf("read_p99_us is %v", got.Phases[0]["read_p99_us"])
	}
	for _, f := range []string{"keys", "acked_writes", "lost", "broken_links"} {
		if _, ok := got.Integrity[f]; !ok {
			t.Errorf("integrity has no %s", f)
		}
	}
	if len(got.Machine) == 0 || len(got.Command) == 0 || len(got.Versions) == 0 {
		t.Error("machine, command or versions are missing")
	}
	var back Result
	if err := json.Unmarshal(b, &back); err != nil || !math.IsNaN(float64(back.Phases[0].WriteP99)) {
		t.Errorf("reading back: %v, write p99 %v", err, back.Phases[0].WriteP99)
	}
}

func TestPlot(t *testing.T) {
	for name, change := range map[string]func(r *Result){
		"all":   func(r *Result) {},
		"reads": func(r *Result) { r.Phases[0].WriteP99 = None() },
		"one":   func(r *Result) { r.Phases = r.Phases[:1] },
		"zero":  func(r *Result) { r.Phases = []Phase{{Name: "off"}} },
	} {
		r := sample()
		change(r)
		prefix := filepath.Join(t.TempDir(), "demo")
		if dir := os.Getenv("QUILLON_PLOT_DIR"); dir != "" {
			prefix = filepath.Join(dir, name)
		}
		if err := r.Plot(prefix); err != nil {
			t.Fatal(name, err)
		}
		f, err := os.Open(prefix + ".png")
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(f)
		f.Close()
		if err != nil {
			t.Fatal(name, err)
		}
		if b := img.Bounds(); b.Dx() != 1584 || b.Dy() != 590 {
			t.Errorf("%s: picture of %dx%d", name, b.Dx(), b.Dy())
		}
		svg, err := os.ReadFile(prefix + ".svg")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(svg, []byte("Operations per second")) {
			t.Errorf("%s: SVG without its text", name)
		}
		d := xml.NewDecoder(bytes.NewReader(svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: SVG: %v", name, err)
			}
		}
	}
	if err := sample().Plot(filepath.Join(t.TempDir(), "no", "such", "dir")); err == nil {
		t.Error("a plot into a directory that is not there")
	}
}

func TestConfigCheck(t *testing.T) {
	c := Default()
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(c *Config){
		"workload":   func(c *Config) { c.Workload = "AB" },
		"workload ":  func(c *Config) { c.Workload = "" },
		"clients":    func(c *Config) { c.Clients = 0 },
		"seconds":    func(c *Config) { c.Seconds = math.NaN() },
		"keys":       func(c *Config) { c.Keys = -1 },
		"entry":      func(c *Config) { c.Entry = 100 },
		"entry must": func(c *Config) { c.Entry = 200 },
		"zipf":       func(c *Config) { c.Zipf = 1 },
		"nodes":      func(c *Config) { c.Nodes = 65 },
	} {
		c := Default()
		change(&c)
		err := c.Check()
		if err == nil || !strings.HasPrefix(err.Error(), strings.TrimSpace(name)) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
