package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/graph"
)

// priority is the scheduling priority of the threads of the process.
type priority struct {
	what string
	// others is the priority of all threads but the workers', workers that of the workers' threads. All
	// threads get a higher priority, because a worker sometimes waits for other threads (Go's scheduler, the
	// garbage collector), which must then get a processor soon.
	others, workers unix.SchedAttr
	// limits are the resource limits with which the process may change its threads later without a
	// capability.
	limits map[int]uint64
	says   string
}

// priorities are the values of --priority.
var priorities = []priority{
	{what: "high",
		others: unix.SchedAttr{Policy: unix.SCHED_NORMAL, Nice: -10}, workers: unix.SchedAttr{Policy: unix.SCHED_NORMAL, Nice: -20},
		limits: map[int]uint64{unix.RLIMIT_NICE: 40}, // RLIMIT_NICE is 20 less the nice value
		says:   "nice -20 for the workers, -10 for all other threads"},
	{what: "realtime",
		others: unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1}, workers: unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 2},
		limits: map[int]uint64{unix.RLIMIT_RTPRIO: 2},
		says:   "SCHED_FIFO 2 for the workers, 1 for all other threads"},
	{what: "normal", says: "as other processes"},
}

func priorityNames() (names []string) {
	for _, p := range priorities {
		names = append(names, p.what)
	}
	return names
}

// choosePriority returns the priority with this name.
func choosePriority(name string) (*priority, error) {
	for i := range priorities {
		if priorities[i].what == name {
			return &priorities[i], nil
		}
	}
	return nil, fmt.Errorf("--priority %s: want %s", name, strings.Join(priorityNames(), ", "))
}

// take gives every thread of the process its priority; later threads inherit it. If the process may not do
// so, it keeps the normal priority. take returns the priority that holds and a text about it.
func (p *priority) take() (says string, _ *priority) {
	if p.limits == nil {
		return p.what + ", " + p.says, p
	}
	for limit, n := range p.limits {
		var r unix.Rlimit
		if unix.Getrlimit(limit, &r) == nil && r.Cur < n {
			_ = unix.Setrlimit(limit, &unix.Rlimit{Cur: n, Max: max(n, r.Max)})
		}
	}
	err := p.probe()
	for seen := map[string]bool{}; err == nil; {
		// The loop ends when no new thread has begun since the last pass.
		tasks, e := os.ReadDir("/proc/self/task")
		was := len(seen)
		for _, t := range tasks {
			if id, bad := strconv.Atoi(t.Name()); bad == nil && !seen[t.Name()] && err == nil {
				seen[t.Name()] = true
				a := p.others
				if err = unix.SchedSetAttr(id, &a, 0); errors.Is(err, unix.ESRCH) {
					err = nil
				}
			}
		}
		if err = errors.Join(err, e); len(seen) == was && err == nil {
			return p.what + ", " + p.says + p.session(), p
		}
	}
	normal := &priorities[len(priorities)-1]
	return fmt.Sprintf("%s, %s: --priority %s is not allowed (%v): run as root, or see quillon help run", normal.what, normal.says, p.what, err), normal
}

// session sets the nice value of the process's session to that of its threads, if the process leads the
// session, as after a start by a service manager or setsid. If the kernel groups threads by session
// (sched_autogroup_enabled), nice values count only among the threads of one session.
func (p *priority) session() (says string) {
	if sid, err := unix.Getsid(0); err != nil || sid != os.Getpid() || p.others.Nice >= 0 {
		return ""
	}
	if os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(int(p.others.Nice))), 0) != nil {
		return ""
	}
	return fmt.Sprintf(", and %d for the session", p.others.Nice)
}

// limited reports whether the limits of the process do not allow the priorities, so that threads need
// CAP_SYS_NICE to change theirs.
func (p *priority) limited() bool {
	for limit, n := range p.limits {
		var r unix.Rlimit
		if unix.Getrlimit(limit, &r) != nil || r.Cur < n {
			return true
		}
	}
	return false
}

// probe returns the error with which the kernel would refuse the workers' priority.
func (p *priority) probe() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return err
	}
	a := p.workers
	if err := unix.SchedSetAttr(0, &a, 0); err != nil {
		return err
	}
	return unix.SchedSetAttr(0, was, 0)
}

// processors reads a list such as 2,3 or 4-7. The process must be allowed to run on all of these processors.
func processors(list string) (cpus []int, err error) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if ranged && err == nil {
			to, err = strconv.Atoi(last)
		}
		if err != nil || from < 0 || to < from {
			return nil, fmt.Errorf("cpu=%s: want numbers of processors, as 2,3 or 4-7", list)
		}
		for c := from; c <= to; c++ {
			if !may.IsSet(c) {
				return nil, fmt.Errorf("cpu=%s: there is no processor %d that this process may run on; see /proc/self/status, Cpus_allowed_list", list, c)
			}
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}

// cpusOf returns the processors to which the ports of spec pin the workers. Each worker serves a queue of
// every port, so all ports must agree.
func cpusOf(spec *graph.Spec) (cpus []int, err error) {
	list, by := "", ""
	for _, name := range slices.Sorted(maps.Keys(spec.Ports)) {
		switch c := spec.Ports[name].Args["cpu"]; {
		case c == "" || c == list:
			continue
		case list != "":
			return nil, fmt.Errorf("ports %s and %s: cpu=%s and cpu=%s: a worker has a queue of every port, and runs in one place: give all ports the same", by, name, list, c)
		default:
			list, by = c, name
		}
		if cpus, err = processors(list); err != nil {
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
	}
	return cpus, nil
}
