// Package httpd serves a few clients of this machine by HTTP, within bounds.
package httpd

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/internal/own"
)

// Server answers at an address.
type Server struct {
	ln  net.Listener
	srv *http.Server
	end chan error
}

// Listen serves h at an address, host:port or unix:PATH; what is served is named in errors. An address that others can reach must be
// asked for by anyone; the file of a Unix socket is its user's alone.
func Listen(what, addr string, anyone bool, h http.Handler) (*Server, error) {
	ln, err := listen(addr, anyone)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	s := &Server{ln: ln, srv: &http.Server{Handler: h, ReadTimeout: Patience, WriteTimeout: Patience, IdleTimeout: Patience, MaxHeaderBytes: maxHeaders}, end: make(chan error, 1)}
	go func() { s.end <- s.srv.Serve(&few{Listener: ln}) }()
	return s, nil
}

func listen(addr string, anyone bool) (net.Listener, error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return own.Listen(path)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address %s: want host:port", addr)
	}
	if ip := net.ParseIP(host); !anyone && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("address %s can be reached by others, in plain text: take one of the loopback interface, or ask for it with --insecure", addr)
	}
	return net.Listen("tcp", addr)
}

// Addr is where it answers.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Close hangs up.
func (s *Server) Close() error {
	err := s.srv.Close()
	if e := <-s.end; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// Patience is how long a client may take to ask, or to take an answer, and how long a connection that asks nothing stays. An answer
// that takes longer sets deadlines of its own (http.ResponseController).
const Patience = 5 * time.Second

// All clients together have maxConns connections at a time.
const (
	maxConns   = 64
	maxHeaders = 8 << 10 // bytes of a request
)

// few is a listener that hangs up on whoever comes while maxConns are there.
type few struct {
	net.Listener
	open atomic.Int32
}

func (l *few) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= maxConns {
			return &counted{Conn: c, of: l}, nil
		}
		l.open.Add(-1)
		_ = c.Close()
	}
}

// counted is one of these connections.
type counted struct {
	net.Conn
	of   *few
	gone sync.Once
}

func (c *counted) Close() error {
	c.gone.Do(func() { c.of.open.Add(-1) })
	return c.Conn.Close()
}
