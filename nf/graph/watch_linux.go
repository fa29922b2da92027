package graph

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// threadID is the number of the calling thread.
func threadID() int { return syscall.Gettid() }

// timesOf reads what /proc/self/task/ID/schedstat has: how long the thread ran, and how long it waited for a
// processor. False: there is no such thread, or the kernel does not count it.
func timesOf(id int) (ran, waited clock.Duration, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", id))
	if err != nil {
		return 0, 0, false
	}
	n, err := fmt.Sscan(string(text), (*int64)(&ran), (*int64)(&waited))
	return ran, waited, n == 2 && err == nil
}

// userHZ is in how many parts of a second /proc counts a thread's time: part of the
// kernel's interface on every platform that Go runs on.
const userHZ = 100

// readThread reads /proc/self/task/ID/stat; see proc_pid_stat(5). False: there is no such thread.
func readThread(id int) (t thread, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", id))
	if err != nil {
		return t, false
	}
	// The thread's name, in parentheses, may have any characters.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const state, utime, stime = 0, 11, 12
	if len(fields) <= stime {
		return t, false
	}
	for _, f := range fields[utime : stime+1] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return t, false
		}
		t.cpu += clock.Duration(n) * time.Second / userHZ
	}
	switch fields[state][0] {
	case 'S', 'D':
		t.asleep = true
	case 'T', 't':
		t.stopped = true
	}
	return t, true
}
