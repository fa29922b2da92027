// Package native is the P4Runtime device of a whole graph of Go apps. Its P4Info
// is made from what the apps' kinds declare: tables, actions and counters have
// the names of the apps' P4 twins, and with them their ids.
//
// A table of settings stands for arguments of its app, so what P4Runtime writes
// is what "quillon set" sets, and what a spec says is what P4Runtime reads.
// Tables that show an app's state are const (is_const_table): a controller that
// keeps a device at an intent would delete what the app has learnt. "quillon table
// delete" makes an app forget.
//
// A counter that is written is read as written from then on by P4Runtime; the
// graph's own counts do not change. Counter NAME.reasons[i] is what became of frames, with
// the names of the indices in its annotations.
//
// Of tables whose fields are texts (snic's tasks, for one) the fields are of a translated
// type with strings (words_t). Arguments in them that name files are refused, unless
// Device.Files allows a directory.
//
// The updates of a request that asks for all or none are made in one change of the graph,
// and their order does not matter, as far as they are of one app. Without, they are
// as well if all of them can be made; if not, by halves, in their order.
//
// The pipeline is the graph: it is there from the start, and changes with it. What runs
// inside an app, as a board's tasks do, is no part of it, nor are its counters: a Write
// changes no pipeline. A
// client may set a P4Info whose objects are all here, which changes nothing.
package native
