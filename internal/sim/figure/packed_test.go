package figure

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"testing"
)

// TestPacked: the data in the binary is the data in the tree.
func TestPacked(t *testing.T) {
	all, err := os.ReadDir("published")
	if err != nil {
		t.Fatal(err)
	}
	if packed, err := os.ReadDir("packed"); err != nil || len(packed) != len(all) {
		t.Error(len(packed), "files are packed of", len(all), err)
	}
	for _, f := range all {
		want, err := os.ReadFile("published/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		got := []byte("none")
		if b, err := files.ReadFile("packed/" + f.Name() + ".gz"); err == nil {
			if z, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
				got, _ = io.ReadAll(z)
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("run: gzip -9nc published/%s > packed/%s.gz", f.Name(), f.Name())
		}
	}
}
