package xdp

import "testing"

// TestRealTime: real-time kernels that interleave frames are refused, and no others.
func TestRealTime(t *testing.T) {
	for _, k := range []struct {
		realtime, release string
		refused           bool
	}{{"1\n", "6.18.0-rt1", true}, {"1\n", "7.0.1", true}, {"1\n", "6.17.4", false}, {"1\n", "6.1.0-56-rt-amd64", false}, {"0\n", "6.18.1", false}, {"", "6.19", false}, {"1\n", "next", true}} {
		if err := interleavesAt(k.realtime, k.release); (err != nil) != k.refused {
			t.Errorf("%+v: %v", k, err)
		}
	}
	if err := interleaves(); err != nil {
		t.Skip(err)
	}
}
