package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"time"
)

// tar writes the files of an architecture, from the root on.
func (b *build) tar(arch string, all []file) error {
	w, err := os.Create(b.name("linux_" + arch + ".tar.gz"))
	if err != nil {
		return err
	}
	z := gzip.NewWriter(w)
	return errors.Join(archive(z, all, b.time), z.Close(), w.Close())
}

// archive writes files as a tar.
func archive(w io.Writer, all []file, at time.Time) error {
	t := tar.NewWriter(w)
	for _, f := range all {
		text, err := os.ReadFile(f.from)
		if err != nil {
			return err
		}
		h := tar.Header{Name: strings.TrimPrefix(f.to, "/"), Mode: int64(f.mode), Size: int64(len(text)), ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatPAX}
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := t.Write(text); err != nil {
			return err
		}
	}
	return t.Close()
}
