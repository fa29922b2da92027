package admin

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/own"
	"github.com/quillon/quillon/nf/graph"
)

// pollEvery is the time after which a stream that found no frame looks for frames again.
const pollEvery = 2 * time.Millisecond

// startWithin is the time for which a request waits for an instance that starts.
const startWithin = 30 * time.Second

// maxClients is the largest number of connections that a Server serves at a time.
const maxClients = 64

// hangupWithin is the time for which Hangup waits for requests that are under way. It is limited because a
// request that waits for a stuck worker never ends.
const hangupWithin = 2 * time.Second

// Config describes the instance that a Server serves.
type Config struct {
	Name     string          // of the instance
	Path     string          // of the socket; "" = Path(Name)
	Instance *graph.Instance // nil: Serve gives it
	// Stop tells the instance to end, and does not wait for it. The Server calls it
	// after it has sent the answer. If Stop is nil, clients cannot stop the instance.
	Stop func()
	// PortInfo returns what "ports" shows beside the totals; it may be nil.
	PortInfo func() any
	// Process returns what "process" shows; it may be nil.
	Process func() any
	// Wait is the time for which Listen waits for a process that has the lock; 0 means 5 s.
	Wait time.Duration
}

// Server answers requests on the socket of one instance.
type Server struct {
	cfg    Config
	ln     net.Listener
	lock   *lock
	inst   *graph.Instance // when served is closed
	served chan struct{}
	gone   chan struct{} // closed by Hangup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	wg     sync.WaitGroup
	free   sync.Once
}

// Listen takes the lock of the instance's name, opens the socket, and begins to answer. While another process
// has the lock and does not answer (for example because it ends), Listen waits, for Config.Wait at most and until
// ctx is done. It replaces a socket that a dead instance left, and returns an error if an instance answers on it.
func Listen(ctx context.Context, cfg Config) (_ *Server, err error) {
	defer func() {
		if errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: have %s be writable and have room, or name a socket elsewhere with --control", err, filepath.Dir(cfg.Path))
		}
		if err != nil {
			err = fmt.Errorf("control socket: %w", err)
		}
	}()
	usual := cfg.Path == ""
	if usual {
		cfg.Path = Path(cfg.Name)
	}
	cfg.Wait = cmp.Or(cfg.Wait, lockWithin)
	if err := ownDir(filepath.Dir(cfg.Path), usual); err != nil {
		return nil, err
	}
	if err := socketAt(ctx, cfg.Path); err != nil {
		return nil, err
	}
	held, err := take(ctx, cfg.Path+".lock", cfg.Wait, func() error { return socketAt(ctx, cfg.Path) })
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, held.release())
		}
	}()
	ln, err := own.Listen(cfg.Path)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, ln: ln, lock: held, served: make(chan struct{}), gone: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	if cfg.Instance != nil {
		s.Serve(cfg.Instance)
	}
	s.wg.Go(s.accept)
	return s, nil
}

// socketAt returns an error if no socket can be made at path, or if a living instance answers there.
func socketAt(ctx context.Context, path string) error {
	_, err := own.Await(ctx, path)
	if errors.Is(err, own.ErrAnswers) {
		err = fmt.Errorf("%w: end that instance, or give this one another --name", err)
	}
	return err
}

// Serve sets the instance that requests are about, if Config.Instance was nil. Requests wait until Serve is called.
func (s *Server) Serve(inst *graph.Instance) {
	s.inst = inst
	close(s.served)
}

// instance returns the instance that requests are about. It waits for Serve, for startWithin at most.
func (s *Server) instance() (*graph.Instance, error) {
	late := time.NewTimer(startWithin)
	defer late.Stop()
	select {
	case <-s.served:
		return s.inst, nil
	case <-s.gone:
	case <-late.C:
	}
	return nil, errors.New("the instance has not started yet")
}

// Path returns the path of the socket.
func (s *Server) Path() string { return s.cfg.Path }

// Hangup ends all connections and removes the socket; the lock stays taken. It waits for requests that are
// under way, for hangupWithin at most.
func (s *Server) Hangup() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.gone)
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	err := s.ln.Close()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	late := time.NewTimer(hangupWithin)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		err = errors.Join(err, errors.New("control socket: a request has not ended"))
	}
	return err
}

// Close calls Hangup and releases the lock. A second call does nothing.
func (s *Server) Close() error {
	err := s.Hangup()
	s.free.Do(func() { err = errors.Join(err, s.lock.release()) })
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, for one: it may get better.
			time.Sleep(pollEvery)
			continue
		}
		if err := s.welcome(c); err != nil {
			_ = json.NewEncoder(c).Encode(failure(err))
			c.Close()
		}
	}
}

// welcome starts to serve a client. It returns an error if maxClients are served already.
func (s *Server) welcome(c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("the instance ends")
	}
	if len(s.conns) >= maxClients {
		return fmt.Errorf("%d clients are served already: try again when one has ended", maxClients)
	}
	s.conns[c] = struct{}{}
	s.wg.Go(func() {
		s.serve(c)
		c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	})
	return nil
}

