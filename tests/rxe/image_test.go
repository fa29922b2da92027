package rxe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/initramfs"
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
	im, p := image{initramfs: built + "/initramfs", all: all}, small
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
	kernel, err := initramfs.GetKernel(built)
	if err != nil {
		t.Skipf("no kernel for the guests: %v", err)
	}
	im.kernel = kernel.File
	if err := im.pack(kernel, p); err != nil {
		t.Fatal(err)
	}
	return im
}

// pack writes the initramfs.
func (im image) pack(k initramfs.Kernel, p parts) error {
	var a initramfs.Archive
	if err := a.AddModules(k, p.modules); err != nil {
		return err
	}
	guest, contend := built+"/guest", built+"/contend"
	if _, err := initramfs.Run("go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", guest, "./guest"); err != nil {
		return err
	}
	if _, err := initramfs.Run("gcc", "-O2", "-Wall", "-Werror", "-o", contend, "testdata/contend.c", "-libverbs", "-lpthread"); err != nil {
		return err
	}
	beside := built + "/pcap.test"
	if _, err := initramfs.Run("go", "test", "-c", "-pgo=off", "-vet=off", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", beside, "../pcap"); err != nil {
		return err
	}
	cases, err := filepath.Glob("../pcap/*-linux*/case.yaml")
	if err != nil || len(cases) == 0 {
		return errors.New("there are no cases for Linux' tunnels")
	}
	for _, c := range cases {
		a.Add("/"+filepath.Base(filepath.Dir(c))+"/case.yaml", c)
	}
	a.Add("/bin/pcap.test", beside)
	a.Add("/init", guest)
	a.Add("/bin/contend", contend)
	programs := append(slices.Clip(p.programs), contend)
	if slices.Contains(p.programs, "/usr/bin/orted") {
		ring := built + "/ring"
		if _, err := initramfs.Run("mpicc", "-O2", "-Wall", "-Werror", "-o", ring, "testdata/ring.c"); err != nil {
			return err
		}
		a.Add("/bin/ring", ring)
		programs = append(programs, ring)
	}
	var libraries []string
	for _, pattern := range p.files {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			return fmt.Errorf("there is no %s: %w", pattern, err)
		}
		for _, f := range files {
			a.Add(f, f)
			if strings.Contains(f, ".so") {
				libraries = append(libraries, f)
			}
		}
	}
	for _, f := range p.programs {
		a.Add("/bin/"+filepath.Base(f), f)
	}
	if err := a.AddLibraries(append(programs, libraries...)); err != nil {
		return err
	}
	if err := addScripts(&a, slices.Contains(p.programs, "/bin/busybox")); err != nil {
		return err
	}
	return a.Write(im.initramfs)
}

// addScripts adds testdata/guest as it is, with busybox as the commands that
// its scripts use.
func addScripts(a *initramfs.Archive, shell bool) error {
	if !shell {
		return nil
	}
	out, err := initramfs.Run("busybox", "--list")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(out)) {
		a.Entry("bin/"+name, 0o120777, []byte("busybox"))
	}
	return a.Tree("", "testdata/guest")
}
