//go:build !amd64

package hdr

const (
	hasCLMUL  = false
	hasRows   = false
	clmulStep = 256
)

func clmulMod(uint64, uint32) uint32 { panic("no product of polynomials here") }

func clmulCRC(_ uint32, _ *byte, _ int, _ *[128]byte) uint32 { return clmulMod(0, 0) }

var rowPowers [64][16]uint64

func rowsCRC(*byte, int, *[16]uint64) uint32 { return clmulMod(0, 0) }

func goodRows(*byte, int) bool { return clmulMod(0, 0) == 0 }
