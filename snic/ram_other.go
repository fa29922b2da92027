//go:build !linux

package snic

// ram is memory of a board.
type ram struct{ bytes []byte }

func newRAM(size int64) (*ram, error) { return &ram{make([]byte, size)}, nil }

func (r *ram) drop() {}

// machineMemory is not known here, nor is processMemory.
func machineMemory() int64 { return 0 }

func processMemory() int64 { return 0 }
