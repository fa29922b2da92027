package clover_test

import (
	"testing"

	"github.com/quillon/quillon/nf/hdr/clover"
)

func TestClass(t *testing.T) {
	classes := map[uint32]uint8{}
	for c := range uint8(9) {
		classes[clover.MinSlab<<c] = c
	}
	for size := range uint32(2*clover.MaxSlab + 1) {
		want, ok := classes[size]
		if c, is := clover.Class(size); c != want || is != ok || clover.ValidSlab(int(size)) != ok {
			t.Fatalf("%d bytes: class %d %v, want %d %v", size, c, is, want, ok)
		}
	}
}
