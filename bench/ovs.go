package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/internal/rack/vpc"
)

// vswitch is Open vSwitch as it is installed.
type vswitch struct {
	version string
	ports   string // their type
}

// ovsSchema is where Open vSwitch's packages put its database's.
const ovsSchema = "/usr/share/openvswitch/vswitch.ovsschema"

// findOVS is the Open vSwitch of this machine; an error says what is missing.
func findOVS(ports string) (*vswitch, error) {
	for _, name := range []string{"ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ovs-appctl"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%s is not on the PATH (Debian: apt install openvswitch-switch)", name)
		}
	}
	if _, err := os.Stat(ovsSchema); err != nil {
		return nil, err
	}
	out, err := exec.Command("ovs-vswitchd", "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ovs-vswitchd --version: %w", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	_, number, _ := strings.Cut(line, ") ")
	return &vswitch{version: fmt.Sprintf("Open vSwitch %s, userspace datapath, ports of type %s", number, ports), ports: ports}, nil
}

// bridges are two of Open vSwitch, in the places of the boards.
type bridges struct {
	space *topo.Space
	dir   string
	procs []*exec.Cmd // the database, then the switch
}

// start starts a database and a switch in the namespace of the places.
func (v *vswitch) start(at vpcPlaces) (_ *bridges, err error) {
	b := &bridges{space: at.space}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.complaint())
			b.close()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "quillon-bench-"); err != nil {
		return nil, err
	}
	if err := b.run("ovsdb-tool", "create", b.dir+"/conf.db", ovsSchema); err != nil {
		return nil, err
	}
	if err := b.background("ovsdb-server", b.dir+"/conf.db", "--remote=punix:"+b.dir+"/db.sock", "--unixctl="+b.dir+"/db.ctl"); err != nil {
		return nil, err
	}
	db := "--db=unix:" + b.dir + "/db.sock"
	if err := b.run("ovs-vsctl", "--retry", "--timeout=10", db, "--no-wait", "init", "--", "set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x2"); err != nil {
		return nil, err
	}
	if err := b.background("ovs-vswitchd", "unix:"+b.dir+"/db.sock", "--unixctl="+b.dir+"/switch.ctl", "--log-file="+b.dir+"/log"); err != nil {
		return nil, err
	}
	for i, dev := range at.dev {
		name := ovsBridge(i)
		args := []string{"--timeout=20", db, "add-br", name, "--", "set", "Bridge", name, "datapath_type=netdev", "fail-mode=secure"}
		for n, d := range dev {
			args = append(args, "--", "add-port", name, d, "--", "set", "Interface", d, "type="+v.ports, fmt.Sprintf("ofport_request=%d", n+1))
		}
		if err := b.run("ovs-vsctl", args...); err != nil {
			return nil, err
		}
	}
	for _, dev := range at.dev {
		for _, d := range dev {
			out, err := b.output("ovs-vsctl", db, "get", "Interface", d, "ofport", "error")
			if err != nil {
				return nil, err
			}
			if w := strings.Fields(out); len(w) == 0 || w[0] != "1" && w[0] != "2" {
				return nil, fmt.Errorf("port %s: %s", d, strings.TrimSpace(out))
			}
		}
	}
	return b, nil
}

func ovsBridge(i int) string { return fmt.Sprintf("br%d", i) }

// env keeps this Open vSwitch apart from others.
func (b *bridges) env() []string {
	return append(os.Environ(), "OVS_RUNDIR="+b.dir, "OVS_LOGDIR="+b.dir, "OVS_DBDIR="+b.dir, "OVS_SYSCONFDIR="+b.dir)
}

// output runs a command in the namespace.
func (b *bridges) output(name string, args ...string) (string, error) {
	var out []byte
	err := b.space.Do(func() (err error) {
		cmd := exec.Command(name, args...)
		cmd.Env = b.env()
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w: %s", name, err, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; "))
		}
		return err
	})
	return string(out), err
}

func (b *bridges) run(name string, args ...string) error {
	_, err := b.output(name, args...)
	return err
}

