package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/ctl/store"
	"github.com/quillon/quillon/nf/clock"
)

// ttl is the time for which a lease is asked, in s. etcd makes it longer where its own election timeout wants that: 1.5 times that, in
// whole seconds. From 2 s on etcd tells that a lease was not extended for a second (see depose).
const ttl = 2

// beat is how often a lease is extended.
const beat = 200 * time.Millisecond

// forgiven is how many times its length a lease may be silent until its holder gives it up. While etcd elects its own leader no lease ends.
const forgiven = 3

var errOver = errors.New("the lease in etcd is over, another controller may lead")

// lease is a lease of etcd, kept alive until it is lost, or ends.
type lease struct {
	s     *Store
	id    clientv3.LeaseID
	ttl   time.Duration
	until atomic.Int64  // clock.Time: it lasts until then at least, unless another controller ends it
	next  chan struct{} // has a stream that waits extend it again
	open  chan struct{} // has a place for each stream that there may be
	over  chan struct{}
	lose  func() // closes over
	stop  context.CancelFunc
}

// grant begins a lease.
func (s *Store) grant(ctx context.Context) (*lease, error) {
	ask, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	asked := s.Clock.Now()
	g, err := s.client.Grant(ask, ttl)
	if err != nil {
		return nil, s.explain(err)
	}
	l := &lease{s: s, id: g.ID, ttl: time.Duration(g.TTL) * time.Second, next: make(chan struct{}), open: make(chan struct{}, s.atOnce()), over: make(chan struct{})}
	l.lose = sync.OnceFunc(func() { close(l.over) })
	l.until.Store(int64(asked.Add(l.ttl)))
	var keep context.Context
	keep, l.stop = context.WithCancel(context.Background())
	go l.keep(keep)
	return l, nil
}

// atOnce is how many requests may wait for etcd's answer where each beat has one. To look at a password takes a member of etcd a tenth of a second
// or more, also of a request that has ended since; too many of these have it do nothing else.
func (s *Store) atOnce() int {
	if s.User != "" {
		return 3
	}
	return 10
}

// Held is nil while the lease lasts. It may be nil again after it was not: when etcd was away, and has kept the lease.
func (l *lease) Held() error {
	select {
	case <-l.over:
		return errOver
	default:
	}
	if l.s.Clock.Now() >= clock.Time(l.until.Load()) {
		return errOver
	}
	return nil
}

// keep has the lease extended. A stream that has not answered within a beat gets company, of another member of etcd: one that hangs costs
// nothing.
func (l *lease) keep(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for away := false; ; {
		select {
		case <-tick.C:
		case <-l.over:
			return
		case <-ctx.Done():
			return
		}
		silent := l.s.Clock.Now().Sub(clock.Time(l.until.Load())) + l.ttl
		if silent >= forgiven*l.ttl {
			l.lose()
			return
		}
		if silent >= l.ttl && !away {
			l.s.report(fmt.Sprintf("etcd at %s does not extend the lease: nothing is written until it does", strings.Join(l.s.endpoints, ", ")))
		}
		away = silent >= l.ttl
		select {
		case l.next <- struct{}{}:
			continue
		default:
		}
		select {
		case l.open <- struct{}{}:
			go l.extend(ctx)
		default:
		}
	}
}

// extend has the lease extended by a stream of its own, and again by the same stream, as etcd asks for the password for each.
func (l *lease) extend(ctx context.Context) {
	defer func() { <-l.open }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(attempt, cancel)
	defer late.Stop()
	stream, err := pb.NewLeaseClient(l.s.client.ActiveConnection()).LeaseKeepAlive(ctx)
	for err == nil {
		// It counts from before the request.
		asked := l.s.Clock.Now()
		if stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)}) != nil {
			return
		}
		var r *pb.LeaseKeepAliveResponse
		if r, err = stream.Recv(); err != nil {
			return
		}
		if r.TTL <= 0 {
			l.lose()
			return
		}
		for until := int64(asked.Add(time.Duration(r.TTL) * time.Second)); ; {
			old := l.until.Load()
			if old >= until || l.until.CompareAndSwap(old, until) {
				break
			}
		}
		late.Reset(attempt)
		select {
		case <-l.next:
		case <-ctx.Done():
		}
		late.Reset(attempt)
	}
}

// end gives the lease back, and waits a moment until etcd has it. Where etcd is electing its own leader that is later, and the lease would be
// extended by that: so it goes on.
func (l *lease) end() {
	l.lose()
	l.stop()
	back := make(chan struct{})
	go func() {
		defer close(back)
		for range 10 {
			ctx, cancel := context.WithTimeout(l.s.client.Ctx(), l.ttl)
			_, err := l.s.client.Revoke(ctx, l.id)
			cancel()
			if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) || l.s.client.Ctx().Err() != nil {
				return
			}
		}
	}()
	select {
	case <-back:
	case <-time.After(attempt):
	}
}

