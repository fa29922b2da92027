package bench

import (
	"io"
	"strings"
	"testing"
)

// TestACL: each sort of rules is searched without memory, nearly all packets meet a rule, and figures are printed.
func TestACL(t *testing.T) {
	r, err := ACL(io.Discard, 1, 300)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Seeds {
		if s.Hits < 0.8 || s.Hits > 1 || s.Work.Allocs > 0.01 || s.Updates.Min <= 0 || s.FillMs.Min <= 0 || s.Filled.Min <= 0 || s.PassThrough.NsPerPacket.Min <= 0 {
			t.Errorf("%+v", s)
		}
	}
	var b strings.Builder
	if r.Table(&b); strings.Count(b.String(), "\n") != 4 || len(r.Seeds) != 3 {
		t.Errorf("%s", b.String())
	}
}
