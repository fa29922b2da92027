package etcd

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
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
	"github.com/quillon/quillon/internal/etcdtest"
	"github.com/quillon/quillon/nf/clock"
)

// told collects what a store tells.
type told struct {
	mu    sync.Mutex
	lines []string
}

func (l *told) tell(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *told) have(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(strings.Join(l.lines, "\n"), part)
}

// listen opens a store of which the lines are collected.
func listen(t testing.TB, url, who string) (*Store, *told) {
	t.Helper()
	l := &told{}
	s, err := Open(t.Context(), Config{URL: url, Who: who, Clock: clock.NewWall(), Patience: 10 * time.Second, Tell: func(line string) { t.Log(who + ": " + line); l.tell(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, l
}

// set writes a key as somebody without a part in the store.
func set(t testing.TB, s *Store, key, value string) {
	t.Helper()
	must(t, func() error { _, err := s.client.Put(t.Context(), s.prefix+key, value); return err })
}

// next is the next revision that a watch sends.
func next(t testing.TB, news <-chan store.Revision) store.Revision {
	t.Helper()
	select {
	case r := <-news:
		return r
	case <-time.After(time.Minute):
		t.Fatal("no revision comes")
		return store.Revision{}
	}
}

// TestDamageIsMended: whatever is damaged in the store, the next apply mends it, and those that watch hear of it. The old revision does
// not.
func TestDamageIsMended(t *testing.T) {
	s := open(t, etcdtest.Start(t, 1, "http").URL("net1"), "a")
	ctx := t.Context()
	news := s.Watch(ctx)
	b := bundle(t, 1, "")
	in := put(t, s, b)
	next(t, news)
	gone := func(key string) {
		t.Helper()
		must(t, func() error { _, err := s.client.Delete(ctx, s.prefix+key); return err })
	}
	text, _ := json.Marshal(in)
	endless := in
	endless.Files = slices.Clone(in.Files)
	endless.Files[0].Pieces = 1 << 40
	many, _ := json.Marshal(endless)
	for _, c := range []struct {
		what string
		do   func(n int64)
		say  string // what reading the revision says
	}{
		{"content is missing", func(int64) { gone(blobKey(in.Files[1].Sum, 0)) }, "damaged: apply the intent again"},
		{"content is other", func(int64) { set(t, s, blobKey(in.Files[0].Sum, 0), "no gzip") }, "damaged: apply the intent again"},
		{"content is empty", func(int64) { set(t, s, blobKey(in.Files[0].Sum, 0), "") }, "damaged: apply the intent again"},
		{"the description is missing", func(n int64) { gone(intentKey(n)) }, "there is no revision"},
		{"the description is no JSON", func(n int64) { set(t, s, intentKey(n), string(text[:20])) }, "it was not written by quillon"},
		{"the description is empty", func(n int64) { set(t, s, intentKey(n), "{}") }, "it was not written by quillon"},
		{"the description has pieces without end", func(n int64) { set(t, s, intentKey(n), string(many)) }, "damaged: apply the intent again"},
	} {
		n, _, err := s.head(ctx)
		if err != nil {
			t.Fatal(err)
		}
		c.do(n)
		short, cancel := context.WithTimeout(ctx, 20*time.Second)
		if _, err := s.Get(short, n); err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", c.what, err)
		}
		got, stored, err := s.Put(short, b, n, 0)
		cancel()
		if err != nil || !stored || got.Number != n+1 {
			t.Errorf("%s: applied again: revision %d after %d, %v, %v", c.what, got.Number, n, stored, err)
			return
		}
		if r := next(t, news); r.Number != n+1 || r.Err != nil {
			t.Errorf("%s: revision %d, %v", c.what, r.Number, r.Err)
		}
		// What is whole is still not stored twice.
		if _, stored, err := s.Put(ctx, b, -1, 0); err != nil || stored {
			t.Errorf("%s: stored twice: %v, %v", c.what, stored, err)
		}
		if all, err := s.History(ctx); err != nil || all[len(all)-1].Number != n+1 {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// TestBomb: what grows beyond all measure when it is unpacked is damage.
func TestBomb(t *testing.T) {
	long(t)
	s := open(t, etcdtest.Start(t, 1, "http").URL("net1"), "a")
	in := put(t, s, bundle(t, 1, ""))
	var bomb bytes.Buffer
	z, _ := gzip.NewWriterLevel(&bomb, gzip.BestSpeed)
	zero := make([]byte, 1<<20)
	for range largest>>20 + 1 {
		_, _ = z.Write(zero)
	}
	z.Close()
	for i, part := range slices.Collect(slices.Chunk(bomb.Bytes(), piece)) {
		set(t, s, blobKey(in.Files[0].Sum, i), string(part))
		in.Files[0].Pieces = i + 1
	}
	text, _ := json.Marshal(in)
	set(t, s, intentKey(1), string(text))
	if _, err := s.Get(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("%v", err)
	}
}

// TestSameNumber: a store whose revisions were counted anew sends what has the number of the one before.
func TestSameNumber(t *testing.T) {
	s := open(t, etcdtest.Start(t, 1, "http").URL("net1"), "a")
	news := s.Watch(t.Context())
	put(t, s, bundle(t, 1, ""))
	next(t, news)
	must(t, func() error { _, err := s.client.Delete(t.Context(), s.prefix, clientv3.WithPrefix()); return err })
	other := bundle(t, 2, "")
	put(t, s, other)
	if r := next(t, news); r.Number != 1 || r.Err != nil || r.Intent.Devices[0].Entities[0].String() == "" {
		t.Errorf("%+v", r)
	}
}

// gate holds reads of content back, and counts them.
type gate struct {
	clientv3.KV
	open  chan struct{}
	reads atomic.Int64
}

func (g *gate) Get(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if strings.Contains(key, "/blob/") {
		g.reads.Add(1)
		<-g.open
	}
	return g.KV.Get(ctx, key, o...)
}

// stuck is a member of etcd that does not answer the first read.
type stuck struct {
	clientv3.KV
	first atomic.Bool
	over  chan struct{}
}

func (k *stuck) Get(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if !k.first.Swap(true) {
		<-k.over
	}
	return k.KV.Get(ctx, key, o...)
}

// TestAnotherMemberIsAsked: a read is answered while the member that was asked first is stuck.
func TestAnotherMemberIsAsked(t *testing.T) {
	s := open(t, etcdtest.Start(t, 1, "http").URL("net1"), "a")
	put(t, s, bundle(t, 1, ""))
	k := &stuck{KV: s.client.KV, over: make(chan struct{})}
	s.client.KV = k
	answered := make(chan error, 1)
	go func() {
		_, _, err := s.head(t.Context())
		answered <- err
	}()
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for the first")
	}
	close(k.over)
}

// TestManyRevisions: of many that are stored while one is read the newest comes next, and the others are not read.
func TestManyRevisions(t *testing.T) {
	url := etcdtest.Start(t, 1, "http").URL("net1")
	s, w := open(t, url, "a"), open(t, url, "b")
	in := put(t, s, bundle(t, 1, ""))
	g := &gate{KV: w.client.KV, open: make(chan struct{})}
	w.client.KV = g
	news := w.Watch(t.Context())
	ctltest.Eventually(t, "the first is read", func() bool { return g.reads.Load() > 0 })
	const many = 50
	for n := int64(2); n <= many; n++ {
		in.Number = n
		text, _ := json.Marshal(in)
		set(t, s, intentKey(n), string(text))
		set(t, s, "head", fmt.Sprint(n))
	}
	close(g.open)
	for next(t, news).Number != many {
	}
	if n := int(g.reads.Load()); n > 10*len(in.Files) {
		t.Errorf("%d reads of content, and a revision has %d", n, len(in.Files))
	}
}

// TestPrefixes: networks do not write into each other.
func TestPrefixes(t *testing.T) {
	for url, ok := range map[string]bool{
		"etcd://h:1/a": true, "etcd://h:1/a/b": true, "etcd://[::1]:1,h:2/a/": true, "etcd://h:1/heads": true,
		"etcd://h:1": false, "etcd://h:1/": false, "etcd://h:1//": false, "http://h:1/a": false, "etcd://h/a": false, "etcd://h:1,/a": false,
		// These are keys of the network a.
		"etcd://h:1/a/status": false, "etcd://h:1/a/leader": false, "etcd://h:1/leader": false, "etcd://h:1/a/blob/c": false, "etcd://h:1/a/intent/": false,
		"etcd://h:1/a//b": false, "etcd://h:1/a\nb": false, "etcd://h:1/a b": false, "etcd://h:/a": false, "etcd://h:x/a": false, "etcd://u:p@h:1/a": false,
	} {
		_, _, err := parse(url)
		if (err == nil) != ok {
			t.Errorf("%q: %v", url, err)
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "want")) {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// TestCompacted: etcd forgets revisions that a watch has not seen, while the watch has no connection.
func TestCompacted(t *testing.T) {
	c := etcdtest.Start(t, 1, "http")
	s, said := listen(t, c.URL("net1"), "a")
	o, heard := listen(t, c.URL("net1"), "b")
	news := s.Watch(t.Context())
	put(t, s, bundle(t, 1, ""))
	next(t, news)
	x := lead(t, s)
	stood := make(chan *term, 1)
	go func() { stood <- lead(t, o) }()
	ctltest.Eventually(t, "the other stands by", func() bool {
		st, err := s.Status(t.Context())
		return err == nil && len(st.Standby) == 1
	})
	for i := range 20 {
		set(t, s, "other", fmt.Sprint(i))
	}
	r, err := s.client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Compact(t.Context(), r.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	c.Members[0].Kill()
	c.Members[0].Start(t)
	c.Ready(t)
	put(t, s, bundle(t, 2, ""))
	if r := next(t, news); r.Number != 2 {
		t.Errorf("revision %d", r.Number)
	}
	x.End()
	(<-stood).End()
	if said.have("compacted") || heard.have("compacted") {
		t.Error("people are told of etcd's compaction")
	}
}

// users has an etcd with users: root, ctl, who may write net1, and eye, who may read it. Their passwords are "secret".
func users(t *testing.T, more ...string) (*etcdtest.Cluster, func(user string) (*Store, error)) {
	t.Helper()
	c := etcdtest.Start(t, 1, "http", more...)
	client := c.Connect(t)
	ctx := t.Context()
	must(t, func() error { _, err := client.UserAdd(ctx, "root", "secret"); return err })
	must(t, func() error { _, err := client.UserGrantRole(ctx, "root", "root"); return err })
	for user, may := range map[string]clientv3.PermissionType{"ctl": clientv3.PermissionType(clientv3.PermReadWrite), "eye": clientv3.PermissionType(clientv3.PermRead)} {
		must(t, func() error { _, err := client.RoleAdd(ctx, user); return err })
		must(t, func() error {
			_, err := client.RoleGrantPermission(ctx, user, "/net1/", clientv3.GetPrefixRangeEnd("/net1/"), may)
			return err
		})
		must(t, func() error { _, err := client.UserAdd(ctx, user, "secret"); return err })
		must(t, func() error { _, err := client.UserGrantRole(ctx, user, user); return err })
	}
	must(t, func() error { _, err := client.AuthEnable(ctx); return err })
	return c, func(user string) (*Store, error) {
		s, err := Open(ctx, Config{URL: c.URL("net1"), User: user, Password: "secret", Who: user, Clock: clock.NewWall(), Patience: 10 * time.Second, Tell: func(l string) { t.Log(user + ": " + l) }})
		if err == nil {
			t.Cleanup(func() { s.Close() })
		}
		return s, err
	}
}

// TestTokensAreForgotten: an etcd with users forgets who has signed in when it is started again. Those that lead and stand by do not end
// for that.
func TestTokensAreForgotten(t *testing.T) {
	long(t)
	c, with := users(t)
	a, err := with("ctl")
	if err != nil {
		t.Fatal(err)
	}
	b, err := with("ctl")
	if err != nil {
		t.Fatal(err)
	}
	news := b.Watch(t.Context())
	put(t, a, bundle(t, 1, ""))
	next(t, news)
	x := lead(t, a)
	stood := make(chan error, 1)
	go func() {
		y, err := b.Lead(t.Context())
		if err == nil {
			y.End()
		}
		stood <- err
	}()
	ctltest.Eventually(t, "the other stands by", func() bool {
		st, err := a.Status(t.Context())
		return err == nil && len(st.Standby) == 1
	})
	for i := range 2 {
		c.Members[0].Kill()
		c.Members[0].Start(t)
		time.Sleep(3 * time.Second)
		ctltest.Eventually(t, "etcd answers again", func() bool { // the other one, as the first call of each needs a new token
			_, err := b.Status(t.Context())
			return err == nil
		})
		put(t, a, bundle(t, 2+i, ""))
		if r := next(t, news); r.Number != int64(2+i) {
			t.Errorf("revision %d", r.Number)
		}
	}
	x.End()
	if err := <-stood; err != nil {
		t.Errorf("the one that stood by: %v", err)
	}
}

// TestPasswordIsSeldomAsked: an etcd with users is asked to look at a password when a controller comes, and not with each extension of its
// lease, of which each would cost it a tenth of a second.
func TestPasswordIsSeldomAsked(t *testing.T) {
	long(t)
	c, with := users(t)
	s, err := with("ctl")
	if err != nil {
		t.Fatal(err)
	}
	looks := func() (n int) {
		r, err := http.Get("http://" + c.Members[0].Client + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "grpc_server_started_total") && strings.Contains(line, `"Authenticate"`) {
				_, count, _ := strings.Cut(strings.TrimSpace(line), "} ")
				n, _ = strconv.Atoi(count)
			}
		}
		return n
	}
	x := lead(t, s)
	defer x.End()
	var more int
	for range 5 { // an answer that takes longer than a beat costs a look
		before := looks()
		time.Sleep(20 * beat)
		if more = looks() - before; before > 0 && more < 2 {
			return
		}
	}
	t.Errorf("in 20 beats the password was looked at %d times", more)
}

// TestReadOnly: one that may only read sees how things stand, and is told why it does nothing else.
func TestReadOnly(t *testing.T) {
	_, with := users(t)
	a, err := with("ctl")
	if err != nil {
		t.Fatal(err)
	}
	put(t, a, bundle(t, 1, ""))
	e, err := with("eye")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := e.Status(t.Context()); err != nil || st.Newest != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := e.Get(t.Context(), 1); err != nil {
		t.Error(err)
	}
	_, _, err = e.Put(t.Context(), bundle(t, 2, ""), -1, 0)
	if err == nil || !strings.Contains(err.Error(), "give its user a role that reads and writes /net1/") {
		t.Errorf("%v", err)
	}
	if _, err := e.Lead(t.Context()); err == nil || !strings.Contains(err.Error(), "give its user a role that reads and writes /net1/") {
		t.Errorf("%v", err)
	}
}

// TestFull: an etcd that is full takes nothing, and says what to do; who leads goes on.
func TestFull(t *testing.T) {
	c := etcdtest.Start(t, 1, "http", "--quota-backend-bytes", fmt.Sprint(4<<20))
	s, said := listen(t, c.URL("net1"), "a")
	in := put(t, s, bundle(t, 1, ""))
	x := lead(t, s)
	noise := strings.Repeat("x", 1<<20)
	var err error
	for i := 0; err == nil; i++ {
		_, err = s.client.Put(t.Context(), fmt.Sprint("other", i), noise)
	}
	_, _, err = s.Put(t.Context(), bundle(t, 2, ""), -1, 0)
	if err == nil || !strings.Contains(err.Error(), "compact and defragment it, then etcdctl alarm disarm") {
		t.Errorf("%v", err)
	}
	_ = x.Save(ctl.Record{Election: id(x), Revision: 1})
	ctltest.Eventually(t, "it is told", func() bool { return said.have("alarm disarm") })
	time.Sleep(2 * time.Second)
	if x.Held() != nil {
		t.Error("the lease is over")
	}
	if _, err := s.Get(t.Context(), in.Number); err != nil {
		t.Error(err)
	}
	before := clock.NewWall()
	start := before.Now()
	x.End()
	if took := before.Now().Sub(start); took > 10*time.Second {
		t.Errorf("End took %v", took)
	}
}

// TestNothingHangs: all calls end while etcd hangs, and leave nothing behind.
func TestNothingHangs(t *testing.T) {
	long(t)
	c := etcdtest.Start(t, 1, "http")
	time.Sleep(time.Second)
	count := func() int {
		runtime.GC()
		return runtime.NumGoroutine()
	}
	before := count()
	now := clock.NewWall()
	openOne := func(who string) *Store {
		s, err := Open(t.Context(), Config{URL: c.URL("net1"), Who: who, Clock: now, Patience: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := openOne("a"), openOne("b")
	ctx, stop := context.WithCancel(t.Context())
	a.Watch(ctx)
	b.Watch(ctx)
	x := lead(t, a)
	stood := make(chan error)
	go func() {
		_, err := b.Lead(ctx)
		stood <- err
	}()
	ctltest.Eventually(t, "the other stands by", func() bool {
		st, err := a.Status(t.Context())
		return err == nil && len(st.Standby) == 1
	})
	c.Members[0].Signal(syscall.SIGSTOP)
	time.Sleep(time.Second)
	_ = x.Save(ctl.Record{})
	timed := func(what string, most time.Duration, do func()) {
		start := now.Now()
		do()
		took := now.Now().Sub(start)
		t.Logf("%s took %v", what, took.Round(time.Millisecond))
		if took > most {
			t.Errorf("%s took %v", what, took)
		}
	}
	timed("Put", 15*time.Second, func() { _, _, _ = a.Put(ctx, bundle(t, 1, ""), -1, 0) })
	timed("Status", 15*time.Second, func() { _, _ = a.Status(ctx) })
	timed("End", 10*time.Second, x.End)
	stop()
	timed("Lead", 10*time.Second, func() {
		if err := <-stood; err == nil {
			t.Error("it leads")
		}
	})
	timed("Close", 10*time.Second, func() { a.Close(); b.Close() })
	c.Members[0].Signal(syscall.SIGCONT)
	ctltest.Eventually(t, "all goroutines have ended", func() bool { return count() <= before+2 })
	if t.Failed() {
		p := make([]byte, 1<<20)
		t.Logf("%s", p[:runtime.Stack(p, true)])
	}
}

// TestLeadersKeyGoes: somebody deletes the leader's key, and leaves the lease. The next one leads; the former one knows when it has
// something to say, and devices refuse it before.
func TestLeadersKeyGoes(t *testing.T) {
	url := etcdtest.Start(t, 1, "http").URL("net1")
	a, b := open(t, url, "a"), open(t, url, "b")
	x := lead(t, a)
	must(t, func() error { _, err := a.client.Delete(t.Context(), x.key); return err })
	y := lead(t, b)
	if !id(x).Less(id(y)) {
		t.Errorf("%v, %v", id(x), id(y))
	}
	_ = x.Save(ctl.Record{})
	select {
	case <-x.Over():
	case <-time.After(time.Minute):
		t.Error("the former leader does not know")
	}
	x.End()
	y.End()
}

// TestStrangersKey: what others write under the leader's folder leads nobody, and keeps nobody from leading.
func TestStrangersKey(t *testing.T) {
	s := open(t, etcdtest.Start(t, 1, "http").URL("net1"), "a")
	set(t, s, "leader/somebody", "who")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	x, err := s.Lead(ctx)
	if err != nil {
		t.Fatal("a key that is no controller's leads for ever")
	}
	if st, err := s.Status(t.Context()); err != nil || st.Leader != "a" || len(st.Standby) > 0 {
		t.Errorf("%+v, %v", st, err)
	}
	x.End()
}

// TestSameName: of two controllers with one name people hear which stands by.
func TestSameName(t *testing.T) {
	url := etcdtest.Start(t, 1, "http").URL("net1")
	a := open(t, url, "box, process 1")
	b, said := listen(t, url, "box, process 1")
	x := lead(t, a)
	ctx, stop := context.WithCancel(t.Context())
	go func() { _, _ = b.Lead(ctx) }()
	ctltest.Eventually(t, "it is told", func() bool { return said.have("stands by") })
	stop()
	x.End()
}

// TestRestored: etcd is put back to what it was. The next leader's id is above all that devices have seen, and what is stored then is sent.
func TestRestored(t *testing.T) {
	c := etcdtest.Start(t, 1, "http")
	m := c.Members[0]
	s := open(t, c.URL("net1"), "a")
	news := s.Watch(t.Context())
	put(t, s, bundle(t, 1, ""))
	next(t, news)
	m.Kill()
	old := t.TempDir()
	if err := os.CopyFS(old, os.DirFS(m.Data)); err != nil {
		t.Fatal(err)
	}
	m.Start(t)
	c.Ready(t)
	put(t, s, bundle(t, 2, ""))
	next(t, news)
	for i := range 50 {
		set(t, s, "other", fmt.Sprint(i))
	}
	x := lead(t, s)
	m.Kill()
	if err := os.RemoveAll(m.Data); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(m.Data, os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	m.Start(t)
	c.Ready(t)
	<-x.Over()
	x.End()
	ctltest.Eventually(t, "the old revision comes", func() bool {
		select {
		case r := <-news:
			return r.Number == 1
		default:
			return false
		}
	})
	y := lead(t, s)
	if !id(x).Less(id(y)) {
		t.Errorf("election id %v after %v", id(y), id(x))
	}
	_ = y.Save(ctl.Record{Election: id(y), Revision: 1})
	ctltest.Eventually(t, "the status is there", func() bool {
		st, err := s.Status(t.Context())
		return err == nil && st.Running
	})
	put(t, s, bundle(t, 3, ""))
	if r := next(t, news); r.Number != 2 || r.Err != nil {
		t.Errorf("revision %d, %v", r.Number, r.Err)
	}
	y.End()
}

// TestHundredFiles: 20 MB in a hundred files.
func TestHundredFiles(t *testing.T) {
	long(t)
	s := open(t, etcdtest.Start(t, 1, "http").URL("net1"), "a")
	b := bundle(t, 1, "")
	b.Files = maps.Clone(b.Files)
	for i := range 100 {
		seed := sha256.Sum256([]byte{byte(i)})
		var noise bytes.Buffer
		for noise.Len() < 200<<10 {
			seed = sha256.Sum256(seed[:])
			noise.Write(seed[:])
		}
		b.Files[fmt.Sprintf("%03d", i)] = noise.Bytes()
	}
	now := clock.NewWall()
	start := now.Now()
	put(t, s, b)
	t.Logf("stored in %v", now.Now().Sub(start))
	start = now.Now()
	got, err := s.Get(t.Context(), 1)
	if err != nil || len(got.Files) != 102 {
		t.Fatal(err)
	}
	t.Logf("read in %v", now.Now().Sub(start))
}

// long skips a test of many seconds where tests are to be short.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
}
