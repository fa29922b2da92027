// Package p4src holds P4_16 programs for the v1model architecture, with what
// p4c makes of them: bmv2's JSON and P4Info, to be compiled again after a change
// with
//
//	p4c-bm2-ss --arch v1model -o FILE --p4runtime-files NAME.p4info.txtpb NAME.p4
//	jq -c . FILE > NAME.json
//
// Each program says in its first comment what it does, what the controller gives
// it, which registers it has, and what becomes of the RoCEv2 ICRC.
package p4src

import (
	"compress/gzip"
	"embed"
	"io"
)

// Files are the programs, compiled: NAME.json and NAME.p4info.txtpb. Their sources are beside them in the tree.
//
//go:embed *.json *.txtpb
var Files embed.FS

// measured are those of Files that benchmarks run, compressed: gzip -9nc FILE > measured/FILE.gz
//
//go:embed measured
var measured embed.FS

// Measured is a file of those that benchmarks run. A program that uses no others of Files carries these alone. The error is
// that of a file that is not there.
func Measured(name string) ([]byte, error) {
	f, err := measured.Open("measured/" + name + ".gz")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// Programs are the names of the programs.
func Programs() []string {
	return []string{"ipv4_router", "l2_bridge", "nt_classifier", "swordbox_mux", "swordbox_steer"}
}
