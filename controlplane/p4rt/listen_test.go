package p4rt_test

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/internal/authority"
)

// ask connects anew and asks for the capabilities; it says who answered.
func ask(t *testing.T, addr string, c credentials.TransportCredentials) (who string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = p4v1.NewP4RuntimeClient(conn).Capabilities(ctx, &p4v1.CapabilitiesRequest{})
	return "", err
}

func TestTLS(t *testing.T) {
	a := authority.New(t)
	a.Server("server", "first")
	a.Client("client")
	var logged []error
	l, err := p4rt.Listen(p4rt.New(p4rt.Config{}), p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: a.File("server.pem"), Key: a.File("server.key"), ClientCA: a.File("ca.pem"),
		Log: func(err error) { logged = append(logged, err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	who := ""
	client := func(with bool) credentials.TransportCredentials {
		c := &tls.Config{RootCAs: a.Pool(), VerifyConnection: func(s tls.ConnectionState) error { who = s.PeerCertificates[0].Subject.CommonName; return nil }}
		if with {
			c.Certificates = []tls.Certificate{a.Pair("client")}
		}
		return credentials.NewTLS(c)
	}
	if _, err := ask(t, addr, client(true)); err != nil || who != "first" {
		t.Errorf("%q: %v", who, err)
	}
	if _, err := ask(t, addr, client(false)); err == nil {
		t.Error("a client without a certificate was let in")
	}
	if _, err := ask(t, addr, insecure.NewCredentials()); err == nil {
		t.Error("plain text was let in")
	}
	a.Server("server", "second")
	if _, err := ask(t, addr, client(true)); err != nil || who != "second" {
		t.Errorf("the new certificate is not used: %q: %v", who, err)
	}
	a.Write("server.pem", []byte("broken"))
	if _, err := ask(t, addr, client(true)); err != nil || who != "second" {
		t.Errorf("a broken file: %q: %v", who, err)
	}
	if len(logged) != 1 || !strings.Contains(logged[0].Error(), "certificate before") {
		t.Error(logged)
	}
}

// TestWhoWouldBeLetIn: what would let strangers be controllers is refused, with what to
// do, unless it is asked for.
func TestWhoWouldBeLetIn(t *testing.T) {
	a := authority.New(t)
	a.Server("server", "s")
	pem, key, ca := a.File("server.pem"), a.File("server.key"), a.File("ca.pem")
	s := p4rt.New(p4rt.Config{Roles: map[string]p4rt.Role{"macs": {}}})
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg  p4rt.ListenConfig
		says string // "": it is done
	}{
		{p4rt.ListenConfig{Address: "127.0.0.1:0"}, "ask for it with --insecure"},
		{p4rt.ListenConfig{Address: "0.0.0.0:0"}, "in plain text"},
		{p4rt.ListenConfig{Address: ":0"}, "in plain text"},
		{p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true}, ""},
		{p4rt.ListenConfig{Address: "0.0.0.0:0", Insecure: true}, ""},
		{p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: pem, Key: key}, "the clients' authorities (--tls-client-ca), or ask for it with --insecure"},
		{p4rt.ListenConfig{Address: "0.0.0.0:0", Cert: pem, Key: key}, "--insecure"},
		{p4rt.ListenConfig{Address: "0.0.0.0:0", Cert: pem, Key: key, Insecure: true}, ""},
		{p4rt.ListenConfig{Address: "0.0.0.0:0", Cert: pem, Key: key, ClientCA: ca}, ""},
		{p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: "x", Insecure: true}, "a certificate and its key"},
		{p4rt.ListenConfig{Address: "127.0.0.1:0", ClientCA: "x", Insecure: true}, "a certificate and its key"},
		{p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: "/nothing", Key: "/nothing", ClientCA: ca}, "TLS: open /nothing"},
		{p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: pem, Key: key, Insecure: true, Clients: []p4rt.Client{{Name: "c"}}}, "--tls-client-ca"},
		{p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: pem, Key: key, ClientCA: ca, Clients: []p4rt.Client{{Name: "c", Roles: []string{"", "macs"}}}}, ""},
		{p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: pem, Key: key, ClientCA: ca, Clients: []p4rt.Client{{Name: "c", Roles: []string{"other"}}}}, "--p4-role other=TABLE"},
		{p4rt.ListenConfig{Address: "127.0.0.1:x", Insecure: true}, "p4runtime"},
		{p4rt.ListenConfig{Address: "unix:" + file + "/x"}, "not a directory"},
		{p4rt.ListenConfig{Address: "unix:" + file}, "is no socket"},
		{p4rt.ListenConfig{Address: "unix:" + open + "/x"}, "others can replace files in " + open},
		{p4rt.ListenConfig{Address: "unix:/tmp/x"}, "others can replace files in /tmp"},
		{p4rt.ListenConfig{Address: "unix:" + filepath.Dir(file) + "/" + strings.Repeat("x", 200)}, "too long"},
		{p4rt.ListenConfig{Address: "unix:/nothing/at/all"}, "no such file"},
		{p4rt.ListenConfig{Address: "unix:" + filepath.Dir(file) + "/s", Cert: pem, Key: key}, "TCP"},
		{p4rt.ListenConfig{Address: "unix:" + filepath.Dir(file) + "/made/s"}, ""},
	} {
		l, err := p4rt.Listen(s, c.cfg)
		if err == nil {
			if e := l.Close(); e != nil {
				t.Error(e)
			}
		}
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	for in, want := range map[string]string{"localhost": "localhost:9559", "127.0.0.1": "127.0.0.1:9559", "::1": "[::1]:9559", "[::1]": "[::1]:9559", "h:5": "h:5"} {
		if got := p4rt.Address(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

func TestHealthAndReflection(t *testing.T) {
	l, err := p4rt.Listen(p4rt.New(p4rt.Config{}), p4rt.ListenConfig{Address: "localhost:0", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	h, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: "p4.v1.P4Runtime"})
	if err != nil || h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Error(h, err)
	}
	r, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	m, err := r.Recv()
	if err != nil || !strings.Contains(m.String(), "p4.v1.P4Runtime") {
		t.Error(m, err)
	}
}

func TestDevices(t *testing.T) {
	s := p4rt.New(p4rt.Config{})
	if err := s.Add(0, nil); err == nil {
		t.Error("device 0 was added")
	}
	if err := s.Add(1, silent{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Add(1, silent{}); err == nil {
		t.Error("two devices 1")
	}
	if err := s.Add(2, silent{err: errors.New("deaf")}); err == nil {
		t.Error("a device that cannot be listened to was added")
	}
	s.Close()
}

// silent is a device that says nothing.
type silent struct {
	p4rt.Device
	err error
}

func (s silent) Listen(func(p4rt.Event)) (func(), error) { return func() {}, s.err }
