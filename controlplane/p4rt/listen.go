package p4rt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
)

// ListenConfig says where and how a server is reached.
type ListenConfig struct {
	// Address is host:port, or a host alone.
	Address string
	// Cert and Key are PEM files: TLS. ClientCA is one with the authorities of
	// clients, which must show a certificate then. Files that have changed are
	// read again with the next connection.
	Cert, Key, ClientCA string
	// Insecure allows plain text beyond the loopback interface.
	Insecure bool
	// Log is told what went wrong with files that were read again, and of requests that
	// were given up by a panic (see Options); nil: nobody.
	Log func(error)
}

// Listener is a server that can be reached.
type Listener struct {
	g    *grpc.Server
	ln   net.Listener
	done chan error
	h    *health.Server
}

// Listen makes a server reachable, with the health and reflection services.
func Listen(s *Server, cfg ListenConfig) (*Listener, error) {
	addr := Address(cfg.Address)
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("p4runtime: address %s: %w", cfg.Address, err)
	}
	opts := Options(cfg.Log)
	switch {
	case cfg.Cert != "" && cfg.Key != "":
		c, err := serverTLS(cfg)
		if err != nil {
			return nil, fmt.Errorf("p4runtime: TLS: %w", err)
		}
		opts = append(opts, grpc.Creds(credentials.NewTLS(c)))
	case cfg.Cert != "" || cfg.Key != "" || cfg.ClientCA != "":
		return nil, errors.New("p4runtime: TLS takes a certificate and its key (--tls-cert, --tls-key)")
	case !loopback(host) && !cfg.Insecure:
		return nil, fmt.Errorf("p4runtime: address %s can be reached by others, and they would speak plain text: give a certificate and its key (--tls-cert, --tls-key), or ask for it with --insecure", addr)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("p4runtime: %w", err)
	}
	l := &Listener{g: grpc.NewServer(opts...), ln: ln, done: make(chan error, 1), h: health.NewServer()}
	s.Register(l.g)
	healthv1.RegisterHealthServer(l.g, l.h)
	l.h.SetServingStatus(p4v1.P4Runtime_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	reflection.Register(l.g)
	go func() { l.done <- l.g.Serve(ln) }()
	return l, nil
}

// Address is an address with P4Runtime's port, if it has none.
func Address(a string) string {
	if _, _, err := net.SplitHostPort(a); err == nil {
		return a
	}
	return net.JoinHostPort(strings.Trim(a, "[]"), strconv.Itoa(Port))
}

// loopback reports that a host is this one alone.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Addr is where the server is reached.
func (l *Listener) Addr() net.Addr { return l.ln.Addr() }

// Close ends all connections.
func (l *Listener) Close() error {
	l.h.Shutdown()
	l.g.Stop()
	if err := <-l.done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// serverTLS is TLS with files that are read again when they have changed.
func serverTLS(cfg ListenConfig) (*tls.Config, error) {
	f := &files{cfg: cfg}
	first, err := f.load()
	if err != nil {
		return nil, err
	}
	f.config = first
	c := first.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.current(), nil }
	return c, nil
}

// files are those of TLS, as they were read last.
type files struct {
	cfg ListenConfig

	mu     sync.Mutex
	config *tls.Config
	stamps [3]stamp
}

type stamp struct {
	at   time.Time
	size int64
}

func (f *files) stamp() (all [3]stamp) {
	for n, name := range []string{f.cfg.Cert, f.cfg.Key, f.cfg.ClientCA} {
		if fi, err := os.Stat(name); name != "" && err == nil {
			all[n] = stamp{fi.ModTime(), fi.Size()}
		}
	}
	return all
}

// current is the configuration for a new connection. When what is there now
// cannot be used, the one before goes on.
func (f *files) current() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.stamp(); now != f.stamps {
		c, err := f.load()
		switch {
		case err == nil:
			f.config = c
		case f.cfg.Log != nil:
			f.cfg.Log(fmt.Errorf("p4runtime: TLS: %w; the certificate before is still used", err))
		}
	}
	return f.config
}

func (f *files) load() (*tls.Config, error) {
	f.stamps = f.stamp()
	cert, err := tls.LoadX509KeyPair(f.cfg.Cert, f.cfg.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	if f.cfg.ClientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(f.cfg.ClientCA)
	if err != nil {
		return nil, err
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", f.cfg.ClientCA)
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	return c, nil
}
