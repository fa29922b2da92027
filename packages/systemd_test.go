package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// boots starts systemd twice over this machine's files, without changing them: $1 is an empty folder, $2 one that
// both have as /trial, with a script for each.
const boots = `set -e
mount -t tmpfs none "$1"
mkdir "$1/up" "$1/work" "$1/root"
for n in 1 2; do
  unshare -mpfnuiC --kill-child sh -ec '
    mount -t overlay none -o lowerdir=/,upperdir=$1/up,workdir=$1/work $1/root
    cd $1/root
    mkdir -p trial old
    mount --bind $2 trial
    mount -t proc none proc
    mount -t sysfs none sys
    mount -t cgroup2 none sys/fs/cgroup
    mount -t tmpfs none run
    mount -t tmpfs none tmp
    mount -t tmpfs none dev
    mkdir dev/pts dev/shm dev/net
    mount -t devpts none dev/pts
    for f in null zero full random urandom tty net/tun; do
      : >dev/$f
      mount --bind /dev/$f dev/$f
    done
    ln -s /proc/self/fd dev/fd
    if [ $3 = 1 ]; then
      rm -rf etc/systemd/system/*.wants
      : >etc/machine-id
      cp trial/links.service trial/trial.service etc/systemd/system/
      mkdir etc/systemd/system/multi-user.target.wants
      ln -s ../links.service ../trial.service etc/systemd/system/multi-user.target.wants/
    fi
    cp trial/$3.sh trial/now.sh
    pivot_root . old
    umount -l /old
    export container=unshare
    exec /lib/systemd/systemd --system --unit=multi-user.target --log-target=null --show-status=0
  ' sh "$1" "$2" $n </dev/null >"$2/boot$n" 2>&1 || true
done
`

// links are two hosts in namespaces, whose interfaces are p1 and p2 here.
const links = `set -e
for i in 1 2; do
  ip netns add n$i
  ip link add h$i netns n$i type veth peer name p$i
  ip link set p$i up
  ip -n n$i addr add 10.9.0.$i/24 dev h$i
  ip -n n$i link set h$i up
done
`

const linksService = `[Unit]
Before=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /trial/links.sh
`

// The second of the two services of a boot: it plays the script, and ends the machine.
const trialService = `[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'sh -eux /trial/now.sh >/trial/out 2>&1 && echo well >>/trial/well || true; cat /trial/out >>/trial/all; systemctl poweroff --force --force'
`

// lost is how many pings of a hundred a second may be without an answer: 100 ms.
const trials = `
lost() {
  n=$(sed -n 's/^\([0-9]*\) packets transmitted, \([0-9]*\) received.*/\1-\2/p' /tmp/pings)
  test -n "$n"
  test $(($n)) -le 10 || { cat /tmp/pings; exit 1; }
}
pings() { ip netns exec n1 ping -q -i 0.01 -c 400 10.9.0.2 >/tmp/pings & }
crosses() { ip netns exec n1 ping -q -c 1 -W 2 10.9.0.2 >/dev/null; }
main() { systemctl show -p MainPID --value quillon@rack; }
until_new() {
  for i in $(seq 100); do
    if [ "$(main)" != 0 ] && [ "$(main)" != "$1" ] && systemctl -q is-active quillon@rack; then return; fi
    sleep 0.1
  done
  false
}
`

