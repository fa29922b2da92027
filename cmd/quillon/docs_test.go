package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
)

// prelude runs before a document's commands. They run in the lab of examples, with a copy of the files that
// they read, in a shell in which run starts an instance, ends the instance before, and waits until the new
// one runs.
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
ok() { # that a line ended with status 0; -e does not see to it after && and !
  [ "$1" = 0 ] || { echo "status $1: $2"; exit 1; }
}
begun= # in the background
ended() { # that what is in the background did not fail: it may run on, and is ended here
  for p in $begun; do
    kill $p 2>/dev/null || :
    status=0; wait $p || status=$?
    [ $status = 143 ] || ok $status "in the background"
  done
}
`

// notHere begins the line before a block that the test does not run. The rest of the line says why.
const notHere = "<!-- not run here: "

// TestDocuments runs the commands of README and of the documents: those in fences marked sh, in one lab for
// each document. A block that is not run says why.
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
				inLab(t, lineByLine(commands))
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
		if name := filepath.Base(f); name != "net.yaml" { // an intent, which the README applies
			fmt.Fprintf(&commands, "quillon run examples/%s\nquillon show graph\nquillon stop\n", name)
		}
	}
	inLab(t, commands.String())
}

// commandsIn returns the commands of a document that are to be run.
func commandsIn(t *testing.T, name, text string) string {
	var commands strings.Builder
	inside, run, other := false, true, false
	for line := range strings.Lines(text) {
		switch {
		case inside && strings.HasPrefix(line, "```"):
			inside, run = false, true
		case other:
			other = !strings.HasPrefix(line, "```")
		case inside && run:
			commands.WriteString(line)
		case inside:
		case strings.HasPrefix(line, notHere):
			run = false
			t.Logf("%s: not run here: %s", name, strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(line, notHere)), "-->"))
		case strings.HasPrefix(line, "```sh"):
			inside = true
		case strings.HasPrefix(line, "```"):
			other = true
			if !slices.Contains([]string{"yaml", "ini"}, strings.TrimSpace(line[3:])) {
				t.Errorf("%s: %q: a fence says what is in it: sh, and it is run, or yaml or ini", name, strings.TrimSpace(line))
			}
		case regexp.MustCompile(`^    +(sudo )?quillon [a-z]`).MatchString(line):
			t.Errorf("%s: %q is in no fence marked sh, so nothing runs it", name, strings.TrimSpace(line))
		}
	}
	return commands.String()
}

// lineByLine adds a check behind each line of commands: the line must succeed, or fail if it begins with "!".
func lineByLine(commands string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.ReplaceAll(commands, "\\\n", " ")) {
		line = strings.TrimSpace(line)
		command, _, _ := strings.Cut(line, " #")
		command = strings.TrimSpace(command)
		quoted := "'" + strings.ReplaceAll(command, "'", `'"'"'`) + "'"
		fails, inverted := strings.CutPrefix(command, "! ")
		switch {
		case command == "" || strings.HasPrefix(command, "#"):
		case inverted:
			fmt.Fprintf(&b, "if %s\nthen ok 'not an error' %s; fi\n", fails, quoted)
		case strings.HasSuffix(command, " &"):
			fmt.Fprintf(&b, "%s\nbegun=\"$begun $!\"\n", command)
		case strings.HasPrefix(command, "wait "):
			fmt.Fprintf(&b, "%s\nok $? %s\nbegun=\n", command, quoted)
		default:
			fmt.Fprintf(&b, "%s\nok $? %s\n", line, quoted)
		}
	}
	return b.String() + "ended\n"
}

// TestLineByLine: a line of a document that succeeds or fails against its mark is noticed.
func TestLineByLine(t *testing.T) {
	for lines, fails := range map[string]bool{
		"true\n":                             false,
		"! false # is to fail\ntrue\n":       false,
		"false || test $? = 1\ntrue\n":       false,
		"true && \\\n  true\n":               false,
		"sleep 60 & # runs on\ntrue\n":       false,
		"for i in 1 2; do true; done\n":      false,
		"false\ntrue\n":                      true,
		"! true # is to fail\ntrue\n":        true,
		"false && true\ntrue\n":              true,
		"false && \\\n  true\ntrue\n":        true,
		"no-such-command | cat; false\n":     true,
		"false &\nsleep 0.2\ntrue\n":         true,
		"false &\nwait $!\ntrue\n":           true,
		"for i in 1; do false; done\ntrue\n": true,
	} {
		out, err := exec.Command("sh", "-c", prelude+lineByLine(lines)).CombinedOutput()
		if (err != nil) != fails {
			t.Errorf("%q: %v\n%s", lines, err, out)
		}
	}
}