// background starts a command in the namespace, which ends with this process.
func (b *bridges) background(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Dir = b.env(), b.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := b.space.Do(cmd.Start); err != nil {
		return err
	}
	b.procs = append(b.procs, cmd)
	return nil
}

// complaint is what the switch logged last as an error or a warning.
func (b *bridges) complaint() error {
	log, _ := os.ReadFile(b.dir + "/log")
	last := ""
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "|ERR|") || strings.Contains(line, "|WARN|") {
			last = strings.TrimSpace(line)
		}
	}
	if last == "" {
		return nil
	}
	return errors.New(last)
}

func (b *bridges) by() string        { return "ovs" }
func (b *bridges) can(step int) bool { return vpcSteps[step].ovs }
func (b *bridges) rest() error       { return b.signal(syscall.SIGSTOP) }
func (b *bridges) check(int) error   { return nil }
func (b *bridges) signal(s syscall.Signal) error {
	return b.procs[len(b.procs)-1].Process.Signal(s)
}

func (b *bridges) become(step int) error {
	if err := b.signal(syscall.SIGCONT); err != nil {
		return err
	}
	for i, s := range vpc.Sites() {
		file := fmt.Sprintf("%s/flows%d", b.dir, i)
		if err := os.WriteFile(file, []byte(ovsFlows(&s, vpc.Sites()[1-i], i+1, vpcSteps[step].tasks)), 0o600); err != nil {
			return err
		}
		if err := b.run("ovs-ofctl", "--timeout=10", "-O", "OpenFlow13", "replace-flows", "unix:"+b.dir+"/"+ovsBridge(i)+".mgmt", file); err != nil {
			return err
		}
	}
	// Connections of another step are not translated as this one's.
	return b.run("ovs-appctl", "-t", b.dir+"/switch.ctl", "dpctl/flush-conntrack")
}

// ovsFlows are a bridge's flows: port 1 leads to the hosts, 2 to the wire. What was
// allowed is marked: UDP that nobody answers is new to Open vSwitch for ever, and would
// be committed with every packet.
func ovsFlows(s *vpc.Site, t vpc.Site, zone int, tasks []string) string {
	if tasks[0] == "pass" {
		return "in_port=1,actions=output:2\nin_port=2,actions=output:1\n"
	}
	nat, shared := "", ""
	if len(tasks) > 1 {
		nat, shared = ",nat", fmt.Sprintf(",nat(src=%v)", s.Shared)
	}
	text := fmt.Sprintf("table=0,priority=10,ip,actions=ct(table=1,zone=%d%s)\ntable=0,priority=0,actions=drop\n", zone, nat)
	for in := 1; in <= 2; in++ {
		text += fmt.Sprintf("table=1,priority=20,ip,ct_state=+trk-inv,ct_mark=1,in_port=%d,actions=output:%d\n", in, 3-in)
	}
	for _, proto := range []string{"tcp", "udp"} {
		text += fmt.Sprintf("table=1,priority=10,%s,ct_state=+trk+new,in_port=1,nw_src=%v,nw_dst=%v,tp_dst=%d,actions=ct(commit,zone=%d%s,exec(set_field:1->ct_mark)),output:2\n",
			proto, s.Private, t.Public, vpc.Service, zone, shared)
		from := t.Public
		if nat == "" {
			from = t.Private // it has not been translated
		}
		text += fmt.Sprintf("table=1,priority=10,%s,ct_state=+trk+new,in_port=2,nw_src=%v,nw_dst=%v,tp_dst=%d,actions=ct(commit,zone=%d,exec(set_field:1->ct_mark)),output:1\n",
			proto, from, s.Server, vpc.Service, zone)
	}
	return text + "table=1,priority=0,actions=drop\n"
}

// close ends the switch, then its database.
func (b *bridges) close() {
	for len(b.procs) > 0 {
		p := b.procs[len(b.procs)-1]
		b.procs = b.procs[:len(b.procs)-1]
		_ = p.Process.Signal(syscall.SIGTERM)
		_ = p.Process.Signal(syscall.SIGCONT)
		late := time.AfterFunc(5*time.Second, func() { _ = p.Process.Kill() })
		_ = p.Wait()
		late.Stop()
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}
