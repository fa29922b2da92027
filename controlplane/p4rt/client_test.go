package p4rt_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/internal/authority"
)

// roles is a server with device 1 and two roles besides the default one.
func roles(t *testing.T) *p4rt.Server {
	t.Helper()
	s := p4rt.New(p4rt.Config{Roles: map[string]p4rt.Role{"macs": {Objects: []string{"t"}, PacketOut: true}, "none": {}}})
	if err := s.Add(1, &broken{testInfo()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func listen(t *testing.T, s *p4rt.Server, cfg p4rt.ListenConfig) *p4rt.Listener {
	t.Helper()
	l, err := p4rt.Listen(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// guest is a client with a connection of its own.
type guest struct {
	t    *testing.T
	conn *grpc.ClientConn
	p4v1.P4RuntimeClient
}

func visit(t *testing.T, addr string, c credentials.TransportCredentials) *guest {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &guest{t, conn, p4v1.NewP4RuntimeClient(conn)}
}

// id is an election id; 0, 0: none.
func id(high, low uint64) *p4v1.Uint128 {
	if high == 0 && low == 0 {
		return nil
	}
	return &p4v1.Uint128{High: high, Low: low}
}

// claim is the code of the answer to a claim: OK is for a primary.
func (g *guest) claim(role string, e *p4v1.Uint128) (codes.Code, p4v1.P4Runtime_StreamChannelClient) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 60*time.Second)
	g.t.Cleanup(cancel)
	s, err := g.StreamChannel(ctx)
	if err != nil {
		return status.Code(err), nil
	}
	m := &p4v1.MasterArbitrationUpdate{DeviceId: 1, Role: &p4v1.Role{Name: role}, ElectionId: e}
	_ = s.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: m}})
	r, err := s.Recv()
	if err != nil {
		return status.Code(err), s
	}
	return codes.Code(r.GetArbitration().GetStatus().GetCode()), s
}

