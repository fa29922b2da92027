package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// prelude is what a document's commands run in: the lab of examples, a copy of what
// they read, and a shell in which run starts an instance in the place of the one
// before, and waits until it runs.
const prelude = `
set -e
sync() { # of what a process wrote, until a line says that it runs
  i=0
  until grep -q '^running as ' run.out; do
    i=$((i + 1))
    if [ $i -gt 600 ] || ! kill -0 $pid 2>/dev/null; then cat run.out run.err; return 1; fi
    sleep 0.1
  done
}
quillon() {
  case "$1 $*" in
  run*--dry-run*) ;;
  run*)
    command quillon stop >/dev/null 2>&1 || :
    : >run.out
    command quillon "$@" >run.out 2>run.err &
    pid=$!
    sync
    return;;
  ctl*status*) # a person is slower than what was begun in the line before
    i=0
    until command quillon "$@" 2>/dev/null; do i=$((i + 1)); [ $i -lt 600 ]; sleep 0.1; done
    return;;
  esac
  command quillon "$@"
}
`

// notHere begins what stands before a block that the test does not run, and why.
const notHere = "<!-- not run here: "

// TestDocuments types the commands of README and documents: those in fences marked
// sh, in one lab for each document. What is not run says why.
func TestDocuments(t *testing.T) {
	if exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("needs root to make network namespaces")
	}
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, "../../README.md") {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		commands := commandsIn(t, filepath.Base(f), string(text))
		if commands != "" {
			t.Run(filepath.Base(f), func(t *testing.T) {
				t.Parallel() // in a lab of its own
				inLab(t, commands)
			})
		}
	}
}

// TestExampleSpecs runs each of the examples.
func TestExampleSpecs(t *testing.T) {
	if exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("needs root to make network namespaces")
	}
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var commands strings.Builder
	for _, f := range files {
		if name := filepath.Base(f); name != "net.yaml" { // an intent, which README applies
			fmt.Fprintf(&commands, "quillon run examples/%s\nquillon show graph\nquillon stop\n", name)
		}
	}
	inLab(t, commands.String())
}

// commandsIn are the commands of a document that are to be run.
func commandsIn(t *testing.T, name, text string) string {
	var commands strings.Builder
	inside, run := false, true
	for line := range strings.Lines(text) {
		switch {
		case inside && strings.HasPrefix(line, "```"):
			inside, run = false, true
		case inside && run:
			commands.WriteString(line)
		case inside:
		case strings.HasPrefix(line, notHere):
			run = false
			t.Logf("%s: not run here: %s", name, strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(line, notHere)), "-->"))
		case strings.HasPrefix(line, "```sh"):
			inside = true
		case regexp.MustCompile(`^    +(sudo )?quillon [a-z]`).MatchString(line):
			t.Errorf("%s: %q is in no fence marked sh, so nothing runs it", name, strings.TrimSpace(line))
		}
	}
	return commands.String()
}

// inLab runs commands in a lab, and returns the directory in which they ran.
func inLab(t *testing.T, commands string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"examples", "p4src", "tests/p4"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("../..", name))); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(dir, "commands.sh")
	// What is typed is printed first, to find what fails.
	if err := os.WriteFile(script, []byte(prelude+"set -x\n"+commands), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "examples/lab.sh", "sh", script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	limit := time.AfterFunc(8*time.Minute, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	if out, err := cmd.CombinedOutput(); err != nil {
		if len(out) > 4000 {
			out = out[len(out)-4000:]
		}
		t.Errorf("%v\n%s", err, out)
	}
	return dir
}
