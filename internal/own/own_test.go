package own_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/own"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func says(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	file, link, fifo := filepath.Join(dir, "f"), filepath.Join(dir, "l"), filepath.Join(dir, "p")
	must(t, os.WriteFile(file, []byte("text"), 0o600), os.Symlink(file, link), unix.Mkfifo(fifo, 0o600))
	for _, c := range []struct {
		path       string
		mode, deny os.FileMode
		want       string
	}{
		{file, 0o600, 0o077, ""}, {link, 0o600, 0o077, ""}, {file, 0o640, 0o077, "others can read " + file}, {file, 0o644, 0o022, ""},
		{file, 0o620, 0o022, "others can write to " + file}, {file, 0o602, 0o077, "others can write to " + file},
		{fifo, 0o600, 0, "is no file"}, {dir, 0o700, 0, "is a directory: name a file"}, {dir + "/none", 0, 0, "no such file"},
	} {
		_ = os.Chmod(c.path, c.mode)
		text, err := own.Read(c.path, os.O_RDONLY, c.deny, 3)
		if says(t, err, c.want); err == nil && string(text) != "tex" {
			t.Errorf("%q", text)
		}
	}
	_, err := own.Open(link, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	says(t, err, "is a symbolic link")
	_, err = own.Open(dir, os.O_RDWR|os.O_CREATE, 0)
	says(t, err, "is a directory: name a file")
	must(t, os.Symlink(dir+"/none", dir+"/leads nowhere"))
	_, err = own.Open(dir+"/leads nowhere", os.O_RDONLY, 0)
	says(t, err, "no such file")
	if os.Geteuid() == 0 {
		must(t, os.Chmod(file, 0o600), os.Chown(file, 65534, 65534))
		_, err = own.Open(file, os.O_RDONLY, 0)
		says(t, err, "belongs to another user")
	}
}

func TestDir(t *testing.T) {
	dir := t.TempDir()
	open, sticky := filepath.Join(dir, "open"), filepath.Join(dir, "sticky")
	must(t, os.MkdirAll(open+"/in", 0o700), os.MkdirAll(sticky+"/in", 0o700), os.Chmod(open, 0o777), os.Chmod(sticky, 0o777|os.ModeSticky),
		os.WriteFile(dir+"/file", nil, 0o600), os.Symlink(open, dir+"/in"))
	const replace = "others can replace files in "
	for _, c := range []struct{ dir, alone, sticky, path string }{ // what Dir says, and Path
		{dir, "", "", ""}, {sticky + "/in", "", "", ""}, {sticky, replace + sticky, "", replace + sticky},
		{open, replace + open, replace + open, replace + open}, {open + "/in", "", "", replace + open},
		{dir + "/in", replace + dir + "/in", replace + dir + "/in", replace + open},
		{dir + "/file", "not a directory", "not a directory", "not a directory"}, {dir + "/none", "no such file", "no such file", "no such file"},
	} {
		says(t, own.Dir(c.dir, false), c.alone)
		says(t, own.Dir(c.dir, true), c.sticky)
		says(t, own.Path(c.dir, false), c.path)
	}
	if os.Geteuid() == 0 {
		must(t, os.Chmod(open, 0o755), os.Chown(open, 65534, 65534))
		says(t, own.Path(open+"/in", false), "belongs to another user")
		says(t, own.Dir(open, true), "belongs to another user")
	}
}

