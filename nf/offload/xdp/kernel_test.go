package xdp

import (
	"testing"
	"unsafe"
)

func TestLoads(t *testing.T) {
	k, err := New(100)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLines: what a frame needs of an entry begins with lines of the processor's cache.
func TestLines(t *testing.T) {
	if unsafe.Sizeof(slot) != 256 || atDirs != 64 || dirSize != 64 || atSides != 192 {
		t.Error(unsafe.Sizeof(slot), atDirs, dirSize, atSides)
	}
}
