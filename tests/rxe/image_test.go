package rxe

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// built is where downloads and builds are kept, from this folder.
const built = "../../bin/rxe"

// image is what guests boot.
type image struct {
	kernel, initramfs string
	all               bool // programs and modules of all kinds
}

// parts are what an image is made of beside the agent, all of it from Debian.
type parts struct {
	needs    []need
	modules  []string // that a guest loads, and before each those that it depends on
	programs []string // with their libraries
	files    []string // patterns; libraries among them with those that they need
}

// need is a program or a file that must be there, and its Debian package.
type need struct{ path, debian string }

// small is enough for perftest and contend. rxe asks for crc32 by the name of
// the algorithm, which is no dependency.
var small = parts{
	needs: []need{
		{"/usr/bin/qemu-system-x86_64", "qemu-system-x86"},
		{"/usr/bin/ib_write_bw", "perftest"},
		{"/etc/libibverbs.d/rxe.driver", "ibverbs-providers"},
		{"/usr/include/infiniband/verbs.h", "libibverbs-dev"},
		{"/usr/include/stdlib.h", "libc6-dev"},
		{"/usr/bin/gcc", "gcc"},
		{"/usr/bin/xz", "xz-utils"},
		{"/usr/bin/dpkg-deb", "dpkg"},
	},
	// drbg loads jitterentropy_rng, which does not start without sha3_generic, and names it nowhere.
	modules: []string{"sha3_generic", "virtio_pci", "virtio_net", "crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe",
		"veth", "vxlan", "xfrm_user", "esp4", "esp6", "sha512_generic", "jitterentropy_rng", "drbg", "gcm", "ghash_generic", "ctr", "seqiv"}, // of the other ends in tests/pcap
	programs: []string{"/usr/bin/ib_write_bw", "/usr/bin/ib_read_bw", "/usr/bin/ib_send_bw", "/usr/bin/ib_atomic_bw"},
	files: []string{
		"/etc/libibverbs.d/rxe.driver", "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so",
		"/lib/x86_64-linux-gnu/libgcc_s.so.1", // threads that end themselves load it by name
	},
}

// full also has what the long form runs.
var full = parts{
	needs: append(slices.Clip(small.needs),
		need{"/bin/busybox", "busybox-static"},
		need{"/usr/bin/rdma", "iproute2"},
		need{"/usr/bin/rping", "rdmacm-utils"},
		need{"/usr/bin/ucx_perftest", "ucx-utils"},
		need{"/usr/bin/orted", "openmpi-bin"},
		need{"/usr/bin/mpicc", "libopenmpi-dev"},
		need{"/usr/sbin/exportfs", "nfs-kernel-server"},
		need{"/sbin/iscsid", "open-iscsi"},
	),
	modules: append(slices.Clip(small.modules), "8021q", "crc32c_generic", "configfs", "brd", "ext4",
		"nvme_rdma", "nvmet_rdma", "rpcrdma", "nfsd", "nfsv4", "ib_iser", "ib_isert", "target_core_iblock", "sd_mod"),
	programs: append(slices.Clip(small.programs),
		"/bin/busybox", "/usr/bin/rdma",
		"/usr/bin/ib_write_lat", "/usr/bin/ib_read_lat", "/usr/bin/ib_send_lat", "/usr/bin/ib_atomic_lat",
		"/usr/bin/rping", "/usr/bin/ucx_perftest", "/usr/bin/orterun", "/usr/bin/orted",
		"/usr/sbin/exportfs", "/usr/sbin/rpc.nfsd", "/usr/sbin/rpc.mountd",
		"/sbin/iscsid", "/sbin/iscsiadm",
	),
	files: append(slices.Clip(small.files),
		"/usr/lib/x86_64-linux-gnu/ucx/libuct_*.so.0",
		"/usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3/mca_*.so",
		"/usr/lib/x86_64-linux-gnu/pmix2/lib/pmix/*.so",
		"/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so.2",
		"/usr/share/openmpi/*.txt", "/usr/share/openmpi/amca-param-sets/*", "/usr/lib/x86_64-linux-gnu/pmix2/share/pmix/*.txt",
		"/etc/netconfig", "/etc/protocols", "/etc/services",
	),
}

