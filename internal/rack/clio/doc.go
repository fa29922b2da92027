// Package clio has the ends of a disaggregated key/value store: Clio's device, with its store of keys, and a
// client that runs YCSB on it.
//
//	client ── sessions (UDP ports) ── network ── device: sessions, store
//
// Both are endpoints of package host: frames and time go in, frames and a deadline come out. With Reliable
// they speak go-back-N (nf/gobackn/gbn). A device without it needs a lossless last hop and a function in
// front of it that ends the transport (nf/gobackn), or clients that repeat requests without an answer, as a
// client that is not Reliable does. The device remembers which of a session's last 64 requests it has
// executed, so that none is executed twice. It does so for a limited number of sessions
// (DeviceConfig.Senders). If there are more, it forgets the session that has been idle for longest, or
// refuses writes (Busy).
//
// A request and its answer are one frame each, as in Clio's library. Therefore the longest value is MaxValue,
// 1436 bytes under an MTU of 1500; the client refuses a longer one. A store of 100 K keys with values of 1 KB
// fits into the default memory.
//
// Source: github.com/WukLab/Clio; Guo et al., Clio, ASPLOS '22. The wire format is in nf/hdr/clio, with what
// was chosen there. The store has Clio's bucket line and hash (store.go). A session's UDP port must not be
// used again by another life of its client while frames of the former life may be under way: the device would
// take the new requests for repetitions.
package clio

import "github.com/quillon/quillon/nf/hdr/clio"

// MTU is the longest IP packet on Clio's links, in bytes.
const MTU = 1500

// MaxValue is the longest value, in bytes.
const MaxValue = MTU - 20 - 8 - clio.GBNLen - clio.LegoLen - clio.RequestLen
