// Package own opens files, directories and sockets that no other user could have put
// there, or can change. Root may do anything anyway: what is root's is trusted, too.
package own

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// mine reports whether what i tells of belongs to this user or to root.
func mine(i fs.FileInfo) bool {
	u, ok := i.Sys().(*syscall.Stat_t)
	return ok && (u.Uid == 0 || int(u.Uid) == os.Geteuid())
}

// Open opens a regular file of this user's or root's, of which others have none of the
// rights deny: 0o077 or 0o022. Open does not wait for what is no file, such as a pipe. Flags are those of
// os.OpenFile; with unix.O_NOFOLLOW a symbolic link is refused. A file that is made has
// mode 0600.
func Open(path string, flags int, deny fs.FileMode) (_ *os.File, err error) {
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link: remove it", path)
	}
	if err != nil {
		// The kernel does not open another user's file in a sticky directory to make one (proc_sys_fs(5), protected_regular).
		if i, no := os.Stat(path); no == nil {
			err = cmp.Or(unfit(path, i), err)
		}
		return nil, err
	}
	i, err := f.Stat()
	if err == nil {
		err = unfit(path, i)
	}
	switch {
	case err != nil:
	case i.Mode()&deny&0o022 != 0:
		err = fmt.Errorf("others can write to %s: see what is in it, and chmod 600 %[1]s", path)
	case i.Mode()&deny != 0:
		err = fmt.Errorf("others can read %s, and may have: chmod 600 %[1]s", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// unfit returns why what is at path is no file of this user's or root's, or nil.
func unfit(path string, i fs.FileInfo) error {
	switch {
	case i.IsDir():
		return fmt.Errorf("%s is a directory: name a file", path)
	case !i.Mode().IsRegular():
		return fmt.Errorf("%s is no file: remove it, or take another", path)
	case !mine(i):
		return fmt.Errorf("%s belongs to another user: take one of your own, in a directory that is yours alone", path)
	}
	return nil
}

// Read reads such a file, at most limit bytes of it.
func Read(path string, flags int, deny fs.FileMode, limit int64) ([]byte, error) {
	f, err := Open(path, flags, deny)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// Dir checks that others can put nothing in the place of what is in a directory. Sticky:
// they may make files there if they cannot remove those of this user, as in /tmp.
func Dir(dir string, sticky bool) error {
	i, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !i.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case !mine(i):
		return fmt.Errorf("%s belongs to another user: take a directory of your own", dir)
	case i.Mode()&0o022 != 0 && !(sticky && i.Mode()&fs.ModeSticky != 0):
		return fmt.Errorf("others can replace files in %s: take a directory that is yours alone", dir)
	}
	return nil
}

// Path checks that, and that nobody else can put a directory in the place of it, or of one
// above it, or turn a symbolic link on the way to it. It takes the right to look at all of them.
func Path(dir string, sticky bool) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for range maxLinks {
		at, to, err := link(dir)
		if err != nil {
			return err
		}
		if at == "" {
			return upwards(dir, sticky)
		}
		if err := upwards(filepath.Dir(at), true); err != nil {
			return err
		}
		dir = to
	}
	return fmt.Errorf("%s: too many symbolic links", dir)
}

// Place is Path of a directory in which others may have files of their own, as far up as this user may look.
func Place(dir string) error {
	err := Path(dir, true)
	if errors.Is(err, fs.ErrPermission) {
		err = Dir(filepath.Clean(dir), true)
	}
	return err
}

// maxLinks is how many symbolic links a path may have, as for the kernel (path_resolution(7)).
const maxLinks = 40

// link is the first symbolic link of an absolute path, and the path without it; "": there is none.
func link(path string) (at, to string, err error) {
	for end := 1; end <= len(path); end++ {
		if end < len(path) && path[end] != filepath.Separator {
			continue
		}
		at = path[:end]
		i, err := os.Lstat(at)
		switch {
		case err != nil:
			return "", "", err
		case i.Mode().Type() != fs.ModeSymlink:
			continue
		case !mine(i):
			return "", "", fmt.Errorf("%s is another user's link: take a directory of your own", at)
		}
		to, err = os.Readlink(at)
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(at), to)
		}
		return at, filepath.Join(to, path[end:]), err
	}
	return "", "", nil
}

