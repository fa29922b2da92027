//go:build !linux

package graph

func threadID() int { return 0 }

// readThread knows nothing of threads here: no worker is ever stuck.
func readThread(int) (thread, bool) { return thread{}, false }
