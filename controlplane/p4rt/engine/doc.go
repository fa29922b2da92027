// Package engine puts an app of kind p4 in a running graph behind a P4Runtime
// server: a p4rt.Device whose configurations are bmv2's JSON.
//
// What a controller asks for reaches the engine between two breaths of its
// worker, in slices of bounded time, so that forwarding goes on. Messages are
// taken apart and built outside of the worker.
//
// P4Runtime's higher priority wins, the engine's lower: an entry of priority p
// has priority 2^31-1-p in the engine; entries of constant tables count
// downwards from their number.
package engine
