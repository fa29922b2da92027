package demo

import (
	"cmp"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/version"
)

// ThisMachine describes this machine.
func ThisMachine() Machine {
	kb, _ := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"))
	cpu := field("/proc/cpuinfo", "model name")
	cpu = cmp.Or(cpu, runtime.GOARCH)
	return Machine{
		CPU:      cpu,
		Cores:    runtime.NumCPU(),
		MemoryMB: kb / 1024,
		OS:       strings.Trim(field("/etc/os-release", "PRETTY_NAME"), `"`),
	}
}

// ThisVersion returns the versions of this program, its compiler and the kernel.
func ThisVersion() Versions {
	v := Versions{Quillon: version.This().Version, Go: runtime.Version()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		v.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return v
}

// field returns the value of the first "name: value" or "name=value" line of a file, "" if there is none.
func field(file, name string) string {
	p, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(p)) {
		i := strings.IndexAny(line, ":=")
		if i > 0 && strings.TrimSpace(line[:i]) == name {
			return strings.TrimSpace(line[i+1:])
		}
	}
	return ""
}
