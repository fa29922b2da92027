package bridge

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestStateOfOthers: a state file says what is done as root. One that others can write to, or that is somewhere
// else, is not believed.
func TestStateOfOthers(t *testing.T) {
	dir := t.TempDir()
	ns, err := Namespace()
	if err != nil {
		t.Fatal(err)
	}
	s := &Splice{Bridge: "br0", Port: "eth1", Namespace: ns}
	if err := save(dir, s); err != nil {
		t.Fatal(err)
	}
	path := statePath(dir, ns, "eth1")
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", i, err)
	}
	if got, err := Load(dir, "eth1"); err != nil || got.Bridge != "br0" {
		t.Error(err)
	}
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir, "eth1"); err == nil || !strings.Contains(err.Error(), "others can write to "+path) {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Rename(path, path+".old"), os.Symlink(path+".old", path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, "eth1"); err == nil {
		t.Error("a symbolic link is followed")
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := errors.Join(os.Rename(path+".old", path), os.Chown(path, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, "eth1"); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Error(err)
	}
}
