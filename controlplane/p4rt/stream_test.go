package p4rt

import (
	"strings"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// TestQueue: what waits for a controller that does not read is bounded, and the
// state of the arbitration is among it.
func TestQueue(t *testing.T) {
	st := &stream{wake: make(chan struct{}, 1), room: maxQueue}
	packet := func(n int) *p4v1.StreamMessageResponse {
		return &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Packet{Packet: &p4v1.PacketIn{Payload: make([]byte, n)}}}
	}
	advice := func(n uint64) *p4v1.StreamMessageResponse {
		return &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Arbitration{Arbitration: &p4v1.MasterArbitrationUpdate{ElectionId: &p4v1.Uint128{Low: n}}}}
	}
	full := func(size, want int) {
		t.Helper()
		n := 0
		for n <= maxNotes && st.send(packet(size)) {
			n++
		}
		if n != want {
			t.Errorf("%d messages of %d bytes wait, want %d", n, size, want)
		}
		for n := range uint64(3 * maxNotes) {
			if !st.send(advice(n)) {
				t.Fatal("an advice was lost")
			}
		}
		q := st.queue
		if len(q) > maxNotes+1 || q[len(q)-1].GetArbitration().GetElectionId().GetLow() != 3*maxNotes-1 {
			t.Errorf("%d messages wait, the last is %v", len(q), q[len(q)-1])
		}
		for st.next() != nil {
		}
		if st.size != 0 {
			t.Errorf("nothing waits, and that has %d bytes", st.size)
		}
	}
	full(0, maxNotes)
	full(1<<20, maxQueue>>20-1) // and what is around the payload
	full(0, maxNotes)           // there is room again
}

// TestReportWithinRoom: an answer is as long as its client takes, with the code of each update as long as that fits.
func TestReportWithinRoom(t *testing.T) {
	for _, c := range []struct {
		updates, headers int
		want             codes.Code
		whole            bool
	}{{60, 0, codes.Unknown, true}, {10, 16 << 10, codes.Unknown, true}, {60, 16 << 10, codes.Unknown, false}, {60, 8 << 10, codes.Unknown, false}, {1000, 16 << 10, codes.ResourceExhausted, false},
		{1000, 8192 + 100*1000, codes.Unknown, false}, {1000, 1 << 20, codes.Unknown, true}, {1000, 0, codes.Unknown, true}} {
		k := &conn{}
		k.headers.Store(uint32(c.headers))
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: k})
		errs := make([]error, c.updates)
		for n := range errs {
			errs[n] = refusal(codes.NotFound, strings.Repeat("€", 2*maxErrorText))
		}
		_, err := report("updates", errs, room(ctx))
		st := status.Convert(err)
		if st.Code() != c.want {
			t.Fatalf("%+v: %v", c, err)
		}
		if c.want != codes.Unknown {
			if len(st.Details()) != 0 || !strings.Contains(st.Message(), "108192 bytes of metadata (grpc.max_metadata_size)") {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if e := st.Details()[c.updates-1].(*p4v1.Error); codes.Code(e.GetCanonicalCode()) != codes.NotFound || (len(e.GetMessage()) >= maxErrorText) != c.whole {
			t.Errorf("%+v: %v", c, e)
		}
	}
}

// TestReportOfNames: what is cut off an error's text is no half of a letter, which
// no message could carry.
func TestReportOfNames(t *testing.T) {
	for n := range 4 {
		_, err := report("updates", []error{refusal(codes.NotFound, strings.Repeat("x", n)+strings.Repeat("€", maxErrorText))}, unsaidHeaders)
		if st := status.Convert(err); st.Code() != codes.Unknown || len(st.Details()) != 1 {
			t.Error(err)
		} else if e := st.Details()[0].(*p4v1.Error); codes.Code(e.GetCanonicalCode()) != codes.NotFound || !strings.HasSuffix(e.GetMessage(), "€…") {
			t.Error(e)
		}
	}
}
