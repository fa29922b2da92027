package afxdp

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// bench is a bed with a generator at farA, which sends XDP frames from
// processor 0 as fast as it can, and a sink at farB that counts and drops.
type bench struct {
	*bed
	sink  *ebpf.Program
	count *uint64
	stop  atomic.Bool
	done  chan error
}

func program(b *testing.B, ins asm.Instructions) *ebpf.Program {
	b.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "bench", Type: ebpf.XDP, License: "GPL", Instructions: ins, Flags: unix.BPF_F_XDP_HAS_FRAGS})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return p
}

func newRange(b *testing.B, roceFrames bool, size int) *bench {
	r := &bench{bed: newBed(b, 1500, 1), done: make(chan error, 1)}
	for _, x := range []*raw{r.a, r.b} {
		// The kernel must not copy frames for the sockets.
		if err := unix.Shutdown(x.fd, unix.SHUT_RD); err != nil {
			_ = unix.Bind(x.fd, &unix.SockaddrLinklayer{Ifindex: x.index})
		}
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "sink", Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	if err != nil {
		b.Fatal(err)
	}
	mem, err := unix.Mmap(m.FD(), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		b.Fatal(err)
	}
	r.count = (*uint64)(unsafe.Pointer(&mem[0]))
	r.sink = program(b, asm.Instructions{
		asm.LoadMapValue(asm.R1, m.FD(), 0),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord),
		asm.Add.Imm(asm.R2, 1),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, 1),
		asm.Return(),
	})
	err = offload.Within(r.farB, func() error {
		l, err := link.AttachXDP(link.XDPOptions{Program: r.sink, Interface: r.b.index, Flags: link.XDPDriverMode})
		if err == nil {
			b.Cleanup(func() { _ = l.Close() })
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	// The second word of the sink's map stops the generator: a run in the
	// kernel is long, because setting one up takes milliseconds.
	out := program(b, asm.Instructions{
		asm.LoadMapValue(asm.R1, m.FD(), 8),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord),
		asm.JNE.Imm(asm.R2, 0, "stop"),
		asm.Mov.Imm(asm.R1, int32(r.a.index)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("stop"),
		asm.Return(),
	})
	frame := roce(size, 0, false, 1)
	if !roceFrames {
		frame[37] = 0 // UDP port
	}
	go func() {
		r.done <- offload.Within(r.farA, func() error {
			pin(0)
			for !r.stop.Load() {
				_, err := out.Run(&ebpf.RunOptions{Data: frame, Repeat: 1 << 24, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}()
	b.Cleanup(func() {
		r.stop.Store(true)
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[8])), 1)
		if err := <-r.done; err != nil {
			b.Error("generator: ", err)
		}
		_ = unix.Munmap(mem)
		_ = m.Close()
	})
	return r
}

func pin(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
}

// measure waits for b.N frames at the sink. tasks are the forwarder's threads
// (a pattern of /proc directories): frames by their processor time do not
// depend on what else the machine does.
func (r *bench) measure(b *testing.B, tasks string) {
	for end := time.Now().Add(5 * time.Second); atomic.LoadUint64(r.count) < 1000; {
		if time.Now().After(end) {
			b.Fatal("nothing arrives")
		}
		time.Sleep(time.Millisecond)
	}
	b.ResetTimer()
	from, start, cpu := atomic.LoadUint64(r.count), time.Now(), busy(b, tasks)
	for atomic.LoadUint64(r.count)-from < uint64(b.N) {
		time.Sleep(200 * time.Microsecond)
	}
	b.StopTimer()
	n := float64(atomic.LoadUint64(r.count) - from)
	b.ReportMetric(n/time.Since(start).Seconds()/1e6, "Mpps")
	if tasks != "" {
		b.ReportMetric(n/(busy(b, tasks)-cpu).Seconds()/1e6, "Mpps/cpu")
	}
}

// busy is the processor time of threads.
func busy(b *testing.B, tasks string) (sum time.Duration) {
	paths, _ := filepath.Glob(tasks + "/schedstat")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(ns)
	}
	return sum
}

func BenchmarkPassThrough(b *testing.B) {
	for _, size := range []int{64, 1024} {
		for _, c := range []struct {
			name string
			cfg  PairConfig
		}{
			{"shared", PairConfig{}},
			{"separate", PairConfig{Separate: true}},
		} {
			b.Run(fmt.Sprintf("%d/%s", size, c.name), func(b *testing.B) {
				r := newRange(b, true, size)
				c.cfg.Stale = -1 // count what the process forwards, and nothing else
				w := open(b, c.cfg)
				stop, done, thread := make(chan struct{}), make(chan error, 1), make(chan int, 1)
				go func() {
					runtime.LockOSThread()
					pin(1)
					thread <- unix.Gettid()
					done <- bare(w, stop)
				}()
				r.measure(b, fmt.Sprintf("/proc/self/task/%d", <-thread))
				close(stop)
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// bare moves frames from A to B and touches nothing.
func bare(w *Pair, stop chan struct{}) error {
	var x, y packet.Batch
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		for range 16 {
			if _, err := w.A[0].Rx(&x); err != nil {
				return err
			}
			for try := 0; x.Len() > 0 && try < 100; try++ {
				if _, err := w.B[0].Tx(&x); err != nil {
					return err
				}
			}
			x.PutAll()
			if _, err := w.B[0].Rx(&y); err != nil {
				return err
			}
			if y.Len() > 0 {
				if _, err := w.A[0].Tx(&y); err != nil {
					return err
				}
				y.PutAll()
			}
		}
	}
}

// BenchmarkKernelRedirect is frames that no app wants.
func BenchmarkKernelRedirect(b *testing.B) {
	for _, size := range []int{64, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			r := newRange(b, false, size)
			open(b, PairConfig{Options: Options{Filter: &port.Filter{RoCE: true}}})
			r.measure(b, "")
		})
	}
}

// BenchmarkGenerator is frames that go no further than where the others come in: what
// generating takes of the processor that has BenchmarkKernelRedirect's whole way to do, too.
func BenchmarkGenerator(b *testing.B) {
	for _, size := range []int{64, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			r := newRange(b, false, size)
			dut, err := netlink.LinkByName("dutA")
			if err != nil {
				b.Fatal(err)
			}
			l, err := link.AttachXDP(link.XDPOptions{Program: r.sink, Interface: dut.Attrs().Index, Flags: link.XDPDriverMode})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = l.Close() })
			r.measure(b, "")
		})
	}
}

// BenchmarkTestpmd (with 256 MiB of hugepages) is DPDK's forwarder on the same veths: io mode, two
// net_af_xdp devices, the worker on processor 1.
func BenchmarkTestpmd(b *testing.B) {
	path, err := exec.LookPath("dpdk-testpmd")
	if err != nil {
		b.Skip("needs dpdk-testpmd (Debian package dpdk-dev) and hugepages")
	}
	for _, size := range []int{64, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			r := newRange(b, true, size)
			for _, l := range []string{"dutA", "dutB"} {
				if _, err := netlink.LinkByName(l); err != nil {
					b.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			c := exec.CommandContext(ctx, path, "-l", "0,1", "--no-pci", "--no-telemetry", "--in-memory", "-m", "256",
				"--vdev", "net_af_xdp0,iface=dutA", "--vdev", "net_af_xdp1,iface=dutB",
				"--", "--forward-mode=io", "--auto-start", "--stats-period", "3600", "--nb-cores=1", "--total-num-mbufs=16384")
			var out bytes.Buffer
			c.Stdout, c.Stderr = &out, &out
			if err := c.Start(); err != nil {
				b.Fatal(err)
			}
			defer func() { cancel(); _ = c.Wait() }()
			defer func() {
				if b.Failed() {
					b.Log(out.String())
				}
			}()
			r.measure(b, fmt.Sprintf("/proc/%d/task/*", c.Process.Pid))
		})
	}
}
