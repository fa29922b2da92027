package admin

import (
	"bufio"
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

// pollEvery is how often a stream looks for frames when none waited.
const pollEvery = 2 * time.Millisecond

// startWithin is how long a request waits for an instance that starts.
const startWithin = 30 * time.Second

// maxClients are as many as are served at a time.
const maxClients = 64

// hangupWithin is how long Close waits for requests that are under way: one that waits for a worker that is
// stuck has no end.
const hangupWithin = 2 * time.Second

// Config is what a Server serves.
type Config struct {
	Name     string          // of the instance
	Path     string          // of the socket; "" = Path(Name)
	Instance *graph.Instance // nil: Serve gives it
	// Stop tells the instance to end, and does not wait for it; it is called
	// once the answer has been sent. Nil: clients cannot stop it.
	Stop func()
	// PortInfo is what "ports" shows beside the totals; may be nil.
	PortInfo func() any
	// Process is what "process" shows; may be nil.
	Process func() any
	// Wait bounds how long Listen waits for a process that has the place of the socket; 0: 5 s.
	Wait time.Duration
}

// Server answers on the socket of one instance.
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

// Listen takes the place of the instance of that name, opens its socket, and begins to answer. While another
// process has the place and does not answer, as one that ends, Listen waits for a bounded time, or until ctx
// is done. A socket that a dead instance left behind is replaced; a living one is an error.
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
	if cfg.Wait == 0 {
		cfg.Wait = lockWithin
	}
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

// socketAt is an error when a socket cannot be at path, or an instance answers there that was not killed.
func socketAt(ctx context.Context, path string) error {
	_, err := own.Await(ctx, path)
	if errors.Is(err, own.ErrAnswers) {
		err = fmt.Errorf("%w: end that instance, or give this one another --name", err)
	}
	return err
}

// Serve has requests be about inst, which was nil in the Config. They have waited for that.
func (s *Server) Serve(inst *graph.Instance) {
	s.inst = inst
	close(s.served)
}

// instance is what requests are about, once it is there.
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

// Path is where the socket is.
func (s *Server) Path() string { return s.cfg.Path }

// Hangup ends all connections and removes the socket; the place of the instance stays taken. It waits a
// bounded time for requests that are under way.
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

// Close hangs up, and gives the place of the instance to others. Closing twice does nothing more.
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

// welcome serves a client, if there is room.
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
	var bad *graph.SpecError
	if errors.As(err, &bad) {
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

// plan is p with a list of actions, also where there is none.
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

// Client is one in this process.
func (s *Server) Client() (*Client, error) {
	here, there := net.Pipe()
	if err := s.welcome(there); err != nil {
		return nil, err
	}
	return &Client{path: s.cfg.Path, pid: os.Getpid(), conn: here, in: json.NewDecoder(here)}, nil
}
