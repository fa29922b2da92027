package ctl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Transport says how to reach devices. Certificate files are read again for every connection, so that renewed
// certificates are used without a restart.
type Transport struct {
	CA         string // certificates that a device's must come from; empty: the system's
	Cert, Key  string // our own, for mutual TLS
	ServerName string // expected in the device's certificate; empty: the host of its address
	TLS        bool   // TLS, also when no file is named
	Insecure   bool   // allows plain text to other machines

	// Ping is the interval of HTTP/2 pings on an idle connection; 0: no pings. Servers that do not expect pings
	// close the connection, and bmv2's server is one of them. TCP detects dead hosts without pings, too.
	Ping time.Duration

	// Dial makes the connections; nil: net.Dialer does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// secure reports whether the transport uses TLS.
func (t Transport) secure() bool { return t.TLS || t.CA != "" || t.Cert != "" || t.ServerName != "" }

// Check returns an error if the settings contradict each other, or if they would use plain text to another
// machine without Insecure.
func (t Transport) Check(address string) error {
	if (t.Cert == "") != (t.Key == "") {
		return errors.New("a certificate and its key go together")
	}
	if t.secure() && t.Insecure {
		return errors.New("TLS and plain text at once: choose one")
	}
	if address == "" {
		return errors.New("the device has no address")
	}
	if t.secure() || t.Insecure || Local(address) {
		return nil
	}
	return fmt.Errorf("%s is not this machine, and plain text would tell all that is said: give --ca for TLS, or --insecure", address)
}

// socket returns the path in the address of a Unix socket; ok is false for other addresses.
func socket(address string) (path string, ok bool) {
	path, ok = strings.CutPrefix(address, "unix:")
	return strings.TrimPrefix(path, "//"), ok
}

// Local reports whether address is an address of this machine.
func Local(address string) bool {
	if _, ok := socket(address); ok {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// credentials returns the credentials for a connection to address. A Unix socket needs none, because the kernel
// tells who is at its ends.
func (t Transport) credentials(address string) (credentials.TransportCredentials, error) {
	if _, ok := socket(address); ok || !t.secure() {
		return insecure.NewCredentials(), nil
	}
	c, err := t.Config()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(c), nil
}

// Config returns the transport's settings for TLS.
func (t Transport) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM form", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// most is the longest message that is accepted from a device, in bytes: the answer to a Read, or a pipeline
// configuration.
const most = 64 << 20

func (t Transport) dial(address string) (*grpc.ClientConn, error) {
	creds, err := t.credentials(address)
	if err != nil {
		return nil, err
	}
	// A dead host is detected after half a minute.
	system := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	dial := t.Dial
	if dial == nil {
		dial = system.DialContext
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			if path, ok := socket(addr); ok {
				return dial(ctx, "unix", path)
			}
			return dial(ctx, "tcp", addr)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most), grpc.MaxCallSendMsgSize(most)),
		grpc.WithMaxHeaderListSize(16 << 20), // per-update errors come in the trailer
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithNoProxy(),
		grpc.WithSharedWriteBuffer(true),
	}
	if t.Ping > 0 {
		opts = append(opts, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: t.Ping, Timeout: t.Ping}))
	}
	return grpc.NewClient("passthrough:///"+address, opts...)
}

// hint adds the most likely cause to an error.
func (t Transport) hint(err error) error {
	if !t.secure() && strings.Contains(err.Error(), "server preface") {
		return fmt.Errorf("%w; does it speak TLS? --ca names its authority", err)
	}
	if strings.Contains(err.Error(), "dial unix") && strings.Contains(err.Error(), "permission denied") {
		return fmt.Errorf("%w; the socket is for root and the user that the server runs as: run this as one of these", err)
	}
	return err
}

// Dialer lets all sessions to devices at one address share a connection.
type Dialer struct {
	Transport

	mu    sync.Mutex
	conns map[string]*conn
}

type conn struct {
	*grpc.ClientConn
	address string
	users   int
	broken  bool
}

// get returns a connection to address, and opens one if none works.
func (d *Dialer) get(address string) (*conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.conns[address]
	if c == nil {
		cc, err := d.dial(address)
		if err != nil {
			return nil, err
		}
		c = &conn{ClientConn: cc, address: address}
		if d.conns == nil {
			d.conns = map[string]*conn{}
		}
		d.conns[address] = c
	}
	c.users++
	return c, nil
}

// put gives a connection back. If failed is true, get does not return this connection again.
func (d *Dialer) put(c *conn, failed bool) {
	d.mu.Lock()
	c.users--
	c.broken = c.broken || failed
	gone := c.users == 0
	if (gone || c.broken) && d.conns[c.address] == c {
		delete(d.conns, c.address)
	}
	d.mu.Unlock()
	if gone {
		c.Close()
	}
}
