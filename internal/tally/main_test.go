package main

import (
	"strings"
	"testing"
)

func tallied(t *testing.T, stream string) (string, bool) {
	t.Helper()
	x := totals{out: map[test][]string{}, build: map[string][]string{}, broken: map[string]bool{}}
	var w strings.Builder
	if err := x.read(strings.NewReader(stream), &w); err != nil {
		t.Fatal(err)
	}
	ok := x.report(&w)
	return w.String(), ok
}

func TestTally(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		ok           bool
		want         []string
	}{
		{"all well", `{"Action":"pass","Package":"p","Test":"A"}
{"Action":"pass","Package":"p","Elapsed":0.5}
{"Action":"output","Package":"q","Test":"B","Output":"=== RUN B\n"}
{"Action":"output","Package":"q","Test":"B","Output":"    b_test.go:3: no root\n"}
{"Action":"skip","Package":"q","Test":"B"}
{"Action":"pass","Package":"q"}
`, true, []string{"ok    p  0.5s", "q B: b_test.go:3: no root", "skipped (1)", "1 passed, 0 failed, 1 skipped"}},
		{"a failure", `{"Action":"output","Package":"p","Test":"A","Output":"what went wrong\n"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}
`, false, []string{"FAIL  p A", "what went wrong", "0 passed, 1 failed, 0 skipped"}},
		{"a failure before others", `{"Action":"output","Package":"p","Test":"A","Output":"what went wrong\n"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}
{"Action":"skip","Package":"q","Test":"B"}
{"Action":"pass","Package":"q"}
`, false, []string{"skipped (1):\n  q B: no reason given\n\nfailed (1):\nFAIL  p A\nwhat went wrong\n\n0 passed, 1 failed"}},
		{"repeated", `{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:7: repeated: guests waited 3s\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"pass","Package":"p"}
`, true, []string{"\nrepeated (1):\n  p A: guests waited 3s\n\n1 passed, 0 failed"}},
		{"does not build", `{"Action":"build-output","ImportPath":"p [p.test]","Output":"syntax error\n"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}
`, false, []string{"syntax error", "0 passed, 1 failed"}},
		{"a panic", `{"Action":"output","Package":"p","Test":"A","Output":"panic: oh\n"}
{"Action":"fail","Package":"p"}
`, false, []string{"panic: oh", "1 failed"}},
		{"not JSON", "vet: broken\n{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"A\"}\n", true, []string{"vet: broken", "1 passed"}},
		{"a run that told nothing", `{"Action":"pass","Package":"p","Test":"A"}
{"Action":"pass","Package":"p"}
go: no such tool
{"Action":"exit","Output":"go test -race"}
`, false, []string{"go: no such tool", "FAIL  go test -race", "1 passed, 1 failed, 0 skipped"}},
		{"a run that was killed", `{"Action":"output","Package":"p","Test":"A","Output":"so far\n"}
{"Action":"exit","Output":"go test"}
`, false, []string{"so far", "0 passed, 1 failed, 0 skipped"}},
		{"runs that told", `{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}
{"Action":"exit","Output":"go test"}
{"Action":"fail","Package":"q"}
{"Action":"exit","Output":"go test again"}
`, false, []string{"0 passed, 2 failed, 0 skipped"}},
		{"nothing", "", false, []string{"no test ran"}},
	} {
		got, ok := tallied(t, c.stream)
		if ok != c.ok {
			t.Errorf("%s: ok = %v", c.name, ok)
		}
		if last := strings.LastIndex(got, "FAIL  "); !ok && last >= 0 && (strings.Count(got, "FAIL  ")+strings.Count(got, "\nok") < 2 || last < strings.LastIndex(got, "\nok ")) {
			t.Errorf("%s: the failures are not at the end:\n%s", c.name, got)
		}
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in\n%s", c.name, w, got)
			}
		}
	}
}
