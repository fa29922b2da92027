// Package engine puts an app of kind p4 in a running graph behind a P4Runtime
// server: a p4rt.Device whose configurations are bmv2's JSON.
//
// Requests of controllers are done between two breaths of the app's worker, in
// slices of bounded time, so that forwarding goes on. Messages are
// decoded and built outside of the worker.
//
// In P4Runtime the higher priority wins, in nf/p4 the lower one: an entry of priority p
// has priority 2^31-1-p in nf/p4. In tables with entries of the program P4Runtime's priorities count down
// from the number of these.
//
// The P4Info says more than the JSON: which tables have entries of the program that controllers may change, which const ones have none, and which
// tables the compiler took out, as nothing depends on them. Those have no entries, and take none. The JSON's entries have the priorities of
// their places: it does not have those that the program's text gives them.
//
// # Translation
//
// Values of types with @p4runtime_translation are translated between controllers and
// the program: in keys, parameters, members, digests, and metadata of packets. A
// string stands for the value in the type's annotation
// @p4runtime_translation_mappings({{"eth1", 1}, {"eth2", 2}}). For a string that is not
// there the device chooses a value when the string is first written, from 1 on. Controllers
// see value 7 without a name as "#7". A number stands for itself, and must fit; with
// mappings it must be one of them. Types with the same URI share their names. A name has
// at most 255 bytes. When values run out, names that no entry has any more are forgotten,
// even if a register holds their value. Values with mappings are matched as a whole or not
// at all; masks of plain numbers may have fewer bits than the device's. Ports of
// multicast groups, clone sessions and watches are the device's numbers. Errors, as keys and in digests, are translated, too: to their names.
package engine
