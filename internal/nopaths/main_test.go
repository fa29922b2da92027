package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"runtime/pprof"
	"strings"
	"testing"
)

// A real profile keeps the names of its functions and loses where they are.
func TestRun(t *testing.T) {
	var in, out bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&in, 0); err != nil {
		t.Fatal(err)
	}
	before := text(t, in.Bytes())
	if err := run(&in, &out); err != nil {
		t.Fatal(err)
	}
	after := text(t, out.Bytes())
	const name, file = "internal/nopaths.TestRun", "main_test.go"
	if !strings.Contains(before, "/"+file) {
		t.Fatal("the profile has no paths to lose")
	}
	if strings.Contains(after, "/"+file) || !strings.Contains(after, file) || strings.Count(after, name) != strings.Count(before, name) {
		t.Errorf("%q", after)
	}
}

func text(t *testing.T, p []byte) string {
	z, err := gzip.NewReader(bytes.NewReader(p))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRefuses(t *testing.T) {
	var bad bytes.Buffer
	w := gzip.NewWriter(&bad)
	w.Write([]byte{0xFF})
	w.Close()
	for _, in := range []string{"", "no profile", bad.String()} {
		if err := run(strings.NewReader(in), io.Discard); err == nil {
			t.Errorf("%q was taken", in)
		}
	}
}
