package version

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTags builds a program with this package, with the Makefile's flags, in a repository of its own.
func TestTags(t *testing.T) {
	for _, tool := range []string{"git", "go", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool, " is not installed")
		}
	}
	dir, home := t.TempDir(), t.TempDir()
	do := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "HOME="+home, "GOCACHE="+goEnv(t, "GOCACHE"),
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	source, err := os.ReadFile("version.go")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod": "module github.com/quillon/quillon\n\ngo 1.26.0\n", "internal/version/version.go": string(source), "Makefile": string(makefile), ".gitignore": "bin\n",
		"cmd/quillon/main.go": `package main

import (
	"encoding/json"
	"os"

	"github.com/quillon/quillon/internal/version"
)

func main() { json.NewEncoder(os.Stdout).Encode(version.This()) }
`} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	built := func() (v Version) {
		t.Helper()
		do("make", "bin/quillon")
		if err := json.Unmarshal([]byte(do("bin/quillon")), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := built(); v.Version != "(devel)" || v.Revision != "" {
		t.Errorf("without a repository: %+v", v)
	}
	do("git", "init", "-q")
	do("git", "add", "-A")
	do("git", "commit", "-qm", "first")
	commit := do("git", "rev-parse", "HEAD")
	if v := built(); !strings.Contains(v.Version, commit[:12]) || v.Revision != commit || v.Modified {
		t.Errorf("at a commit %s: %+v", commit, v)
	}
	do("git", "tag", "v0.2.0")
	if v := built(); v.Version != "v0.2.0" || v.Revision != commit {
		t.Errorf("at a tag: %+v", v)
	}
	if err := os.WriteFile(filepath.Join(dir, "more"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if v := built(); v.Version != "v0.2.0+dirty" || !v.Modified {
		t.Errorf("with a change beside a tag: %+v", v)
	}
	do("git", "add", "-A")
	do("git", "commit", "-qm", "second")
	commit = do("git", "rev-parse", "HEAD")
	if v := built(); !strings.HasPrefix(v.Version, "v0.2.1-0.") || !strings.Contains(v.Version, commit[:12]) {
		t.Errorf("behind a tag, at %s: %+v", commit, v)
	}
}

func goEnv(t *testing.T, name string) string {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
