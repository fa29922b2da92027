package ctl

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/p4info"
)

func isState(want State) func(Status) bool { return func(s Status) bool { return s.State == want } }

func TestSecondControllerTakesOver(t *testing.T) {
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	var d Dialer
	a := open(t, &d, at, 1, options())
	if err := a.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	b := open(t, &d, at, 1, options()) // later: a higher id
	if err := b.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	st := until(t, a, "backup", isState(Backup))
	if st.Leader != b.Status().Election {
		t.Errorf("leader %v, want %v", st.Leader, b.Status().Election)
	}
	err := a.Write(within(t), p4v1.WriteRequest_CONTINUE_ON_ERROR)
	if !errors.Is(err, ErrNotPrimary) || !strings.Contains(err.Error(), b.Status().Election.String()) {
		t.Errorf("a write of the demoted: %v", err)
	}
	if err := a.Ready(within(t)); !errors.Is(err, ErrNotPrimary) {
		t.Errorf("ready of the demoted: %v", err)
	}
	b.Close()
	until(t, a, "primary again", isState(Primary))
	if b.Status().State != Closed {
		t.Error("b is not closed")
	}
}

func TestRolesHavePrimariesOfTheirOwn(t *testing.T) {
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	var d Dialer
	a := open(t, &d, at, 1, options())
	b, err := Open(&d, Target{Address: at, DeviceID: 1, Role: "routes"}, options())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, s := range []*Session{a, b} {
		if err := s.Ready(within(t)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSessionComesBack(t *testing.T) {
	f := ctltest.New(1)
	at, stop := f.Start(t, "127.0.0.1:0", nil)
	var d Dialer
	s := open(t, &d, at, 1, options())
	if err := s.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	stop()
	st := until(t, s, "several losses", func(s Status) bool { return s.State == Connecting && s.Losses > 2 })
	if st.Err == "" {
		t.Error("no reason")
	}
	if err := s.Write(within(t), 0); !errors.Is(err, ErrNotConnected) {
		t.Errorf("write: %v", err)
	}
	if err := s.Read(within(t), nil); !errors.Is(err, ErrNotConnected) {
		t.Errorf("read: %v", err)
	}
	if err := s.Ready(within(t)); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("ready: %v", err)
	}
	f2 := ctltest.New(1)
	f2.Start(t, at, nil)
	if err := s.Await(within(t)); err != nil {
		t.Fatal(err)
	}
}

// A device that does not answer, though its connection lives, holds nobody for ever.
func TestStalledDevice(t *testing.T) {
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	o := options()
	o.Patience = 30 * time.Millisecond
	s := open(t, &Dialer{}, at, 1, o)
	if err := s.Await(within(t)); err != nil {
		t.Fatal(err)
	}
	f.Lock()
	defer f.Unlock()
	for name, do := range map[string]func(context.Context) error{
		"Read": func(ctx context.Context) error {
			return s.Read(ctx, func(*p4v1.Entity) error { return nil }, p4info.Entity{Kind: p4info.KindMulticast}.Message())
		},
		"Write":       func(ctx context.Context) error { return s.Write(ctx, 0, &p4v1.Update{}) },
		"GetPipeline": func(ctx context.Context) error { _, err := s.GetPipeline(ctx, 0); return err },
		"SetPipeline": func(ctx context.Context) error { return s.SetPipeline(ctx, 0, nil) },
		"Version":     func(ctx context.Context) error { _, err := s.Version(ctx); return err },
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		if err := do(ctx); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "no answer within") {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// A stream whose end the device did not see keeps its election id: the next one of
// the session has another.
func TestElectionIDInUse(t *testing.T) {
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", nil)
	var d Dialer
	o := options()
	o.Election = ElectionID{5, ^uint64(0)}
	a := open(t, &d, at, 1, o)
	if err := a.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	b := open(t, &d, at, 1, o)
	if err := b.Await(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := b.Status().Election; got != (ElectionID{6, 0}) {
		t.Errorf("election id %v", got)
	}
}

func TestUnknownDevice(t *testing.T) {
	at, _ := ctltest.New(1).Start(t, "127.0.0.1:0", nil)
	s := open(t, &Dialer{}, at, 2, options())
	if err := s.Ready(within(t)); err == nil || !strings.Contains(err.Error(), "there is no device 2") {
		t.Errorf("%v", err)
	}
}

func TestPlainTextStaysHere(t *testing.T) {
	for _, c := range []struct {
		address string
		t       Transport
		ok      bool
	}{
		{"127.0.0.1:9559", Transport{}, true},
		{"localhost:9559", Transport{}, true},
		{"[::1]:9559", Transport{}, true},
		{"unix:/run/p4", Transport{}, true},
		{"10.0.0.1:9559", Transport{}, false},
		{"switch:9559", Transport{}, false},
		{"", Transport{}, false},
		{"10.0.0.1:9559", Transport{Insecure: true}, true},
		{"10.0.0.1:9559", Transport{TLS: true}, true},
		{"10.0.0.1:9559", Transport{CA: "ca.pem"}, true},
		{"10.0.0.1:9559", Transport{CA: "ca.pem", Insecure: true}, false},
		{"10.0.0.1:9559", Transport{CA: "ca.pem", Cert: "c.pem"}, false},
	} {
		if err := c.t.Check(c.address); (err == nil) != c.ok {
			t.Errorf("%s %+v: %v", c.address, c.t, err)
		}
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Most: time.Second}
	for n, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		want *= time.Millisecond
		if got := b.delay(n, func() float64 { return 0 }); got != want {
			t.Errorf("%d: %v, want %v", n, got, want)
		}
		if got := b.delay(n, func() float64 { return 1 }); got != want/2 {
			t.Errorf("%d: %v, want %v", n, got, want/2)
		}
	}
	if d := (Backoff{}).delay(1<<30, func() float64 { return 0 }); d != 30*time.Second {
		t.Error(d)
	}
}

func TestWriteErrors(t *testing.T) {
	u := []*p4v1.Update{{Type: p4v1.Update_INSERT}, {Type: p4v1.Update_DELETE}}
	errs := []*p4v1.Error{{}, {CanonicalCode: int32(codes.NotFound), Message: "gone", Space: "t", Code: 7}}
	var w *WriteError
	if err := writeError(ctltest.WriteStatus(errs), u); !errors.As(err, &w) || len(w.Failed) != 1 || w.Failed[0].Update != u[1] ||
		w.Failed[0].Code != codes.NotFound || err.Error() != "1 of 2 updates failed: NotFound: gone (t 7)" {
		t.Errorf("%v", err)
	}
	// Details for one of two: nobody can say for which.
	if err := writeError(ctltest.WriteStatus(errs[1:]), u); errors.As(err, &w) && w == nil || !strings.Contains(err.Error(), "1 reasons for 2 updates: NotFound: gone") {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		err  error
		n    int
		each bool
		is   error
		text string
	}{
		{status.Error(codes.AlreadyExists, "there"), 1, true, nil, "AlreadyExists: there"},
		{status.Error(codes.AlreadyExists, "there"), 2, false, nil, "there (AlreadyExists)"},
		{status.Error(codes.Unavailable, "reset"), 1, false, ErrNotConnected, "reset"},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp [::1]:9: \"no\""`), 1, false, ErrNotConnected, `not connected: dial tcp [::1]:9: "no" (Unavailable)`},
		{status.Error(codes.Unavailable, `connection error: desc = "half`), 1, false, ErrNotConnected, `connection error: desc = "half (Unavailable)`},
		{status.Error(codes.PermissionDenied, "not primary: election id 1"), 1, false, ErrNotPrimary, "not primary: election id 1"},
		{status.Error(codes.PermissionDenied, "Not primary"), 1, false, ErrNotPrimary, "Not primary"},
		{status.Error(codes.PermissionDenied, "the role may not write this"), 1, false, nil, "the role may not write this"},
		{status.Error(codes.ResourceExhausted, "message larger than max"), 2, false, nil, "message larger than max"},
	} {
		err := writeError(c.err, u[:c.n])
		w = nil
		if errors.As(err, &w) != c.each || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) || strings.Count(err.Error(), "not primary") > 1 {
			t.Errorf("%v: %v", c.err, err)
		}
	}
	if writeError(nil, u) != nil {
		t.Error("an error of nothing")
	}
}

func TestReadErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{ctltest.WriteStatus([]*p4v1.Error{{}, {CanonicalCode: int32(codes.NotFound), Message: "gone"}}), codes.NotFound, "gone (NotFound)"},
		{status.Error(codes.Unimplemented, "no such thing"), codes.Unimplemented, "no such thing (Unimplemented)"},
		{status.Error(codes.Unknown, "oh"), codes.Unknown, "oh (Unknown)"},
	} {
		if err := readError(c.err); status.Code(err) != c.code || err.Error() != c.text {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}

func TestSplit(t *testing.T) {
	var updates []*p4v1.Update
	for range 25 {
		updates = append(updates, update(p4info.Entity{Kind: p4info.KindMulticast, ID: 1, Metadata: make([]byte, 100)}.Message()))
	}
	for _, c := range []struct {
		l    Limits
		want int
	}{{Limits{Updates: 10}, 3}, {Limits{}, 1}, {Limits{Bytes: 600}, 5}, {Limits{Bytes: 1}, 25}} {
		runs := c.l.split(updates)
		n := 0
		for _, r := range runs {
			n += len(r)
		}
		if len(runs) != c.want || n != len(updates) {
			t.Errorf("%+v: %d runs of %d updates", c.l, len(runs), n)
		}
	}
	if (Limits{}).split(nil) != nil {
		t.Error("runs of nothing")
	}
}

func TestElectionIDs(t *testing.T) {
	for s, want := range map[string]ElectionID{"0,1": {0, 1}, "1": {0, 1}, "5,0x10": {5, 16}, "": {}, "0,0": {}, "1,2,3": {}, "-1": {}, "a": {}} {
		got, err := ParseElectionID(s)
		if got != want || (err == nil) != (want != ElectionID{}) {
			t.Errorf("%q: %v %v", s, got, err)
		}
	}
	if !ElectionAt(1e9 + 5).Less(ElectionAt(2e9)) {
		t.Error("later is not higher")
	}
}

func TestObserverLeavesThePrimaryAlone(t *testing.T) {
	f := ctltest.New(1)
	at, stop := f.Start(t, "127.0.0.1:0", nil)
	var d Dialer
	a := open(t, &d, at, 1, options())
	if err := a.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	o := options()
	o.Observe = true
	b := open(t, &d, at, 1, o)
	if err := b.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := b.Write(within(t), 0); !errors.Is(err, ErrNotPrimary) || !strings.Contains(err.Error(), "observes") {
		t.Errorf("%v", err)
	}
	if _, err := b.Version(within(t)); err != nil {
		t.Error(err)
	}
	if a.Status().State != Primary {
		t.Errorf("%+v", a.Status())
	}
	stop()
	until(t, b, "lost", func(s Status) bool { return s.State == Connecting && s.Losses > 0 })
	other := open(t, &d, at, 2, o)
	if err := other.Ready(within(t)); err == nil {
		t.Error("connected to nothing")
	}
}
