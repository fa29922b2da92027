package replay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/quillon/quillon/nf/port/pcap"
)

// Files names the captures of a run on disk.
type Files struct {
	// In has the inputs, each as PATH or PORT=PATH.
	In []string
	// Out is the output; "": none. A name that ends in .pcapng makes a pcapng file, any other name a classic
	// one. A further .gz or .zst makes it compressed.
	Out string
	// Expect is a capture that the output must equal; "": none.
	Expect  string
	Compare CompareOptions
}

// openFile opens a capture; "-" is the standard input.
func openFile(name string) (*os.File, error) {
	if name == "-" {
		return os.Stdin, nil
	}
	return os.Open(name)
}

// RunFiles runs a graph from files to a file. It sets cfg.Inputs and cfg.Format from f. It writes nothing if
// cfg or an input is refused. A *DifferentError says that the output is not the expected one;
// Result.Comparison shows the differences.
func RunFiles(cfg Config, f Files) (*Result, error) {
	cfg.Inputs = nil
	var opened []os.FileInfo
	for _, in := range f.In {
		portName, path := splitIn(in)
		file, err := openFile(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		st, err := file.Stat()
		if err != nil {
			return nil, err
		}
		opened = append(opened, st)
		r, err := pcap.NewReader(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		cfg.Inputs = append(cfg.Inputs, Input{Reader: r, Name: path, Port: portName})
	}
	cfg.Format = pcap.Classic
	if _, plain := pcap.Compress(nil, f.Out); strings.HasSuffix(plain, ".pcapng") || f.Out == "" && cfg.All {
		cfg.Format = pcap.NG
	}
	var want *pcap.Reader
	if f.Expect != "" {
		file, err := openFile(f.Expect)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if want, err = pcap.NewReader(file); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Expect, err)
		}
		if st, err := file.Stat(); err == nil {
			opened = append(opened, st)
		}
		if f.Out == "" {
			cfg.Format = want.Header().Format
		}
	}
	if f.Out != "" {
		if st, err := os.Stat(f.Out); err == nil {
			for _, o := range opened {
				if os.SameFile(st, o) {
					return nil, fmt.Errorf("%s is read by this run: name another output", f.Out)
				}
			}
		}
	}
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	var out *os.File
	switch {
	case f.Out != "":
		out, err = os.Create(f.Out)
	case want != nil:
		if out, err = os.CreateTemp("", "quillon-replay-*"); err == nil {
			defer os.Remove(out.Name())
		}
	default:
		return r.Run(nil)
	}
	if err != nil {
		return nil, err
	}
	defer out.Close()
	w, plain := pcap.Compress(out, f.Out)
	to := io.Writer(w)
	if plain == f.Out {
		to = out
	}
	res, err := r.Run(to)
	if err = errors.Join(err, w.Close()); err != nil {
		return res, err
	}
	if want != nil {
		if _, err := out.Seek(0, 0); err != nil {
			return res, err
		}
		got, err := pcap.NewReader(out)
		if err != nil {
			return res, err
		}
		if res.Comparison, err = Compare(got, want, f.Compare); err != nil {
			return res, err
		}
		if !res.Comparison.Equal() {
			return res, &DifferentError{res.Comparison}
		}
	}
	return res, out.Close()
}

// splitIn splits PORT=PATH. A path that contains "=" must be given as ./PATH.
func splitIn(s string) (portName, path string) {
	portName, path, ok := strings.Cut(s, "=")
	if !ok || strings.ContainsRune(portName, filepath.Separator) {
		return "", s
	}
	return portName, path
}
