package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/initramfs"
)

// trial is where the guest has the second disk: packages, scripts, modules and this program.
const trial = "/trial"

// TestMain: the test's binary is also the first process of the guest's initramfs, and what measures in the guest.
func TestMain(m *testing.M) {
	if os.Getpid() == 1 {
		fmt.Println("first process:", handOver())
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	if os.Args[0] == trial+"/inside" {
		if err := inside(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "inside:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// handOver mounts the guest's disks and starts its systemd. It returns only an error.
func handOver() error {
	if err := initramfs.SetUp(); err != nil {
		return err
	}
	const root = "/root"
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	var err error
	for range 600 { // the disks come after their driver
		if err = unix.Mount("/dev/vda", root, "ext4", 0, ""); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("mount /dev/vda: %w", err)
	}
	if err := errors.Join(os.MkdirAll(root+trial, 0o755), os.MkdirAll(root+"/usr/lib/modules", 0o755)); err != nil {
		return err
	}
	if err := unix.Mount("/dev/vdb", root+trial, "ext4", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount /dev/vdb: %w", err)
	}
	if err := unix.Mount(root+trial+"/modules", root+"/usr/lib/modules", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount modules: %w", err)
	}
	// Units and interfaces of the trial are in /run: the disk has only what Debian and the package bring.
	if err := os.CopyFS("/run/systemd", os.DirFS(root+trial+"/systemd")); err != nil {
		return err
	}
	for _, m := range []string{"/proc", "/sys", "/dev", "/run"} {
		if err := unix.Mount(m, root+m, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", m, err)
		}
	}
	if err := errors.Join(os.Chdir(root), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/")); err != nil {
		return err
	}
	return unix.Exec("/sbin/init", []string{"/sbin/init"}, []string{"TERM=dumb"})
}

// inside is one of the programs that the trial's scripts use.
func inside(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "traffic":
		return traffic(args[1])
	case len(args) > 2 && args[0] == "took":
		start := time.Now()
		out, err := exec.Command(args[2], args[3:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return tell(report{What: args[1], Took: ms(time.Since(start))})
	}
	return errors.New("want: traffic WHAT, or took WHAT COMMAND")
}

// report is a line of JSON for the host.
type report struct {
	What string
	Took float64 `json:",omitempty"` // ms
	// Box is through the box, Bare from one interface to another with nothing between.
	Box, Bare *flow `json:",omitempty"`
}

// flow is what has become of numbered frames; times in ms.
type flow struct {
	Sent, Lost, Row int // Row: most that were lost in a row
	// Silence is the longest time without a frame, as many times 10 ms as were sent in it. The clock is the sender: where all of the
	// guest stands still, as its host's processors are taken, no frame is missing.
	Silence float64
	Delay   float64 // longest way of a frame
	Paused  float64 // longest that the sender was late
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func tell(r report) error {
	text, err := json.Marshal(r)
	fmt.Printf("report %s\n", text)
	return err
}

// every is the time between two frames.
const every = 10 * time.Millisecond

// traffic sends frames from n1 to n2 through the box, and from n3 to n4, until it is told to end.
func traffic(what string) error {
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGTERM)
	var stop atomic.Bool
	r := report{What: what, Box: &flow{}, Bare: &flow{}}
	ended := make(chan error, 2)
	for i, f := range []*flow{r.Box, r.Bare} {
		from, err := socket(fmt.Sprintf("n%d", 2*i+1), "", fmt.Sprintf("10.%d.0.2:9", 9-i))
		if err != nil {
			return err
		}
		to, err := socket(fmt.Sprintf("n%d", 2*i+2), fmt.Sprintf("10.%d.0.2:9", 9-i), "")
		if err != nil {
			return err
		}
		go func() { ended <- f.play(from, to, &stop) }()
	}
	<-told
	stop.Store(true)
	if err := errors.Join(<-ended, <-ended); err != nil {
		return err
	}
	return tell(r)
}

// socket is a UDP socket of a network namespace.
func socket(space, local, remote string) (c *net.UDPConn, err error) {
	runtime.LockOSThread() // and never unlocked: the thread of the namespace ends with its goroutine, or stays
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	other, err := os.Open("/run/netns/" + space)
	if err != nil {
		return nil, err
	}
	defer other.Close()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)); err == nil {
			runtime.UnlockOSThread()
		}
	}()
	if local != "" {
		at, err := net.ResolveUDPAddr("udp4", local)
		if err != nil {
			return nil, err
		}
		return net.ListenUDP("udp4", at)
	}
	at, err := net.ResolveUDPAddr("udp4", remote)
	if err != nil {
		return nil, err
	}
	return net.DialUDP("udp4", nil, at)
}

// play sends until stop, and a little later knows what came.
func (f *flow) play(from, to *net.UDPConn, stop *atomic.Bool) error {
	start := time.Now()
	var stamps []time.Duration // by number
	var sent atomic.Int32
	type arrival struct {
		number, sent int
		at           time.Duration
	}
	came := make(chan []arrival, 1)
	go func() {
		var all []arrival
		b := make([]byte, 64)
		for {
			n, err := to.Read(b)
			if err != nil {
				came <- all
				return
			}
			if n == 4 {
				all = append(all, arrival{int(binary.BigEndian.Uint32(b)), int(sent.Load()), time.Since(start)})
			}
		}
	}()
	var b [4]byte
	next := start
	for !stop.Load() {
		now := time.Now()
		f.Paused = max(f.Paused, ms(now.Sub(next)))
		next = now.Add(every)
		binary.BigEndian.PutUint32(b[:], uint32(len(stamps)))
		stamps = append(stamps, now.Sub(start))
		sent.Add(1)
		if _, err := from.Write(b[:]); err != nil {
			return fmt.Errorf("frame %d: %w", len(stamps), err)
		}
		time.Sleep(time.Until(next))
	}
	time.Sleep(time.Second)
	_ = to.Close()
	all := <-came
	if len(all) == 0 {
		return fmt.Errorf("none of %d frames came", len(stamps))
	}
	f.Sent, f.Lost = len(stamps), len(stamps)-len(all)
	last, before, silent := -1, 0, 0
	for _, a := range all {
		f.Delay = max(f.Delay, ms(a.at-stamps[a.number]))
		silent, before = max(silent, a.sent-before), a.sent
		f.Row, last = max(f.Row, a.number-last-1), max(last, a.number)
	}
	f.Row = max(f.Row, f.Sent-last-1)
	f.Silence = ms(time.Duration(max(silent, f.Sent-before)) * every)
	return nil
}

// disk makes a file system of a folder.
func disk(file, folder, size string) error {
	_, err := initramfs.Run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", folder, file, size)
	return err
}

// copyModules copies modules of a kernel to a folder, with what udev knows them by.
func copyModules(k initramfs.Kernel, folder string, names []string) error {
	files, err := k.Modules(names)
	if err != nil {
		return err
	}
	var root, version string // what lies in front of the version's name
	for _, f := range files {
		parts := pathParts.FindStringSubmatch(f)
		root, version = parts[1], parts[2]
		if err := copyFile(f, filepath.Join(folder, version, parts[3])); err != nil {
			return err
		}
	}
	for _, f := range []string{"modules.builtin", "modules.builtin.modinfo", "modules.order"} {
		if err := copyFile(filepath.Join(root, version, f), filepath.Join(folder, version, f)); err != nil {
			return err
		}
	}
	// depmod wants /lib/modules in front.
	base, err := os.MkdirTemp("", "depmod")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	whole, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(base+"/lib", 0o755), os.Symlink(whole, base+"/lib/modules")); err != nil {
		return err
	}
	_, err = initramfs.Run("depmod", "-b", base, version)
	return err
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o755))
}
