// Command tally reads the JSON streams of several runs of "go test -json" on
// its standard input, prints a line a package and what failed while they run,
// and at the end the skipped tests with their reasons, what tests said that they had
// to repeat (a line of theirs that begins with "repeated: "), all failures once more, and
// the totals. It exits with 1 when something failed or when nothing ran.
//
//	{ go test -json ./... || echo '{"Action":"exit","Output":"go test"}'; } | tally
//
// The line of a run that failed makes it a failure also when go test itself
// failed, or was killed, before it told of any test.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
)

// event is a line of go test -json (cmd/test2json).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build output
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

type test struct{ pkg, name string }

type totals struct {
	passed, failed, skipped int
	skips, again            []string
	out                     map[test][]string
	build                   map[string][]string
	broken                  map[string]bool // packages with a failed test
	ofEnded                 int             // failures that belong to runs that have ended
	fails                   []string        // the failures, as they were printed
}

func main() {
	t := totals{out: map[test][]string{}, build: map[string][]string{}, broken: map[string]bool{}}
	if err := t.read(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(1)
	}
	if !t.report(os.Stdout) {
		os.Exit(1)
	}
}

// read follows the streams until their end. Lines that are not JSON (a tool's
// own complaint) are printed as they are.
func (t *totals) read(in io.Reader, w io.Writer) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e event
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil || e.Action == "" {
			fmt.Fprintln(w, sc.Text())
			continue
		}
		t.event(e, w)
	}
	return sc.Err()
}

func (t *totals) event(e event, w io.Writer) {
	k := test{e.Package, e.Test}
	switch e.Action {
	case "output":
		t.out[k] = append(t.out[k], e.Output)
		return
	case "build-output":
		t.build[e.ImportPath] = append(t.build[e.ImportPath], e.Output)
		return
	case "exit":
		t.exit(e, w)
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	defer delete(t.out, k)
	for _, l := range t.out[k] {
		if _, why, ok := strings.Cut(l, ": repeated: "); ok {
			t.again = append(t.again, short(e.Package)+" "+e.Test+": "+strings.TrimSpace(why))
		}
	}
	if e.Test == "" {
		t.endOfPackage(e, w)
		return
	}
	switch e.Action {
	case "pass":
		t.passed++
	case "fail":
		t.failed++
		t.broken[e.Package] = true
		t.fail(w, fmt.Sprintf("FAIL  %s %s\n%s", short(e.Package), e.Test, strings.Join(t.out[k], "")))
	case "skip":
		t.skipped++
		t.skips = append(t.skips, short(e.Package)+" "+e.Test+": "+reason(t.out[k]))
	}
}

// exit is the end of a run that failed, which is not go test's own event but
// that of the caller: Output says which run. It counts as one failure when
// none of the run's tests or packages did.
func (t *totals) exit(e event, w io.Writer) {
	if t.failed == t.ofEnded {
		t.failed++
		text := fmt.Sprintf("FAIL  %s\n", e.Output)
		for k, lines := range t.out { // tests that were cut short
			text += strings.Join(lines, "")
			delete(t.out, k)
		}
		t.fail(w, text)
	}
	t.ofEnded = t.failed
}

// endOfPackage prints the package's line. A package that fails without a
// failed test (it does not build, or it panicked) counts as one failure.
func (t *totals) endOfPackage(e event, w io.Writer) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(w, "ok    %s  %.1fs\n", short(e.Package), e.Elapsed)
	case "fail":
		if !t.broken[e.Package] {
			t.failed++
			text := fmt.Sprintf("FAIL  %s\n%s%s", short(e.Package), strings.Join(t.build[e.FailedBuild], ""), strings.Join(t.out[test{e.Package, ""}], ""))
			for k, lines := range t.out { // tests that a panic cut short
				if k.pkg == e.Package && k.name != "" {
					text += strings.Join(lines, "")
				}
			}
			t.fail(w, text)
		} else {
			fmt.Fprintf(w, "FAIL  %s  %.1fs\n", short(e.Package), e.Elapsed)
		}
	}
	for k := range t.out {
		if k.pkg == e.Package {
			delete(t.out, k)
		}
	}
	delete(t.broken, e.Package)
}

// fail prints a failure as it comes, and keeps it for the end.
func (t *totals) fail(w io.Writer, text string) {
	t.fails = append(t.fails, text)
	fmt.Fprint(w, text)
}

// report prints the end, the failures once more behind all that is well, and says whether all is.
func (t *totals) report(w io.Writer) bool {
	if len(t.skips) > 0 {
		sort.Strings(t.skips)
		fmt.Fprintf(w, "\nskipped (%d):\n", len(t.skips))
		for _, s := range t.skips {
			fmt.Fprintln(w, "  "+s)
		}
	}
	if len(t.again) > 0 {
		fmt.Fprintf(w, "\nrepeated (%d):\n", len(t.again))
		for _, s := range t.again {
			fmt.Fprintln(w, "  "+s)
		}
	}
	if len(t.fails) > 0 {
		fmt.Fprintf(w, "\nfailed (%d):\n%s", t.failed, strings.Join(t.fails, ""))
	}
	if t.passed+t.failed+t.skipped == 0 {
		fmt.Fprintln(w, "\nno test ran")
		return false
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	return t.failed == 0
}

// reason is what a skipped test said: its output without the framework's lines.
func reason(lines []string) string {
	var r []string
	for _, l := range lines {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "=== ") || strings.HasPrefix(l, "--- ") {
			continue
		}
		r = append(r, l)
	}
	if len(r) == 0 {
		return "no reason given"
	}
	return strings.Join(r, " ")
}

// short is the package without the module.
func short(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/quillon/quillon/")
}
