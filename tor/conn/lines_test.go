package conn

import (
	"testing"
	"unsafe"
)

// What most frames need of a row lies in its first two lines of the processor's cache.
func TestLines(t *testing.T) {
	const line = 64
	var r Row
	if end := unsafe.Offsetof(r.easy) + unsafe.Sizeof(r.easy); end > 2*line {
		t.Errorf("what most frames need ends at byte %d", end)
	}
	for name, at := range map[string]uintptr{"LastSeen": unsafe.Offsetof(r.LastSeen), "MTU": unsafe.Offsetof(r.MTU), "Net": unsafe.Offsetof(r.Net)} {
		if at > unsafe.Offsetof(r.easy) {
			t.Errorf("%s is behind easy", name)
		}
	}
}
