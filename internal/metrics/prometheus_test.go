package metrics_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/internal/metrics"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/snic"
)

// full serves an instance of everything that has series: a board with a tenant, and an app of its own.
func full(t *testing.T) (addr string) {
	t.Helper()
	spec, err := graph.ParseSpec([]byte(`
ports: {a: {kind: mem}}
apps:
  s: {kind: sink}
  nic: {kind: snic, args: {deployment: "regions: {count: 2, area: 1}\ntasks: {w: {kind: wire}}\ntenants: {t: {}}\ndags: [{uid: 1, tenant: t, run: w}]\nrules: [{match: 'src:10.0.0.0/8', dag: 1}]\n"}}
links: [a.out -> nic.p0, nic.p1 -> s.in]
`))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := packet.NewPool(4096, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	clk := clock.NewWall()
	wire, _ := mem.NewWire("a", "b", pool, 1, clk)
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: append(graph.Builtin(), *snic.Kind(graph.Builtin()...)), Ports: map[string][]port.Port{"a": {wire}}, Clock: clk})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	if _, err := os.Stat("/proc/self/schedstat"); err == nil {
		for len(inst.Times()) == 0 {
			time.Sleep(time.Millisecond) // until the worker runs
		}
	}
	s, err := metrics.Listen(metrics.Config{Address: "127.0.0.1:0", Name: "box", Started: 5e9, Instance: inst, Server: p4rt.New(p4rt.Config{}).Stats()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ran, s.Close(), inst.Close()); err != nil {
			t.Error(err)
		}
	})
	return s.Addr().String()
}

func scrape(t *testing.T, addr string) string {
	t.Helper()
	r, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestNames: what rules and the dashboard ask for is there: each series, and each value of its label counter that they name.
func TestNames(t *testing.T) {
	text := scrape(t, full(t))
	there := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(quillon_\w+)(\{.*\})? `).FindAllStringSubmatch(text, -1) {
		there[m[1]] = true
		if c := regexp.MustCompile(`counter="([^"]*)"`).FindStringSubmatch(m[2]); c != nil {
			there[m[1]+" "+c[1]] = true
		}
	}
	used := map[string]bool{}
	for _, file := range [][]byte{metrics.Rules, bytes.ReplaceAll(metrics.Dashboard(), []byte(`\"`), []byte(`"`))} {
		for _, m := range regexp.MustCompile(`(quillon_\w+)(\{[^}]*\})?`).FindAllSubmatch(file, -1) {
			name := string(m[1])
			used[name] = true
			if c := regexp.MustCompile(`counter=~?"([^"]*)"`).FindSubmatch(m[2]); c != nil {
				for value := range strings.SplitSeq(string(c[1]), "|") {
					used[name+" "+value] = true
				}
			}
		}
	}
	for name := range used {
		if !there[name] {
			t.Errorf("%s is asked for, and is no series", name)
		}
	}
	if len(used) < 25 {
		t.Errorf("%d series are asked for", len(used))
	}
	var board struct{ Panels []struct{ Title string } }
	if b, err := os.ReadFile("dashboard.json"); err != nil || !bytes.Equal(b, metrics.Dashboard()) {
		t.Errorf("dashboard.json.gz is stale: gzip -9nc dashboard.json >dashboard.json.gz (%v)", err)
	}
	if err := json.Unmarshal(metrics.Dashboard(), &board); err != nil || len(board.Panels) < 10 {
		t.Errorf("%d panels, %v", len(board.Panels), err)
	}
}

// TestPromtool has Prometheus' own tool check the metrics, the rules, and what they do in their tests: each alert fires there.
func TestPromtool(t *testing.T) {
	promtool := program(t, "promtool")
	run := func(in string, args ...string) {
		t.Helper()
		cmd := exec.Command(promtool, args...)
		cmd.Stdin = strings.NewReader(in)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run("", "check", "rules", "quillon.rules.yml")
	run("", "test", "rules", "quillon.rules.test.yml")
	run(scrape(t, full(t)), "check", "metrics")
	tests, err := os.ReadFile("quillon.rules.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllSubmatch(metrics.Rules, -1) {
		if !bytes.Contains(tests, m[1]) {
			t.Errorf("no test has %s", m[1])
		}
	}
}

// program is Prometheus' or its tool.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip("missing: apt-get install --no-install-recommends prometheus")
	}
	return path
}

// TestPrometheus has a Prometheus scrape an instance, with the rules: what it has of it is what was told.
func TestPrometheus(t *testing.T) {
	path := program(t, "prometheus")
	addr, dir := full(t), t.TempDir()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	free.Close()
	rules, err := filepath.Abs("quillon.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\nscrape_configs: [{job_name: quillon, static_configs: [{targets: ['%s']}]}]\n", rules, addr)
	if err := os.WriteFile(dir+"/p.yml", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command(path, "--config.file="+dir+"/p.yml", "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+at)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	ask := func(query string) (values []string) {
		r, err := http.Get("http://" + at + "/api/v1/query?query=" + url.QueryEscape(query))
		if err != nil {
			return nil // it starts
		}
		defer r.Body.Close()
		var a struct {
			Data struct {
				Result []struct {
					Metric map[string]string
					Value  []any
				}
			}
		}
		if json.NewDecoder(r.Body).Decode(&a) != nil {
			return nil
		}
		for _, x := range a.Data.Result {
			values = append(values, fmt.Sprint(x.Value[1]))
		}
		return values
	}
	for _, c := range []struct {
		query string
		want  []string
	}{
		{`up{job="quillon"}`, []string{"1"}},
		{`quillon_info{name="box",instance="` + addr + `"}`, []string{"1"}},
		{`quillon_start_time_seconds`, []string{"5"}},
		{`quillon_tenant_grant_ratio{tenant="t",node="nic"} >= 0`, []string{"1"}},
		{`count(quillon:port_frames:rate5m) > 0`, []string{"8"}},
	} {
		for end := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			got := ask(c.query)
			if slices.Equal(got, c.want) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is %v, want %v\n%s", c.query, got, c.want, said.String())
			}
		}
	}
}
