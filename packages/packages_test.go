package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// program stands for quillon where packages are installed.
const program = "#!/bin/sh\necho quillon\n"

// made are packages of two architectures, in a folder of their own.
func made(t *testing.T, version string) (out string) {
	t.Helper()
	dir := t.TempDir()
	out = filepath.Join(dir, "out")
	for name, text := range map[string]string{
		"quillon-amd64": program, "quillon-arm64": program, "share/man/man1/quillon.1.gz": "page", "share/doc/quillon/copyright": "Apache-2.0", "out/x": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run([]string{"-version", version, "-time", "1700000000", "-out", out, "-share", dir + "/share", dir + "/quillon-amd64", dir + "/quillon-arm64"}); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestVersions: Debian sorts candidates before a release, and commits behind it.
func TestVersions(t *testing.T) {
	order := []string{"8dc8ac6", "v0.2.0-rc1", "v0.2.0", "v0.2.0-5-g1dc8ac6", "v0.2.0-12-g0000000-dirty", "v0.2.1", "v0.10.0"}
	want := []string{"0.0.0+8dc8ac6", "0.2.0~rc1", "0.2.0", "0.2.0+5.g1dc8ac6", "0.2.0+12.g0000000+dirty", "0.2.1", "0.10.0"}
	for i, v := range order {
		if got := debianVersion(v); got != want[i] {
			t.Errorf("%s is %s, not %s", v, got, want[i])
		}
		if _, err := exec.LookPath("dpkg"); err == nil && i > 0 {
			if exec.Command("dpkg", "--compare-versions", debianVersion(order[i-1]), "lt", debianVersion(v)).Run() != nil {
				t.Errorf("Debian does not sort %s before %s", order[i-1], v)
			}
		}
	}
	if got := debianVersion(""); got != "0.0.0" {
		t.Error(got)
	}
}

// TestSameAgain: the same input makes the same packages.
func TestSameAgain(t *testing.T) {
	a, b := made(t, "v1.2.3"), made(t, "v1.2.3")
	names, err := filepath.Glob(a + "/quillon_*")
	if err != nil || len(names) != 5 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		x, err := os.ReadFile(name)
		y, err2 := os.ReadFile(filepath.Join(b, filepath.Base(name)))
		if err = errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(x, y) {
			t.Errorf("%s differs", filepath.Base(name))
		}
	}
}

// TestTar: it has what is installed, from the root on.
func TestTar(t *testing.T) {
	f, err := os.Open(made(t, "v1.2.3") + "/quillon_1.2.3_linux_arm64.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if want := int64(0o644); h.Mode != want && h.Name != "usr/bin/quillon" || h.Uid != 0 || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%+v", h)
		}
		has = append(has, h.Name)
	}
	if want := []string{"usr/bin/quillon", "usr/lib/systemd/system/quillon@.service", "usr/share/doc/quillon/copyright", "usr/share/man/man1/quillon.1.gz"}; !slices.Equal(has, want) {
		t.Error(has)
	}
}

// TestOCI: the image has both architectures, and runs the program.
func TestOCI(t *testing.T) {
	f, err := os.Open(made(t, "v1.2.3") + "/quillon_1.2.3_oci.tar")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if name := filepath.Join(dir, h.Name); h.FileInfo().IsDir() {
			err = os.MkdirAll(name, 0o755)
		} else {
			err = errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, text, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 2 {
		t.Fatal(m, err)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		d := m.Manifests[i]
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		c, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if d.Platform == nil || d.Platform.Architecture != arch || c.Architecture != arch || c.OS != "linux" || !slices.Equal(c.Config.Entrypoint, []string{"/usr/bin/quillon"}) {
			t.Errorf("%+v %+v", d.Platform, c)
		}
		if got := theFile(t, img); got != "usr/bin/quillon: "+program {
			t.Errorf("%s has %q", arch, got)
		}
	}
}

// theFile is the only file of an image's only layer.
func theFile(t *testing.T, img v1.Image) string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatal(layers, err)
	}
	l, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := tar.NewReader(l)
	h, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if _, end := r.Next(); err != nil || end != io.EOF {
		t.Fatal(err, end)
	}
	return h.Name + ": " + string(text)
}

// TestDebian installs the package over this machine's files without changing them, looks at the unit, and removes it.
func TestDebian(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to install a package")
	}
	for _, p := range []string{"dpkg", "unshare", "chroot"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s", p)
		}
	}
	dir := t.TempDir()
	script := `set -e
mount -t tmpfs none ` + dir + `
mkdir ` + dir + `/up ` + dir + `/work ` + dir + `/root
mount -t overlay none -o lowerdir=/,upperdir=` + dir + `/up,workdir=` + dir + `/work ` + dir + `/root || exit 77
cp "$1" "$2" ` + dir + `/root/
exec chroot ` + dir + `/root sh -ec '
mount -t proc none /proc
rm -rf /run/systemd
test ! -e /usr/bin/quillon
dpkg -i "/$1" >/dev/null
test "$(quillon)" = quillon
test "$(dpkg-query -W -f="\${Version} \${Status}" quillon)" = "1.2.3 install ok installed"
test -d /etc/quillon
test "$(stat -c %U:%a /usr/bin/quillon)" = root:755
if command -v systemd-analyze >/dev/null; then systemd-analyze verify --man=no /usr/lib/systemd/system/quillon@.service; fi
echo mine >/etc/quillon/one.yaml
dpkg -i "/$2" >/dev/null
test "$(dpkg-query -W -f="\${Version}" quillon)" = 1.2.4
test "$(cat /etc/quillon/one.yaml)" = mine
dpkg -r quillon >/dev/null
test ! -e /usr/bin/quillon
test ! -e /usr/lib/systemd/system/quillon@.service
test "$(cat /etc/quillon/one.yaml)" = mine
rm /etc/quillon/one.yaml
dpkg -i "/$2" >/dev/null
dpkg -P quillon >/dev/null
test ! -e /etc/quillon
test ! -e /usr/share/doc/quillon
echo all well
' sh "$(basename "$1")" "$(basename "$2")"`
	of := func(version string) string {
		return made(t, "v"+version) + "/quillon_" + version + "_" + arch(t) + ".deb"
	}
	out, err := exec.Command("unshare", "-mpf", "--kill-child", "sh", "-c", script, "sh", of("1.2.3"), of("1.2.4")).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 77 {
		t.Skipf("no overlay can be mounted: %s", out)
	}
	if err != nil || strings.TrimSpace(string(out)) != "all well" {
		t.Errorf("%v\n%s", err, out)
	}
}
