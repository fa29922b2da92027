// Package afxdp makes ports of the queues of network interfaces by AF_XDP:
// one interface alone (Open), or two that are spliced into a wire (OpenPair).
package afxdp