// build makes the image, of all parts or of few, or skips the test where that
// is not possible.
func build(t *testing.T, all bool) image {
	t.Helper()
	im, p := image{built + "/vmlinux", built + "/initramfs", all}, small
	if all {
		im.initramfs, p = im.initramfs+"-full", full
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("guests are made of Debian's amd64 packages")
	}
	var missing []string
	for _, n := range p.needs {
		if _, err := os.Stat(n.path); err != nil {
			missing = append(missing, n.debian)
		}
	}
	if len(missing) > 0 {
		t.Skipf("missing: apt-get install --no-install-recommends %s", strings.Join(missing, " "))
	}
	if err := os.MkdirAll(built, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := kernelPackage()
	if err != nil {
		t.Skipf("no kernel for the guests: %v", err)
	}
	if err := errors.Join(im.unpackKernel(root), im.pack(root, p)); err != nil {
		t.Fatal(err)
	}
	return im
}

// run runs a program of the host.
func run(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, bytes.TrimSpace(diag.Bytes()))
	}
	return out.Bytes(), nil
}

// kernelPackage is the folder that Debian's kernel is unpacked in; it is not
// installed on the host.
func kernelPackage() (string, error) {
	root := built + "/kernel"
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	tmp, err := os.MkdirTemp(built, "kernel-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	deb, err := download(tmp)
	if err != nil && os.Getuid() == 0 {
		// Lists are missing, or older than what the archive has.
		if _, err := run("apt-get", "-qq", "update"); err != nil {
			return "", err
		}
		deb, err = download(tmp)
	}
	if err != nil {
		return "", err
	}
	if _, err := run("dpkg-deb", "-x", deb, tmp+"/root"); err != nil {
		return "", err
	}
	return root, os.Rename(tmp+"/root", root)
}

// download brings the package of Debian's newest kernel to a folder.
func download(folder string) (string, error) {
	out, err := run("apt-cache", "depends", "linux-image-amd64")
	if err != nil {
		return "", err
	}
	name := regexp.MustCompile(`Depends: (linux-image-[0-9]\S+)`).FindSubmatch(out)
	if name == nil {
		return "", errors.New("apt-cache knows no linux-image-amd64: apt-get update")
	}
	get := exec.Command("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", string(name[1]))
	get.Dir = folder
	if out, err := get.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", get, err, out)
	}
	debs, err := filepath.Glob(folder + "/*.deb")
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("%s brought %d packages: %w", get, len(debs), err)
	}
	return debs[0], nil
}

// unpackKernel writes the uncompressed kernel: emulated, a guest needs seconds
// to unpack its own.
func (im image) unpackKernel(root string) error {
	files, err := filepath.Glob(root + "/boot/vmlinuz-*")
	if err != nil || len(files) != 1 {
		return fmt.Errorf("%s has %d kernels, want 1: %w", root, len(files), err)
	}
	packed, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	at := bytes.Index(packed, []byte("\xfd7zXZ\x00"))
	if at < 0 {
		return fmt.Errorf("%s is not packed with xz", files[0])
	}
	cmd := exec.Command("xz", "-dc", "--single-stream")
	cmd.Stdin = bytes.NewReader(packed[at:])
	kernel, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", files[0], err)
	}
	return os.WriteFile(im.kernel, kernel, 0o644)
}

// pack writes the initramfs, not compressed for the same reason.
func (im image) pack(root string, p parts) error {
	var a archive
	if err := a.addModules(root, p.modules); err != nil {
		return err
	}
	guest, contend := built+"/guest", built+"/contend"
	if _, err := run("go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", guest, "./guest"); err != nil {
		return err
	}
	if _, err := run("gcc", "-O2", "-Wall", "-Werror", "-o", contend, "testdata/contend.c", "-libverbs", "-lpthread"); err != nil {
		return err
	}
	beside := built + "/pcap.test"
	if _, err := run("go", "test", "-c", "-pgo=off", "-vet=off", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", beside, "../pcap"); err != nil {
		return err
	}
	cases, err := filepath.Glob("../pcap/*-linux*/case.yaml")
	if err != nil || len(cases) == 0 {
		return errors.New("there are no cases for Linux' tunnels")
	}
	for _, c := range cases {
		a.add("/"+filepath.Base(filepath.Dir(c))+"/case.yaml", c)
	}
	a.add("/bin/pcap.test", beside)
	a.add("/init", guest)
	a.add("/bin/contend", contend)
	programs := append(slices.Clip(p.programs), contend)
	if slices.Contains(p.programs, "/usr/bin/orted") {
		ring := built + "/ring"
		if _, err := run("mpicc", "-O2", "-Wall", "-Werror", "-o", ring, "testdata/ring.c"); err != nil {
			return err
		}
		a.add("/bin/ring", ring)
		programs = append(programs, ring)
	}
	var libraries []string
	for _, pattern := range p.files {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			return fmt.Errorf("there is no %s: %w", pattern, err)
		}
		for _, f := range files {
			a.add(f, f)
			if strings.Contains(f, ".so") {
				libraries = append(libraries, f)
			}
		}
	}
	for _, f := range p.programs {
		a.add("/bin/"+filepath.Base(f), f)
	}
	if err := a.addLibraries(append(programs, libraries...)); err != nil {
		return err
	}
	if err := a.addScripts(slices.Contains(p.programs, "/bin/busybox")); err != nil {
		return err
	}
	return a.write(im.initramfs)
}

