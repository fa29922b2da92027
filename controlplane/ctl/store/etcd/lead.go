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

// ttl is the length of the lease that is requested, in seconds. etcd makes the lease longer if 1.5 times its
// own election timeout, in whole seconds, is more. From 2 s on etcd tells when a lease was not extended for a
// second (see depose).
const ttl = 2

// beat is the interval at which a lease is extended.
const beat = 200 * time.Millisecond

// forgiven is the number of lease lengths without an answer after which the holder gives a lease up. It is
// above 1 because no lease ends while etcd elects its own leader.
const forgiven = 3

var errOver = errors.New("the lease in etcd is over, another controller may lead")

// lease is a lease of etcd. It is kept alive until it is lost or ended.
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

// grant requests a lease.
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

// atOnce is the number of requests that may wait for etcd's answer when each beat sends one. It is smaller with
// a password: checking one takes a member of etcd a tenth of a second or more, even if the request has ended
// meanwhile, and too many checks would leave the member no time for anything else.
func (s *Store) atOnce() int {
	if s.User != "" {
		return 3
	}
	return 10
}

// Held returns nil while the lease lasts. After an error it may return nil again, if etcd was away and has kept
// the lease.
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

// keep extends the lease at each beat. If a stream has not answered within a beat, another stream is opened, to
// another member of etcd, so that a stream that hangs does no harm.
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

// extend extends the lease through a new stream, and goes on with the same stream, because etcd checks the
// password for each stream.
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

// end gives the lease back, and waits a moment for etcd's answer. While etcd elects its own leader the answer
// takes longer, and the election would extend the lease; end therefore goes on trying in the background.
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

// born returns the time at which the store began. If etcd was restored to an older state, it sets a new time,
// because devices have seen the ids of leaders since that state.
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

// Lead implements store.Store. It tries again while etcd does not answer.
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

// campaign waits until this controller's key is the oldest of all controllers' keys.
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

// controllers removes keys without a lease, because no controller writes such keys.
func controllers(all []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	return slices.DeleteFunc(all, func(kv *mvccpb.KeyValue) bool { return kv.Lease == 0 })
}

// changed waits until a controller has left after etcd's revision since. Meanwhile depose watches the
// controller that leads.
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

// depose ends a lease that was not extended for a second, the time of five extensions. etcd itself ends it only
// when its time is over. etcd tells the seconds that are left, rounded down, and after it has elected its own
// leader all leases count as new.
//
// The holder may only have been slow. It notices when it extends the lease the next time. What it writes until
// that time is either refused by devices, or comes before the session of the next leader, which compares the
// devices afterwards.
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

// term is a term of this controller as leader.
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

// End implements store.Term. It waits a moment for the last Save, and until etcd has the lease back.
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
