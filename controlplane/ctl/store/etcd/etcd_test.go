package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/ctl/store"
	"github.com/quillon/quillon/internal/authority"
	"github.com/quillon/quillon/internal/etcdtest"
	"github.com/quillon/quillon/nf/clock"
)

// open opens a store as who.
func open(t testing.TB, url, who string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{URL: url, Who: who, Clock: clock.NewWall(), Patience: 10 * time.Second, Tell: func(l string) { t.Log(who + ": " + l) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// bundle is an intent of one device, that differs by vid; more is a comment in it.
func bundle(t testing.TB, vid int, more string) *store.Bundle {
	t.Helper()
	dir := t.TempDir()
	for _, f := range []string{"l2_bridge.p4info.txtpb", "l2_bridge.json"} {
		b, err := os.ReadFile("../../../../p4src/" + f)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, f), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "net.yaml")
	text := fmt.Sprintf("devices:\n  s1:\n    address: 127.0.0.1:1\n    p4info: l2_bridge.p4info.txtpb\n    config: l2_bridge.json\n    entries:\n"+
		"      - {table: port_vlan, match: {ingress_port: 1}, action: set_vid, params: {vid: %d}}\n# %s\n", vid, more)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b, _, err := store.Pack(file)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing of this machine is needed any more.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	return b
}

// must does what etcd may have no time for: a disk that others use, too, stops it for seconds.
func must(t testing.TB, do func() error) {
	t.Helper()
	var err error
	for range 10 {
		if err = do(); err == nil || strings.Contains(err.Error(), "already exist") {
			return
		}
		if !strings.Contains(err.Error(), "timed out") && !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	t.Fatal(err)
}

// put stores a bundle after the newest.
func put(t testing.TB, s *Store, b *store.Bundle) (in Info) {
	t.Helper()
	must(t, func() (err error) {
		in, _, err = s.Put(t.Context(), b, -1, 0)
		return err
	})
	return in
}

func TestRevisions(t *testing.T) {
	url := etcdtest.Start(t, 1, "http").URL("net1")
	a, b := open(t, url, "a"), open(t, url, "b")
	ctx := t.Context()
	if _, _, err := a.Put(ctx, bundle(t, 1, ""), 3, 0); err == nil || !strings.Contains(err.Error(), "there is no revision 3, and no other") {
		t.Errorf("%v", err)
	}
	if st, err := a.Status(ctx); err != nil || st.Newest != 0 || st.Leader != "" {
		t.Errorf("an empty store: %+v, %v", st, err)
	}
	news := b.Watch(ctx)
	first := bundle(t, 1, "")
	if in, stored, err := a.Put(ctx, first, 0, 0); err != nil || !stored || in.Number != 1 || in.Devices != 1 || len(in.Files) != 3 {
		t.Fatalf("%+v, %v, %v", in, stored, err)
	}
	// What is the same is not stored again.
	if in, stored, err := b.Put(ctx, first, -1, 0); err != nil || stored || in.Number != 1 || in.By != "a" {
		t.Errorf("%+v, %v, %v", in, stored, err)
	}
	// It comes by itself, with all files.
	r := <-news
	if r.Err != nil || r.Number != 1 || len(r.Intent.Devices[0].Entities) != 1 || r.Intent.Devices[0].Pipeline == nil {
		t.Errorf("%+v", r)
	}
	// Of many that follow the same revision one is stored, and the others hear of it.
	var wins, conflicts atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			_, stored, err := []*Store{a, b}[i%2].Put(ctx, bundle(t, 10+i, ""), 1, 0)
			var c *Conflict
			switch {
			case err == nil && stored:
				wins.Add(1)
			case errors.As(err, &c) && c.Newest.Number == 2 && c.Onto == 1:
				conflicts.Add(1)
			default:
				t.Errorf("%v, %v", stored, err)
			}
		})
	}
	all.Wait()
	if wins.Load() != 1 || conflicts.Load() != 7 {
		t.Errorf("%d were stored, %d refused", wins.Load(), conflicts.Load())
	}
	// Those that follow whatever is the newest are all stored.
	for i := range 4 {
		all.Go(func() {
			if _, stored, err := a.Put(ctx, bundle(t, 20+i, ""), -1, 0); err != nil || !stored {
				t.Errorf("%v, %v", stored, err)
			}
		})
	}
	all.Wait()
	history, err := b.History(ctx)
	if err != nil || len(history) != 6 || history[5].Number != 6 {
		t.Errorf("%d revisions, %v", len(history), err)
	}
	// Back to the first.
	old, err := b.Get(ctx, 1)
	if err != nil || !bytes.Equal(old.Text, first.Text) || len(old.Files) != 2 {
		t.Fatalf("%v", err)
	}
	if in, stored, err := b.Put(ctx, old, 6, 1); err != nil || !stored || in.Number != 7 || in.Like != 1 {
		t.Errorf("%+v, %v, %v", in, stored, err)
	}
	if _, err := b.Get(ctx, 99); err == nil || !strings.Contains(err.Error(), "there is no revision 99") {
		t.Errorf("%v", err)
	}
	ctltest.Eventually(t, "the newest comes", func() bool { return (<-news).Number == 7 })
}

