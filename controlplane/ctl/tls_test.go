package ctl

import (
	"crypto/tls"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/internal/authority"
)

func TestTLS(t *testing.T) {
	ours, others := authority.New(t), authority.New(t)
	ours.Server("server", "a switch")
	ours.Client("client")
	others.Client("client")
	ours.Write("text", []byte("text"))
	server := &tls.Config{Certificates: []tls.Certificate{ours.Pair("server")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ours.Pool()}
	f := ctltest.New(1)
	at, _ := f.Start(t, "127.0.0.1:0", credentials.NewTLS(server))
	ca, cert, key := ours.File("ca.pem"), ours.File("client.pem"), ours.File("client.key")
	for _, c := range []struct {
		name string
		t    Transport
		want string // "": connects
	}{
		{"mutual", Transport{CA: ca, Cert: cert, Key: key}, ""},
		{"by name", Transport{CA: ca, Cert: cert, Key: key, ServerName: "switch"}, ""},
		{"wrong name", Transport{CA: ca, Cert: cert, Key: key, ServerName: "router"}, "router"},
		{"wrong authority", Transport{CA: others.File("ca.pem"), Cert: cert, Key: key}, "certificate"},
		{"the system's", Transport{TLS: true}, "certificate"},
		{"without a certificate", Transport{CA: ca}, "not connected"},
		{"a stranger's certificate", Transport{CA: ca, Cert: others.File("client.pem"), Key: others.File("client.key")}, "not connected"},
		{"plain", Transport{}, "does it speak TLS?"},
		{"no such file", Transport{CA: ours.File("none")}, "none"},
		{"not PEM", Transport{CA: ours.File("text")}, "no certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, &Dialer{Transport: c.t}, at, 1, options())
			err := s.Ready(within(t))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Renewed files are used for the next connection.
func TestCertificatesAreReadAgain(t *testing.T) {
	first, second := authority.New(t), authority.New(t)
	config := func(a *authority.Authority) credentials.TransportCredentials {
		a.Server("server", "a switch")
		return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{a.Pair("server")}})
	}
	ca := first.File("ca.pem")
	f := ctltest.New(1)
	at, stop := f.Start(t, "127.0.0.1:0", config(first))
	s := open(t, &Dialer{Transport: Transport{CA: ca}}, at, 1, options())
	if err := s.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	stop()
	f.Start(t, at, config(second))
	until(t, s, "refusing", func(st Status) bool { return strings.Contains(st.Err, "certificate") })
	first.Write("ca.pem", second.Bytes("ca.pem"))
	until(t, s, "primary", isState(Primary))
}