// upwards is Dir of a directory and of all above it, without symbolic links.
func upwards(dir string, sticky bool) error {
	for ; ; sticky = true {
		if err := Dir(dir, sticky); err != nil || dir == filepath.Dir(dir) {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

// Socket finds out about the place of a Unix socket. Its error says why none can be made
// there, which is errors.Is ErrAnswers when somebody answers; dead: a process that is no
// more has left one, to be removed.
func Socket(path string) (dead bool, err error) {
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		defer c.Close()
		return false, answers{path, Peer(c)}
	case errors.Is(err, syscall.EINVAL):
		return false, fmt.Errorf("%s is too long for a socket: take a shorter name", path)
	}
	i, e := os.Lstat(path)
	switch {
	case e != nil:
		return false, nil
	case i.Mode().Type() != fs.ModeSocket:
		return false, fmt.Errorf("%s is there, and is no socket: take another name", path)
	case errors.Is(err, syscall.EAGAIN):
		return false, fmt.Errorf("%w %s, and is too busy now", ErrAnswers, path)
	}
	return errors.Is(err, syscall.ECONNREFUSED), nil
}

// ErrAnswers: the socket is a living process's.
var ErrAnswers = errors.New("a process answers on")

// answers is that error about a process with a known number; 0: it is another PID
// namespace's.
type answers struct {
	path string
	pid  int
}

func (a answers) Is(err error) bool { return err == ErrAnswers }

func (a answers) Error() string {
	if a.pid == 0 {
		return fmt.Sprintf("%v %s already", ErrAnswers, a.path)
	}
	return fmt.Sprintf("process %d answers on %s already", a.pid, a.path)
}

// Peer is the number of the process that opened the socket at the other end of a Unix
// connection; 0: it is not known.
func Peer(c net.Conn) (pid int) {
	if u := credentials(c); u != nil {
		return int(u.Pid)
	}
	return 0
}

// Believed reports whether the other end of a Unix connection is root's or this user's, or nobody knows whose. Root may
// ask whom it likes.
func Believed(c net.Conn) bool {
	me := os.Geteuid()
	u := credentials(c)
	return me == 0 || u == nil || u.Uid == 0 || int(u.Uid) == me
}

// credentials are those with which the other end of a Unix connection was opened; nil: they are not known.
func credentials(c net.Conn) (u *unix.Ucred) {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) {
		if u, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			u = nil
		}
	})
	return u
}

// status are the state and the flags of a process (proc(5): fields 3 and 9 of its stat);
// there is none without it.
func status(pid int) (state string, flags uint64, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, false
	}
	// The name of the program is in parentheses, and may have any.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 7 {
		return "", 0, false
	}
	flags, err = strconv.ParseUint(f[6], 10, 64)
	return f[0], flags, err == nil
}

// Stopped reports whether a process is stopped, by a signal or a debugger.
func Stopped(pid int) bool {
	state, _, _ := status(pid)
	return state == "T" || state == "t"
}

// dying reports whether a process has been killed and has not ended yet: SIGKILL is pending
// for it, or it exits (PF_EXITING of its flags), or it is there no more.
func dying(pid int) bool {
	const kill, exiting = 1 << (unix.SIGKILL - 1), 0x4
	_, flags, ok := status(pid)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if !ok || err != nil || flags&exiting != 0 {
		return true
	}
	for line := range strings.Lines(string(text)) {
		name, set, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if pending, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64); err == nil && pending&kill != 0 {
			return true
		}
	}
	return false
}

// Bounds of Await: dyingWithin is how long a process may take to end once it was killed, which is the
// time in which the kernel frees its memory. lookAgain is between two looks.
const (
	dyingWithin = 5 * time.Second
	lookAgain   = 10 * time.Millisecond
)

// Await is Socket, but waits for a process that was killed: its socket answers until the kernel has
// closed it.
func Await(ctx context.Context, path string) (dead bool, err error) {
	late := time.NewTimer(dyingWithin)
	defer late.Stop()
	for living := false; ; {
		dead, err = Socket(path)
		var a answers
		if !errors.As(err, &a) || a.pid == 0 || a.pid == os.Getpid() {
			return dead, err
		}
		// It is asked twice: a process that begins to exit has neither the signal nor the flag
		// for a moment.
		killed := dying(a.pid)
		if !killed && living {
			return false, err
		}
		living = !killed
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-late.C:
			return false, fmt.Errorf("%w: it was killed, and has not ended for %v", err, dyingWithin)
		case <-time.After(lookAgain):
		}
	}
}

// Listen opens a Unix socket that this user and root alone can connect to. One that a
// dead process has left is replaced, and one that was killed is waited for.
func Listen(path string) (net.Listener, error) {
	dead, err := Await(context.Background(), path)
	if err == nil && dead {
		err = os.Remove(path)
	}
	if err != nil {
		return nil, err
	}
	// The socket has the file's mode before it has a name: there is no moment at
	// which others may connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	return lc.Listen(context.Background(), "unix", path)
}
