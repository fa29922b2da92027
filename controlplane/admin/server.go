package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/quillon/quillon/nf/graph"
)

// pollEvery is how often a stream looks for frames when none waited.
const pollEvery = 2 * time.Millisecond

// Config is what a Server serves.
type Config struct {
	Name     string // of the instance
	Path     string // of the socket; "" = Path(Name)
	Instance *graph.Instance
	// Stop tells the instance to end, and does not wait for it; it is called
	// once the answer has been sent. Nil: clients cannot stop it.
	Stop func()
	// PortInfo is what "ports" shows beside the totals; may be nil.
	PortInfo func() any
}

// Server answers on the socket of one instance.
type Server struct {
	cfg Config
	ln  net.Listener

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	wg     sync.WaitGroup
}

// Listen opens the socket and begins to answer. A socket that a dead instance
// left behind is replaced; a living one is an error.
func Listen(cfg Config) (*Server, error) {
	if cfg.Path == "" {
		cfg.Path = Path(cfg.Name)
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o755); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	// Of instances that start at once only one may look and replace.
	dir, err := os.Open(filepath.Dir(cfg.Path))
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("control socket: lock its directory: %w", err)
	}
	if c, err := net.Dial("unix", cfg.Path); err == nil {
		c.Close()
		return nil, fmt.Errorf("control socket: an instance answers on %s already: give this one another --name", cfg.Path)
	} else if errors.Is(err, syscall.EINVAL) {
		return nil, fmt.Errorf("control socket: %s is too long for a socket: take a shorter name", cfg.Path)
	} else if fi, e := os.Lstat(cfg.Path); e == nil && fi.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("control socket: %s is there, and is no socket: take another name", cfg.Path)
	} else if e == nil && errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(cfg.Path); err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
	}
	// The mode of the file is that of the socket before it is bound: there is
	// no moment at which others may connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	ln, err := lc.Listen(context.Background(), "unix", cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	s := &Server{cfg: cfg, ln: ln, conns: map[net.Conn]struct{}{}}
	s.wg.Go(s.accept)
	return s, nil
}

// Path is where the socket is.
func (s *Server) Path() string { return s.cfg.Path }

// Close hangs up and removes the socket. Closing twice does nothing more.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	err := s.ln.Close()
	s.wg.Wait()
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
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			c.Close()
			continue
		}
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() {
			s.serve(c)
			c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
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
	inst := s.cfg.Instance
	switch req.Op {
	case opGraph:
		spec := inst.Spec()
		return Graph{Name: s.cfg.Name, Workers: inst.Workers(), Spec: spec, Dot: graph.Dot(spec), Notes: inst.Notes()}, nil
	case opCounters:
		return inst.Counters(), nil
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
		p, err := inst.Plan(spec)
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
		return nil, s.writeTable(req)
	case opStop:
		if s.cfg.Stop == nil {
			return nil, errors.New("this instance cannot be stopped from here")
		}
		return nil, nil
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
	var err error
	if req.Op == opTap {
		tap, err = s.cfg.Instance.Tap(req.At)
	} else {
		tap, err = s.cfg.Instance.Listen()
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
