// Package authority is a certificate authority for tests of TLS, with files as
// programs are given them:
//
//	a := authority.New(t)         a.File("ca.pem")
//	a.Server("server", "first")   a.File("server.pem"), a.File("server.key")
//	a.Client("client")            a.Pair("client"), a.Pool()
package authority

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
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates, and writes them to a folder of the test.
type Authority struct {
	t    testing.TB
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	last int64
}

// New makes an authority, and writes ca.pem and ca.key.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	a.key, a.cert = a.sign("ca", &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// Server writes FILE.pem and FILE.key of a server called name, which is at 127.0.0.1
// and at "switch".
func (a *Authority) Server(file, name string) {
	a.t.Helper()
	a.sign(file, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"switch"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

// Client writes those of a client called "controller".
func (a *Authority) Client(file string) {
	a.t.Helper()
	a.Named(file, "controller")
}

// Named writes those of a client with a common name, and with URIs.
func (a *Authority) Named(file, name string, uris ...string) {
	a.t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			a.t.Fatal(err)
		}
		c.URIs = append(c.URIs, u)
	}
	a.sign(file, c)
}

func (a *Authority) sign(file string, c *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	// The years of a test's certificates do not depend on the clock.
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(a.last+1), time.Unix(0, 0), time.Unix(1<<33, 0)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, by := c, key
	if a.cert != nil {
		parent, by = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	a.Write(file+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.Write(file+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}))
	return key, cert
}

// File is where a file is.
func (a *Authority) File(name string) string { return filepath.Join(a.dir, name) }

// Write writes a file that is newer than all before.
func (a *Authority) Write(name string, b []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.File(name), b, 0o600); err != nil {
		a.t.Fatal(err)
	}
	// However coarse the file system's times are.
	a.last++
	at := time.Unix(1_000_000+a.last, 0)
	if err := os.Chtimes(a.File(name), at, at); err != nil {
		a.t.Fatal(err)
	}
}

// Bytes are a file's.
func (a *Authority) Bytes(name string) []byte {
	a.t.Helper()
	b, err := os.ReadFile(a.File(name))
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

// Pair is the certificate of FILE.pem, with its key.
func (a *Authority) Pair(file string) tls.Certificate {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(a.File(file+".pem"), a.File(file+".key"))
	if err != nil {
		a.t.Fatal(err)
	}
	return pair
}

// Pool has the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}
