package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/authority"
	"github.com/quillon/quillon/nf/port/pcap"
)

func TestMain(m *testing.M) {
	testscript.Main(inStateDir{m}, map[string]func(){"quillon": main, "inject": inject, "notified": notified})
}

// inStateDir runs the tests with a directory for journals that is removed at the end.
type inStateDir struct{ *testing.M }

func (m inStateDir) Run() int {
	dir, err := os.MkdirTemp("", "quillon-state-")
	if err == nil {
		err = os.Setenv("STATE_DIRECTORY", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	return m.M.Run()
}

// notified prints what a process tells its service manager. Arguments: the socket.
func notified() {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: os.Args[1], Net: "unixgram"})
	if err != nil {
		fmt.Fprintln(os.Stderr, "notified:", err)
		os.Exit(1)
	}
	for p := make([]byte, 4096); ; {
		n, err := conn.Read(p)
		if err != nil {
			os.Exit(1)
		}
		fmt.Printf("%s\n", p[:n])
	}
}

// inject sends the frames of a capture out of an interface. Arguments: the interface and the file.
func inject() {
	if err := injectFile(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "inject:", err)
		os.Exit(1)
	}
}

func injectFile(dev, file string) error {
	l, err := net.InterfaceByName(dev)
	if err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := pcap.NewReader(f)
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	var p pcap.Packet
	for {
		if err := r.Next(&p); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := unix.Sendto(s, p.Data, 0, &unix.SockaddrLinklayer{Ifindex: l.Index}); err != nil {
			return err
		}
	}
}

// TestScript runs the command-line scripts. [namespaces] is true where the test can make network namespaces;
// a script that needs them and skips says so.
func TestScript(t *testing.T) {
	namespaces := exec.Command("unshare", "-n", "true").Run() == nil
	certificates := authority.New(t)
	certificates.Server("server", "switch")
	certificates.Client("client")
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			data, err := filepath.Abs("testdata")
			if err != nil {
				return err
			}
			e.Setenv("DATA", data)
			e.Setenv("STATE_DIRECTORY", filepath.Join(e.WorkDir, ".journals"))
			e.Setenv("TLS", filepath.Dir(certificates.File("ca.pem")))
			// Other users must be able to read the scripts' files.
			return os.Chmod(e.WorkDir, 0o755)
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "namespaces":
				return namespaces, nil
			}
			return false, nil
		},
	})
}
