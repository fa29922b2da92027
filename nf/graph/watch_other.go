//go:build !linux

package graph

import "github.com/quillon/quillon/nf/clock"

func threadID() int { return 0 }

func timesOf(int) (ran, waited clock.Duration, ok bool) { return 0, 0, false }

// readThread knows nothing of threads here: no worker is ever stuck.
func readThread(int) (thread, bool) { return thread{}, false }
