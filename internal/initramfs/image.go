// Package initramfs makes what QEMU guests of tests boot, of Debian's packages: a kernel, and an initramfs with its modules and with
// programs of this machine.
package initramfs

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Kernel is Debian's newest, not installed on this machine.
type Kernel struct {
	File string // uncompressed: emulated, a guest needs seconds to unpack its own
	root string // what its package has
}

// GetKernel downloads the kernel, or finds it in the folder that has it from before.
func GetKernel(folder string) (Kernel, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return Kernel{}, err
	}
	root, err := unpacked(folder)
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{File: folder + "/vmlinux", root: root}
	return k, k.unpack()
}

// Run runs a program of this machine, without cgo if it is go, and returns its output.
func Run(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, bytes.TrimSpace(diag.Bytes()))
	}
	return out.Bytes(), nil
}

// unpacked is the folder that Debian's kernel is unpacked in.
func unpacked(folder string) (string, error) {
	root := folder + "/kernel"
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	tmp, err := os.MkdirTemp(folder, "kernel-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	deb, err := download(tmp)
	if err != nil && os.Getuid() == 0 {
		// Lists are missing, or older than what the archive has.
		if _, err := Run("apt-get", "-qq", "update"); err != nil {
			return "", err
		}
		deb, err = download(tmp)
	}
	if err != nil {
		return "", err
	}
	if _, err := Run("dpkg-deb", "-x", deb, tmp+"/root"); err != nil {
		return "", err
	}
	return root, os.Rename(tmp+"/root", root)
}

// download brings the package of Debian's newest kernel to a folder.
func download(folder string) (string, error) {
	out, err := Run("apt-cache", "depends", "linux-image-amd64")
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

// unpack writes the uncompressed kernel.
func (k Kernel) unpack() error {
	files, err := filepath.Glob(k.root + "/boot/vmlinuz-*")
	if err != nil || len(files) != 1 {
		return fmt.Errorf("%s has %d kernels, want 1: %w", k.root, len(files), err)
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
	tmp, err := os.CreateTemp(filepath.Dir(k.File), "vmlinux-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(kernel)
	if err := errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), k.File) // guests of other tests may have the former file open
}

// Archive is an initramfs in the making: a cpio archive of format newc, as in
// Documentation/driver-api/early-userspace/buffer-format.rst.
type Archive struct {
	out  bytes.Buffer
	seen map[string]bool
	err  error
}

// AddModules adds the modules of a kernel that guests load from /modules, numbered in loading order.
func (a *Archive) AddModules(k Kernel, modules []string) error {
	files, err := k.Modules(modules)
	for _, f := range files {
		name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(f), ".ko"), "-", "_")
		a.Add(fmt.Sprintf("/modules/%03d-%s.ko", len(a.seen), name), f)
	}
	return err
}

// Modules are the files of modules, each behind those that it depends on.
func (k Kernel) Modules(modules []string) ([]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(k.root+"/lib/modules", func(path string, d os.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var sorted []string
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
		sorted = append(sorted, files[name])
		return err
	}
	for _, m := range modules {
		if err := load(m); err != nil {
			return nil, err
		}
	}
	return sorted, nil
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

// Add adds a file of the host once, and the folders that it lies in.
func (a *Archive) Add(path, file string) {
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
			a.Entry(path[1:i], 0o040755, nil)
		}
	}
	a.Entry(path[1:], 0o100755, data)
}

// Entry adds an entry once, with a mode as of struct stat.
func (a *Archive) Entry(path string, mode uint32, data []byte) {
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

func (a *Archive) align() {
	for a.out.Len()%4 != 0 {
		a.out.WriteByte(0)
	}
}

// Write writes the archive, not compressed: a guest needs seconds to unpack it.
func (a *Archive) Write(file string) error {
	if a.err != nil {
		return a.err
	}
	// Opened by the kernel as the first process's stdout.
	a.Entry("dev", 0o040755, nil)
	a.Entry("TRAILER!!!", 0, nil)
	return os.WriteFile(file, a.out.Bytes(), 0o644)
}

// AddLibraries adds what programs and libraries need of others.
func (a *Archive) AddLibraries(files []string) error {
	for _, file := range files {
		// Lines like "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x...)".
		out, err := Run("ldd", file)
		if err != nil && !strings.Contains(err.Error(), "not a dynamic executable") {
			return err
		}
		for _, l := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
			a.Add(string(l[1]), string(l[1]))
		}
	}
	return nil
}

// Tree adds all files of a folder of this machine, at the same place below another.
func (a *Archive) Tree(at, folder string) error {
	return filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			a.Add(at+strings.TrimPrefix(path, folder), path)
		}
		return err
	})
}
