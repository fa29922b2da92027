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
//
// # Translation
//
// Values of types with @p4runtime_translation are the controllers' at the door and the
// program's behind it: in keys, parameters, members, digests, and metadata of packets. A
// string stands for a value by the type's annotation
// @p4runtime_translation_mappings({{"eth1", 1}, {"eth2", 2}}), or else for one that the
// device chooses when it is written first, from 1 on. Values without a name are "#7". A
// number is itself, and must fit; with mappings it is one of them. Types with the same URI
// have the same names. Names are at most 255 bytes; those that no entry has any more are
// forgotten when values run out, whatever registers hold. Values that have mappings are
// matched as a whole, or not at all; plain numbers may have masks of fewer bits than the
// device has. Ports of multicast groups, clone sessions and watches are the device's
// numbers, and fields of value sets are not translated.
package engine
