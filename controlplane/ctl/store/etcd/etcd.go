// Package etcd is the store that several controllers of one network share. It keeps the revisions of the
// intent, the election of a leader, and the state of the devices under one prefix of an etcd.
//
//	PREFIX/born             when the store began, in ns since the epoch
//	PREFIX/head             the number of the newest revision
//	PREFIX/intent/NUMBER    a revision: who stored it when, and which files it has
//	PREFIX/blob/SUM/PIECE   what is in a file, by the hash of its content
//	PREFIX/leader/LEASE     a controller that leads, the one whose key is the oldest, or stands by
//	PREFIX/status/...       what the leader knows of itself and of its devices
//
// A controller leads as long as its lease lasts. It counts the time of the lease from before each request that
// extends it. Another controller ends the lease earlier if it was not extended for a second (depose). The
// devices refuse what the former leader still sends: its election id is made of the revision at which its key
// was created, and the next leader's id is higher.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/nf/clock"
)

// Config says where the store is, and who uses it.
type Config struct {
	URL            string        // etcd://HOST:PORT[,HOST:PORT...]/PREFIX
	Transport      ctl.Transport // CA, Cert and Key for TLS; Insecure
	User, Password string        // of etcd; empty: none
	Who            string        // this controller, for people
	Clock          clock.Clock
	// Patience is how long etcd may take to answer.
	Patience time.Duration
	// Tell, if it is not nil, is called with lines for people. It must not block.
	Tell func(string)
}

// Store is a store in etcd.
type Store struct {
	Config
	endpoints []string
	prefix    string // begins and ends with /
	client    *clientv3.Client
	stranger  *clientv3.Client // has no user; nil: nor has the other

	telling  sync.Mutex
	lastLine string
	away     atomic.Bool // etcd did not answer, and people know

	seen  atomic.Int64     // etcd's revision, as it was told last
	back  atomic.Bool      // etcd was put back to an older one
	lease clientv3.LeaseID // the last one of this controller; of Lead

	sending sync.Mutex
	watched bool
	sent    sent          // the last revision that Watch has sent
	newer   chan struct{} // closed when it has sent another
}

// Scheme is the prefix of the address of a store in etcd.
const Scheme = "etcd://"

// ours are the names that a store has directly under its prefix.
var ours = []string{"born", "head", "intent", "blob", "leader", "status"}

// parse splits the address of a store.
func parse(url string) (endpoints []string, prefix string, err error) {
	rest, ok := strings.CutPrefix(url, Scheme)
	hosts, prefix, _ := strings.Cut(rest, "/")
	prefix = strings.TrimSuffix(prefix, "/")
	if !ok || hosts == "" || prefix == "" {
		return nil, "", fmt.Errorf("store %q: want etcd://HOST:PORT[,HOST:PORT...]/PREFIX, as in etcd://127.0.0.1:2379/net1", url)
	}
	for _, h := range strings.Split(hosts, ",") {
		_, port, err := net.SplitHostPort(h)
		if _, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil {
			return nil, "", fmt.Errorf("store %q: %q: want HOST:PORT, as in 127.0.0.1:2379", url, h)
		}
		endpoints = append(endpoints, h)
	}
	for _, part := range strings.Split(prefix, "/") {
		if slices.Contains(ours, part) {
			return nil, "", fmt.Errorf("store %q: want a PREFIX without %q, which is what a store has under its own", url, part)
		}
		if part == "" || strings.ContainsFunc(part, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
			return nil, "", fmt.Errorf("store %q: want a PREFIX as net1 or site/net1, without spaces", url)
		}
	}
	return endpoints, "/" + prefix + "/", nil
}

// Open connects to a store. It returns an error if the store does not answer.
func Open(ctx context.Context, c Config) (*Store, error) {
	s := &Store{Config: c, newer: make(chan struct{})}
	var err error
	if s.endpoints, s.prefix, err = parse(c.URL); err != nil {
		return nil, err
	}
	t := c.Transport
	secure := t.CA != "" || t.Cert != "" || t.Key != ""
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("--store-cert and --store-key go together")
	}
	o := clientv3.Config{
		Username: c.User, Password: c.Password, DialTimeout: c.Patience, Logger: zap.NewNop(),
		// etcd hangs up on who asks more often than every 5 s.
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithNoProxy()},
	}
	scheme := "http://"
	if secure {
		scheme = "https://"
		if o.TLS, err = t.Config(); err != nil {
			return nil, err
		}
	}
	for _, e := range s.endpoints {
		if !secure && !t.Insecure && !ctl.Local(e) {
			return nil, fmt.Errorf("store %s is not this machine, and plain text would give away who may write: give --store-ca for TLS, or --insecure", e)
		}
		o.Endpoints = append(o.Endpoints, scheme+e)
	}
	if c.User != "" {
		if o.DialOptions, err = s.signIn(o); err != nil {
			return nil, s.explain(err)
		}
	}
	if s.client, err = clientv3.New(o); err != nil {
		s.Close()
		return nil, s.explain(err)
	}
	if _, _, err := s.head(ctx); err != nil {
		s.Close()
		if errors.Is(err, context.DeadlineExceeded) {
			if c := s.connect(o.TLS); c != nil {
				err = s.explain(c)
			}
		}
		return nil, err
	}
	return s, nil
}

// signIn makes a client ask for its token through another client, which has no token. Otherwise the client
// would send its old token with the request, and an etcd that has forgotten that token, because it was
// restarted, would refuse the request for ever.
func (s *Store) signIn(o clientv3.Config) ([]grpc.DialOption, error) {
	o.Username, o.Password = "", ""
	var err error
	if s.stranger, err = clientv3.New(o); err != nil {
		return nil, err
	}
	return append(o.DialOptions, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, on *grpc.ClientConn, do grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == pb.Auth_Authenticate_FullMethodName {
			on = s.stranger.ActiveConnection()
		}
		return do(ctx, method, req, reply, on, opts...)
	})), nil
}

