// Package p4rt is a P4Runtime server (p4.v1.P4Runtime, API version 1.5.0) in
// front of any number of devices. It holds what the protocol is made of:
// arbitration by election ids and roles, pipeline configurations, checks of
// every entity against P4Info, errors for each update, wildcards, lists of
// digests with their acknowledgements, notifications. A Device does the rest,
// with entities that were checked; see package p4info.
package p4rt