// addLibraries adds what programs and libraries need of others.
func (a *archive) addLibraries(files []string) error {
	for _, file := range files {
		// Lines like "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x...)".
		out, err := run("ldd", file)
		if err != nil && !strings.Contains(err.Error(), "not a dynamic executable") {
			return err
		}
		for _, l := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
			a.add(string(l[1]), string(l[1]))
		}
	}
	return nil
}

// addScripts adds testdata/guest as it is, with busybox as the commands that
// its scripts use.
func (a *archive) addScripts(shell bool) error {
	if !shell {
		return nil
	}
	out, err := run("busybox", "--list")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(out)) {
		a.entry("bin/"+name, 0o120777, []byte("busybox"))
	}
	return filepath.WalkDir("testdata/guest", func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			a.add(strings.TrimPrefix(path, "testdata/guest"), path)
		}
		return err
	})
}

// archive is an initramfs in the making: a cpio archive of format newc, as in
// Documentation/driver-api/early-userspace/buffer-format.rst.
type archive struct {
	out  bytes.Buffer
	seen map[string]bool
	err  error
}

// addModules adds the modules that guests load, numbered in loading order.
func (a *archive) addModules(root string, modules []string) error {
	files := map[string]string{}
	err := filepath.WalkDir(root+"/lib/modules", func(path string, d os.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return err
	}
	done := map[string]bool{}
	var load func(name string) error
	load = func(name string) error {
		if name = strings.ReplaceAll(name, "-", "_"); done[name] {
			return nil
		}
		done[name] = true
		if files[name] == "" {
			return fmt.Errorf("the kernel package has no module %s", name)
		}
		needs, err := depends(files[name])
		for _, n := range needs {
			err = errors.Join(err, load(n))
		}
		a.add(fmt.Sprintf("/modules/%03d-%s.ko", len(a.seen), name), files[name])
		return err
	}
	for _, m := range modules {
		if err := load(m); err != nil {
			return err
		}
	}
	return nil
}

// depends lists the modules that a module's file names as needed.
func depends(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Section(".modinfo").Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, field := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}

// add adds a file of the host once, and the folders that it lies in.
func (a *archive) add(path, file string) {
	if a.seen[path[1:]] {
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		a.err = errors.Join(a.err, err)
		return
	}
	for i, c := range path {
		if c == '/' && i > 0 {
			a.entry(path[1:i], 0o040755, nil)
		}
	}
	a.entry(path[1:], 0o100755, data)
}

// entry adds an entry once.
func (a *archive) entry(path string, mode uint32, data []byte) {
	if a.seen[path] {
		return
	}
	if a.seen == nil {
		a.seen = map[string]bool{}
	}
	a.seen[path] = true
	fmt.Fprintf(&a.out, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		len(a.seen), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path)+1, 0)
	a.out.WriteString(path + "\x00")
	a.align()
	a.out.Write(data)
	a.align()
}

func (a *archive) align() {
	for a.out.Len()%4 != 0 {
		a.out.WriteByte(0)
	}
}

func (a *archive) write(file string) error {
	if a.err != nil {
		return a.err
	}
	// Opened by the kernel as the first process's stdout.
	a.entry("dev", 0o040755, nil)
	a.entry("TRAILER!!!", 0, nil)
	return os.WriteFile(file, a.out.Bytes(), 0o644)
}
