// Package bridge splices a middlebox between a Linux bridge and one of its
// ports, and undoes it exactly.
//
//	before:   bridge ── PORT ── host
//	after:    bridge ── outer ══ inner ··middlebox·· PORT ── host
//
// outer and inner are a veth pair. outer takes PORT's place in the bridge: its
// MAC (so the bridge keeps its own), MTU, port settings, VLANs, static
// forwarding entries and permanent multicast groups. A port with options for
// single VLANs is refused: they are not carried over. The middlebox runs inline on inner and PORT; until it
// does, nothing crosses, unless the two are joined (see afxdp.Wire). An alias
// of inner says in the kernel that it is a splice's (see Of).
//
// What was there before is written to a state file before the first change,
// so Remove works after a crash in the middle as well. All functions act in
// the network namespace of the calling thread.
package bridge
