package snic_test

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkFairBeside prints the same as BenchmarkFairXDP for tasks of 20 us and a tenant that asks for 30 %, and which part of all that comes out is
// the tenant's: beside nothing, and beside a program that has no end on the generator's processor, and on the worker's with two sizes of the port's
// ring. What comes while the worker has no processor finds room in the ring, or is lost.
func BenchmarkFairBeside(b *testing.B) {
	const each = 20 * time.Microsecond
	for _, x := range []struct {
		name, ring string
		cpu        int // of the program; -1: there is none
	}{{"nothing", "2048", -1}, {"generator", "2048", 0}, {"worker", "2048", 1}, {"worker, ring=16384", "16384", 1}} {
		b.Run(x.name, func(b *testing.B) {
			if x.cpu >= 0 {
				defer occupy(b, x.cpu)()
			}
			alone, can := overXDP(b, "on", x.ring, each, 4, 0, 1, 300*time.Millisecond)
			for _, flows := range []int{1, 4, 1, 4, 1} {
				sent, out := overXDP(b, "on", x.ring, each, flows, 1, int(alone[1]/(.3*can[1])), 400*time.Millisecond)
				fmt.Printf("beside %s: %3.0f %% of what it asks for, %2.0f %% of what is done (%.2f %.2f)\n",
					x.name, 100*out[0]/sent[0], 100*out[0]/(out[0]+out[1]), (sent[0]+sent[1])/1e6, (out[0]+out[1])/can[1])
			}
		})
	}
}

// occupy has a program run on a processor until the result is called.
func occupy(b *testing.B, cpu int) (end func()) {
	c := exec.Command("sh", "-c", "while kill -0 $PPID; do :; done") // it ends with the test, too
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	end = func() {
		_ = c.Process.Kill()
		_ = c.Wait() // says that it was killed
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(c.Process.Pid, &set); err != nil {
		end()
		b.Fatal(err)
	}
	return end
}
