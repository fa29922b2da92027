package hdr_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"io"
	"os"
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

// captures are those of the golden captures that have something of their own in the headers.
func captures() (names []string) {
	for _, n := range strings.Fields(`
		rcuckoo-masked-cas/in connectx-write-steering/10-packet-ingress
		rxe/bad-icrc-request.server rxe/bad-icrc-response.client rxe/cas-pipelined-4qp rxe/error-badrkey-read
		rxe/faa-4qp rxe/icrc-live-ipv4.server rxe/icrc-live-ipv6.server rxe/ipv6-write-5003B
		rxe/misaligned-cas.client rxe/perftest-send-ud-64B rxe/perftest-write-rdmacm-128B rxe/perftest-write-uc-4096B
		rxe/perftest-write-with-tcp-oob rxe/psn-wrap-read4096 rxe/rnr-send-1qp rxe/send-imm-2qp
		rxe/send-inv rxe/write-5003B-pad`) {
		names = append(names, "../../tests/pcap/"+n+".pcap")
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
	for _, n := range captures() {
		frames = append(frames, readPcap(t, n)...)
	}
	return frames
}
