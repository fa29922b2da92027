// Command with runs a command, mostly one of go's, for which nff-go v0.9.2 compiles and links: nff-go is of DPDK 19.08, and this
// makes that of the DPDK 22.11 that Debian 12 has.
//
//	go run ./with go test ./...
//
// It needs Debian's libdpdk-dev, libnuma-dev, gcc and binutils. Headers and empty libraries are kept in the user's cache.
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "with: want a command to run: go run ./with go build ./...")
		os.Exit(2)
	}
	env, err := environment()
	if err != nil {
		fmt.Fprintln(os.Stderr, "with:", err)
		os.Exit(1)
	}
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "with:", err)
		os.Exit(1)
	}
}

// environment is what cgo has to be told.
func environment() ([]string, error) {
	out, err := exec.Command("pkg-config", "--cflags", "libdpdk").Output()
	if err != nil {
		return nil, errors.New("pkg-config knows no libdpdk: apt-get install --no-install-recommends libdpdk-dev libnuma-dev pkg-config gcc")
	}
	flags := strings.TrimSpace(string(out))
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "quillon-nffgo")
	if err := headers(dir, flags); err != nil {
		return nil, err
	}
	if err := libraries(dir); err != nil {
		return nil, err
	}
	return []string{
		"CGO_ENABLED=1",
		"CGO_CFLAGS=-O2 -w -I" + dir + " " + flags,
		"CGO_LDFLAGS=-L" + dir,
		"CGO_CFLAGS_ALLOW=.*",
		"CGO_LDFLAGS_ALLOW=.*",
	}, nil
}

//go:embed rte_kni.h
var kni []byte

// headers writes those that come before DPDK's.
func headers(dir, flags string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := replace(filepath.Join(dir, "rte_kni.h"), kni); err != nil {
		return err
	}
	for _, f := range strings.Fields(flags) {
		path, ok := strings.CutPrefix(f, "-I")
		if !ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join(path, "rte_mbuf_core.h"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if text, err = mbuf(text); err != nil {
			return err
		}
		return replace(filepath.Join(dir, "rte_mbuf_core.h"), text)
	}
	return errors.New("rte_mbuf_core.h is in none of libdpdk's folders")
}

// mbuf is DPDK's struct rte_mbuf as cgo has to show it to nff-go. The lengths of headers were the sixth member without a name
// (anon5) in 19.08 and are the third in 22.11: three come before it that have no size. The time stamp, since then a
// dynamic field that only the driver's registration places, is the last eight bytes.
func mbuf(text []byte) ([]byte, error) {
	for _, e := range []struct{ from, to string }{
		{"struct rte_mbuf {\n", "struct rte_mbuf {\n" + "union { char nffgo0[0]; }; union { char nffgo1[0]; }; union { char nffgo2[0]; };\n"},
		{"\tuint32_t dynfield1[9];", "\tuint32_t dynfield1[7]; uint64_t timestamp;"},
	} {
		if bytes.Count(text, []byte(e.from)) != 1 {
			return nil, fmt.Errorf("rte_mbuf_core.h is not of DPDK 22.11: %q is not there, or twice", e.from)
		}
		text = bytes.Replace(text, []byte(e.from), []byte(e.to), 1)
	}
	return append(text, "\n_Static_assert(sizeof(struct rte_mbuf) == 128, \"size of an mbuf\");\n"...), nil
}

// libraries writes those that nff-go names and that are gone, or are loaded by DPDK itself now, as drivers are: empty.
func libraries(dir string) error {
	for _, name := range []string{
		"kni", "pmd_bond", "pmd_vmxnet3_uio", "pmd_virtio", "pmd_cxgbe", "pmd_enic", "pmd_i40e", "pmd_fm10k", "pmd_ixgbe", "pmd_e1000", "pmd_ena",
		"pmd_ring", "pmd_af_packet", "pmd_null",
	} {
		// An archive without members is these eight bytes.
		if err := replace(filepath.Join(dir, "librte_"+name+".a"), []byte("!<arch>\n")); err != nil {
			return err
		}
	}
	return nil
}

// replace writes a file unless it is there as it should be: compilers look at times. Others may do the same at the same moment.
func replace(path string, text []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