// TestLinks: a symbolic link on the way is followed, and who made it, or can put another in its place, is looked at.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	sticky, open, mine := dir+"/sticky", dir+"/open", dir+"/mine"
	must(t, os.MkdirAll(mine+"/in", 0o700), os.Mkdir(sticky, 0o700), os.Mkdir(open, 0o700),
		os.Chmod(sticky, 0o777|os.ModeSticky), os.Chmod(open, 0o777),
		os.Symlink(mine, sticky+"/own"), os.Symlink("../mine", sticky+"/relative"), os.Symlink(sticky+"/own/in", mine+"/twice"),
		os.Symlink(mine, sticky+"/others"), os.Symlink(mine, open+"/anyones"), os.Symlink(dir+"/round", dir+"/round"))
	for link, want := range map[string]string{
		sticky + "/own": "", sticky + "/own/in": "", sticky + "/relative/in": "", mine + "/twice": "", open + "/anyones/in": "others can replace files in " + open,
		dir + "/round/x": "too many", sticky + "/own/none": "no such file",
	} {
		says(t, own.Path(link, false), want)
	}
	says(t, own.Path(sticky, true), "")
	if os.Geteuid() == 0 {
		must(t, os.Lchown(sticky+"/others", 65534, 65534))
		says(t, own.Path(sticky+"/others/in", true), sticky+"/others is another user's link")
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := own.Listen(path)
	must(t, err)
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Error(i.Mode(), err)
	}
	if _, err := own.Listen(path); !errors.Is(err, own.ErrAnswers) {
		t.Error(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as a process that is killed
	must(t, l.Close())
	if l, err = own.Listen(path); err != nil {
		t.Fatal(err)
	}
	must(t, l.Close(), os.WriteFile(path, nil, 0o600))
	_, err = own.Listen(path)
	says(t, err, "is no socket")
	_, err = own.Listen(path + strings.Repeat("x", 200))
	says(t, err, "too long")
}

// TestMain is the process of TestKilled when it is told which socket to open.
func TestMain(m *testing.M) {
	path := os.Getenv("OWN_LISTENS")
	if path == "" {
		os.Exit(m.Run())
	}
	l, err := own.Listen(path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// Memory that the kernel frees before it closes the socket.
	mem := make([]byte, 64<<20)
	for at := 0; at < len(mem); at += os.Getpagesize() {
		mem[at] = 1
	}
	fmt.Println("listens")
	for {
		if _, err := l.Accept(); err != nil {
			os.Exit(1)
		}
	}
}

// TestKilled: the socket of a process that was killed answers for a while, and is free all the same. That of one
// that lives, or is stopped, is not, and the process is named.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "OWN_LISTENS="+path)
		out, err := cmd.StdoutPipe()
		must(t, err, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		if line != "listens\n" {
			t.Fatal(line, err)
		}
		for _, sig := range []os.Signal{unix.SIGCONT, unix.SIGSTOP} {
			must(t, cmd.Process.Signal(sig))
			_, err := own.Listen(path)
			says(t, err, fmt.Sprintf("process %d answers on %s already", cmd.Process.Pid, path))
			if !errors.Is(err, own.ErrAnswers) {
				t.Error(err)
			}
		}
		must(t, cmd.Process.Kill())
		l, err := own.Listen(path)
		must(t, err)
		must(t, l.Close())
		_ = cmd.Wait()
	}
	// Who is told to give up does so at once.
	l, err := own.Listen(path)
	must(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := own.Await(ctx, path); !errors.Is(err, own.ErrAnswers) {
		t.Error("its own: ", err)
	}
}

// TestPlace: what this user may not look at is not looked at; the directory itself is.
func TestPlace(t *testing.T) {
	dir := t.TempDir()
	open := dir + "/open"
	must(t, os.MkdirAll(open+"/in", 0o700), os.Chmod(open, 0o777))
	says(t, own.Place(open+"/in"), "others can replace files in "+open)
	says(t, own.Place(dir), "")
	if os.Geteuid() != 0 {
		return
	}
	must(t, os.MkdirAll(dir+"/closed/in", 0o700), os.Chown(dir+"/closed/in", 65534, 65534), os.Chdir(dir+"/closed/in"))
	defer func() { must(t, os.Chdir("/")) }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the test
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
			t.Error(e)
			return
		}
		says(t, own.Path(".", true), "permission denied")
		says(t, own.Place("."), "")
		must(t, os.Chmod(".", 0o777))
		says(t, own.Place("."), "others can replace files in .")
	}()
	<-done
}
