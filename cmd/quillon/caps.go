package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/open"
)

// keptCaps are the capabilities that a running middlebox needs: to change the filter of its XDP programs, to remove
// the programs and restore settings at the end, and to open ports of a graph that is applied later.
const keptCaps = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON

// niceCap is the capability that raises the priority of the workers' threads, if the resource limits of the
// process do not allow that.
const niceCap = 1 << unix.CAP_SYS_NICE

// capNames are the names of the capabilities in linux/capability.h, indexed by number.
var capNames = strings.Fields(`chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap
	linux_immutable net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio
	sys_chroot sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource sys_time sys_tty_config mknod
	lease audit_write audit_control setfcap mac_override mac_admin syslog wake_alarm block_suspend audit_read
	perfmon bpf checkpoint_restore`)

// namesOf returns the names of the capabilities in the bit mask caps.
func namesOf(caps uint64) []string {
	names := []string{}
	for n := range 64 {
		switch {
		case caps&(1<<n) == 0:
		case n < len(capNames):
			names = append(names, capNames[n])
		default:
			names = append(names, strconv.Itoa(n))
		}
	}
	return names
}

// rootFlags are the flags about privileges.
type rootFlags struct {
	user string
	keep bool
	// splice: the process removes a splice at its end, for which it must read what is attached.
	splice bool
}

func (f *rootFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.user, "user", "", "become this `user`, as nobody, once the ports are open: for pairs, and ports that leave offloads alone")
	cmd.Flags().BoolVar(&f.keep, "keep-root", false, "give up no privileges")
}

// check refuses values of the flags that are wrong for this spec.
func (f *rootFlags) check(spec *graph.Spec) error {
	if f.user == "" {
		return nil
	}
	if f.keep {
		return errors.New("--user and --keep-root exclude each other")
	}
	for name, p := range spec.Ports {
		// Only root may remove the record of its settings from /run.
		if (p.Kind == open.AFXDP && p.Args["pair"] == "" || p.Kind == open.AFPacket) && p.Args["offloads"] != "leave" {
			return fmt.Errorf("--user %s: what port %s changes on %s is on record in a file of root: give it offloads: leave, or run without --user", f.user, name, p.Args["dev"])
		}
	}
	_, _, err := f.ids()
	return err
}

// ids returns the numeric user of --user and its group. Root and root's group are an error.
func (f *rootFlags) ids() (uid, gid int, err error) {
	u, err := user.Lookup(f.user)
	if err != nil {
		u, err = user.LookupId(f.user)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("--user %s: there is no such user", f.user)
	}
	if uid, err = strconv.Atoi(u.Uid); err == nil {
		gid, err = strconv.Atoi(u.Gid)
	}
	if err == nil && (uid == 0 || gid == 0) {
		err = errors.New("it is root, or of root's group: name another one")
	}
	if err != nil {
		return 0, 0, fmt.Errorf("--user %s: %w", f.user, err)
	}
	return uid, gid, nil
}

// privileges are the capabilities that a process has, and those that it gave up.
type privileges struct {
	UID             int      `json:"uid"`
	Capabilities    []string `json:"capabilities"`
	Dropped         []string `json:"dropped"`
	NoNewPrivileges bool     `json:"no_new_privileges"`
	Why             []string `json:"why,omitempty"` // reasons why privileges were kept
}

func (p *privileges) print(w io.Writer) {
	has := "no capabilities"
	if len(p.Capabilities) > 0 {
		has = strings.Join(p.Capabilities, ", ")
	}
	fmt.Fprintf(w, "privileges: uid %d, %s; given up: %d capabilities", p.UID, has, len(p.Dropped))
	if p.NoNewPrivileges {
		fmt.Fprint(w, ", and all new ones")
	}
	fmt.Fprintln(w)
	for _, y := range p.Why {
		fmt.Fprintf(w, "  %s\n", y)
	}
}

// brief prints one line; for a process that has given up nothing it prints all that print does.
func (p *privileges) brief(w io.Writer) {
	if len(p.Dropped) == 0 && !p.NoNewPrivileges {
		p.print(w)
		return
	}
	n := len(p.Capabilities)
	fmt.Fprintf(w, "privileges: uid %d, %d of %d capabilities left: quillon show process\n", p.UID, n, n+len(p.Dropped))
}

