package main

import (
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/demo"
	"github.com/quillon/quillon/nf/clock"
)

func TestProgress(t *testing.T) {
	steps := []demo.Progress{
		{Step: "building the rack"},
		{Phase: "write", Step: "measuring", OpsPerS: 123456, FirstTry: 0.75, Left: 9400 * time.Millisecond},
		{Phase: "write", Step: "measuring", OpsPerS: 123457, FirstTry: 0.75, Left: 9200 * time.Millisecond},
		{Phase: "write", Step: "measuring", OpsPerS: 123458, FirstTry: 0.75, Left: 7 * time.Second},
	}
	show := func(terminal bool) string {
		var b strings.Builder
		p := &progress{w: &b, terminal: terminal}
		for i, s := range steps {
			p.show(clock.Time(i)*clock.Time(1100*time.Millisecond), s.Phase+s.Step, s.String())
		}
		p.done()
		p.done()
		return b.String()
	}
	lines := `building the rack
write steering, measuring             123,456 op/s  first try  75.00 %    9 s left
write steering, measuring             123,458 op/s  first try  75.00 %    7 s left
`
	if got := show(false); got != lines {
		t.Errorf("lines:\n%s\nwant\n%s", got, lines)
	}
	got := show(true)
	if strings.Contains(got, "\n") || strings.Count(got, "\r") != 5 || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("terminal: %q", got)
	}
}