// born is when the store began. An etcd that was put back to what it was begins anew: the ids of those who led since then were seen by
// devices.
func (s *Store) born(ctx context.Context) (clock.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	key := s.prefix + "born"
	for {
		r, err := s.get(ctx, "born")
		if err != nil {
			return 0, err
		}
		now, mod := s.Clock.Now(), int64(0)
		for _, kv := range r.Kvs {
			t, err := strconv.ParseInt(string(kv.Value), 10, 64)
			if err != nil || t <= 0 {
				return 0, fmt.Errorf("%s: no time: it was not written by quillon", key)
			}
			if !s.back.Load() {
				return clock.Time(t), nil
			}
			now, mod = max(now, clock.Time(t).Add(time.Second)), kv.ModRevision
		}
		done, err := s.commit(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", mod)}, clientv3.OpPut(key, strconv.FormatInt(int64(now), 10)))
		if err != nil {
			return 0, err
		}
		if done.Succeeded {
			s.back.Store(false)
		}
	}
}

// Lead implements store.Store. While etcd does not answer it tries again.
func (s *Store) Lead(ctx context.Context) (store.Term, error) {
	for {
		t, err := s.campaign(ctx)
		if err == nil {
			return t, nil
		}
		if ctx.Err() != nil || lasting(err) {
			return nil, err
		}
		s.fails(err)
		pause(ctx)
	}
}

// campaign waits until this controller's key is the oldest of all that lead or stand by.
func (s *Store) campaign(ctx context.Context) (_ *term, err error) {
	t := &term{s: s, more: make(chan struct{}, 1), done: make(chan struct{})}
	born, err := s.born(ctx)
	if err != nil {
		return nil, err
	}
	if t.lease, err = s.grant(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.lease.end()
		}
	}()
	t.key = fmt.Sprintf("%sleader/%x", s.prefix, t.lease.id)
	ask, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	put, err := s.commit(ask, nil, clientv3.OpPut(t.key, s.Who, clientv3.WithLease(t.lease.id)))
	if err != nil {
		return nil, err
	}
	t.revision = put.Header.Revision
	t.election = ctl.ElectionOf(born, t.revision)
	former := s.lease
	s.lease = t.lease.id
	for {
		r, err := s.get(ctx, "leader/", oldestFirst...)
		if err != nil {
			return nil, err
		}
		all := controllers(r.Kvs)
		place := slices.IndexFunc(all, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == t.key })
		if place < 0 {
			return nil, errOver
		}
		if place == 0 {
			if err := s.current(ctx, t.lease); err != nil {
				return nil, err
			}
			s.report(fmt.Sprintf("this controller leads, election id %v", t.election))
			go t.write()
			return t, nil
		}
		if clientv3.LeaseID(all[0].Lease) != former { // which may not be over yet
			s.report(string(all[0].Value) + " leads, this controller stands by")
		}
		if err := s.changed(ctx, t.lease, clientv3.LeaseID(all[0].Lease), r.Header.Revision); err != nil {
			return nil, err
		}
	}
}

var oldestFirst = []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)}

// controllers leaves out keys that have no lease: no controller writes such.
func controllers(all []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	return slices.DeleteFunc(all, func(kv *mvccpb.KeyValue) bool { return kv.Lease == 0 })
}

// changed waits until a controller has left since a revision of etcd, and has the one that leads leave when it is silent.
func (s *Store) changed(ctx context.Context, l *lease, leads clientv3.LeaseID, since int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	go s.depose(ctx, leads)
	left := s.client.Watch(ctx, s.prefix+"leader/", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithRev(since+1))
	select {
	case w, ok := <-left:
		if err := w.Err(); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
			return s.explain(err)
		}
		if !ok {
			return ctx.Err()
		}
		return nil
	case <-l.over:
		return errOver
	case <-ctx.Done():
		return ctx.Err()
	}
}

// depose ends a lease that was not extended for a second, which takes five extensions. etcd does so by itself only at the lease's end. It
// tells the seconds that are left, rounded down, and after it has elected its own leader all leases are as if they were new.
//
// The holder may only have been slow. It knows when it extends the lease the next time; what it writes until then is refused by devices, or
// comes before the next leader's session, which compares afterwards.
func (s *Store) depose(ctx context.Context, id clientv3.LeaseID) {
	tick := time.NewTicker(beat / 2)
	defer tick.Stop()
	var since atomic.Int64 // clock.Time of the first answer that it is silent; 0: it is not
	asking := make(chan struct{}, s.atOnce())
	ask := func() {
		defer func() { <-asking }()
		ctx, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		asked := s.Clock.Now()
		r, err := s.client.TimeToLive(ctx, id)
		switch {
		case err != nil:
		case r.TTL < 0 || r.TTL >= r.GrantedTTL-1:
			since.Store(0)
		case since.CompareAndSwap(0, int64(s.Clock.Now())):
			// When all of this machine or etcd stood still, the holder's requests may be behind this one: it is asked again.
		case asked.Sub(clock.Time(since.Load())) >= beat/2:
			// Who may not do that waits for the lease's end.
			_, _ = s.client.Revoke(ctx, id)
		}
	}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		select {
		case asking <- struct{}{}:
			go ask()
		default:
		}
	}
}

// term is a term of this controller as the leader.
type term struct {
	s        *Store
	key      string
	revision int64 // at which the key was created
	election ctl.ElectionID
	*lease

	mu    sync.Mutex
	next  *ctl.Record // to be stored; nil: everything is
	ended bool
	more  chan struct{} // holds a token when there is something to do
	done  chan struct{} // closed when write has returned
}

func (t *term) Join(o *ctl.Options) { o.Election, o.Held = t.election, t.lease.Held }

func (t *term) Over() <-chan struct{} { return t.over }

// End implements store.Term. It waits a moment for the last Save, and for etcd to have the lease back.
func (t *term) End() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.wake()
	select {
	case <-t.done:
	case <-t.over:
	case <-time.After(attempt):
	}
	t.end()
}
