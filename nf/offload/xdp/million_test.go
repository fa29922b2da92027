package xdp

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
)

var long = flag.Bool("long", false, "also tests that take long")

// holder is an owner with so many flows.
type holder struct{ flows []offload.Flows }

func (h *holder) Decides(uint32) bool               { return true }
func (h *holder) Flows(ref uint32) *offload.Flows   { return &h.flows[ref] }
func (h *holder) Used(ref uint32, u *offload.Usage) {}

// locked is the memory of all maps that the process has, by the kernel.
func locked(t testing.TB) (sum int) {
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, _ := os.ReadFile(name)
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "memlock:"); ok {
				n, _ := strconv.Atoi(strings.TrimSpace(v))
				sum += n
			}
		}
	}
	return sum
}

// TestMillion: so many flows of two functions, in how much memory; it takes long.
func TestMillion(t *testing.T) {
	flows := 20_000
	if *long {
		flows = 1_000_000
	}
	var before, after runtime.MemStats
	a, b := &holder{make([]offload.Flows, flows)}, &holder{make([]offload.Flows, flows)}
	runtime.GC()
	runtime.ReadMemStats(&before)
	maps := locked(t)
	k, err := New(flows)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	table := offload.NewTable(k)
	table.Now(clock.Time(k.Clock()))
	d := datagram{vlan: -1, from: [4]byte{10, 0, 0, 1}, to: [4]byte{203, 0, 113, 1}, sport: 1, dport: 53, proto: hdr.ProtoUDP}
	w := world{TB: t, r: rand.New(rand.NewPCG(1, 2))}
	out := d.bytes(w.r)
	d.from, d.to, d.sport, d.dport = d.to, d.from, d.dport, d.sport
	back := d.bytes(w.r)
	start := time.Now()
	for n := range flows {
		for i, f := range [2][]byte{out, back} {
			be.PutUint32(f[26+4*i:], 10<<24|uint32(n))
			x := offload.Decision{Before: f, After: f, Out: 1 - i, Longest: 1514, Parts: []offload.Part{{Owner: a, Ref: uint32(n), In: i}, {Owner: b, Ref: uint32(n), In: i}}}
			if i == 1 {
				x.Parts[0], x.Parts[1] = x.Parts[1], x.Parts[0]
			}
			if !table.Parse(f, i, &x.In) {
				t.Fatal("not plain")
			}
			if o := table.Offer(&x); o != offload.Outcome(i^1) {
				t.Fatalf("flow %d, direction %d: %s", n, i, offload.OutcomeNames[o])
			}
		}
	}
	took := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&after)
	maps = locked(t) - maps
	heap := int(after.HeapAlloc - before.HeapAlloc)
	t.Logf("%d flows: %d MiB of maps, %d MiB of the process, %d bytes a flow; %v each to begin", table.Len(), maps>>20, heap>>20, (maps+heap)/flows, took/time.Duration(flows))
	if *long && maps+heap > 512<<20 {
		t.Errorf("%d MiB", (maps+heap)>>20)
	}
	start = time.Now()
	table.Clear(0, table.Used())
	t.Logf("%v each to end", time.Since(start)/time.Duration(flows))
	if table.Len() != 0 || a.flows[0].Any() || b.flows[flows-1].Any() {
		t.Error("something is left")
	}
	runtime.KeepAlive(table)
}
