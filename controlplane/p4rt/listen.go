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

// ListenConfig says at which address a server listens, and who may connect.
type ListenConfig struct {
	// Address is unix:PATH, host:port, or a host alone. Only root and the user of this process may connect to a
	// Unix socket, and they may do everything.
	Address string
	// Cert and Key are PEM files for TLS. ClientCA is a PEM file with the authorities of client certificates;
	// if it is set, clients must show a certificate. Files that have changed are read again for the next
	// connection.
	Cert, Key, ClientCA string
	// Clients are the clients that may connect with a certificate of ClientCA, and what each may do. If it is
	// empty, every such client may do everything.
	Clients []Client
	// Insecure allows plain text, and TLS without ClientCA: nothing identifies the clients, and every client
	// may do everything.
	Insecure bool
	// Log gets errors of reading files again, of connections that were ended, and of requests that ended with a
	// panic (see Options). With nil they are not logged.
	Log func(error)
}

// Listener is an address at which clients reach a server.
type Listener struct {
	d   *door
	end func() error
}

// Listen serves s at an address, together with gRPC's health and reflection services and, on a Unix socket,
// ForgetMethod. A server may have several listeners.
func Listen(s *Server, cfg ListenConfig) (*Listener, error) {
	d := &door{stats: &s.stats, log: cfg.Log, conns: map[*conn]struct{}{}, peers: map[string]*peerAccount{}, logged: map[string]bool{}}
	path, local := socketOf(cfg.Address)
	var err error
	if local {
		err = d.openSocket(path, cfg)
	} else {
		err = d.openTCP(s, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("p4runtime: %w", err)
	}
	return d.open(s, local), nil
}

// open serves s on connections of the door. local adds the service of the socket's owner.
func (d *door) open(s *Server, local bool) *Listener {
	g, h := grpc.NewServer(append(Options(d.log), grpc.Creds(d))...), health.NewServer()
	s.Register(g)
	if local {
		s.registerOwner(g)
	}
	healthv1.RegisterHealthServer(g, h)
	h.SetServingStatus(p4v1.P4Runtime_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	reflection.Register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(d) }()
	return &Listener{d, sync.OnceValue(func() error {
		h.Shutdown()
		d.shut()
		g.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})}
}

// openSocket opens a Unix socket.
func (d *door) openSocket(path string, cfg ListenConfig) (err error) {
	if cfg.Cert != "" || cfg.Key != "" || cfg.ClientCA != "" || len(cfg.Clients) > 0 {
		return errors.New("TLS and its clients are for TCP: give a host as the address, too")
	}
	d.whois = ofSocket(os.Geteuid())
	if d.Listener, err = listenSocket(path); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return nil
}

// openTCP opens a TCP port. Unless Insecure is set, it refuses configurations that would let any client in.
func (d *door) openTCP(s *Server, cfg ListenConfig) error {
	addr := Address(cfg.Address)
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fmt.Errorf("address %s: %w", cfg.Address, err)
	}
	secure := cfg.Cert != "" && cfg.Key != ""
	switch {
	case !secure && (cfg.Cert != "" || cfg.Key != "" || cfg.ClientCA != "" || len(cfg.Clients) > 0):
		return errors.New("TLS takes a certificate and its key (--tls-cert, --tls-key)")
	case len(cfg.Clients) > 0 && cfg.ClientCA == "":
		return errors.New("clients (--p4-client) are known by their certificates: give the authorities of these (--tls-client-ca)")
	case !secure && !cfg.Insecure:
		return fmt.Errorf("whoever reaches %s would be a controller, in plain text: give a certificate, its key and the clients' authorities (--tls-cert, --tls-key, --tls-client-ca), take the Unix socket (--p4runtime unix), or ask for it with --insecure", addr)
	case cfg.ClientCA == "" && !cfg.Insecure:
		return fmt.Errorf("whoever reaches %s would be a controller: give the clients' authorities (--tls-client-ca), or ask for it with --insecure", addr)
	}
	for _, c := range cfg.Clients {
		for _, r := range c.Roles {
			if _, ok := s.cfg.Roles[r]; r != "" && !ok {
				return fmt.Errorf("client %s: nothing says what role %s may do: give it with --p4-role %s=TABLE,...", c.Name, r, r)
			}
		}
	}
	d.whois = func(net.Conn, credentials.AuthInfo) (*caller, error) { return &caller{}, nil }
	if secure {
		c, err := serverTLS(cfg)
		if err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		d.tls = credentials.NewTLS(c)
	}
	if cfg.ClientCA != "" {
		d.whois = func(_ net.Conn, info credentials.AuthInfo) (*caller, error) {
			t, ok := info.(credentials.TLSInfo)
			if !ok || len(t.State.VerifiedChains) == 0 {
				return nil, errors.New("no certificate was shown")
			}
			return certificate(t.State.VerifiedChains[0][0], cfg.Clients)
		}
	}
	var err error
	d.Listener, err = net.Listen("tcp", addr)
	return err
}

// Address returns an address with P4Runtime's port added if it has none.
func Address(a string) string {
	if _, _, err := net.SplitHostPort(a); err == nil {
		return a
	}
	return net.JoinHostPort(strings.Trim(a, "[]"), strconv.Itoa(Port))
}

// Addr returns the address on which the server listens.
func (l *Listener) Addr() net.Addr { return l.d.Addr() }

// Close ends all connections. Further calls have no effect.
func (l *Listener) Close() error { return l.end() }

// serverTLS returns a TLS configuration whose files are read again when they have changed.
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

// files holds the TLS files as they were read last.
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

// current returns the configuration for a new connection. If the files are faulty, it returns the one that was
// used before.
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
