// Package p4rt is a P4Runtime server (p4.v1.P4Runtime, API version 1.5.0) in
// front of any number of devices. It holds what the protocol is made of:
// arbitration by election ids and roles, pipeline configurations, checks of
// every entity against P4Info, errors for each update, wildcards, lists of
// digests with their acknowledgements, notifications. A Device does the rest,
// with entities that were checked; see package p4info.
//
// Listen serves a Unix socket, whose clients the kernel names, or TCP, whose
// clients show certificates (Client says what each may do) or are anybody. What a
// client may have at once, before and after it has claimed a role, is in a table
// of constants (door.go); how long a message is, the gate learns from the frames
// of HTTP/2 before the message is there, since gRPC has one limit for all clients.
package p4rt
