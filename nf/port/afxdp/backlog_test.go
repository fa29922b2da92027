package afxdp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/packet"
)

// TestBacklog puts frames of one to three chunks into it and takes some out, at random.
func TestBacklog(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		const chunks = 256
		l := newBacklog(chunks, 4000)
		flows := 1 + r.IntN(20)
		waiting := make([][]xsk.Desc, flows) // chunks by flow, in order
		addr := uint64(0)
		for range 500 {
			if r.IntN(2) == 0 {
				for range r.IntN(40) {
					f, parts := r.IntN(flows), 1+r.IntN(3)
					for i := 0; i < parts && l.room() >= parts-i; i++ {
						d := xsk.Desc{Addr: addr<<8 | uint64(f), Len: uint32(14 + r.IntN(1300))}
						if i < parts-1 {
							d.Options = xsk.Continued
						}
						if i == 0 && l.room() < parts {
							break
						}
						addr++
						l.put(uint16(f+1), d)
						waiting[f] = append(waiting[f], d)
					}
				}
			}
			frames, got := r.IntN(packet.MaxBatch), 0
			l.next(frames)
			for i := 0; i < len(l.out); got++ {
				f := l.out[i].Addr & 0xFF
				for more := true; more; i++ {
					d := l.out[i]
					if d.Options &^= sparse; len(waiting[f]) == 0 || d != waiting[f][0] {
						t.Fatalf("round %d: flow %d: order is lost at %v", round, f, d)
					}
					more = waiting[f][0].Options != 0
					waiting[f] = waiting[f][1:]
				}
			}
			left := 0
			for _, w := range waiting {
				left += len(w)
			}
			if left != l.n || got > frames || got < frames && left > 0 && len(l.out) < packet.MaxBatch {
				t.Fatalf("round %d: %d chunks are left, %d were said; %d frames of %d", round, left, l.n, got, frames)
			}
		}
		for l.n > 0 {
			l.next(packet.MaxBatch)
		}
		empty(t, l, chunks)
	}
}

// empty wants every entry free and no queue listed.
func empty(t *testing.T, l *backlog, chunks int) {
	t.Helper()
	free := 0
	for i := l.free; i != 0 && free <= chunks; i = l.entries[i].next {
		free++
	}
	listed := slices.ContainsFunc(l.queues[:], func(q queue) bool { return q.listed || q.first != 0 })
	if free != chunks || listed || l.fresh.first != 0 || l.old.first != 0 {
		t.Fatalf("%d entries of %d are free; a queue is listed: %v", free, chunks, listed)
	}
}