// first installs, enables, upgrades under traffic, kills and reloads.
const first = trials + `
dpkg -i /trial/one.deb
cat >/etc/quillon/rack.yaml <<'Y'
ports:
  a: {kind: afxdp, args: {dev: p1, pair: b}}
  b: {kind: afxdp, args: {dev: p2, pair: a}}
apps:
  w: {kind: wire, args: {see: all}}
links: [a.out -> w.a, w.b -> b.in, b.out -> w.b, w.a -> a.in]
Y
systemctl enable --now quillon@rack
crosses
pid=$(main)
quillon list | grep "^rack  *runs .* $pid .* p1,p2 "
pings
sleep 0.5
dpkg -i /trial/two.deb
until_new $pid
wait
lost
pid=$(main)
pings
sleep 0.5
systemctl kill -s KILL quillon@rack
until_new $pid
wait
lost
sed -i 's/see: all/see: none/' /etc/quillon/rack.yaml
systemctl reload quillon@rack
for i in $(seq 50); do quillon show graph --json | grep '"see": "none"' && break; sleep 0.1; done
quillon show graph --json | grep '"see": "none"'
if systemctl start quillon@typo; then exit 1; fi
# An interface alone has a record in /run of what is to be put back.
ip link add t0 type veth peer name t1
cat >/etc/quillon/alone.yaml <<'Y'
ports:
  a: {kind: afxdp, args: {dev: t0}}
apps:
  w: {kind: wire, args: {see: all}}
links: [a.out -> w.a, w.b -> a.in]
Y
ip link set t0 up
ip link set t1 up
systemctl start quillon@alone
ls /run/quillon-* /run/*quillon*
systemctl stop quillon@alone
`

// second finds it running after the boot, and takes the package away.
const second = trials + `
until_new 0
crosses
test "$(systemctl is-active quillon@rack)" = active
dpkg -P quillon
test -z "$(ip -o link show p1 | grep xdp)"
if crosses; then exit 1; fi
test ! -e /usr/bin/quillon
test ! -L /etc/systemd/system/multi-user.target.wants/quillon@rack.service
`

// TestUnit: an enabled instance survives an upgrade, a kill and a boot with at most 100 ms of silence, and a package that
// is removed leaves nothing on interfaces. systemd runs in namespaces of its own.
func TestUnit(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program, and boots systemd twice")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to boot systemd in namespaces")
	}
	for _, p := range []string{"dpkg", "unshare", "ping", "ip", "/lib/systemd/systemd", "systemctl"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s", p)
		}
	}
	dir := t.TempDir()
	binary := buildProgram(t, dir)
	trial := dir + "/trial"
	err := errors.Join(os.Mkdir(trial, 0o755), os.Mkdir(dir+"/box", 0o755))
	for name, text := range map[string]string{"links.sh": links, "links.service": linksService, "trial.service": trialService, "1.sh": first, "2.sh": second} {
		err = errors.Join(err, os.WriteFile(filepath.Join(trial, name), []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"one", "two"} {
		version := fmt.Sprintf("1.2.%d", 3+i)
		if err := makePackage(dir, trial, version, binary); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(fmt.Sprintf("%s/quillon_%s_%s.deb", trial, version, arch(t)), trial+"/"+name+".deb"); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("timeout", "-k", "5", "180", "unshare", "-m", "sh", "-c", boots, "sh", dir+"/box", trial).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	said, err := os.ReadFile(trial + "/all")
	if errors.Is(err, os.ErrNotExist) {
		boot, _ := os.ReadFile(trial + "/boot1")
		t.Skipf("systemd does not come up in namespaces here: %s", boot)
	}
	well, _ := os.ReadFile(trial + "/well")
	if strings.Count(string(well), "well") != 2 {
		t.Errorf("%d of 2 boots went well:\n%s", strings.Count(string(well), "well"), said)
	}
}

// buildProgram builds quillon, and returns its file.
func buildProgram(t *testing.T, dir string) string {
	t.Helper()
	binary := dir + "/quillon-" + arch(t)
	build := exec.Command("go", "-C", "..", "build", "-buildvcs=false", "-trimpath", "-tags", "grpcnotrace,nethttpomithttp2", "-ldflags=-s -w", "-o", binary, "./cmd/quillon")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// makePackage packs a program, without documents; dir is a folder for an empty one.
func makePackage(dir, out, version, binary string) error {
	if err := os.MkdirAll(dir+"/share", 0o755); err != nil {
		return err
	}
	return run([]string{"-version", "v" + version, "-out", out, "-share", dir + "/share", binary})
}

// arch is what Debian calls this machine.
func arch(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("dpkg", "--print-architecture").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
