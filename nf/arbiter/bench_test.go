package arbiter

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// pair is a loop of a host's: it acquires words, and gives them back, over and over, while others hold so many words.
func pair(t testing.TB, words, held int) (once func()) {
	m := acquire(1, 0)
	m.N, m.Lease = words, 1000
	for i := range words {
		m.Words[i] = excl(uint64(i) * 8)
	}
	back := message.Message{Op: message.Release, Lease: 1000}
	frames := [][]byte{datagram(t, 1, 1000, &m), datagram(t, 1, 1000, &back)}
	l := graphtest.NewLoop(t, *Kind(), with("max-lease", "1h"), "a", frames...)
	l.Breath()
	a := l.App().(*app)
	a.quiet = 0
	start := clock.Time(graphtest.Start)
	for left, n := held, uint32(0); left > 0; n++ {
		k := acquire(1+n/7, 0)
		k.N, k.Lease, k.Client = min(left, message.Most), 3_600_000, 1+n%7
		for i := range k.N {
			left--
			k.Words[i] = excl(1<<32 | uint64(left)*8)
		}
		from := peer{ip: [4]byte{10, 0, 1, 1}, port: 7}
		k.Session = a.cookie(&from, &k, uint64(start)/uint64(epoch))
		if a.handle(start, &k, &from); k.Result != message.OK {
			t.Fatal(k.Result)
		}
	}
	from := peer{ip: [4]byte{10, 0, 0, 1}, port: 1000}
	session := a.cookie(&from, &m, uint64(start)/uint64(epoch))
	const udp = hdr.EthernetLen + hdr.IPv4Len + hdr.UDPLen
	be := binary.BigEndian
	for _, f := range frames {
		be.PutUint64(f[udp+24:], session)
		be.PutUint16(f[udp-2:], 0) // no checksum
	}
	request := uint32(0)
	once = func() {
		request++
		be.PutUint32(frames[0][udp+4:], request)
		be.PutUint32(frames[1][udp+48:], request) // by its number
		request++
		be.PutUint32(frames[1][udp+4:], request)
		l.Breath()
	}
	once()
	if a.counts[ctrReleased] != 1 || len(a.holds)-len(a.freeHolds) != held {
		t.Fatalf("%d released, %d held", a.counts[ctrReleased], len(a.holds)-len(a.freeHolds))
	}
	return once
}

// BenchmarkPair is an acquire and its release.
func BenchmarkPair(b *testing.B) {
	for _, words := range []int{1, 8, 32} {
		for _, held := range []int{0, 1, 100_000} {
			b.Run(fmt.Sprintf("words=%d/held=%d", words, held), func(b *testing.B) {
				once := pair(b, words, held)
				b.ReportAllocs()
				for b.Loop() {
					once()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/pair")
			})
		}
	}
}

func TestAllocs(t *testing.T) {
	for _, words := range []int{1, 32} {
		if n := testing.AllocsPerRun(200, pair(t, words, 1000)); n != 0 {
			t.Errorf("%d words: %v allocations", words, n)
		}
	}
}
