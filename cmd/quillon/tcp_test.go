package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestRatesOfTCP: one TCP connection gets the rate of a policer and of a shaper with each congestion control.
// On a machine that does other work the worker and TCP have to wait, which lowers the rate: what fails then
// is tried again.
func TestRatesOfTCP(t *testing.T) {
	if exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("needs root to make network namespaces")
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("iperf3 is missing (apt-get install iperf3)")
	}
	controls, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	for _, nf := range []string{"police,cir", "shape,rate"} {
		t.Run(nf, func(t *testing.T) {
			t.Parallel()
			left := strings.Fields(string(controls))
			for range 5 {
				busy := processorsBusy(t)
				if left = ratesOfTCP(t, nf, left); len(left) == 0 {
					return
				}
				if share := busy(); share < 0.8 {
					t.Fatalf("not the rate, with processors in use for %.0f %% of the time: %v", 100*share, left)
				}
			}
			t.Skipf("the machine is too busy to measure with %v", left)
		})
	}
}

// ratesOfTCP returns the congestion controls that did not get the rate.
func ratesOfTCP(t *testing.T, nf string, controls []string) (failed []string) {
	const rate, seconds = 50, 5 // Mbit/s
	kind, name, _ := strings.Cut(nf, ",")
	var commands strings.Builder
	for _, control := range controls {
		// With stale=2s a busy machine that keeps the worker waiting does not have frames cross in the kernel, at any rate.
		fmt.Fprintf(&commands, `
cat >spec.yaml <<END
ports: {x: {kind: afxdp, args: {dev: eth1, pair: y, stale: 2s}}, y: {kind: afxdp, args: {dev: eth2, pair: x, stale: 2s}}}
apps: {f: {kind: %s, args: {%s: %dMbit}}}
links: [x.out -> f.a, f.b -> y.in, y.out -> f.b, f.a -> x.in]
END
quillon run spec.yaml
b iperf3 -s -1 >/dev/null &
until b ss -Hltn | grep -q :5201; do sleep 0.1; done
begin=$(date +%%s%%N)
a iperf3 -c 10.0.0.2 -t %d -C %s -J >%s
echo $(($(date +%%s%%N) - begin)) >%s.ns
quillon stop
`, kind, name, rate, seconds, control, control, control)
	}
	dir := inLab(t, commands.String())
	for _, control := range controls {
		text, err := os.ReadFile(filepath.Join(dir, control))
		if err != nil {
			t.Fatal(err)
		}
		var result struct {
			End struct {
				Received struct {
					Bits  float64 `json:"bits_per_second"`
					Bytes float64
				} `json:"sum_received"`
			}
		}
		if err := json.Unmarshal(text, &result); err != nil {
			t.Fatalf("%s: %v", control, err)
		}
		got := result.End.Received.Bits / 1e6
		t.Logf("%s: %.1f Mbit/s of %d", control, got, rate)
		// The policer and the shaper count the frames' headers; only the connection's bytes are counted here.
		// The bucket is full at the beginning; a policer has two full ones.
		const headers = 1448. / 1514
		// On a busy machine the bytes take longer to arrive than to be sent.
		text, err = os.ReadFile(filepath.Join(dir, control+".ns"))
		took, err2 := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if most := rate * (took/1e9 + 0.4); result.End.Received.Bytes*8/1e6 > most {
			t.Errorf("%s: %.1f Mbit came in %.2f s, which may be %.1f", control, result.End.Received.Bytes*8/1e6, took/1e9, most)
		}
		if got < 0.9*rate*headers {
			failed = append(failed, control)
		}
	}
	return failed
}

// processorsBusy returns a function that says for which share of the time since then the machine's processors
// had work.
func processorsBusy(t *testing.T) func() float64 {
	// user, nice, system, idle, iowait and so on, in ticks: proc_stat(5)
	read := func() (idle, all float64) {
		text, err := os.ReadFile("/proc/stat")
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(string(text), "\n")
		for i, field := range strings.Fields(line)[1:9] {
			n, err := strconv.ParseFloat(field, 64)
			if err != nil {
				t.Fatal(err)
			}
			all += n
			if i == 3 || i == 4 {
				idle += n
			}
		}
		return idle, all
	}
	idle0, all0 := read()
	return func() float64 {
		idle, all := read()
		return 1 - (idle-idle0)/(all-all0)
	}
}
