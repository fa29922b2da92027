package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
)

// latencies are the values of --latency, the default first.
var latencies = []string{"normal", "low", "poll"}

func latencyNames() []string { return latencies }

func checkLatency(name string) error {
	if slices.Contains(latencies, name) {
		return nil
	}
	return fmt.Errorf("--latency %s: want %s, %s or %s", name, latencies[1], latencies[2], latencies[0])
}

// checkPoll refuses --latency poll if the workers, which then never sleep, would leave no processor to
// anything else.
func (r *running) checkPoll() error {
	if r.latency != latencies[2] {
		return nil
	}
	if r.workers.workers.Priority > 0 {
		return errors.New("--latency poll: with --priority realtime the kernel stops a worker that never sleeps for 5 % of the time: take --priority high")
	}
	return roomToPoll(r.inst.Workers(), min(runtime.NumCPU(), runtime.GOMAXPROCS(0)), r.cpus)
}

// roomToPoll returns an error if workers that never sleep would take all processors that the process may use,
// or if two of them are pinned to the same processor.
func roomToPoll(workers, processors int, cpus []int) error {
	if workers >= processors {
		return fmt.Errorf("--latency poll: %d workers that never sleep take %d processors, and this process may have %d: leave one to the rest (queues=)", workers, workers, processors)
	}
	shared := map[int]int{}  // by processor, the worker there
	for w := range workers { // worker by processor
		if len(cpus) == 0 {
			break
		}
		c := cpus[w%len(cpus)]
		if other, taken := shared[c]; taken {
			return fmt.Errorf("--latency poll: workers %d and %d would share processor %d, and neither ever sleeps: give each its own (--cpu, or cpu= of the ports)", other, w, c)
		}
		shared[c] = w
	}
	return nil
}

// stayAwake keeps idle processors of the machine out of deep sleep, because a frame would wait until its
// worker's processor has woken. The effect ends when the file is closed, at the latest with the process.
func stayAwake() (*os.File, error) {
	const path = "/dev/cpu_dma_latency" // PM QoS: a signed 32-bit number of microseconds, in host byte order
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(binary.NativeEndian.AppendUint32(nil, 0)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// quicken does what --latency asks for, as far as the process may, and describes it in latencyNote.
func (r *running) quicken() {
	switch r.latency {
	case latencies[0]:
		return
	case latencies[2]:
		r.latencyNote = "poll, workers never sleep"
		return
	}
	var err error
	if r.awake, err = stayAwake(); err != nil {
		r.latencyNote = fmt.Sprintf("normal: --latency low is not allowed (%v)", err)
		return
	}
	r.latencyNote = "low, processors that have nothing to do stay awake"
}
