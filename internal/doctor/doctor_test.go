package doctor

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// Each thing that a machine may lack is found, and something is said that can be done.
func TestMachines(t *testing.T) {
	fit := func() machine {
		return machine{release: "6.18.44-fc", processors: 4, read: func(string) string { return "" },
			socket: func() error { return nil }, program: func() error { return nil }}
	}
	for name, c := range map[string]struct {
		lacks func(m *machine)
		about string
		want  Level
	}{
		"nothing":            {func(*machine) {}, "", OK},
		"old kernel":         {func(m *machine) { m.release = "5.10.0-30-amd64" }, "kernel", Bad},
		"older kernel":       {func(m *machine) { m.release = "6.1.0" }, "kernel", Note},
		"a newest kernel":    {func(m *machine) { m.release = "7.0-rc1+" }, "kernel", OK},
		"no root":            {func(m *machine) { m.uid = 1000 }, "privileges", Note},
		"user without bpf":   {func(m *machine) { m.uid, m.program = 1000, func() error { return unix.EPERM } }, "xdp", Bad},
		"container":          {func(m *machine) { m.program = func() error { return unix.EPERM } }, "xdp", Bad},
		"no bpf":             {func(m *machine) { m.program = func() error { return unix.ENOSYS } }, "xdp", Bad},
		"no AF_XDP":          {func(m *machine) { m.socket = func() error { return unix.EAFNOSUPPORT } }, "af_xdp", Bad},
		"AF_XDP not allowed": {func(m *machine) { m.socket = func() error { return errors.Join(unix.EPERM) } }, "af_xdp", Bad},
		"interpreter": {func(m *machine) {
			m.read = func(f string) string {
				return map[string]string{"/proc/sys/net/core/bpf_jit_enable": "0"}[f]
			}
		}, "bpf_jit", Note},
		"one processor": {func(m *machine) { m.processors = 1 }, "processors", Note},
		"saves power": {func(m *machine) {
			m.read = func(f string) string {
				return map[string]string{"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"}[f]
			}
		}, "processors", Note},
	} {
		m := fit()
		c.lacks(&m)
		worst := OK
		for _, f := range m.look() {
			if (f.Level != OK) != (f.Do != "") || f.Says == "" {
				t.Errorf("%s: %+v", name, f)
			}
			if f.About == c.about {
				worst = f.Level
			} else if f.Level == Bad {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if worst != c.want {
			t.Errorf("%s: %s is %s, not %s", name, c.about, worst, c.want)
		}
	}
}
