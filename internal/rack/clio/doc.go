// Package clio has the ends of a disaggregated key/value store: Clio's device, with
// its store of keys, and a client that runs YCSB on it.
//
//	client ── sessions (UDP ports) ── network ── device: sessions, store
//
// Both are endpoints of package host: frames and time go in, frames and a deadline
// come out. With Reliable they speak go-back-N (nf/gobackn/gbn). A device without it
// needs a lossless last hop and a function before it that ends the transport
// (nf/gobackn), or clients that repeat what is not answered: a client that is not
// Reliable does, and the device remembers which of a session's last 64 requests it
// has executed, so that none is executed twice. It remembers a number of sessions
// (DeviceConfig.Senders), refuses writes of more (Busy), and forgets the one that was
// idle for the longest.
//
// A request and its answer are one frame each, as in Clio's library, and so the
// longest value is MaxValue, 1436 bytes under an MTU of 1500; a longer one is
// refused where it is written. Keys of 100 K entries with values of 1 KB fit.
//
// Source: github.com/WukLab/Clio; Guo et al., Clio, ASPLOS '22. The wire is in
// nf/hdr/clio, with what was chosen there. The store has Clio's bucket line and hash
// (store.go). A session's UDP port must not be used again by another life of its
// client while frames of the former may be under way: the device would take its
// requests for repetitions.
package clio

import "github.com/quillon/quillon/nf/hdr/clio"

// MTU is that of Clio's links, of IP datagrams.
const MTU = 1500

// MaxValue is the longest value.
const MaxValue = MTU - 20 - 8 - clio.GBNLen - clio.LegoLen - clio.RequestLen
