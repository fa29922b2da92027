// Package engine connects an app of kind p4 in a running graph to a P4Runtime server. It implements a
// p4rt.Device whose configurations are bmv2's JSON.
//
// The app's worker carries out requests of controllers between two breaths, in slices of bounded time, so that
// forwarding continues. Messages are decoded and built outside of the worker.
//
// In P4Runtime the entry with the higher priority wins, in nf/p4 the one with the lower priority. An entry with
// priority p has priority 2^31-1-p in nf/p4. In a table with entries of the program, P4Runtime's priorities are
// counted from the number of these entries downwards.
//
// The P4Info says three things that the JSON does not say: which tables have program entries that controllers
// may change, which const tables have no entries, and which tables the compiler removed because nothing depends
// on them. Removed tables hold no entries and accept none. The JSON's entries get their priorities from their
// order, because the JSON does not contain the priorities that the program's text gives them.
//
// # Translation
//
// Values of types with @p4runtime_translation are translated between controllers and the program: in keys,
// parameters, members, digests and packet metadata. A string stands for the value that the type's annotation
// @p4runtime_translation_mappings({{"eth1", 1}, {"eth2", 2}}) gives it. When a string that is not in the
// annotation is written for the first time, the device chooses a value for it, from 1 on. Controllers see value
// 7 without a name as "#7". A number stands for itself, and must fit; if the type has mappings, it must be one
// of them. Types with the same URI share their names. A name has at most 255 bytes. When no free value is left,
// the device forgets the names that no entry has, even if a register holds their values. A value with mappings
// is matched as a whole or not at all; masks of plain numbers may have fewer bits than the device's. Ports of
// multicast groups, clone sessions and watches are the device's numbers. Errors in keys and digests are
// translated to their names, too.
package engine
