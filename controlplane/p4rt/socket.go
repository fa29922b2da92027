package p4rt

import (
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

	"github.com/quillon/quillon/internal/own"
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
	if err := own.Path(dir, false); err != nil {
		return nil, err
	}
	l, err := own.Listen(path)
	if errors.Is(err, own.ErrAnswers) {
		err = fmt.Errorf("%w: take another name", err)
	}
	return l, err
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