// needs returns the capabilities that a running graph needs, and reasons for those that not every graph
// needs.
func (f *rootFlags) needs(spec *graph.Spec, nice bool) (caps uint64, why []string) {
	caps = keptCaps
	if nice {
		caps |= niceCap
		why = append(why, "sys_nice: workers go before others, and the limits could not be raised")
	}
	if memoryLimited() {
		caps |= 1 << unix.CAP_IPC_LOCK
		why = append(why, "ipc_lock: ports that are applied later lock their packet memory, and the limit could not be raised")
	}
	var all string
	switch away := elsewhere(spec); {
	case away != "":
		all = fmt.Sprintf("the other end of %s is in another network namespace, where its settings are put back", away)
	case f.splice:
		all = "the splice is undone at the end"
	case !bpfCap():
		all = "this kernel has no CAP_BPF"
	}
	if all != "" {
		caps |= 1 << unix.CAP_SYS_ADMIN
		why = append(why, "sys_admin: "+all)
	}
	return caps, why
}

// elsewhere returns a veth of the graph whose other end is in another network namespace, "" if there is none.
func elsewhere(spec *graph.Spec) string {
	for _, p := range spec.Ports {
		l, err := netlink.LinkByName(p.Args["dev"])
		if err == nil && l.Type() == "veth" && l.Attrs().NetNsID >= 0 {
			return p.Args["dev"]
		}
	}
	return ""
}

// memoryLimited reports whether there is a limit on the memory that the process may lock (ulimit -l).
func memoryLimited() bool {
	var l unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil && l.Cur != unix.RLIM_INFINITY
}

// bpfCap reports whether the kernel has CAP_BPF (since Linux 5.8).
func bpfCap() bool {
	text, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	last, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
	return err == nil && err2 == nil && last >= unix.CAP_BPF
}

// drop gives up privileges as the flags say, in every thread and for good, and returns those that the process
// still has.
func (f *rootFlags) drop(spec *graph.Spec, nice bool) (*privileges, error) {
	before, err := permitted()
	if err != nil {
		return nil, err
	}
	p := &privileges{UID: os.Geteuid()}
	switch caps, why := f.needs(spec, nice); {
	case f.keep:
		p.Why = []string{"nothing is given up: --keep-root"}
	default:
		err := f.become(before & caps)
		switch {
		case errors.Is(err, unix.ENOTSUP) && f.user == "":
			p.Why = []string{"nothing is given up: this binary was built with cgo; build it with CGO_ENABLED=0"}
		case errors.Is(err, unix.ENOTSUP):
			return nil, fmt.Errorf("--user %s: this binary was built with cgo; build it with CGO_ENABLED=0", f.user)
		case err != nil:
			return nil, err
		default:
			p.NoNewPrivileges, p.Why = true, why
		}
	}
	if p.UID = os.Geteuid(); p.UID == 0 && !f.keep {
		p.Why = append(p.Why, "uid 0: files of root are open to it; --user NAME gives that up")
	}
	has, err := permitted()
	p.Capabilities, p.Dropped = namesOf(has), namesOf(before&^has)
	return p, err
}

// permitted returns the permitted capabilities of the process, as a bit mask.
func permitted() (uint64, error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return 0, fmt.Errorf("capabilities: %w", err)
	}
	return uint64(have[0].Permitted) | uint64(have[1].Permitted)<<32, nil
}

// become changes every thread to --user, if that is given, with these capabilities and no others. A binary
// built with cgo cannot do that for all its threads: then the error is unix.ENOTSUP, and nothing has changed.
func (f *rootFlags) become(caps uint64) error {
	// no_new_privs: no program that this process executes gets more capabilities, whatever the bounding
	// set is.
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("no new privileges: %w", e)
	}
	if f.user != "" {
		uid, gid, err := f.ids()
		if err != nil {
			return err
		}
		// Without PR_SET_KEEPCAPS, changing the user would remove all capabilities.
		if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0, 0, 0); e != 0 {
			return fmt.Errorf("--user %s: %w", f.user, e)
		}
		for _, err := range []error{syscall.Setgroups(nil), syscall.Setresgid(gid, gid, gid), syscall.Setresuid(uid, uid, uid)} {
			if err != nil {
				return fmt.Errorf("--user %s: %w: run as root", f.user, err)
			}
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var keep [2]unix.CapUserData
	for i := range keep {
		keep[i].Permitted = uint32(caps >> (32 * i))
		keep[i].Effective = keep[i].Permitted
	}
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&keep[0])), 0)
	if e != 0 {
		return fmt.Errorf("capabilities: %w", e)
	}
	return nil
}