// TestCommandsInText: the commands and flags that documents and the descriptions of kinds name within their
// text exist.
func TestCommandsInText(t *testing.T) {
	texts := described(t)
	found := 0
	for where, text := range texts {
		for _, m := range regexp.MustCompile("`quillon +([^`]*)`").FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
			found++
			if err := named(m[1]); err != nil {
				t.Errorf("%s: quillon %s: %v", where, m[1], err)
			}
		}
	}
	if found < 80 {
		t.Errorf("%d commands", found)
	}
	for _, bad := range []string{"shwo counters", "show countres", "run --inlin eth1,eth2", "bridge insret br0 eth3"} {
		if named(bad) == nil {
			t.Errorf("%q is taken for a command", bad)
		}
	}
}

// TestClosedAreNamed: the document names the functions that let no frame through while the process is away.
// The examples of all kinds show if the list lacks a function, or has one that is not closed.
func TestClosedAreNamed(t *testing.T) {
	text, err := os.ReadFile("../../docs/TROUBLESHOOTING.md")
	if err != nil {
		t.Fatal(err)
	}
	said, rest, _ := strings.Cut(string(text), "let nothing through then")
	_, said, ok := strings.Cut(said, "its functions are closed.**")
	if !ok || rest == "" {
		t.Fatal("the list is not there")
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("esp.keys", fmt.Appendf(nil, "0x100 %040x\n0x200 %040x\n", 1, 2), 0o600); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, k := range kinds() {
		for _, m := range regexp.MustCompile(`--nf '?(`+k.Name+`[,\s][^'\s]*)`).FindAllStringSubmatch(k.Doc+"\n--nf "+k.Name+" ", -1) {
			spec, err := chain([]string{strings.TrimSpace(m[1])})
			if err != nil { // the kind needs arguments
				continue // it wants arguments
			}
			f, err := graph.Wants(spec, kinds())
			if err != nil {
				t.Fatal(err)
			}
			found[k.Name] = true
			if named := strings.Contains(said, "`"+k.Name+"`"); named != f.Closed {
				t.Errorf("%s is closed: %v, and named: %v", m[1], f.Closed, named)
			}
		}
	}
	for _, name := range []string{"firewall", "napt", "aead", "hop", "gobackn", "replicate", "vxlan", "police", "wire"} {
		if !found[name] {
			t.Errorf("no example of %s was understood", name)
		}
	}
}

// named looks for a command and its flags and returns an error if one does not exist.
func named(line string) error {
	line, _, _ = strings.Cut(line, " | ")
	words := strings.Fields(line)
	cmd, rest, err := newRootCmd().Find(words)
	if err != nil {
		return err
	}
	if cmd.HasSubCommands() && !strings.Contains(cmd.Use, " ") && len(rest) > 0 && rest[0][0] >= 'a' && rest[0][0] <= 'z' { // not a flag, … or NAME
		return known(cmd, rest)
	}
	for _, w := range rest {
		name, flag := strings.CutPrefix(w, "--")
		name, _, _ = strings.Cut(name, "=")
		if flag && name != "" && cmd.Flag(name) == nil && name != "help" && name != "version" {
			return fmt.Errorf("no flag %s", w)
		}
	}
	return nil
}

// inLab runs commands in a lab, and returns the directory in which they ran.
func inLab(t *testing.T, commands string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"examples", "p4src", "tests/p4"} {
		// A program that starts while a copy is written would inherit the open file, and a file that is open
		// for writing cannot be executed.
		syscall.ForkLock.RLock()
		err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("../..", name)))
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(dir, "commands.sh")
	// The shell prints each command before it runs, so that a failed one is found.
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
