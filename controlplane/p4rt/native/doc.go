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
// Fields that are texts (in snic's tasks, for one) have a translated type with strings
// (words_t). Arguments in them that name files are refused, unless
// Device.Files allows a directory.
//
// An atomic request is one change of the graph; all its updates must be of one app, and
// their order does not matter. Other requests are one change, too, if all updates can be
// done; if not, they are halved until the updates that fail are found.
//
// The pipeline is the graph: it is there from the start, and changes with the graph. Apps
// inside another one, as a board's tasks, are not part of it, nor are their counters, so that
// a Write changes no pipeline. A client may set a P4Info whose objects are all in the
// device's own; that changes nothing.
package native
