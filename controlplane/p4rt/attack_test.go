package p4rt_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/internal/authority"
)

// TestResumed: a session that was begun before the clients' authority was replaced is not gone on with: whoever is
// not known to the new one is out with the next connection.
func TestResumed(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		a, other := authority.New(t), authority.New(t)
		a.Server("server", "server")
		a.Client("client")
		l := listen(t, roles(t), p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: a.File("server.pem"), Key: a.File("server.key"), ClientCA: a.File("ca.pem")})
		c := &tls.Config{RootCAs: a.Pool(), NextProtos: []string{"h2"}, MaxVersion: version, Certificates: []tls.Certificate{a.Pair("client")}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		dial := func() (resumed bool, err error) {
			conn, err := tls.Dial("tcp", l.Addr().String(), c)
			if err != nil {
				return false, err
			}
			defer conn.Close()
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			// A server of HTTP/2 speaks when the client has: until then a ticket comes, or the refusal.
			_, err = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			return conn.ConnectionState().DidResume, err
		}
		for n := range 2 {
			if resumed, err := dial(); err != nil || resumed != (n == 1) {
				t.Fatalf("version %x: resumed: %v, %v", version, resumed, err)
			}
		}
		a.Write("ca.pem", other.Bytes("ca.pem"))
		if resumed, err := dial(); err == nil {
			t.Errorf("version %x: a client of the authority before is let in, resumed: %v", version, resumed)
		}
	}
}

// TestNamesOfCertificates: a common name is whatever its certificate says, and so is none of the URIs that a client is
// known by; and what it says does not write a log of its own.
func TestNamesOfCertificates(t *testing.T) {
	a := authority.New(t)
	a.Server("server", "server")
	const uri = "spiffe://site/controller"
	a.Named("uri", "", uri)
	a.Named("feigned", uri)
	a.Named("empty", "")
	a.Named("lines", "x\nquillon: all is well")
	a.Named("wild", "*")
	said := make(chan string, 10)
	l := listen(t, roles(t), p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: a.File("server.pem"), Key: a.File("server.key"), ClientCA: a.File("ca.pem"),
		Clients: []p4rt.Client{{Name: uri, Roles: []string{"macs"}}}, Log: func(err error) { said <- err.Error() }})
	for n, file := range []string{"feigned", "empty", "lines", "wild", "uri"} {
		want := codes.Unavailable
		if file == "uri" {
			want = codes.OK
		}
		g := visit(t, l.Addr().String(), credentials.NewTLS(&tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{a.Pair(file)}}))
		code, _ := g.claim("macs", id(0, uint64(n+1)))
		g.want(file, code, want)
	}
	close(said)
	for text := range said {
		if strings.Contains(text, "\n") {
			t.Errorf("a line of the log is the client's: %q", text)
		}
	}
}
