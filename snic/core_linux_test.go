package snic

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// coreBoard is a board of some workers, in virtual time.
func coreBoard(b *testing.B, workers, task int, apart bool) *crew {
	x := newCrew(b, coreKinds(), workers, graph.Args{"deployment": coreDeployment(workers, task, apart), "pr-rate": "1000G", "port-rate": "10000G"})
	for _, p := range x.ends {
		for _, q := range p {
			q.mute = true
		}
	}
	x.advance(20 * time.Millisecond)
	return x
}

// coreLoad are batches of so many frames, of a worker's flows of some tenants: one of each, and again until all have come, twice or more if they are
// fewer than a batch.
func coreLoad(worker, flows, size int, tenants func(int) bool) (batches [][][]byte) {
	var of []int
	for t := range coreTenants {
		if tenants(t) {
			of = append(of, t)
		}
	}
	k := 0
	for range max(flows/size, 1) {
		var batch [][]byte
		for range size {
			batch = append(batch, coreFrame(of[k%len(of)], 1024+worker*flows/len(of)+k/len(of)%(flows/len(of))))
			k++
		}
		batches = append(batches, batch)
	}
	return batches
}

// coreBreath gives a worker a batch, 10 us after the one before.
func (x *crew) coreBreath(b *testing.B, worker int, now *time.Duration, frames [][]byte, batch *packet.Batch) {
	*now += 10 * time.Microsecond
	for _, f := range frames {
		y := x.pools[worker].Get()
		y.SetBytes(f)
		batch.Add(y)
	}
	if err := x.inst.PushTo(worker, "x0", x.now.Add(*now), batch); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCore is what internal/sim takes for the costs of a worker (Cores.Costs): the least time of laps of some 32 batches, which is not much
// moved by what else the machine does.
//
//	TASKS/workers=N/batch=M   ns/breath of worker 0, on one thread; with N = 2 the state has two shards, which are taken in turns
//	TASKS/flows=N             full batches, workers=2, by how many flows there are (1,024 above)
//	TASKS/hand                frames whose DAG is at home at another worker: ns/handed where they come in, ns/taken at home, on one thread
//	TASKS/hand-apart          the same on two processors: with the lines that go from one to the other
//	TASKS/one                 workers=1/batch=64 with all 2,048 flows, to compare with
//	TASKS/two                 two workers on two processors at the same time, with 1,024 flows each: ns/packet of both together, the least
//	                          and the tenth part of all laps. To compare with: internal/sim takes nothing from it
//	line                      ns/line: a line of the cache from one processor to the other, as two-line of quillon bench
func BenchmarkCore(b *testing.B) {
	b.Run("line", coreLine)
	for task, t := range coreTasks {
		for _, flows := range []int{128, 512, 1024, 2048} {
			b.Run(fmt.Sprintf("%s/flows=%d", t.name, flows), func(b *testing.B) { coreAlone(b, 2, task, packet.MaxBatch, flows) })
		}
		for _, workers := range []int{1, 2, 4, 8, 16} {
			if workers > 2 && task > 0 {
				break
			}
			for _, size := range []int{1, 16, packet.MaxBatch} {
				b.Run(fmt.Sprintf("%s/workers=%d/batch=%d", t.name, workers, size), func(b *testing.B) { coreAlone(b, workers, task, size, 1024) })
			}
		}
		b.Run(t.name+"/one", func(b *testing.B) { coreAlone(b, 1, task, packet.MaxBatch, 2048) })
		b.Run(t.name+"/two", func(b *testing.B) { coreTwo(b, task) })
		for _, apart := range []bool{false, true} {
			name := map[bool]string{false: "hand", true: "hand-apart"}[apart]
			b.Run(t.name+"/"+name, func(b *testing.B) { coreHand(b, task, apart) })
		}
	}
}

// coreAlone has one worker run batches of so many flows.
func coreAlone(b *testing.B, workers, task, size, flows int) {
	const lap = 32
	x := coreBoard(b, workers, task, false)
	load := coreLoad(0, flows, size, func(int) bool { return true })
	var batch packet.Batch
	now, n := time.Duration(0), 0
	var laps []float64
	for range 200 + b.N/lap {
		start := time.Now()
		for range lap {
			x.coreBreath(b, 0, &now, load[n%len(load)], &batch)
			n++
		}
		laps = append(laps, float64(time.Since(start))/lap)
	}
	slices.Sort(laps)
	b.ReportMetric(laps[0], "ns/breath")
	b.ReportMetric(laps[len(laps)/10], "ns/tenth")
}

// coreHand has worker 1 hand batches to worker 0, one after the other.
func coreHand(b *testing.B, task int, apart bool) {
	x := coreBoard(b, 2, task, true)
	load := coreLoad(1, 512, packet.MaxBatch, func(t int) bool { return t%2 == 0 })
	rounds := 4000 + b.N
	var turn atomic.Int64
	least := [2]float64{math.Inf(1), math.Inf(1)}
	sums := [2]time.Duration{}
	var nows [2]time.Duration
	var batch [2]packet.Batch
	play := func(worker, n int) {
		start := time.Now()
		frames := load[n%len(load)]
		if worker == 0 {
			frames = nil
		}
		x.coreBreath(b, worker, &nows[worker], frames, &batch[worker])
		sums[worker] += time.Since(start)
		if n%16 == 15 {
			if n > 1000 {
				least[worker] = min(least[worker], float64(sums[worker])/(16*packet.MaxBatch))
			}
			sums[worker] = 0
		}
	}
	if apart {
		var wg sync.WaitGroup
		for worker := range 2 {
			wg.Go(func() {
				defer pin(b, worker)()
				for n := range rounds {
					for k := 1; int(turn.Load()) != 2*n+1-worker; k++ {
						if k%4096 == 0 {
							runtime.Gosched()
						}
					}
					play(worker, n)
					turn.Add(1)
				}
			})
		}
		wg.Wait()
	} else {
		for n := range rounds {
			play(1, n)
			play(0, n)
		}
	}
	if handed := x.counter("handed"); handed != uint64(rounds*packet.MaxBatch) || x.counter("taken") != handed {
		b.Fatalf("%d handed, %d taken", handed, x.counter("taken"))
	}
	b.ReportMetric(least[1], "ns/handed")
	b.ReportMetric(least[0], "ns/taken")
}

// coreTwo has two workers run their flows at the same time.
func coreTwo(b *testing.B, task int) {
	const lap = 32
	x := coreBoard(b, 2, task, false)
	var ready, over atomic.Int64
	var took [2]time.Duration
	var laps []float64
	var wg sync.WaitGroup
	rounds := 200 + b.N/lap
	meet := func(at *atomic.Int64, n int) {
		at.Add(1)
		for k := 1; at.Load() < int64(2*n); k++ {
			if k%(1<<14) == 0 {
				runtime.Gosched()
			}
		}
	}
	for worker := range 2 {
		wg.Go(func() {
			defer pin(b, worker)()
			load := coreLoad(worker, 1024, packet.MaxBatch, func(int) bool { return true })
			var batch packet.Batch
			now, n := time.Duration(0), 0
			for round := range rounds {
				meet(&ready, round+1)
				start := time.Now()
				for range lap {
					x.coreBreath(b, worker, &now, load[n%len(load)], &batch)
					n++
				}
				took[worker] = time.Since(start)
				meet(&over, round+1)
				if worker == 0 {
					laps = append(laps, float64(max(took[0], took[1]))/(2*lap*packet.MaxBatch))
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(laps)
	b.ReportMetric(laps[0], "ns/packet")
	b.ReportMetric(laps[len(laps)/10], "ns/tenth")
}

// coreLine has two processors write a line in turn.
func coreLine(b *testing.B) {
	turn := &struct {
		_, n, _ [8]atomic.Int64
	}{}
	var wg sync.WaitGroup
	rounds := 1000 + b.N/1000
	const lap = 1000
	best := math.Inf(1)
	for worker := range 2 {
		wg.Go(func() {
			defer pin(b, worker)()
			for range rounds {
				start, from := time.Now(), turn.n[0].Load()
				for range lap {
					for k := 1; turn.n[0].Load()&1 != int64(worker); k++ {
						if k%(1<<16) == 0 {
							runtime.Gosched()
						}
					}
					turn.n[0].Add(1)
				}
				if worker == 0 {
					best = min(best, float64(time.Since(start))/float64(turn.n[0].Load()-from))
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(best, "ns/line")
}

// pin has a thread run on one processor, until what it returns is called.
func pin(b *testing.B, processor int) func() {
	runtime.LockOSThread()
	var was, one unix.CPUSet
	one.Set(processor)
	if err := errors.Join(unix.SchedGetaffinity(0, &was), unix.SchedSetaffinity(0, &one)); err != nil {
		b.Error(err)
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &was)
		runtime.UnlockOSThread()
	}
}
