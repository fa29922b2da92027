package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRatesOfTCP: one TCP connection gets the rate that a policer and a shaper are told,
// whatever its congestion control.
func TestRatesOfTCP(t *testing.T) {
	if exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("needs root to make network namespaces")
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("iperf3 is missing (apt-get install iperf3)")
	}
	const rate, seconds = 50, 5 // Mbit/s
	controls, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	var commands strings.Builder
	var names []string
	for _, nf := range []string{"police,cir", "shape,rate"} {
		for _, control := range strings.Fields(string(controls)) {
			names = append(names, nf+"-"+control)
			fmt.Fprintf(&commands, `
quillon run --inline eth1,eth2 --nf %s=%dMbit
b iperf3 -s -1 >/dev/null &
until b ss -Hltn | grep -q :5201; do sleep 0.1; done
a iperf3 -c 10.0.0.2 -t %d -C %s -J >%s
quillon stop
`, nf, rate, seconds, control, nf+"-"+control)
		}
	}
	dir := inLab(t, commands.String())
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var result struct {
			End struct {
				Received struct {
					Bits float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			}
		}
		if err := json.Unmarshal(text, &result); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := result.End.Received.Bits / 1e6
		t.Logf("%s: %.1f Mbit/s", name, got)
		// Both count the frames' headers, and the connection's bytes alone are counted
		// here. The bucket is full at the beginning, of a policer both of them are.
		const headers = 1448. / 1514
		if got < 0.9*rate*headers || got > rate*(1+0.4/seconds) {
			t.Errorf("%s: %.1f Mbit/s of %d", name, got, rate)
		}
	}
}
