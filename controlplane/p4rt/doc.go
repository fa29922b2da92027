// Package p4rt is a P4Runtime server (p4.v1.P4Runtime, API version 1.5.0) for any number of devices. It does
// what is the same for all devices: arbitration by election ids and roles, pipeline configurations, the check
// of every entity against the P4Info, an error for each update, wildcard reads, lists of digests with their
// acknowledgements, and notifications. A Device gets entities that were checked; see package p4info.
//
// Listen serves a Unix socket or a TCP port. On a Unix socket the kernel identifies the clients; on TCP their
// certificates do (Client says what each may do), or nothing does. Constants in door.go bound the connections,
// streams and calls of a client, before and after it has claimed a role. gRPC has one limit of message sizes
// for all clients; the gate (gate.go) sets a limit for each connection, by reading the lengths in HTTP/2
// frames.
package p4rt
