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

// SocketPrefix is the prefix of a Unix socket's address, as in gRPC.
const SocketPrefix = "unix:"

// SocketPath returns the default path of the P4Runtime socket of an instance, given the path of its control
// socket. The socket lies in a directory of its own that only its owner may enter.
func SocketPath(control string) string {
	return filepath.Join(filepath.Dir(control), "p4rt", filepath.Base(control))
}

// listenSocket opens a Unix socket to which only its owner and root can connect. It replaces a socket that a
// dead process has left. It makes the directory of the socket if the directory above exists.
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

// ofSocket returns a function that identifies the client of a connection to a socket of user mine.
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

// socketOf returns the path in the address of a Unix socket; ok is false for other addresses.
func socketOf(address string) (path string, ok bool) {
	path, ok = strings.CutPrefix(address, SocketPrefix)
	if rest, two := strings.CutPrefix(path, "//"); two {
		path = rest
	}
	return path, ok
}
