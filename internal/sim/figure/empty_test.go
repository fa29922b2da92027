package figure

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmptyTrace: a trace of no bytes is an error, and the reported progress of a run is a share from 0 to 1.
func TestEmptyTrace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "empty.csv")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fs, err := Find("5.2")
	if err != nil {
		t.Fatal(err)
	}
	_, err = fs[0].Run(context.Background(), Params{Trace: name}, func(p Progress) {
		if !(p.Done >= 0 && p.Done <= 1) {
			t.Errorf("%v of it is done", p.Done)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Error(err)
	}
}
