package xdp

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/initramfs"
)

var long = flag.Bool("long", false, "test in a guest with Debian's kernel, too")

// inGuest are the tests that the guest runs: those by test runs.
const inGuest = "Heritage|Meter|Stack|Samples|RandomPrograms|NoHalf|Prefixes|RegistersOnce|Many|Records|OrderOf|ValueSet|Widths|Killed"

// TestMain is also a guest's first process.
func TestMain(m *testing.M) {
	if text := os.Getenv(childVar); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getpid() != 1 {
		os.Exit(m.Run())
	}
	err := initramfs.SetUp()
	if err == nil {
		var lo netlink.Link
		if lo, err = netlink.LinkByName("lo"); err == nil {
			err = netlink.LinkSetUp(lo)
		}
	}
	if err == nil {
		version, _ := os.ReadFile("/proc/version")
		fmt.Printf("%s", version)
		cmd := exec.Command("/src/nf/p4/xdp/test", "-test.v", "-test.run", inGuest)
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/src/nf/p4/xdp", []string{"QUILLON_PROGRAMS=40"}, os.Stdout, os.Stdout
		err = cmd.Run()
	}
	fmt.Println("the guest's tests:", err)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// TestGuest runs the tests of programs in a virtual machine with the kernel of this Debian, which may be an older one.
func TestGuest(t *testing.T) {
	if !*long {
		t.Skip("only in the long form (go test ./nf/p4/xdp -run Guest -long): it takes 6 to 30 minutes")
	}
	if runtime.GOARCH != "amd64" || os.Geteuid() != 0 {
		t.Skip("it needs amd64, and root to unpack a kernel")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("missing: apt-get install --no-install-recommends qemu-system-x86")
	}
	const root = "../../../"
	kernel, err := initramfs.GetKernel(root + "bin/rxe")
	if err != nil {
		t.Skipf("no kernel for the guest: %v", err)
	}
	dir := t.TempDir()
	if _, err := initramfs.Run("go", "test", "-c", "-o", dir+"/test", "."); err != nil {
		t.Fatal(err)
	}
	a := &initramfs.Archive{}
	a.Add("/init", dir+"/test")
	a.Add("/src/nf/p4/xdp/test", dir+"/test")
	var errs []error
	for _, d := range []string{"p4src", "tests/p4", "nf/p4/packettrace/testdata"} {
		errs = append(errs, a.Tree(filepath.Join("/src", d), root+d))
	}
	if err := errors.Join(append(errs, a.Write(dir+"/initrd"))...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "3000", "-smp", "2", "-nographic", "-no-reboot",
		"-kernel", kernel.File, "-initrd", dir+"/initrd", "-append", "console=ttyS0 no_timer_check panic=-1 loglevel=4").CombinedOutput()
	said := string(out)
	t.Log(regexp.MustCompile(`Linux version \S+`).FindString(said))
	for _, line := range strings.Split(said, "\n") {
		if strings.Contains(line, "frames in the kernel") || strings.Contains(line, "FAIL") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if err != nil || !strings.Contains(said, "the guest's tests: <nil>") {
		t.Fatalf("%v; the end of what it said:\n%s", err, said[max(0, len(said)-4000):])
	}
}
