// Package resident is how much memory a process may have, and, for tests, how much it really takes: pages that
// were reserved and never touched take none.
package resident

import (
	"fmt"
	"os"
	"runtime/debug"
)

// Grows is by how many bytes the process's resident memory grows while f runs, without a garbage collection. Memory that f
// reserves and does not touch does not count.
func Grows(f func()) (bytes int, err error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before, err := pages()
	if err != nil {
		return 0, err
	}
	f()
	after, err := pages()
	return (after - before) * os.Getpagesize(), err
}

// pages is how many pages of the process are in memory (proc_pid_statm(5)).
func pages() (n int, err error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(text), new(int), &n)
	}
	return n, err
}
