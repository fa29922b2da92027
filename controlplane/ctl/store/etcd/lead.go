package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/ctl/store"
	"github.com/quillon/quillon/nf/clock"
)

// ttl is the time for which a lease is asked, in s. etcd makes it its own least: 1.5 times its election timeout, in whole seconds,
// which is 2 s unless it is told otherwise.
const ttl = 1

var errOver = errors.New("the lease in etcd is over, another controller may lead")

// lease is a lease of etcd, kept alive until it is lost, or ends.
type lease struct {
	s     *Store
	id    clientv3.LeaseID
	ttl   time.Duration
	until atomic.Int64 // clock.Time: it lasts until then at least
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
	l := &lease{s: s, id: g.ID, ttl: time.Duration(g.TTL) * time.Second, over: make(chan struct{})}
	l.lose = sync.OnceFunc(func() { close(l.over) })
	l.until.Store(int64(asked.Add(l.ttl)))
	var keep context.Context
	keep, l.stop = context.WithCancel(context.Background())
	go l.keep(keep)
	return l, nil
}

// Held is nil while the lease lasts.
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

// keep has the lease extended, five times in its length, whether or not the request before was answered: a member of etcd that hangs costs
// nothing.
func (l *lease) keep(ctx context.Context) {
	tick := time.NewTicker(l.ttl / 5)
	defer tick.Stop()
	for {
		wait := time.NewTimer(clock.Time(l.until.Load()).Sub(l.s.Clock.Now()))
		select {
		case <-tick.C:
			go l.extend(ctx)
		case <-wait.C:
			if l.Held() != nil {
				l.lose()
			}
		case <-l.over:
			wait.Stop()
			return
		case <-ctx.Done():
			wait.Stop()
			return
		}
		wait.Stop()
	}
}

// extend has the lease extended, and counts from before the request.
func (l *lease) extend(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.ttl)
	defer cancel()
	asked := l.s.Clock.Now()
	stream, err := pb.NewLeaseClient(l.s.client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)}); err != nil {
		return
	}
	r, err := stream.Recv()
	if err != nil {
		return
	}
	if r.TTL <= 0 {
		l.lose()
		return
	}
	for until := int64(asked.Add(time.Duration(r.TTL) * time.Second)); ; {
		old := l.until.Load()
		if old >= until || l.until.CompareAndSwap(old, until) {
			return
		}
	}
}

// end gives the lease back, and waits no longer than it lasts until etcd has it. Where etcd is electing its own leader that is later, and the lease
// would be extended by that: so it goes on.
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
	case <-time.After(l.ttl):
	}
}

// born is when the store began.
func (s *Store) born(ctx context.Context) (clock.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	key := s.prefix + "born"
	now := strconv.FormatInt(int64(s.Clock.Now()), 10)
	if _, err := s.commit(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}, clientv3.OpPut(key, now)); err != nil {
		return 0, err
	}
	r, err := s.get(ctx, "born")
	if err != nil {
		return 0, err
	}
	for _, kv := range r.Kvs {
		t, err := strconv.ParseInt(string(kv.Value), 10, 64)
		if err == nil && t > 0 {
			return clock.Time(t), nil
		}
	}
	return 0, fmt.Errorf("%s: no time: it was not written by quillon", key)
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
	for {
		r, err := s.get(ctx, "leader/", clientv3.WithFirstCreate()...)
		if err != nil {
			return nil, err
		}
		if len(r.Kvs) == 0 {
			return nil, errOver
		}
		if string(r.Kvs[0].Key) == t.key {
			if err := s.current(ctx, t.lease); err != nil {
				return nil, err
			}
			s.tell(fmt.Sprintf("this controller leads, election id %v", t.election))
			go t.write()
			return t, nil
		}
		if who := string(r.Kvs[0].Value); who != s.Who { // else it is our lease before, which is not over yet
			s.tell(who + " leads, this controller stands by")
		}
		if err := s.changed(ctx, t.lease, r.Header.Revision); err != nil {
			return nil, err
		}
	}
}

// changed waits until a controller has left since a revision of etcd.
func (s *Store) changed(ctx context.Context, l *lease, since int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	left := s.client.Watch(ctx, s.prefix+"leader/", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithRev(since+1))
	select {
	case w, ok := <-left:
		if err := w.Err(); err != nil {
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

// End implements store.Term. It waits no longer than a lease lasts.
func (t *term) End() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.wake()
	select {
	case <-t.done:
	case <-t.over:
	}
	t.end()
}