func (g *guest) want(what string, got, want codes.Code) {
	g.t.Helper()
	if got != want {
		g.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (g *guest) write(role string, e *p4v1.Uint128) codes.Code {
	_, err := g.Write(g.t.Context(), &p4v1.WriteRequest{DeviceId: 1, Role: role, ElectionId: e})
	return status.Code(err)
}

func (g *guest) set(role string, e *p4v1.Uint128) codes.Code {
	_, err := g.SetForwardingPipelineConfig(g.t.Context(), &p4v1.SetForwardingPipelineConfigRequest{DeviceId: 1, Role: role, ElectionId: e})
	return status.Code(err)
}

func (g *guest) read(role string) codes.Code {
	r, err := g.Read(g.t.Context(), &p4v1.ReadRequest{DeviceId: 1, Role: role})
	if err == nil {
		_, err = r.Recv()
	}
	if status.Code(err) == codes.Unknown { // the end of it
		return codes.OK
	}
	return status.Code(err)
}

// TestCertificates: what a client may do is what its certificate's name was given: a role
// is a boundary.
func TestCertificates(t *testing.T) {
	a, strange := authority.New(t), authority.New(t)
	a.Server("server", "s")
	a.Named("all", "controller1")
	a.Named("macs", "anything", "https://site/other", "spiffe://site/macs")
	a.Named("eyes", "dashboard")
	a.Named("nobody", "macs", "spiffe://site/macs/more")
	strange.Named("all", "controller1")
	s := roles(t)
	var mu sync.Mutex
	var logged []string
	l := listen(t, s, p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: a.File("server.pem"), Key: a.File("server.key"), ClientCA: a.File("ca.pem"),
		Log: func(err error) { mu.Lock(); logged = append(logged, err.Error()); mu.Unlock() },
		Clients: []p4rt.Client{
			{Name: "controller1", Roles: []string{""}},
			{Name: "spiffe://site/macs", Roles: []string{"macs"}, MaxElection: id(1, 9)},
			{Name: "dashboard", Roles: []string{"", "none"}, ReadOnly: true},
		}})
	as := func(from *authority.Authority, file string) *guest {
		return visit(t, l.Addr().String(), credentials.NewTLS(&tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{from.Pair(file)}}))
	}
	all, macs, eyes := as(a, "all"), as(a, "macs"), as(a, "eyes")

	got, _ := all.claim("", id(0, 5))
	all.want("the default role", got, codes.OK)
	got, _ = all.claim("macs", id(0, 1))
	all.want("a role that is not all's", got, codes.PermissionDenied)
	got, _ = macs.claim("", id(0, 6))
	macs.want("the default role", got, codes.PermissionDenied)
	got, _ = macs.claim("", nil)
	macs.want("the default role, as a backup", got, codes.PermissionDenied)
	got, _ = macs.claim("none", id(0, 6))
	macs.want("another role", got, codes.PermissionDenied)
	got, _ = macs.claim("macs", id(1, 10))
	macs.want("an id above its highest", got, codes.PermissionDenied)
	got, _ = macs.claim("macs", id(1, 9))
	macs.want("its own role", got, codes.OK)
	got, _ = eyes.claim("", id(1, 1))
	eyes.want("a claim of who may read", got, codes.PermissionDenied)
	got, _ = eyes.claim("", nil)
	eyes.want("a backup that may read", got, codes.AlreadyExists)

	macs.want("a write in its role", macs.write("macs", id(1, 9)), codes.OK)
	macs.want("a write in the default role, with the primary's id", macs.write("", id(0, 5)), codes.PermissionDenied)
	macs.want("a pipeline with the primary's id", macs.set("", id(0, 5)), codes.PermissionDenied)
	eyes.want("a write with the primary's id", eyes.write("", id(0, 5)), codes.PermissionDenied)
	eyes.want("a pipeline with the primary's id", eyes.set("", id(0, 5)), codes.PermissionDenied)
	macs.want("a read in its role", macs.read("macs"), codes.OK)
	macs.want("a read of everything", macs.read(""), codes.PermissionDenied)
	eyes.want("a read of everything", eyes.read(""), codes.OK)
	eyes.want("a read in a role that is not its own", eyes.read("macs"), codes.PermissionDenied)
	all.want("a write", all.write("", id(0, 5)), codes.OK)

	for name, g := range map[string]*guest{"a certificate with no such name": as(a, "nobody"), "another authority's": as(strange, "all")} {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		if _, err := g.Capabilities(ctx, &p4v1.CapabilitiesRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	mu.Lock()
	defer mu.Unlock()
	if len(logged) != 1 || !strings.Contains(logged[0], "no client is called macs or spiffe://site/macs/more: name it with --p4-client") {
		t.Errorf("%q", logged)
	}
}

// TestElectionIsNoSecret: with an id that another client claimed nobody writes, whom the
// server can tell from it; and without a list each certificate may do everything.
func TestElectionIsNoSecret(t *testing.T) {
	a := authority.New(t)
	a.Server("server", "s")
	a.Named("one", "same")
	a.Named("two", "same")
	s := roles(t)
	l := listen(t, s, p4rt.ListenConfig{Address: "127.0.0.1:0", Cert: a.File("server.pem"), Key: a.File("server.key"), ClientCA: a.File("ca.pem")})
	plain := listen(t, s, p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true})
	as := func(file string) *guest {
		return visit(t, l.Addr().String(), credentials.NewTLS(&tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{a.Pair(file)}}))
	}
	one, two, any := as("one"), as("two"), visit(t, plain.Addr().String(), insecure.NewCredentials())
	got, _ := one.claim("", id(0, 5))
	one.want("a claim", got, codes.OK)
	one.want("a write", one.write("", id(0, 5)), codes.OK)
	as("one").want("a write on another connection", as("one").write("", id(0, 5)), codes.OK)
	two.want("a write with another's id", two.write("", id(0, 5)), codes.PermissionDenied)
	any.want("a write with another's id", any.write("", id(0, 5)), codes.PermissionDenied)
	got, _ = any.claim("", id(0, 6))
	any.want("a claim", got, codes.OK)
	one.want("a write of who was primary", one.write("", id(0, 6)), codes.PermissionDenied)
}

