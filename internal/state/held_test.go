package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/journal"
)

// In a directory where everybody may make files another user has the names of the state, of the journal, or of the file that takes the
// journal's place. Each start is refused in one line that names the file and says what to do.
func TestNamesThatOthersHave(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make another user's file")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x")
	file := func(at string) {
		if err := os.WriteFile(at, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(at, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	full := func(at string) {
		if err := os.MkdirAll(at+"/in", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(at, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		take func(string)
		at   string
		says string
	}{
		{"file", file, path, "belongs to another user: "},
		{"directory", full, path, "is a directory: name a file"},
		{"next file", full, path + ".new", path + ".new is in the way ("},
	} {
		c.take(c.at)
		_, err := NewJournals(path, false).Open("app", 4, func([]journal.Entry, bool) (map[int]journal.Entry, error) { return nil, nil })
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("journal, %s: %v", c.name, err)
		}
		if c.at == path {
			_, err = New(path, false).Memory("app", 64)
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.says) {
				t.Errorf("state, %s: %v", c.name, err)
			}
		}
		if err := os.RemoveAll(c.at); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(path)
	}
}
