// Command packages makes what quillon is installed from, without Docker and without Debian's tools: for each
// architecture a Debian package and a tar, and one OCI image of all.
//
//	packages -version v1.2.3 -out DIR -share SHARE BINARY-ARCH...
//
// A BINARY-ARCH is a file named quillon-amd64 or quillon-arm64; SHARE goes to /usr/share.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// build is what packages are made of.
type build struct {
	version string // as git describes it
	out     string // folder
	share   string // folder
	time    time.Time
}

// file is one that is installed.
type file struct {
	from string
	to   string // absolute
	mode fs.FileMode
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	var b build
	var seconds int64
	set := flag.NewFlagSet("packages", flag.ContinueOnError)
	set.StringVar(&b.version, "version", "", "as git describe --tags tells it")
	set.StringVar(&b.out, "out", ".", "`folder` that they are written to")
	set.StringVar(&b.share, "share", "", "`folder` whose files go to /usr/share")
	set.Int64Var(&seconds, "time", 0, "Unix time of all files: the same input gives the same packages")
	if err := set.Parse(args); err != nil {
		return err
	}
	b.time = time.Unix(seconds, 0).UTC()
	if set.NArg() == 0 || b.share == "" {
		return errors.New("want -share FOLDER and binaries named quillon-ARCH")
	}
	var images []*image
	for _, binary := range set.Args() {
		arch, ok := strings.CutPrefix(filepath.Base(binary), "quillon-")
		if !ok {
			return fmt.Errorf("%s: want a file named quillon-ARCH", binary)
		}
		all, err := b.files(binary)
		if err != nil {
			return err
		}
		if err := b.debian(arch, all); err != nil {
			return fmt.Errorf("Debian package for %s: %w", arch, err)
		}
		if err := b.tar(arch, all); err != nil {
			return fmt.Errorf("tar for %s: %w", arch, err)
		}
		images = append(images, &image{arch, all})
	}
	if err := b.oci(images); err != nil {
		return fmt.Errorf("OCI image: %w", err)
	}
	return nil
}

// files are all that are installed.
func (b *build) files(binary string) ([]file, error) {
	all := []file{
		{binary, "/usr/bin/quillon", 0o755},
		{"quillon@.service", "/usr/lib/systemd/system/quillon@.service", 0o644},
	}
	err := filepath.WalkDir(b.share, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(b.share, path)
		all = append(all, file{path, "/usr/share/" + filepath.ToSlash(rel), 0o644})
		return err
	})
	return all, err
}

// name is that of a file that is made.
func (b *build) name(rest string) string {
	return filepath.Join(b.out, "quillon_"+debianVersion(b.version)+"_"+rest)
}

// described is what git describe says: a tag, and perhaps how many commits behind it, which, and whether the tree differs.
var described = regexp.MustCompile(`^v(\d[^-]*)(?:-((?:rc|beta|alpha)[.\d]*))?(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)

// debianVersion is a version such that Debian sorts commits behind their tag, and candidates before it.
func debianVersion(git string) string {
	m := described.FindStringSubmatch(git)
	if m == nil {
		plain := regexp.MustCompile(`[^0-9A-Za-z.+~]+`).ReplaceAllString(git, ".")
		return strings.TrimSuffix("0.0.0+"+plain, "+")
	}
	v := m[1]
	if m[2] != "" {
		v += "~" + m[2]
	}
	if m[3] != "" {
		v += "+" + m[3] + ".g" + m[4]
	}
	if m[5] != "" {
		v += "+dirty"
	}
	return v
}
