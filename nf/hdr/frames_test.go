package hdr_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/quillon/quillon/nf/hdr"
)

// vector is one line of testdata/vectors.txt.
type vector struct {
	id    string
	icrc  []byte
	frame []byte
}

func vectors(t testing.TB) (vs []vector) {
	t.Helper()
	f, err := os.Open("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		w := strings.Fields(s.Text())
		if len(w) == 0 || w[0] == "#" {
			continue
		}
		icrc, err1 := hex.DecodeString(w[1])
		frame, err2 := hex.DecodeString(w[2])
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(w[0], err)
		}
		vs = append(vs, vector{w[0], icrc, frame})
	}
	if s.Err() != nil || len(vs) != 31 {
		t.Fatal(len(vs), "vectors read:", s.Err())
	}
	return vs
}

func frameOf(t testing.TB, id string) ([]byte, *hdr.Frame) {
	t.Helper()
	for _, v := range vectors(t) {
		if v.id == id {
			f := new(hdr.Frame)
			if why := hdr.Parse(v.frame, f); why != hdr.IsRoCE {
				t.Fatal(id, why)
			}
			return v.frame, f
		}
	}
	t.Fatal("no vector ", id)
	return nil, nil
}

func captures(t testing.TB) []string {
	t.Helper()
	names, err := filepath.Glob("testdata/captures/*.pcap")
	if err != nil || len(names) != 21 {
		t.Fatal(len(names), "captures:", err)
	}
	return names
}

func readPcap(t testing.TB, name string) (frames [][]byte) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(name, err)
	}
	for {
		b, ci, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil || ci.CaptureLength != ci.Length {
			t.Fatal(name, len(frames), ci, err)
		}
		frames = append(frames, b)
	}
}

// corpus is every vector and every captured frame.
func corpus(t testing.TB) (frames [][]byte) {
	for _, v := range vectors(t) {
		frames = append(frames, v.frame)
	}
	for _, n := range captures(t) {
		frames = append(frames, readPcap(t, n)...)
	}
	return frames
}
