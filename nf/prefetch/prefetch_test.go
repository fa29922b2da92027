package prefetch

import (
	"testing"
	"unsafe"
)

// TestLine fetches what is there, what is nowhere, and changes nothing.
func TestLine(t *testing.T) {
	b := make([]byte, 64)
	for i := range b {
		b[i] = byte(i)
	}
	Line(uintptr(unsafe.Pointer(&b[63])))
	Line(0)
	Lines(uintptr(unsafe.Pointer(&b[0])), 1<<63)
	for i, v := range b {
		if v != byte(i) {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
}
