// Package p4src holds P4_16 programs for the v1model architecture, and the files that p4c makes of each: bmv2's
// JSON and the P4Info. Whoever changes a program compiles it again with
//
//	p4c-bm2-ss --arch v1model -o FILE --p4runtime-files NAME.p4info.txtpb NAME.p4
//	jq -c . FILE > NAME.json
//
// The first comment of each program says what it does, which entries the controller gives it, which registers
// it has, and whether the RoCEv2 ICRC stays right.
package p4src

import (
	"compress/gzip"
	"embed"
	"io"
)

// Files holds the compiled programs, NAME.json and NAME.p4info.txtpb. Their sources, NAME.p4, lie in the same
// directory.
//
//go:embed *.json *.txtpb
var Files embed.FS

// measured holds those of Files that benchmarks run, compressed: gzip -9nc FILE > measured/FILE.gz
//
//go:embed measured
var measured embed.FS

// Measured returns the content of a file that benchmarks run, or an error if the file is not one of those. A
// binary that calls Measured and does not use Files embeds only these files.
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

// Programs returns the names of the programs.
func Programs() []string {
	return []string{"ipv4_router", "l2_bridge", "nt_classifier", "swordbox_mux", "swordbox_steer"}
}
