package topo

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/port"
)

// Space is an anonymous network namespace, held by one locked thread.
type Space struct {
	calls chan func()
	quit  chan struct{}
	done  chan struct{}
	once  sync.Once
	ns    *os.File
}

// errClosed is the error of Do when the space's thread has ended.
var errClosed = errors.New("namespace is closed")

// NewSpace makes a network namespace. With mounts it also gets a mount
// namespace of its own, with the namespace's /sys, an empty BPF file system at
// /sys/fs/bpf and an empty /run: sockets and pins there vanish with it.
func NewSpace(mounts bool) (*Space, error) {
	s := &Space{calls: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error)
	go s.hold(mounts, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return s, nil
}

// hold runs the calls on a thread inside the namespace. The thread is never
// unlocked: it ends with the goroutine and is not reused.
func (s *Space) hold(mounts bool, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread cannot end before the process, so it must not be used.
		go s.hold(mounts, ready)
		<-s.done
		runtime.UnlockOSThread()
		return
	}
	defer close(s.done)
	if err := s.enter(mounts); err != nil {
		ready <- err
		return
	}
	ready <- nil
	defer s.ns.Close()
	for {
		select {
		case f := <-s.calls:
			f()
		case <-s.quit:
			return
		}
	}
}

func (s *Space) enter(mounts bool) error {
	flags := unix.CLONE_NEWNET
	if mounts {
		flags |= unix.CLONE_NEWNS
	}
	if err := unix.Unshare(flags); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("network namespaces need root (CAP_SYS_ADMIN): %w", port.ErrNotSupported)
		}
		return fmt.Errorf("cannot make a network namespace: %w", supported(err))
	}
	if mounts {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("cannot make the mounts private: %w", supported(err))
		}
		for _, m := range [][3]string{{"sysfs", "/sys", ""}, {"bpf", "/sys/fs/bpf", "mode=0700"}, {"tmpfs", "/run", "mode=0755"}} {
			if err := unix.Mount(m[0], m[1], m[0], unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, m[2]); err != nil {
				return fmt.Errorf("cannot mount a %s at %s: %w", m[0], m[1], supported(err))
			}
		}
	}
	// Kernel addresses are of no use here, and the kernel's IPv6 would send frames unasked.
	for _, conf := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot turn off the kernel's IPv6: %w", err)
		}
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	s.ns = ns
	return nil
}

// supported adds port.ErrNotSupported to an error that means that this kernel or container does not allow the
// operation.
func supported(err error) error {
	for _, e := range []error{unix.EPERM, unix.EACCES, unix.EOPNOTSUPP, unix.ENOSYS, unix.ENODEV} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", err, port.ErrNotSupported)
		}
	}
	return err
}

// Do runs f on the thread inside the namespace. Sockets and processes that f makes belong to the namespace
// for good; sockets may be used from any goroutine. The thread lives until Close, so a process started with
// Pdeathsig lives as long. f must not call Do of the same space.
func (s *Space) Do(f func() error) (err error) {
	ran := make(chan struct{})
	call := func() {
		defer close(ran)
		err = f()
	}
	select {
	case s.calls <- call:
		<-ran
		return err
	case <-s.done:
		return errClosed
	}
}

// Close ends the thread, after a Do that is running. The namespace ends when nothing else is in it.
func (s *Space) Close() {
	s.once.Do(func() { close(s.quit) })
	<-s.done
}
