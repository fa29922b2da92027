// Package p4rt is a P4Runtime server (p4.v1.P4Runtime, API version 1.5.0) in
// front of any number of devices. It does what all devices have in common:
// arbitration by election ids and roles, pipeline configurations, checks of
// every entity against P4Info, errors for each update, wildcards, lists of
// digests with their acknowledgements, notifications. A Device gets
// checked entities; see package p4info.
//
// Listen serves a Unix socket, where the kernel identifies clients, or TCP, where
// certificates identify them (Client says what each may do), or nothing does. Constants in
// door.go bound the connections, streams and calls of a client, before and after it
// has claimed a role. gRPC has one limit of message sizes for all clients; the gate
// (gate.go) sets one for each connection, by reading the lengths in HTTP/2 frames.
package p4rt