// TestBacklogSparse: a frame that comes behind 2,000 of another flow is the first of the
// next batch, and one of each flow is among the first of all, however many there are of the others.
func TestBacklogSparse(t *testing.T) {
	l := newBacklog(2048, 1522)
	fill := func(flow uint16, n int) {
		for range n {
			l.put(flow, xsk.Desc{Addr: uint64(flow), Len: 1514})
		}
	}
	fill(1, 2000)
	l.next(packet.MaxBatch)
	for i := range 10 {
		fill(uint16(2+i), 1)
		l.next(packet.MaxBatch)
		if len(l.out) != packet.MaxBatch || l.out[0].Addr != uint64(2+i) {
			t.Fatalf("frame %d is not the first: %v", i, l.out)
		}
		if marked := slices.IndexFunc(l.out, func(d xsk.Desc) bool { return d.Addr == 1 && d.Options&sparse != 0 }); l.out[0].Options != sparse || marked >= 0 {
			t.Fatalf("sparse is not the first alone: %v", l.out)
		}
		if i == 5 {
			fill(1, 300) // a ring that stays full
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		fill(3, 10)
		fill(4, 10)
		l.next(20)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestBacklogFair: flows that always have frames get the same bytes, whatever their frames'
// lengths, and a flow that comes back as soon as it is served is not ahead of them for ever.
func TestBacklogFair(t *testing.T) {
	l := newBacklog(2048, 1522)
	lengths := []uint32{64, 1514, 700}
	sent := make([]int, len(lengths)+1)
	for range 20_000 {
		for f, n := range lengths {
			for l.queues[f+1].first == 0 || l.room() > 1900 {
				l.put(uint16(f+1), xsk.Desc{Addr: uint64(f), Len: n})
			}
		}
		if again := uint16(len(lengths) + 1); l.queues[again].first == 0 {
			l.put(again, xsk.Desc{Addr: uint64(again) - 1, Len: 1514})
		}
		l.next(1)
		for _, d := range l.out {
			sent[d.Addr] += int(d.Len)
		}
	}
	// A queue is ahead of another by its turn and what a frame took it beyond.
	for f := range sent {
		for g := range sent {
			if sent[f]-sent[g] > int(l.quantum)+3*1522 {
				t.Fatalf("flow %d got %d bytes, flow %d %d", f, sent[f], g, sent[g])
			}
		}
	}
}

func TestQueueOf(t *testing.T) {
	l := newBacklog(64, 1522)
	l.seed = 1
	be := binary.BigEndian
	mod := func(f []byte, change func(f []byte)) []byte { change(f); return f }
	base := func() []byte { return roce(200, 0, false, 64) }
	same := func(name string, want bool, a, b []byte) {
		t.Helper()
		if (l.queueOf(a) == l.queueOf(b)) != want {
			t.Errorf("%s: the same queue: %v", name, !want)
		}
	}
	same("another PSN", true, base(), mod(base(), func(f []byte) { f[54]++ }))
	same("behind tags", true, base(), slices.Insert(base(), 12, 0x88, 0xA8, 0, 1, 0x81, 0, 0x60, 2))
	same("another length", true, base(), roce(1400, 0, false, 64))
	same("of several chunks", true, base(), roce(9000, 0, false, 64)[:1900])
	same("v6 of several chunks", true, roce(200, 0, true, 64), roce(9000, 0, true, 64)[:1900])
	same("v6 and v4", false, roce(200, 0, true, 64), base())
	other := func(f []byte) { f[47]++ } // the QPN's first byte
	same("another queue pair", false, base(), mod(base(), other))
	same("another v6 queue pair", false, roce(200, 0, true, 64), mod(roce(200, 0, true, 64), func(f []byte) { f[67]++ }))
	same("no RoCE", true, mod(base(), func(f []byte) { f[37]++ }), mod(base(), func(f []byte) { f[37]++; f[47]++ }))
	same("another source port", false, base(), mod(base(), func(f []byte) { f[35]++ }))
	same("another address", false, base(), mod(base(), func(f []byte) { f[33]++ }))
	same("TCP", false, base(), mod(base(), func(f []byte) { f[23] = unix.IPPROTO_TCP }))
	frag := func(off uint16) []byte {
		return mod(base(), func(f []byte) { be.PutUint16(f[20:], 0x2000|off); f[34] = byte(off) })
	}
	same("fragments", true, frag(0), frag(100))
	same("ICMP of another id", true, mod(base(), func(f []byte) { f[23] = 1 }), mod(base(), func(f []byte) { f[23] = 1; f[38]++ }))
	arp := mod(base(), func(f []byte) { f[13] = 6 })
	same("ARP", true, arp, mod(bytes.Clone(arp), func(f []byte) { f[40]++ }))
	same("ARP of another", false, arp, mod(bytes.Clone(arp), func(f []byte) { f[11]++ }))
	for n := range len(base()) {
		for _, v6 := range []bool{false, true} {
			for tags := range 3 {
				if q := l.queueOf(roce(200, tags, v6, 1)[:n]); q < 1 || q > flowQueues {
					t.Fatal("queue ", q)
				}
			}
		}
	}
}

// TestSparseFirst has a ring full of one flow's frames, and behind them one of another.
func TestSparseFirst(t *testing.T) {
	for _, c := range []struct {
		name       string
		mtu, sizes int
		mode       Mode
	}{{"native", 1500, 1514, Auto}, {"generic", 1500, 1514, Generic}, {"jumbo", 9000, 9014, Auto}} {
		t.Run(c.name, func(t *testing.T) {
			bed := newBed(t, c.mtu, 1)
			w := open(t, PairConfig{Options: Options{Mode: c.mode, Stale: patient, Ring: 2048, LeaveOffloads: c.mode == Generic}})
			a, b := w.A[0], w.B[0]
			var batch packet.Batch
			rx := func() int {
				t.Helper()
				n, err := a.Rx(&batch)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			rx() // from now on frames come here
			chunks := func() int { return a.sock.Rx.Ready(a.sock.Rx.Size()) }
			var sent [][]byte
			for len(sent) < 1000 && chunks() < 1900 {
				f := roce(64+len(sent)*331%(c.sizes-64), 0, false, uint32(64*(len(sent)+1)))
				binary.BigEndian.PutUint32(f[42:], 7) // one queue pair
				binary.BigEndian.PutUint32(f[46:], 7)
				sent = append(sent, f)
				if err := bed.a.send(f); err != nil {
					t.Fatal(err)
				}
			}
			lone := roce(100, 0, true, 9)
			if err := bed.a.send(lone); err != nil {
				t.Fatal(err)
			}
			arrived(t, func() bool {
				n := chunks()
				return n >= len(sent)+1 && bytes.Equal(a.umem.Mem[a.sock.Rx.Read(n-1).Addr:][:100], lone)
			})

			at, breaths := 0, 0
			for found := -1; at < len(sent); breaths++ {
				n := rx()
				if n == 0 {
					t.Fatal("nothing comes after ", at)
				}
				for i, x := range batch.Bufs() {
					switch {
					case bytes.Equal(x.Bytes(), lone):
						if !x.Sparse {
							t.Error("it is not called sparse")
						}
						if found = breaths; found > 1 {
							t.Errorf("the other flow's frame came in breath %d, as number %d", breaths, i)
						}
					case !bytes.Equal(x.Bytes(), sent[at]):
						t.Fatalf("frame %d is not the next of its flow", at)
					default:
						at++
					}
				}
				if breaths == 3 {
					if !a.Holding() {
						t.Error("nothing is held")
					}
					if err := b.Wait(tbContext, time.Hour); err != nil { // for both
						t.Error(err)
					}
				}
				if got := a.pool.InUse() - a.posted - b.posted; c.mtu == 1500 && got != n {
					t.Fatalf("%d chunks are in use for %d frames", got, n)
				}
				batch.PutAll()
			}
			if s := a.Stats(); s.RxPackets != uint64(len(sent)+1) || s.RxDropped != 0 || rx() != 0 {
				t.Errorf("%+v", s)
			}
			empty(t, a.backlog, 2048)
			conserved(t, w)
		})
	}
}

func arrived(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patient); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("frames do not arrive")
		}
	}
}

// TestBacklogPurged: what others overtook goes, also when it had left the ring.
func TestBacklogPurged(t *testing.T) {
	bed := newBed(t, 1500, 1)
	w := open(t, PairConfig{Options: Options{Stale: patient}})
	a := w.A[0]
	var batch packet.Batch
	if _, err := a.Rx(&batch); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		if err := bed.a.send(roce(100, 0, false, uint32(i))); err != nil {
			t.Fatal(err)
		}
	}
	arrived(t, func() bool { return a.sock.Rx.Ready(300) == 300 })
	if n, err := a.Rx(&batch); n != packet.MaxBatch || err != nil || !a.Holding() {
		t.Fatal(n, err)
	}
	batch.PutAll()
	a.purge()
	if s := a.Stats(); s.RxDropped != 300-packet.MaxBatch || a.Holding() {
		t.Errorf("%+v, holding %v", s, a.Holding())
	}
	empty(t, a.backlog, DefaultRing)
	conserved(t, w)
}
