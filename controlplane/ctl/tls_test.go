package ctl

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

// authority is a certificate authority of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(1)
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// files writes a certificate and its key.
func (a *authority) files(dir, name string, cert *x509.Certificate, key *ecdsa.PrivateKey) (certFile, keyFile string) {
	a.t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	for file, b := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert.Raw}, keyFile: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func (a *authority) leaf(use x509.ExtKeyUsage) (*x509.Certificate, *ecdsa.PrivateKey) {
	return a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "leaf"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"switch"}, ExtKeyUsage: []x509.ExtKeyUsage{use}})
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ours, others := newAuthority(t), newAuthority(t)
	ca, _ := ours.files(dir, "ca", ours.cert, ours.key)
	otherCA, _ := others.files(dir, "other", others.cert, others.key)
	serverCert, serverKey := ours.leaf(x509.ExtKeyUsageServerAuth)
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	server := &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{serverCert.Raw}, PrivateKey: serverKey}},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}
	f := newFake(1)
	at, _ := f.start(t, "127.0.0.1:0", credentials.NewTLS(server))
	client, clientKey := ours.leaf(x509.ExtKeyUsageClientAuth)
	cert, key := ours.files(dir, "client", client, clientKey)
	stranger, itsKey := others.leaf(x509.ExtKeyUsageClientAuth)
	strangerCert, strangerKey := others.files(dir, "stranger", stranger, itsKey)
	for _, c := range []struct {
		name string
		t    Transport
		want string // "": connects
	}{
		{"mutual", Transport{CA: ca, Cert: cert, Key: key}, ""},
		{"by name", Transport{CA: ca, Cert: cert, Key: key, ServerName: "switch"}, ""},
		{"wrong name", Transport{CA: ca, Cert: cert, Key: key, ServerName: "router"}, "router"},
		{"wrong authority", Transport{CA: otherCA, Cert: cert, Key: key}, "certificate"},
		{"the system's", Transport{TLS: true}, "certificate"},
		{"without a certificate", Transport{CA: ca}, "not connected"},
		{"a stranger's certificate", Transport{CA: ca, Cert: strangerCert, Key: strangerKey}, "not connected"},
		{"plain", Transport{}, "does it speak TLS?"},
		{"no such file", Transport{CA: filepath.Join(dir, "none")}, "none"},
		{"not PEM", Transport{CA: keyIsNoCertificate(t, dir)}, "no certificate"},
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

func keyIsNoCertificate(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "text")
	if err := os.WriteFile(name, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Renewed files are used for the next connection.
func TestCertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	first, second := newAuthority(t), newAuthority(t)
	config := func(a *authority) credentials.TransportCredentials {
		cert, key := a.leaf(x509.ExtKeyUsageServerAuth)
		return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}})
	}
	ca, _ := first.files(dir, "ca", first.cert, first.key)
	f := newFake(1)
	at, stop := f.start(t, "127.0.0.1:0", config(first))
	s := open(t, &Dialer{Transport: Transport{CA: ca}}, at, 1, options())
	if err := s.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	stop()
	f.start(t, at, config(second))
	until(t, s, "refusing", func(st Status) bool { return strings.Contains(st.Err, "certificate") })
	second.files(dir, "ca", second.cert, second.key)
	until(t, s, "primary", isState(Primary))
}
