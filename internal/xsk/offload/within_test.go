package offload

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The main thread of a process ends with it. It never stays in the network namespace of a veth's other end: that namespace would live as long, and
// with it both ends, and /proc/PID/ns/net would be another one than the process's.
func TestWithinSparesTheMainThread(t *testing.T) {
	made := make(chan netns.NsHandle)
	var enter func()
	enter = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // it must be free below
			go enter()
			time.Sleep(10 * time.Millisecond)
			runtime.UnlockOSThread()
			return
		}
		ns, _ := netns.New()
		made <- ns
	}
	go enter()
	there := <-made
	if !there.IsOpen() {
		t.Skip("network namespaces cannot be made")
	}
	defer there.Close()
	of := func() string {
		s, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	was, met := of(), 0
	for end := time.Now().Add(10 * time.Second); met < 20 && time.Now().Before(end); {
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				time.Sleep(time.Microsecond) // others run, on all threads
				if unix.Gettid() != unix.Getpid() {
					return
				}
				// The scheduler runs what is begun here on this thread, as a rule.
				if err := Within(there, func() error { return nil }); err != nil {
					t.Error(err)
				}
			})
			if unix.Gettid() == unix.Getpid() {
				met++
			}
		}
		all.Wait()
		if is := of(); is != was {
			t.Fatalf("the main thread is in %s, and was in %s", is, was)
		}
	}
	if met == 0 {
		t.Skip("nothing ran on the main thread")
	}
}
