package admin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/admin"
)

// hold has a lock on a file, or a directory, as another process would.
func hold(t *testing.T, path, content string) *os.File {
	t.Helper()
	var f *os.File
	var err error
	if content == "" {
		f, err = os.Open(path)
	} else if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
		_, err = io.WriteString(f, content)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func refused(t *testing.T, path, want string) {
	t.Helper()
	s, err := admin.Listen(t.Context(), admin.Config{Path: path, Wait: 50 * time.Millisecond})
	if err == nil {
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, not one line with: %s", err, want)
	}
}

// What any user can lock, the directory that all can open, is nothing to an instance.
func TestDirectoryLocked(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	hold(t, dir, "")
	done := make(chan error, 1)
	go func() {
		s, err := admin.Listen(t.Context(), admin.Config{Path: filepath.Join(dir, "x.sock"), Wait: time.Second})
		if err == nil {
			err = s.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("it waits for who has locked the directory")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// A process that has the place and says nothing is waited for, not for ever, and named.
// TestSweep: the socket of an instance that was killed goes, and that of one that lives, or starts, stays.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	left := func() (names []string) {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			names = append(names, e.Name())
		}
		return names
	}
	dead := func(path string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	x := filepath.Join(dir, "x.sock")
	dead(x)
	if err := os.WriteFile(x+".lock", []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	y := filepath.Join(dir, "y.sock")
	dead(y)
	if err := admin.Sweep(x, y, filepath.Join(dir, "none")); err != nil || len(left()) != 0 {
		t.Errorf("dead: %v, %v left", err, left())
	}
	dead(x)
	f := hold(t, x+".lock", "1\n")
	if err := admin.Sweep(x); err != nil || len(left()) != 2 {
		t.Errorf("it starts: %v, %v left", err, left())
	}
	f.Close()
	s, err := admin.Listen(t.Context(), admin.Config{Path: x})
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Sweep(x); err != nil || len(left()) != 2 {
		t.Errorf("it lives: %v, %v left", err, left())
	}
	// A lock that is gone does not make it dead, nor does a file that is no socket go.
	if err := os.Remove(x + ".lock"); err != nil {
		t.Fatal(err)
	}
	if err := admin.Sweep(x); err != nil || len(left()) != 1 {
		t.Errorf("without its lock: %v, %v left", err, left())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(x, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := admin.Sweep(x); err == nil || !strings.Contains(err.Error(), "no socket") || len(left()) != 1 {
		t.Errorf("a file: %v, %v left", err, left())
	}
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	f := hold(t, path+".lock", "4242\n")
	refused(t, path, "process 4242 has "+path+".lock, and neither answers nor ends: end it (kill 4242)")
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	time.AfterFunc(20*time.Millisecond, func() { cancel(enough) })
	if _, err := admin.Listen(ctx, admin.Config{Path: path, Wait: time.Hour}); !errors.Is(err, enough) {
		t.Error(err)
	}
	if err := f.Close(); err != nil { // a process that has died leaves the file, not the lock
		t.Fatal(err)
	}
	s, err := admin.Listen(t.Context(), admin.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path + ".lock"); err != nil || string(text) != fmt.Sprintln(os.Getpid()) {
		t.Errorf("%q %v", text, err)
	}
	if i, err := os.Stat(path + ".lock"); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", i, err)
	}
	refused(t, path, "answers on "+path+" already")
	// One that ends keeps the place until it has ended.
	if err := s.Hangup(); err != nil {
		t.Error(err)
	}
	refused(t, path, fmt.Sprintf("process %d has %s.lock", os.Getpid(), path))
	next := make(chan error, 1)
	go func() {
		s, err := admin.Listen(t.Context(), admin.Config{Path: path, Wait: time.Minute})
		if err == nil {
			err = s.Close()
		}
		next <- err
	}()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-next; err != nil {
		t.Error(err)
	}
}

// What another user may have put in the lock's place is left alone.
func TestLockForeign(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		make func() error
		want string
	}{
		{func() error { return os.Symlink(precious, path+".lock") }, "is a symbolic link"},
		{func() error { return unix.Mkfifo(path+".lock", 0o600) }, "is no file"},
		{func() error { return os.WriteFile(path+".lock", nil, 0o644) }, "others can read " + path + ".lock"},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		refused(t, path, c.want)
		if err := os.Remove(path + ".lock"); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("%q %v", text, err)
	}
	shared := filepath.Join(t.TempDir(), "shared")
	if err := errors.Join(os.Mkdir(shared, 0o755), os.Chmod(shared, 0o777)); err != nil {
		t.Fatal(err)
	}
	refused(t, filepath.Join(shared, "x.sock"), "others can replace files in "+shared)
	refused(t, filepath.Join(shared, "none", "x.sock"), "make the directory first")
}

// Before there is an instance requests wait for it, and an order to stop does not.
func TestBeforeServe(t *testing.T) {
	x := newBench(t)
	stopped := make(chan struct{})
	s, err := admin.Listen(t.Context(), admin.Config{Path: filepath.Join(t.TempDir(), "x.sock"), Name: "late", Stop: func() { close(stopped) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dial := func() *admin.Client {
		c, err := admin.Dial(s.Path())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	got := make(chan error, 1)
	waits := dial()
	go func() {
		g, err := waits.Graph()
		if err == nil && g.Name != "late" {
			err = fmt.Errorf("it is %s", g.Name)
		}
		got <- err
	}()
	if err := dial().Stop(); err != nil {
		t.Error(err)
	}
	<-stopped
	select {
	case err := <-got:
		t.Errorf("answered before there was an instance: %v", err)
	default:
	}
	s.Serve(x.inst)
	if err := <-got; err != nil {
		t.Error(err)
	}
	if _, err := dial().Process(); err == nil || !strings.Contains(err.Error(), "says nothing of its process") {
		t.Error(err)
	}
}

// Who does not hang up keeps his place, and no more than so many have one.
func TestManyClients(t *testing.T) {
	x := newBench(t)
	var all []net.Conn
	for range 64 {
		c, err := net.Dial("unix", x.srv.Path())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	c := x.dial()
	if _, err := c.Graph(); err == nil || !strings.Contains(err.Error(), "64 clients are served already") {
		t.Errorf("one more: %v", err)
	}
	for _, c := range all {
		_ = c.Close()
	}
	for late := time.After(60 * time.Second); ; {
		if _, err := x.dial().Graph(); err == nil {
			return
		}
		select {
		case <-late:
			t.Fatal("no place gets free")
		default:
		}
	}
}

// A client learns why it was refused also when the instance hung up before the request was sent.
func TestRefusedBeforeAsking(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := admin.Dial(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	served, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := served.Write([]byte(`{"v":1,"error":"64 clients are served already"}` + "\n")); err != nil {
		t.Fatal(err)
	}
	_ = served.Close()
	if _, err := c.Graph(); err == nil || !strings.Contains(err.Error(), "64 clients are served already") {
		t.Errorf("refused: %v", err)
	}
}

// TestControlElsewhere: a directory of this user's is no place for a socket when others can put another one there.
func TestControlElsewhere(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.MkdirAll(open+"/in", 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	refused(t, open+"/in/x.sock", "others can replace files in "+open)
	if os.Geteuid() != 0 {
		return
	}
	if err := errors.Join(os.Mkdir(dir+"/shared", 0o700), os.Chmod(dir+"/shared", 0o777|os.ModeSticky), os.Symlink(dir, dir+"/shared/link"), os.Lchown(dir+"/shared/link", 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	refused(t, dir+"/shared/link/x.sock", "is another user's link")
}

// TestFeignedInstance: a socket that another user has put where an instance's is expected is not asked, but by root.
func TestFeignedInstance(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("sockets of several users need root")
	}
	dir, err := os.MkdirTemp("", "feigned")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x.sock")
	// as does something in a thread of a user's, which ends with it.
	as := func(uid uintptr, do func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); e != 0 {
				t.Error(e)
				return
			}
			do()
		}()
		<-done
	}
	const mallory, alice = 65533, 65534
	var l net.Listener
	as(mallory, func() {
		if l, err = net.Listen("unix", path); err == nil {
			err = os.Chmod(path, 0o777)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for uid, want := range map[uintptr]string{alice: "is of another user", mallory: "", 0: ""} {
		as(uid, func() {
			c, err := admin.Dial(path)
			if err == nil {
				_ = c.Close()
			}
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("uid %d: %v", uid, err)
			}
		})
	}
}