func (s *Server) serve(c net.Conn) {
	in := bufio.NewScanner(c)
	in.Buffer(make([]byte, 0, 4096), maxRequest)
	out := json.NewEncoder(c)
	for in.Scan() {
		var req request
		if err := json.Unmarshal(in.Bytes(), &req); err != nil {
			if out.Encode(failure(fmt.Errorf("the request is not JSON: %w", err))) != nil {
				return
			}
			continue
		}
		if req.V != Version {
			if out.Encode(failure(fmt.Errorf("this instance speaks version %d of the protocol, not %d", Version, req.V))) != nil {
				return
			}
			continue
		}
		if req.Op == opTap || req.Op == opPunts {
			s.stream(c, out, req)
			return
		}
		if req.Op == opTable {
			if s.table(out, req) != nil {
				return
			}
			continue
		}
		if req.Op == opTrack {
			if s.connections(out, req) != nil {
				return
			}
			continue
		}
		v, err := s.do(req)
		r := failure(err)
		if err == nil {
			r = success(v)
		}
		if out.Encode(r) != nil {
			return
		}
		if req.Op == opStop && err == nil {
			s.cfg.Stop()
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		_ = out.Encode(failure(errors.New(tooLong)))
	}
}

func success(v any) response {
	p, err := json.Marshal(v)
	if err != nil {
		return failure(err)
	}
	return response{V: Version, Result: p}
}

func failure(err error) response {
	if err == nil {
		return response{}
	}
	r := response{V: Version, Error: err.Error()}
	if bad, ok := errors.AsType[*graph.SpecError](err); ok {
		r.Excerpt = bad.Excerpt
	}
	return r
}

func (s *Server) do(req request) (any, error) {
	if req.Op == opStop { // also one that has not started yet
		if s.cfg.Stop == nil {
			return nil, errors.New("this instance cannot be stopped from here")
		}
		return nil, nil
	}
	inst, err := s.instance()
	if err != nil {
		return nil, err
	}
	switch req.Op {
	case opProcess:
		if s.cfg.Process == nil {
			return nil, errors.New("this instance says nothing of its process")
		}
		return s.cfg.Process(), nil
	case opGraph:
		spec := inst.Spec()
		return Graph{Name: s.cfg.Name, Workers: inst.Workers(), Spec: spec, Dot: graph.Dot(spec), Notes: inst.Notes()}, nil
	case opCounters:
		return inst.Counters(), nil
	case opFlows:
		return inst.Ahead()
	case opRuntime:
		return inst.Runtime(), nil
	case opPorts:
		p := Ports{Ports: inst.Ports()}
		if s.cfg.PortInfo != nil {
			info, err := json.Marshal(s.cfg.PortInfo())
			if err != nil {
				return nil, err
			}
			p.Info = info
		}
		return p, nil
	case opTraceAdd:
		return nil, inst.AddTrace(req.Port, req.N, req.Reason)
	case opTraceShow:
		return inst.Trace(), nil
	case opTraceClear:
		inst.ClearTrace()
		return nil, nil
	case opSet:
		if len(req.Args) == 0 {
			return nil, errors.New("set: nothing to set: give key=value")
		}
		p, err := inst.Set(req.App, req.Args)
		return plan(p), err
	case opApply:
		spec, err := graph.ParseSpec([]byte(req.Spec))
		if err != nil {
			return nil, err
		}
		if req.Dir != "" {
			spec.Beside(inst.Kinds(), req.Dir)
		}
		p, err := inst.Plan(spec)
		if err == nil && req.DryRun {
			// What apps refuse, alone or of each other, would be said when they are made.
			_, err = graph.Wants(spec, inst.Kinds())
		}
		if err != nil || req.DryRun {
			return plan(p), err
		}
		return plan(p), inst.Apply(p)
	case opReport:
		return inst.Report(req.App)
	case opTables:
		list := []Table{}
		for _, a := range inst.Tables() {
			for _, d := range a.Tables {
				list = append(list, Table{a.App, a.Kind, d})
			}
		}
		return list, nil
	case opTableWrite:
		return nil, writeTable(inst, req)
	}
	return nil, fmt.Errorf("unknown operation %q", req.Op)
}

// plan returns p as a Plan. Its Actions are never nil, so that JSON has a list.
func plan(p graph.Plan) Plan {
	return Plan{Actions: append([]graph.Action{}, p.Actions...), Text: p.String()}
}

// stream sends frames until the client hangs up.
func (s *Server) stream(c net.Conn, out *json.Encoder, req request) {
	var tap *graph.Tap
	inst, err := s.instance()
	switch {
	case err != nil:
	case req.Op == opTap:
		tap, err = inst.Tap(req.At)
	default:
		tap, err = inst.Listen()
	}
	if err != nil {
		_ = out.Encode(failure(err))
		return
	}
	defer tap.Close()
	if out.Encode(response{V: Version}) != nil {
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		var p [64]byte
		for {
			if _, err := c.Read(p[:]); err != nil {
				return
			}
		}
	}()
	buffered := bufio.NewWriter(c)
	enc := json.NewEncoder(buffered)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		for f, ok := tap.Next(); ok; f, ok = tap.Next() {
			if enc.Encode(success(Captured{f, tap.Dropped()})) != nil {
				return
			}
		}
		if buffered.Flush() != nil {
			return
		}
		select {
		case <-gone:
			return
		case <-tick.C:
		}
	}
}

// Client returns a client in this process, which does not use the socket.
func (s *Server) Client() (*Client, error) {
	here, there := net.Pipe()
	if err := s.welcome(there); err != nil {
		return nil, err
	}
	return &Client{path: s.cfg.Path, pid: os.Getpid(), conn: here, in: json.NewDecoder(here)}, nil
}
