// Package live runs network functions as their users do: the program itself in
// a process of its own, inline on veth pairs over AF_XDP, with soft RoCE
// endpoints, or hosts with the kernel's TCP, in network namespaces around it, on
// the wall clock. A test of a rack that fails leaves what it saw in the directory of
// QUILLON_TRACE, if that is set: all frames of the endpoints, and the histories.
package live
