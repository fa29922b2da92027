package initramfs

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestUnpackAgain has a kernel unpacked while a guest of another test has the file open: what that guest reads stays.
func TestUnpackAgain(t *testing.T) {
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("missing: apt-get install xz-utils")
	}
	k := Kernel{File: filepath.Join(t.TempDir(), "vmlinux"), root: t.TempDir()}
	boot := k.root + "/boot"
	if err := os.Mkdir(boot, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(kernel string) {
		t.Helper()
		cmd := exec.Command("xz", "-c")
		cmd.Stdin = bytes.NewReader([]byte(kernel))
		packed, err := cmd.Output()
		if err == nil {
			err = os.WriteFile(boot+"/vmlinuz-6", append([]byte("loader"), packed...), 0o644)
		}
		if err == nil {
			err = k.unpack()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	guest, err := os.Open(k.File)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	write("2nd")
	if got, err := io.ReadAll(guest); err != nil || string(got) != "first" {
		t.Errorf("the guest reads %q, %v", got, err)
	}
	if got, err := os.ReadFile(k.File); err != nil || string(got) != "2nd" {
		t.Errorf("the file has %q, %v", got, err)
	}
	if left, _ := os.ReadDir(filepath.Dir(k.File)); len(left) != 1 {
		t.Errorf("%d files are left, want 1", len(left))
	}
}
