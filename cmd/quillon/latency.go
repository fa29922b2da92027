package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
)

// latencies are what --latency chooses from, the default first.
var latencies = []string{"normal", "low"}

func latencyNames() []string { return latencies }

func checkLatency(name string) error {
	if slices.Contains(latencies, name) {
		return nil
	}
	return fmt.Errorf("--latency %s: want %s or %s", name, latencies[1], latencies[0])
}

// stayAwake has the processors of the machine that have nothing to do look for something rather than
// sleep: a worker that sleeps would wait until its own has woken. That holds until the file is closed,
// at the latest by the end of the process.
func stayAwake() (*os.File, error) {
	const path = "/dev/cpu_dma_latency" // PM QoS: a signed number of 32 bits, microseconds, in the machine's order
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(binary.NativeEndian.AppendUint32(nil, 0)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// quicken does what --latency asks for, as far as that is allowed, and notes it.
func (r *running) quicken() {
	if r.latency == latencies[0] {
		return
	}
	var err error
	if r.awake, err = stayAwake(); err != nil {
		r.latencySays = fmt.Sprintf("normal: --latency low is not allowed (%v)", err)
		return
	}
	r.latencySays = "low, processors that have nothing to do stay awake"
}
