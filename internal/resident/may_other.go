//go:build !linux

package resident

// May is not known here.
func May() int64 { return 0 }