// TestLargeIntent: more than a request of etcd may have. Without pieces it refuses that.
func TestLargeIntent(t *testing.T) {
	s := open(t, etcdtest.Start(t, 1, "http").URL("net1"), "a")
	noise := make([]byte, 5<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[random.IntN(62)]
	}
	large := bundle(t, 1, "")
	large.Text = append(large.Text, fmt.Sprintf("# %s\n", noise)...)
	in := put(t, s, large)
	if in.Files[0].Pieces < 3 {
		t.Fatalf("%+v", in)
	}
	got, err := s.Get(t.Context(), 1)
	if err != nil || !bytes.Equal(got.Text, large.Text) {
		t.Fatalf("%v", err)
	}
	// What is damaged is noticed.
	if _, err := s.client.Delete(t.Context(), s.prefix+blobKey(in.Files[0].Sum, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("%v", err)
	}
}

// TestOldRevisionsGo: the last hundred are kept, and the content that they need.
func TestOldRevisionsGo(t *testing.T) {
	s := open(t, etcdtest.Start(t, 1, "http").URL("net1"), "a")
	for i := range kept + 5 {
		put(t, s, bundle(t, 1+i%3, fmt.Sprint(i)))
	}
	history, err := s.History(t.Context())
	if err != nil || len(history) != kept || history[0].Number != 6 {
		t.Fatalf("%d revisions, %v", len(history), err)
	}
	for _, in := range history {
		if _, err := s.Get(t.Context(), in.Number); err != nil {
			t.Error(err)
		}
	}
	r, err := s.client.Get(t.Context(), s.prefix+"blob/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || r.Count != kept+2 {
		t.Errorf("%d pieces, %v", r.Count, err)
	}
}

// lead waits until a store's controller leads.
func lead(t testing.TB, s *Store) *term {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	x, err := s.Lead(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return x.(*term)
}

// keep leads, and returns a term whose lease was kept for a while. A machine without time for anything may lose some.
func keep(t testing.TB, s *Store, d time.Duration) *term {
	t.Helper()
	for range 10 {
		x := lead(t, s)
		time.Sleep(d)
		if x.Held() == nil {
			return x
		}
		x.End()
	}
	t.Fatal("no lease is kept")
	return nil
}

func id(x store.Term) ctl.ElectionID {
	var o ctl.Options
	x.Join(&o)
	return o.Election
}

// TestLead: one leads, the next one waits, and has a higher election id; it is told when the one before is stopped, and when its lease
// ends.
func TestLead(t *testing.T) {
	c := etcdtest.Start(t, 3, "http")
	url := c.URL("net1")
	a, b := open(t, url, "a"), open(t, url, "b")
	now := clock.NewWall()
	ta := keep(t, a, 3*time.Second)
	if ta.ttl != ttl*time.Second {
		t.Errorf("a lease lasts %v", ta.ttl)
	}
	type led struct {
		t  *term
		at clock.Time
	}
	held := func(x *term) {
		t.Helper()
		if x.Held() != nil {
			t.Skip("this machine had no time to keep a lease")
		}
	}
	next := func(s *Store, leads *term) chan led {
		out := make(chan led, 1)
		go func() {
			x, err := s.Lead(t.Context())
			if err == nil {
				out <- led{x.(*term), now.Now()}
			}
		}()
		ctltest.Eventually(t, "the other stands by", func() bool {
			st, err := a.Status(t.Context())
			return err == nil && len(st.Standby) == 1 || leads.Held() != nil
		})
		held(leads)
		return out
	}
	waiting := next(b, ta)
	select {
	case <-waiting:
		held(ta)
		t.Fatal("two lead")
	case <-time.After(time.Second):
	}
	_ = ta.Save(ctl.Record{Election: id(ta), Revision: 3, Devices: []ctl.DeviceStatus{{Status: ctl.Status{Device: "s1"}, Aligned: true}, {Status: ctl.Status{Device: "s2"}}}})
	ctltest.Eventually(t, "the status is there", func() bool {
		st, err := b.Status(t.Context())
		return err == nil && st.Running && st.Leader == "a" && st.Revision == 3 && len(st.Devices) == 2 && st.Devices[0].Aligned && !st.Devices[1].Aligned || ta.Held() != nil
	})
	held(ta)
	// A last word before it ends comes, too.
	_ = ta.Save(ctl.Record{Election: id(ta), Revision: 4, Devices: []ctl.DeviceStatus{{Status: ctl.Status{Device: "s1"}}}})
	before := now.Now()
	held(ta)
	ta.End()
	l := <-waiting
	t.Logf("after the leader was stopped the next one led in %v", l.at.Sub(before))
	if !id(ta).Less(id(l.t)) || ta.Held() == nil {
		t.Errorf("election ids %v, %v; the former one's lease: %v", id(ta), id(l.t), ta.Held())
	}
	st, err := b.Status(t.Context())
	if err != nil || st.Revision != 4 || len(st.Devices) != 1 || st.Running {
		t.Errorf("%+v, %v", st, err)
	}
	// The lease goes, and its holder knows.
	waiting = next(a, l.t)
	before = now.Now()
	if _, err := a.client.Revoke(t.Context(), l.t.id); err != nil {
		t.Fatal(err)
	}
	l2 := <-waiting
	<-l.t.Over()
	if l.t.Held() == nil {
		t.Error("the former leader holds a lease that is gone")
	}
	if !id(l.t).Less(id(l2.t)) {
		t.Errorf("election ids %v, %v", id(l.t), id(l2.t))
	}
	// What it still has to say is not stored.
	stored := map[string]string{}
	if err := l.t.store(t.Context(), &stored, ctl.Record{Revision: 9}); err == nil {
		t.Error("a former leader has stored its status")
	}
	l2.t.End()
}

// TestLeaderHasTheNewestRevision: who leads has been sent what was stored before, however short before: it is large, and takes longer
// than to be elected.
func TestLeaderHasTheNewestRevision(t *testing.T) {
	url := etcdtest.Start(t, 1, "http").URL("net1")
	stores := []*Store{open(t, url, "a"), open(t, url, "b")}
	news := []<-chan store.Revision{stores[0].Watch(t.Context()), stores[1].Watch(t.Context())}
	large := strings.Repeat("# nothing\n", 1<<18)
	x := lead(t, stores[0])
	for i := range 6 {
		next := stores[(i+1)%2]
		led := make(chan *term)
		go func() { led <- lead(t, next) }()
		ctltest.Eventually(t, "the other stands by", func() bool {
			st, err := next.Status(t.Context())
			return err == nil && len(st.Standby) == 1 || x.Held() != nil
		})
		put(t, stores[i%2], bundle(t, 1+i, large))
		kept := x.Held() == nil // else the other may have led before
		x.End()
		x = <-led
		if !kept {
			continue
		}
		select {
		case r := <-news[(i+1)%2]:
			if r.Number != int64(i+1) {
				t.Errorf("it has revision %d, and %d is the newest", r.Number, i+1)
			}
		default:
			t.Errorf("it was not sent revision %d", i+1)
		}
	}
	x.End()
}

// TestEtcdIsAway: members that hang or die one at a time cost the leader nothing; when all are gone its lease ends by its own
// clock, and when they are back it leads again, with a higher id.
func TestEtcdIsAway(t *testing.T) {
	long(t)
	c := etcdtest.Start(t, 3, "http")
	s := open(t, c.URL("net1"), "a")
	x := lead(t, s)
	hangs := c.Leader(t)
	hangs.Signal(syscall.SIGSTOP)
	time.Sleep(4 * time.Second)
	t.Logf("while the member that led hung for 4 s the lease was kept: %v", x.Held() == nil)
	if x.Held() != nil { // only a machine without time for anything
		x = lead(t, s)
	}
	hangs.Signal(syscall.SIGCONT)
	now := clock.NewWall()
	for _, m := range c.Members {
		m.Kill()
	}
	gone := now.Now()
	<-x.Over()
	if took := now.Now().Sub(gone); took > 10*time.Second {
		t.Errorf("it took %v to know", took)
	} else {
		t.Logf("the lease was over %v after etcd had gone", took)
	}
	if x.Held() == nil {
		t.Error("a lease without etcd")
	}
	x.End() // waits for nothing
	_, err := Open(t.Context(), Config{URL: c.URL("net1"), Clock: now, Patience: time.Second})
	if err == nil || !strings.Contains(err.Error(), "connection refused: is it running there") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	back := make(chan *term)
	go func() { back <- lead(t, s) }()
	time.Sleep(time.Second)
	for _, m := range c.Members {
		m.Start(t)
	}
	again := <-back
	if !id(x).Less(id(again)) {
		t.Errorf("election ids %v, %v", id(x), id(again))
	}
	again.End()
}

func TestTransportAndUsers(t *testing.T) {
	a := authority.New(t)
	a.Server("server", "127.0.0.1")
	a.Client("client")
	stranger := authority.New(t)
	stranger.Client("client")
	c := etcdtest.Start(t, 1, "https", "--cert-file", a.File("server.pem"), "--key-file", a.File("server.key"),
		"--client-cert-auth", "--trusted-ca-file", a.File("ca.pem"), "--enable-grpc-gateway=false")
	url := c.URL("net1")
	with := func(tr ctl.Transport, user, password string, patience time.Duration) (*Store, error) {
		return Open(t.Context(), Config{URL: url, Transport: tr, User: user, Password: password, Clock: clock.NewWall(), Patience: patience})
	}
	ours := ctl.Transport{CA: a.File("ca.pem"), Cert: a.File("client.pem"), Key: a.File("client.key")}
	s, err := with(ours, "", "", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for what, tr := range map[string]ctl.Transport{
		"plain text":       {},
		"other authority":  {CA: stranger.File("ca.pem"), Cert: a.File("client.pem"), Key: a.File("client.key")},
		"stranger":         {CA: a.File("ca.pem"), Cert: stranger.File("client.pem"), Key: stranger.File("client.key")},
		"no certificate":   {CA: a.File("ca.pem")},
		"half of a client": {CA: a.File("ca.pem"), Cert: a.File("client.pem")},
	} {
		s, err := with(tr, "", "", 3*time.Second)
		if err == nil {
			s.Close()
			t.Errorf("%s is let in", what)
		} else if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "--store-c") {
			t.Errorf("%s: %v", what, err)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
	// Users: ctl may write under its prefix alone.
	ctx := t.Context()
	must(t, func() error { _, err := s.client.UserAdd(ctx, "root", "r00t"); return err })
	must(t, func() error { _, err := s.client.UserGrantRole(ctx, "root", "root"); return err })
	must(t, func() error { _, err := s.client.RoleAdd(ctx, "net1"); return err })
	must(t, func() error {
		_, err := s.client.RoleGrantPermission(ctx, "net1", "/net1/", clientv3.GetPrefixRangeEnd("/net1/"), clientv3.PermissionType(clientv3.PermReadWrite))
		return err
	})
	must(t, func() error { _, err := s.client.UserAdd(ctx, "ctl", "secret"); return err })
	must(t, func() error { _, err := s.client.UserGrantRole(ctx, "ctl", "net1"); return err })
	must(t, func() error { _, err := s.client.AuthEnable(ctx); return err })
	mine, err := with(ours, "ctl", "secret", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	put(t, mine, bundle(t, 1, ""))
	keep(t, mine, 2*time.Second).End()
	for what, login := range map[string][2]string{"authentication failed": {"ctl", "guessed"}, "permission denied": {"", ""}} {
		s, err := with(ours, login[0], login[1], 5*time.Second)
		if err == nil {
			s.Close()
			t.Errorf("%v is let in", login)
		} else if !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "--store-login") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v", login, err)
		} else {
			t.Logf("%v: %v", login, err)
		}
	}
	url = c.URL("net2")
	if s, err := with(ours, "ctl", "secret", 5*time.Second); err == nil {
		s.Close()
		t.Error("another prefix is let in")
	} else if !strings.Contains(err.Error(), "give its user a role that reads and writes /net2/") {
		t.Error(err)
	}
}