// TestSocket: the socket is root's and the owner's, by its mode and by what the kernel
// says of who connects; a dead process's is replaced, and a living one's not.
func TestSocket(t *testing.T) {
	if env := os.Getenv("P4RT_TEST_SOCKET"); env != "" { // as another user
		conn, err := net.Dial("unix", env)
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(60 * time.Second)) //nolint:forbidigo // of a socket
			_, err = conn.Read(make([]byte, 1))
		}
		fmt.Println("got", err)
		return
	}
	s := roles(t)
	dir := filepath.Join(t.TempDir(), "p4rt")
	path := filepath.Join(dir, "s")
	var mu sync.Mutex
	var logged string
	cfg := p4rt.ListenConfig{Address: "unix:" + path, Log: func(err error) { mu.Lock(); logged += err.Error(); mu.Unlock() }}
	l := listen(t, s, cfg)
	if _, err := p4rt.Listen(s, cfg); err == nil || !strings.Contains(err.Error(), "answers on") {
		t.Errorf("a second server: %v", err)
	}
	for name, want := range map[string]os.FileMode{dir: 0o700, path: 0o600} {
		if fi, err := os.Stat(name); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v %v, want %v", name, fi.Mode(), err, want)
		}
	}
	mine := visit(t, "unix:"+path, insecure.NewCredentials())
	got, _ := mine.claim("", id(math.MaxUint64, math.MaxUint64))
	mine.want("the highest id", got, codes.OK)
	mine.want("a write", mine.write("", id(math.MaxUint64, math.MaxUint64)), codes.OK)
	if os.Getuid() == 0 {
		// Whatever became of the modes, the kernel says who it is.
		for p := dir; p != "/tmp" && p != "/"; p = filepath.Dir(p) {
			if err := os.Chmod(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		self := filepath.Join(dir, "test")
		if b, err := os.ReadFile(os.Args[0]); err != nil || os.WriteFile(self, b, 0o755) != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, "-test.run", "^TestSocket$")
		cmd.Env = append(os.Environ(), "P4RT_TEST_SOCKET="+path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		mu.Lock()
		if err != nil || !strings.Contains(string(out), "got EOF") && !strings.Contains(string(out), "connection reset") || !strings.Contains(logged, "uid 65534 is neither root nor the server's user") {
			t.Errorf("another user: %s, %v; logged: %s", out, err, logged)
		}
		mu.Unlock()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	// What a process leaves that was killed.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	listen(t, s, cfg)
}

// TestForget: whoever claimed the highest id keeps all others out, until the socket's
// owner has it forgotten; others cannot, and cannot claim what is above all of theirs.
func TestForget(t *testing.T) {
	s := roles(t)
	tcp := listen(t, s, p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true})
	path := "unix:" + filepath.Join(t.TempDir(), "p4rt", "s")
	listen(t, s, p4rt.ListenConfig{Address: path})
	root := visit(t, path, insecure.NewCredentials())
	far := func() *guest { return visit(t, tcp.Addr().String(), insecure.NewCredentials()) }
	forget := func(g *guest, role string) codes.Code {
		return status.Code(g.conn.Invoke(t.Context(), p4rt.ForgetMethod, &p4v1.MasterArbitrationUpdate{DeviceId: 1, Role: &p4v1.Role{Name: role}}, &emptypb.Empty{}))
	}
	const most = 1<<63 - 1
	stranger := far()
	got, _ := stranger.claim("", id(1<<63, 0))
	stranger.want("what is the socket's", got, codes.PermissionDenied)
	got, _ = stranger.claim("", id(math.MaxUint64, math.MaxUint64))
	stranger.want("2^128-1", got, codes.PermissionDenied)
	got, held := stranger.claim("", id(most, math.MaxUint64))
	stranger.want("2^127-1", got, codes.OK)
	got, _ = far().claim("", id(1, 1))
	stranger.want("a lower one", got, codes.AlreadyExists)

	// Root need not wait for anybody.
	got, mine := root.claim("", id(1<<63, 1))
	root.want("root's claim", got, codes.OK)
	root.want("root's write", root.write("", id(1<<63, 1)), codes.OK)
	stranger.want("the stranger's write", stranger.write("", id(most, math.MaxUint64)), codes.PermissionDenied)
	stranger.want("a stranger has it forgotten", forget(stranger, ""), codes.Unimplemented)
	root.want("a role that nobody claimed", forget(root, "macs"), codes.NotFound)
	root.want("root has it forgotten", forget(root, ""), codes.OK)
	for what, s := range map[string]p4v1.P4Runtime_StreamChannelClient{"the stranger's stream": held, "root's": mine} {
		var err error
		for err == nil {
			_, err = s.Recv()
		}
		root.want(what, status.Code(err), codes.Aborted)
	}
	root.want("a write behind it", root.write("", id(1<<63, 1)), codes.PermissionDenied)
	got, _ = far().claim("", id(0, 1))
	stranger.want("the lowest id", got, codes.OK)

	got, _ = root.claim("macs", id(1<<63, 7))
	root.want("a role", got, codes.OK)
	root.want("it is forgotten", forget(root, "macs"), codes.OK)
	root.want("there is nothing left of it", forget(root, "macs"), codes.NotFound)
	got, _ = far().claim("macs", id(0, 1))
	stranger.want("a role anew", got, codes.OK)
}
