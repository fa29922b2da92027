package ui

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/nf/port/pcap"
)

// instance is a running graph whose ports are wires in memory, and its control socket. It runs in one
// goroutine together with the far ends of the wires.
type instance struct {
	control *admin.Server
	pps     atomic.Int64 // datagrams a second that come in at port a
}

// run runs spec, whose ports are all wires, until the test ends.
func run(t *testing.T, spec string) *instance {
	t.Helper()
	s, err := graph.ParseSpec([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := packet.NewPool(16384, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	clk := clock.NewWall()
	ports, ends := map[string][]port.Port{}, map[string]port.Port{}
	for name := range s.Ports {
		here, far := mem.NewWire(name, name+"-far", pool, 4096, clk)
		ports[name], ends[name] = []port.Port{&counted{Port: here}}, far
	}
	inst, err := graph.New(graph.Config{Spec: s, Kinds: registry.Kinds(), Ports: ports, Clock: clk, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ui") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	x := &instance{}
	if x.control, err = admin.Listen(t.Context(), admin.Config{Name: "box", Path: filepath.Join(dir, "s"), Instance: inst}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- x.live(ctx, inst, clk, pool, ends) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, x.control.Close(), inst.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return x
}

// counted is a port of one goroutine. Other goroutines may ask for its totals.
type counted struct {
	port.Port
	rx, rxBytes, tx, txBytes atomic.Uint64
}

func (p *counted) Stats() port.Stats {
	return port.Stats{RxPackets: p.rx.Load(), RxBytes: p.rxBytes.Load(), TxPackets: p.tx.Load(), TxBytes: p.txBytes.Load()}
}

func (p *counted) Rx(b *packet.Batch) (int, error) {
	first := b.Len()
	n, err := p.Port.Rx(b)
	for _, x := range b.Bufs()[first:] {
		p.rx.Add(1)
		p.rxBytes.Add(uint64(x.Len()))
	}
	return n, err
}

func (p *counted) Tx(b *packet.Batch) (int, error) {
	for _, x := range b.Bufs() { // the wires take all
		p.tx.Add(1)
		p.txBytes.Add(uint64(x.Len()))
	}
	return p.Port.Tx(b)
}

// live sends to port a, breathes the graph, and takes the frames that leave it, each millisecond.
func (x *instance) live(ctx context.Context, inst *graph.Instance, clk clock.Clock, pool *packet.Pool, ends map[string]port.Port) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	last, due := clk.Now(), 0.0
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := clk.Now()
		due = min(due+float64(x.pps.Load())*now.Sub(last).Seconds(), 1000)
		last = now
		for due >= 1 {
			var b packet.Batch
			for due >= 1 && !b.Full() {
				f := pool.Get()
				f.SetBytes(datagram(n))
				b.Add(f)
				due--
				n++
			}
			if _, err := ends["a"].Tx(&b); err != nil {
				return err
			}
			b.PutAll()
		}
		if _, err := inst.Step(now); err != nil {
			return err
		}
		for _, end := range ends {
			var b packet.Batch
			for {
				if n, err := end.Rx(&b); n == 0 || err != nil {
					break
				}
				b.PutAll()
			}
		}
	}
}

// datagram is a UDP datagram from one of many tenants.
func datagram(n int) []byte {
	b := make([]byte, 60)
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, byte(n%4 + 1), 0, 1, 192, 0, 2, 1, 4, byte(n), 0, 53, 0, 26})
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	sum = sum>>16 + sum&0xffff
	b[24], b[25] = byte(^sum>>8), byte(^sum)
	return b
}

const chain = `
ports: {a: {kind: test}, b: {kind: test}}
apps: {wall: {kind: firewall, args: {rules: "allow+in:a"}}, nat: {kind: napt, args: {public: 198.51.100.1}}}
links: [a.out -> wall.a, wall.b -> nat.a, nat.b -> b.in, b.out -> nat.b, nat.a -> wall.b, wall.a -> a.in]`

// serve serves an instance's page, at a TCP address.
func serve(t *testing.T, x *instance, more ...func(*Config)) *Server {
	t.Helper()
	cfg := Config{Address: "127.0.0.1:0", Dial: x.control.Client, Clock: clock.NewWall()}
	for _, f := range more {
		f(&cfg)
	}
	s, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client returns an HTTP client that has the token.
func client(t *testing.T, s *Server) *http.Client {
	t.Helper()
	jar, _ := cookiejar.New(nil)
	c := &http.Client{Jar: jar, Timeout: 30 * time.Second}
	if status, body := get(t, c, s.URL()); status != 200 || !strings.Contains(body, "<title>quillon") {
		t.Fatalf("status %d: %s", status, body)
	}
	return c
}

func get(t *testing.T, c *http.Client, url string) (status int, body string) {
	t.Helper()
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// TestGuard: without the token, or under another host's name, the page tells nothing. Without Change no
// method changes anything.
func TestGuard(t *testing.T) {
	s := serve(t, run(t, chain))
	addr := s.http.Addr().String()
	ask := func(method, path, host, cookie string) int {
		r, err := http.NewRequest(method, "http://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			r.Host = host
		}
		if cookie != "" {
			r.Header.Set("Cookie", fmt.Sprintf("quillon-%d=%s", s.http.Addr().(*net.TCPAddr).Port, cookie))
		}
		a, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		return a.StatusCode
	}
	for _, path := range []string{"/", "/ui.js", "/events", "/tables", "/table?app=nat", "/trace?port=a", "/capture?at=a.out", "/?token=", "/?token=wrong", "/events?token=" + s.token} {
		if got := ask("GET", path, "", ""); got != http.StatusForbidden {
			t.Errorf("%s: status %d without the token", path, got)
		}
		if got := ask("GET", path, "", s.token[1:]); got != http.StatusForbidden {
			t.Errorf("%s: status %d with a part of the token", path, got)
		}
		if got := ask("GET", path, "evil.example", s.token); got != http.StatusMisdirectedRequest {
			t.Errorf("%s: status %d for another host", path, got)
		}
	}
	if got := ask("GET", "/?token="+s.token, "evil.example", ""); got != http.StatusMisdirectedRequest {
		t.Errorf("status %d for another host with the token", got)
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		if got := ask(method, "/trace", "", s.token); got != http.StatusMethodNotAllowed {
			t.Errorf("%s: status %d", method, got)
		}
	}
	if got := ask("GET", "/tables", fmt.Sprintf("localhost:%d", s.http.Addr().(*net.TCPAddr).Port), s.token); got != 200 {
		t.Errorf("status %d for localhost", got)
	}
	if _, err := Listen(Config{Address: "0.0.0.0:0"}); err == nil || !strings.Contains(err.Error(), "--insecure") {
		t.Errorf("an address of others: %v", err)
	}
}

// TestChange: only with Change, and only from the page, arguments and tables can be changed: not by a request
// of another page, not without the token, and not by a body that is no JSON or too long.
func TestChange(t *testing.T) {
	x := run(t, chain)
	post := func(c *http.Client, s *Server, path, origin, kind, body string) (int, string) {
		t.Helper()
		r, _ := http.NewRequest("POST", "http://"+s.http.Addr().String()+path, strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		a, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		text, _ := io.ReadAll(a.Body)
		return a.StatusCode, string(text)
	}
	const json, set = "application/json", `{"app": "wall", "args": {"rules": "allow+in:b"}}`
	insert := `{"app": "wall", "table": "acl", "what": "insert", "words": "dport=53 priority=900 allow"}`
	readOnly := serve(t, x)
	if status, _ := post(client(t, readOnly), readOnly, "/set", "", json, set); status != http.StatusMethodNotAllowed {
		t.Errorf("a page that only shows: status %d", status)
	}
	s := serve(t, x, func(c *Config) { c.Change = true })
	c, host := client(t, s), "http://"+s.http.Addr().String()
	for _, q := range []struct {
		what               string
		c                  *http.Client
		path, origin, kind string
		body               string
		status             int
	}{
		{"no token", http.DefaultClient, "/set", host, json, set, http.StatusForbidden},
		{"another page", c, "/set", "http://elsewhere.example", json, set, http.StatusForbidden},
		{"a file", c, "/set", "null", json, set, http.StatusForbidden},
		{"a form", c, "/set", host, "text/plain", set, http.StatusForbidden},
		{"too much", c, "/set", host, json, `{"app": "` + strings.Repeat("x", maxChange) + `"}`, http.StatusBadRequest},
		{"no JSON", c, "/set", host, json, "x", http.StatusConflict},
		{"no such app", c, "/set", host, json, `{"app": "nosuch", "args": {"rules": ""}}`, http.StatusConflict},
		{"no words", c, "/change", host, json, `{"app": "wall", "table": "acl", "what": "insert", "words": "= ="}`, http.StatusConflict},
		{"", c, "/set", host, json, set, http.StatusOK},
		{"", c, "/change", "", json, insert, http.StatusOK},
	} {
		if status, text := post(q.c, s, q.path, q.origin, q.kind, q.body); status != q.status {
			t.Errorf("%q: status %d: %s", q.what, status, text)
		}
	}
	if status, body := get(t, c, host+"/table?app=wall&table=acl"); status != 200 || !strings.Contains(body, `"priority":900`) {
		t.Errorf("status %d: %s", status, body)
	}
}

// TestUnixSocket: the socket belongs to its user and asks for no token.
func TestUnixSocket(t *testing.T) {
	x := run(t, chain)
	dir, err := os.MkdirTemp("", "ui")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := Listen(Config{Address: "unix:" + dir + "/page", Dial: x.control.Client, Clock: clock.NewWall()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if i, err := os.Stat(dir + "/page"); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", i, err)
	}
	c := &http.Client{Transport: &http.Transport{Dial: func(string, string) (net.Conn, error) { return net.Dial("unix", dir+"/page") }}}
	if status, body := get(t, c, "http://quillon/tables"); status != 200 || !strings.Contains(body, `"app":"wall"`) {
		t.Errorf("status %d: %s", status, body)
	}
}

// TestEvents: each listener gets a state each second, and one look serves several listeners. Without
// listeners the instance is not asked. A listener that never reads does not delay the others.
func TestEvents(t *testing.T) {
	x := run(t, chain)
	dials := atomic.Int32{}
	s, err := Listen(Config{Address: "127.0.0.1:0", Clock: clock.NewWall(), Dial: func() (*admin.Client, error) {
		dials.Add(1)
		return x.control.Client()
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	x.pps.Store(2000)
	time.Sleep(20 * time.Millisecond)
	if n := dials.Load(); n != 0 {
		t.Errorf("%d dials with nobody there", n)
	}
	c := client(t, s)
	c.Timeout = 0
	deaf, err := c.Get("http://" + s.http.Addr().String() + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Body.Close()
	for range 2 {
		r, err := c.Get("http://" + s.http.Addr().String() + "/events")
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewScanner(r.Body)
		in.Buffer(nil, 1<<20)
		rated := false
		for in.Scan() && !rated {
			if strings.Contains(in.Text(), `"error"`) {
				t.Fatal(in.Text())
			}
			rated = strings.Contains(in.Text(), `"link":"a.out -`) && strings.Contains(in.Text(), `"growing"`)
		}
		if !rated {
			t.Fatalf("no rates: %v", in.Err())
		}
		r.Body.Close()
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d dials for three who looked", n)
	}
	deaf.Body.Close()
	for end := time.Now().Add(30 * time.Second); s.watchers() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("who has gone is still told")
		}
	}
}

// TestAsked: tables, traces and captures of the running graph. Bad names are refused with the reason.
func TestAsked(t *testing.T) {
	x := run(t, chain)
	s := serve(t, x)
	c := client(t, s)
	host := "http://" + s.http.Addr().String()
	x.pps.Store(500)
	if status, body := get(t, c, host+"/trace?port=a"); status != 200 || !strings.Contains(body, `"node":"wall"`) || !strings.Contains(body, `"node":"nat"`) {
		t.Errorf("status %d: %s", status, body)
	}
	if status, body := get(t, c, host+"/table?app=wall&table=acl"); status != 200 || !strings.Contains(body, `"action":"allow"`) {
		t.Errorf("status %d: %s", status, body)
	}
	for _, path := range []string{"/trace?port=nosuch", "/p4?app=nosuch", "/table?app=nosuch&table=x", "/capture?at=nosuch.out"} {
		if status, body := get(t, c, host+path); status != http.StatusConflict || !strings.Contains(body, "nosuch") {
			t.Errorf("%s: status %d: %s", path, status, body)
		}
	}
	r, err := c.Get(host + "/capture?at=nat.b")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 200 {
		t.Fatalf("status %d, %v", r.StatusCode, err)
	}
	in, err := pcap.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	frames := 0
	var p pcap.Packet
	for in.Next(&p) == nil {
		if frames++; !bytes.Equal(p.Data[26:30], []byte{198, 51, 100, 1}) {
			t.Fatalf("%x", p.Data)
		}
	}
	if frames < 100 {
		t.Errorf("%d frames in %v at 500 a second", frames, captureFor)
	}
}

// TestBusy: only few traces run at a time. A client that has gone frees its place.
func TestBusy(t *testing.T) { // no frame comes
	s := serve(t, run(t, chain)) // nothing comes
	c := client(t, s)
	host := "http://" + s.http.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range maxSlow {
		r, _ := http.NewRequestWithContext(ctx, "GET", host+"/trace?port=a", nil)
		go func() {
			if a, err := c.Do(r); err == nil {
				a.Body.Close()
			}
		}()
	}
	for end := time.Now().Add(30 * time.Second); len(s.slow) < maxSlow && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if status, body := get(t, c, host+"/trace?port=a"); status != http.StatusConflict || !strings.Contains(body, "under way") {
		t.Errorf("status %d: %s", status, body)
	}
	cancel()
	for end := time.Now().Add(30 * time.Second); len(s.slow) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the places are not given back")
		}
	}
}
