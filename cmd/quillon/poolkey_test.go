package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPoolKey: a secret is bytes, whichever they are, or a line of text.
func TestPoolKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	raw := []byte("\n0123456789abc\t ")
	for _, c := range []struct {
		in   string
		want []byte // nil: refused
	}{
		{string(raw), raw}, {"0123456789abcdeX\n", []byte("0123456789abcdeX")}, {" 0123456789abcdeX01234567\n", []byte("0123456789abcdeX01234567")},
		{strings.Repeat("0a", 16) + "\n", bytes.Repeat([]byte{10}, 16)},
		{"abc", nil}, {"", nil}, {strings.Repeat("x", 33), nil},
	} {
		if err := os.WriteFile(file, []byte(c.in), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := (&poolFlags{secret: file}).key()
		if (err == nil) != (c.want != nil) || !bytes.Equal(got, c.want) {
			t.Errorf("%q: %q, %v", c.in, got, err)
		}
	}
}
