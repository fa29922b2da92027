package p4rt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// SocketPrefix begins the address of a Unix socket, as gRPC has it.
const SocketPrefix = "unix:"

// SocketPath is where the socket of an instance is by default whose control socket is
// at a path: in a directory beside, which is its owner's alone.
func SocketPath(control string) string {
	return filepath.Join(filepath.Dir(control), "p4rt", filepath.Base(control))
}

// listenSocket opens a Unix socket that its owner and root alone can connect to. One that
// a dead process left behind is replaced. The directory is made if its parent is
// there.
func listenSocket(path string) (net.Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := private(dir); err != nil {
		return nil, err
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("a server answers on %s already: take another name", path)
	} else if errors.Is(err, syscall.EINVAL) {
		return nil, fmt.Errorf("%s is too long for a socket: take a shorter name", path)
	} else if fi, e := os.Lstat(path); e == nil && fi.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s is there, and is no socket: take another name", path)
	} else if e == nil && errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
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

// private checks that nobody but root and this user can put something else in the place
// of a directory, or of what is in it.
func private(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for inner := true; ; inner = false {
		fi, err := os.Stat(dir)
		if err != nil {
			return err
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
			return fmt.Errorf("%s: its owner is not known", dir)
		case !fi.IsDir():
			return fmt.Errorf("%s is not a directory", dir)
		case st.Uid != 0 && int(st.Uid) != os.Geteuid():
			return fmt.Errorf("%s belongs to uid %d: take a directory of your own", dir, st.Uid)
		case fi.Mode()&0o022 != 0 && (inner || fi.Mode()&fs.ModeSticky == 0):
			return fmt.Errorf("others may write to %s: take a directory that is yours alone", dir)
		}
		above := filepath.Dir(dir)
		if above == dir {
			return nil
		}
		dir = above
	}
}

// ofSocket finds out who connects to a socket of the user mine.
func ofSocket(mine int) func(net.Conn, credentials.AuthInfo) (*caller, error) {
	return func(raw net.Conn, _ credentials.AuthInfo) (*caller, error) {
		c, ok := raw.(syscall.Conn)
		if !ok {
			return nil, errors.New("the connection is no socket's")
		}
		rc, err := c.SyscallConn()
		if err != nil {
			return nil, err
		}
		var peer *unix.Ucred
		if e := rc.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
			return nil, e
		}
		if err != nil {
			return nil, err
		}
		if peer.Uid != 0 && int(peer.Uid) != mine {
			return nil, fmt.Errorf("uid %d is neither root nor the server's user: run the client as one of these", peer.Uid)
		}
		return &caller{name: fmt.Sprintf("uid %d", peer.Uid), trust: owner}, nil
	}
}

// socketOf is the path of a Unix socket's address.
func socketOf(address string) (path string, ok bool) {
	path, ok = strings.CutPrefix(address, SocketPrefix)
	if rest, two := strings.CutPrefix(path, "//"); two {
		path = rest
	}
	return path, ok
}
