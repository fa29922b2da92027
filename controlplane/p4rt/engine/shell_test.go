package engine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/p4src"
)

// TestShell has p4runtime-sh, as it is, drive the device.
func TestShell(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3, for p4runtime-sh")
	}
	if out, err := exec.Command(python, "-c", "import p4runtime_sh.shell").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Skip("p4runtime-sh is not installed (pip install p4runtime-shell): ", lines[len(lines)-1])
	}
	w := newWorld(t, p4rt.Config{})
	l, err := p4rt.Listen(w.server, p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	files := []string{"testdata/shell.py", l.Addr().String()}
	for _, name := range []string{"ipv4_router.p4info.txtpb", "ipv4_router.json"} {
		b, err := p4src.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	out, err := exec.Command(python, files...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all done") {
		t.Fatalf("%v\n%s", err, out)
	}
	for range 1000 { // the packet out goes its way after the script has ended
		if f := w.got(1); len(f) == 1 && len(f[0]) == 60 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the packet did not come out of port 1")
}
