// Package p4src holds P4_16 programs for the v1model architecture, with what
// p4c makes of them: bmv2's JSON and P4Info, to be compiled again after a change
// with
//
//	p4c-bm2-ss --arch v1model -o NAME.json --p4runtime-files NAME.p4info.txtpb NAME.p4
//
// Each program says in its first comment what it does, what the controller gives
// it, which registers it has, and what becomes of the RoCEv2 ICRC.
package p4src

import "embed"

// Files are the programs, compiled: NAME.json and NAME.p4info.txtpb. Their sources are beside them in the tree.
//
//go:embed *.json *.txtpb
var Files embed.FS

// Programs are the names of the programs.
func Programs() []string {
	return []string{"ipv4_router", "l2_bridge", "nt_classifier", "swordbox_mux", "swordbox_steer"}
}