// connect returns the reason why no connection to one of the members can be made, because etcd's client does
// not tell it. It returns nil if connections can be made.
func (s *Store) connect(secure *tls.Config) error {
	for _, e := range s.endpoints {
		c, err := net.DialTimeout("tcp", e, time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if secure == nil {
			continue
		}
		own := secure.Clone()
		own.ServerName, _, _ = net.SplitHostPort(e)
		own.NextProtos = []string{"h2"}
		t := tls.Client(c, own)
		_ = t.SetDeadline(time.Unix(0, int64(s.Clock.Now().Add(time.Second))))
		// Our certificate is judged after the handshake.
		if err = t.Handshake(); err == nil {
			_, err = t.Read(make([]byte, 1))
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return nil
}

// Close implements store.Store.
func (s *Store) Close() (err error) {
	for _, c := range []*clientv3.Client{s.client, s.stranger} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// report gives Tell a line, unless it is the same as the last one.
func (s *Store) report(line string) {
	s.telling.Lock()
	again := line == s.lastLine
	s.lastLine = line
	s.telling.Unlock()
	if s.Tell != nil && !again {
		s.Tell(line)
	}
}

// fails reports an error once, until etcd answers again.
func (s *Store) fails(err error) {
	if !s.away.Swap(true) {
		s.report(err.Error())
	}
}

// explain adds to an error of etcd what to do about it.
func (s *Store) explain(err error) error {
	text := err.Error()
	do := ""
	switch {
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrPermissionDenied) && s.User == "":
		do = "give user:password with --store-login or QUILLON_STORE_LOGIN"
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		do = "give its user a role that reads and writes " + s.prefix
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		do = "start etcd with a larger --max-request-bytes"
	case errors.Is(err, rpctypes.ErrNoSpace):
		do = "compact and defragment it, then etcdctl alarm disarm"
	case strings.Contains(text, "certificate"), strings.Contains(text, "tls:"):
		do = "--store-ca names its authority, --store-cert and --store-key are ours"
	case errors.Is(err, context.DeadlineExceeded):
		do = "is it running there, with most of its members? does it want TLS (--store-ca)?"
	default:
		do = "is it running there, with most of its members?"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		text = "no answer in time"
	}
	text, _, _ = strings.Cut(text, "\n")
	return &failure{fmt.Sprintf("etcd at %s: %s: %s", strings.Join(s.endpoints, ", "), text, do), err}
}

// failure is an error of etcd in words.
type failure struct {
	text  string
	cause error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.cause }

// lasting reports whether an error does not go away by itself.
func lasting(err error) bool {
	return errors.Is(err, rpctypes.ErrAuthFailed) || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrPermissionDenied)
}

// attempt is how long one of several attempts may take. A member of etcd that has passed a request on to a
// member that died answers only after 6 s or more, long after the other members have elected another leader.
const attempt = 2 * time.Second

// members is the highest number of members of etcd that are asked for the same thing at once.
const members = 4

// get reads a key, or all keys under it. While no member has answered it asks further members, in the order of
// the client.
func (s *Store) get(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	before := s.seen.Load()
	type answer struct {
		r   *clientv3.GetResponse
		err error
	}
	answers := make(chan answer, members)
	ask := func() {
		one, done := context.WithTimeout(ctx, attempt)
		defer done()
		r, err := s.client.Get(one, s.prefix+key, o...)
		answers <- answer{r, err}
	}
	go ask()
	more := time.NewTicker(beat / 2)
	defer more.Stop()
	var r *clientv3.GetResponse
	for asked := 1; r == nil; {
		select {
		case a := <-answers:
			asked--
			if a.err != nil && (ctx.Err() != nil || !errors.Is(a.err, context.DeadlineExceeded)) {
				return nil, s.explain(a.err)
			}
			r = a.r
		case <-more.C:
			if asked < members {
				asked++
				go ask()
			}
		}
	}
	s.away.Store(false)
	if now := r.Header.Revision; now < before {
		s.back.Store(true)
		s.seen.Store(now)
	} else {
		s.see(now)
	}
	return r, nil
}

// see stores etcd's revision if it is higher than the stored one.
func (s *Store) see(now int64) {
	for old := s.seen.Load(); old < now && !s.seen.CompareAndSwap(old, now); old = s.seen.Load() {
	}
}

// commit does the operations then if all conditions in when hold.
func (s *Store) commit(ctx context.Context, when []clientv3.Cmp, then ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	r, err := s.client.Txn(ctx).If(when...).Then(then...).Commit()
	if err != nil {
		return nil, s.explain(err)
	}
	s.away.Store(false)
	s.see(r.Header.Revision)
	return r, nil
}

// pause waits a moment, or until ctx ends.
func pause(ctx context.Context) {
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
	}
}

// head returns the number of the newest revision (0: there is none), and etcd's revision of the key.
func (s *Store) head(ctx context.Context) (number, mod int64, err error) {
	r, err := s.get(ctx, "head")
	if err != nil || len(r.Kvs) == 0 {
		return 0, 0, err
	}
	if number, err = strconv.ParseInt(string(r.Kvs[0].Value), 10, 64); err != nil {
		return 0, 0, fmt.Errorf("%s%s: %w: it was not written by quillon", s.prefix, "head", err)
	}
	return number, r.Kvs[0].ModRevision, nil
}
