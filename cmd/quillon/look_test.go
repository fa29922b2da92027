package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestFramesAreLookedAt: frames that no app wants cross in the kernel. A tap and a trace see them all the
// same while they look, and afterwards the frames cross in the kernel again. No frame is lost meanwhile.
func TestFramesAreLookedAt(t *testing.T) {
	if exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("needs root to make network namespaces")
	}
	// IPv6 is off: the hosts send multicast reports some time after their interfaces went up. These have an
	// extension header (RFC 3810), behind which the kernel does not look for RoCE, so they come to the
	// process.
	const look = `
for host in a b; do $host sh -c 'echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6'; done
# ports FIELD: its sum over both ports.
ports() { quillon show ports --json | tr -d ' \n' | grep -o "\"$1\":[0-9]*" | awk -F: '{n += $2} END {print n}'; }
# kernel: under traffic, waits until all frames cross in the kernel.
kernel() {
  i=0
  while rx=$(ports rx_packets) by=$(ports bypassed); sleep 0.1
    test "$(ports rx_packets)" != $rx || test "$(ports bypassed)" = $by; do
    i=$((i + 1))
    [ $i -lt 300 ]
  done
}
look() {
  was=$(ports rx_packets) # what came when the interfaces went up
  a ping -c 20 -i 0.002 10.0.0.2 >/dev/null
  test "$(ports rx_packets)" = $was || { quillon show counters; false; }
  test "$(ports bypassed)" -ge 40
  a ping -i 0.002 -W 60 10.0.0.2 >flood &
  flood=$!
  for round in 1 2 3; do
    start=$(date +%s%N)
    quillon tap $1.b -o tapped.pcap -c 50 --for 30s >tap.out
    echo $((($(date +%s%N) - start) / 1000000)) >>took
    grep -q '^50 frames ' tap.out
    kernel
    quillon trace add a 3
    until [ "$(quillon trace show | grep -c transmitted)" = 3 ]; do sleep 0.1; done
    kernel
  done
  # Two at once, and clients that are killed.
  command quillon tap a.out -o one.pcap >/dev/null 2>&1 &
  one=$!
  command quillon tap $1.b -o two.pcap >/dev/null 2>&1 &
  two=$!
  for file in one two; do
    until [ "$(wc -c <$file.pcap)" -gt 2000 ]; do sleep 0.1; done
  done
  kill -9 $one
  sleep 0.2
  was=$(wc -c <two.pcap)
  until [ "$(wc -c <two.pcap)" -gt $((was + 2000)) ]; do sleep 0.1; done
  kill -9 $two
  kernel
  kill -INT $flood
  wait $flood
  cat flood | tail -n 3
  grep -q ' 0% packet loss' flood
  test "$(ports missed)" = 0
  quillon stop
}
`
	for name, of := range map[string]string{
		"wire":  "quillon run --inline eth1,eth2 --nf wire\nlook wire\n",
		"steer": "quillon run --inline eth1,eth2 --nf wire --nf clover-steer --state none\nlook clover-steer\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			took, err := os.ReadFile(filepath.Join(inLab(t, look+of), "took"))
			t.Logf("ms until a tap had 50 frames, of 1,000 a second: %q %v", took, err)
		})
	}
}
