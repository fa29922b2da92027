// Package bridge splices a middlebox between a Linux bridge and one of its
// ports, and undoes this exactly.
//
//	before:   bridge ── PORT ── host
//	after:    bridge ── outer ══ inner ··middlebox·· PORT ── host
//
// outer and inner are a veth pair. outer takes PORT's place in the bridge. It gets PORT's
// MAC (so that the bridge keeps its own MAC), MTU, port settings, VLANs, static
// forwarding entries and permanent multicast groups. Insert refuses a port with options for
// single VLANs, because it cannot give these to outer. The middlebox runs inline on inner and PORT;
// until it runs, no frame crosses, unless the two are joined (see afxdp.Wire). The alias
// of inner marks it in the kernel as part of a splice (see Of).
//
// Insert writes the former settings to a state file before the first change,
// so that Remove also works after a crash in between. All functions act in
// the network namespace of the calling thread.
package bridge
