// Package doctor looks whether a machine has what quillon needs, and what is best for it, and says what can be
// done where it has not. It changes nothing but that it loads and drops an XDP program of two instructions.
package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Level says how much a finding matters.
type Level string

const (
	OK   Level = "ok"
	Note Level = "note" // it goes, and could go better
	Bad  Level = "bad"  // it does not go
)

// Finding is one thing that was looked at.
type Finding struct {
	About string `json:"about"` // kernel, privileges, ... or an interface's name
	Level Level  `json:"level"`
	Says  string `json:"says"`
	Do    string `json:"do,omitempty"` // what to do; none for OK
}

// machine is what the findings are taken from; tests have others than the real one.
type machine struct {
	release string
	uid     int
	read    func(file string) string // "" when there is none
	// open tries whether a socket of AF_XDP, and an XDP program, are to be had.
	socket, program func() error
	processors      int
}

// System looks at the kernel, the privileges of this process and the processors.
func System() []Finding {
	m := machine{uid: os.Geteuid(), socket: socket, program: program, processors: runtime.NumCPU(), read: func(file string) string {
		text, _ := os.ReadFile(file)
		return strings.TrimSpace(string(text))
	}}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		m.release = unix.ByteSliceToString(u.Release[:])
	}
	return m.look()
}

func (m *machine) look() []Finding {
	return []Finding{m.kernel(), m.privileges(), m.loads(), m.sockets(), m.compiles(), m.cores()}
}

// older reports that release is of a kernel before major.minor.
func older(release string, major, minor int) bool {
	var is [2]int
	for i, part := range strings.SplitN(release, ".", 3) {
		if i < 2 {
			digits := strings.TrimRight(part, "+-_abcdefghijklmnopqrstuvwxyz")
			is[i], _ = strconv.Atoi(digits)
		}
	}
	return is[0] < major || is[0] == major && is[1] < minor
}

func (m *machine) kernel() Finding {
	f := Finding{About: "kernel", Level: OK, Says: "Linux " + m.release}
	switch {
	case older(m.release, 5, 15):
		f.Level, f.Do = Bad, "quillon is written for Linux 5.15 and later: update the kernel"
	case older(m.release, 6, 2):
		f.Level, f.Do = Note, "Linux 6.2 and later change multicast entries in place, and queue pairs without CAP_BPF"
	}
	return f
}

func (m *machine) privileges() Finding {
	if m.uid == 0 {
		return Finding{About: "privileges", Level: OK, Says: "root"}
	}
	return Finding{"privileges", Note, fmt.Sprintf("user %d", m.uid), "ports of kind afxdp and afpacket are opened by root, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON; captures need none"}
}

func (m *machine) loads() Finding {
	err := m.program()
	switch {
	case err == nil:
		return Finding{About: "xdp", Level: OK, Says: "XDP programs can be loaded"}
	case errors.Is(err, unix.EPERM) && m.uid != 0:
		return Finding{"xdp", Bad, "this user may not load XDP programs", "run as root"}
	case errors.Is(err, unix.EPERM):
		return Finding{"xdp", Bad, "root may not load XDP programs here: " + err.Error(), "in a container give it CAP_BPF and CAP_NET_ADMIN; see /sys/kernel/security/lockdown, too"}
	}
	return Finding{"xdp", Bad, "XDP programs cannot be loaded: " + err.Error(), "use a kernel with CONFIG_BPF_SYSCALL, or ports of kind afpacket (--port afpacket)"}
}

func (m *machine) sockets() Finding {
	err := m.socket()
	switch {
	case err == nil:
		return Finding{About: "af_xdp", Level: OK, Says: "sockets of AF_XDP can be opened"}
	case errors.Is(err, unix.EPERM):
		return Finding{"af_xdp", Bad, "this process may not open sockets of AF_XDP", "run as root"}
	}
	return Finding{"af_xdp", Bad, "there are no sockets of AF_XDP: " + err.Error(), "use a kernel with CONFIG_XDP_SOCKETS, or ports of kind afpacket (--port afpacket)"}
}

func (m *machine) compiles() Finding {
	if m.read("/proc/sys/net/core/bpf_jit_enable") == "0" {
		return Finding{"bpf_jit", Note, "XDP programs are interpreted, which is several times slower", "sysctl -w net.core.bpf_jit_enable=1"}
	}
	return Finding{About: "bpf_jit", Level: OK, Says: "XDP programs are compiled"}
}

func (m *machine) cores() Finding {
	f := Finding{About: "processors", Level: OK, Says: strconv.Itoa(m.processors)}
	governor := m.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	switch {
	case m.processors == 1:
		f.Level, f.Do = Note, "with one processor a worker and all else take turns: frames wait for it; see --priority"
	case governor == "powersave":
		f.Level, f.Do = Note, "processors save power (governor powersave): cpupower frequency-set -g performance"
	}
	if governor != "" {
		f.Says += ", governor " + governor
	}
	return f
}

// socket opens and closes a socket of AF_XDP.
func socket() error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// program loads and drops the least XDP program.
func program() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "quillon_doctor", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}) // 2: XDP_PASS
	return cmp.Or(err, p.Close())
}

// Worst is the level of the worst finding; OK when there is none.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level == Bad || f.Level == Note && worst == OK {
			worst = f.Level
		}
	}
	return worst
}
