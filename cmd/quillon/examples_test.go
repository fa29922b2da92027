package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
)

// described returns the texts that users read: documents by file, and the texts of kinds.
func described(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, "../../README.md", "../../CONTRIBUTING.md") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(f)] = string(b)
	}
	for _, k := range kinds() {
		texts["kind "+k.Name] = k.Doc
	}
	return texts
}

// TestExamples: the functions of the README and of the kinds' descriptions are accepted as they are written
// there, in command lines and in specs.
func TestExamples(t *testing.T) {
	texts := described(t)
	var lines, specs int
	nf := regexp.MustCompile(`--nf +(?:'([^']+)'|([^ \n'"\x60]+))`)
	check := func(where, what string, err error) {
		t.Helper()
		if err != nil && !strings.Contains(err.Error(), "esp.keys: no such file") {
			t.Errorf("%s: %s: %v", where, what, err)
		}
	}
	for where, text := range texts {
		text = strings.ReplaceAll(text, "\\\n", " ")
		for line := range strings.Lines(text) {
			var nfs []string
			for _, m := range nf.FindAllStringSubmatch(line, -1) {
				nfs = append(nfs, m[1]+m[2])
			}
			if nfs == nil || !strings.Contains(line, "quillon") || strings.Contains(line, "--nf KIND") {
				continue
			}
			lines++
			_, err := chain(nfs)
			check(where, strings.TrimSpace(line), err)
		}
		for _, src := range specsIn(text) {
			specs++
			s, err := graph.ParseSpec([]byte(src))
			if err == nil {
				_, err = graph.Wants(s, kinds())
			}
			check(where, src, err)
			if err != nil {
				continue
			}
			for _, a := range s.Apps {
				k, err := kindByName(a.Kind)
				if err != nil || k.Inside == nil {
					continue
				}
				tasks, err := k.Inside(a.Args)
				check(where, src, err)
				for _, task := range tasks {
					err := knownTasks(task.Kind, task.Args)
					if err == nil {
						_, err = chain([]string{oneTask(task)})
					}
					check(where, src, err)
				}
			}
		}
	}
	if lines < 20 || specs < 4 {
		t.Errorf("%d command lines and %d specs", lines, specs)
	}
}

// oneTask is a task in the form of a --nf flag.
func oneTask(s graph.InsideSpec) string {
	text := s.Kind
	for name, value := range s.Args {
		text += "," + name + "=" + value
	}
	return text
}

// specsIn returns the specs of a text: the lines from "ports:" or "apps:" to a less indented line or a fence.
func specsIn(text string) (specs []string) {
	var spec []string
	indent := 0
	end := func() {
		if spec != nil {
			specs = append(specs, strings.Join(spec, "\n")+"\n")
			spec = nil
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		bare := strings.TrimLeft(line, " ")
		n := len(line) - len(bare)
		switch {
		case spec == nil && (bare == "ports:" || bare == "apps:"):
			indent = n
			spec = append(spec, bare)
		case spec == nil:
		case strings.HasPrefix(bare, "```") || bare != "" && n < indent:
			end()
		case bare == "":
			spec = append(spec, "")
		default:
			spec = append(spec, line[indent:])
		}
	}
	end()
	return specs
}
