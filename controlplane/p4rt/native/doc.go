// Package native is a P4Runtime device that is a whole graph of Go apps. Its P4Info is made from the
// declarations of the apps' kinds: tables, actions and counters have the names of the apps' P4 twins, and
// therefore the same ids.
//
// A table that is a setting stands for arguments of its app. A Write changes the same arguments as "quillon
// set", and a Read shows what the spec says. A table that shows an app's state is const (is_const_table),
// because a controller that keeps a device at an intent would otherwise delete what the app has learnt.
// "quillon table delete" makes an app forget.
//
// After a Write to a counter, P4Runtime reads show the count from the written value on; the graph's own counts
// do not change. Counter NAME.reasons[i] counts what happened to frames; its annotations name the indices.
//
// Fields that are texts (for example in snic's tasks) have a translated type with strings (words_t). The device
// refuses arguments in them that name files, unless Device.Files allows a directory.
//
// An atomic request is one change of the graph. All its updates must belong to one app, and their order does
// not matter. Other requests are one change, too, if all updates succeed; if not, the device halves the list of
// updates until it has found those that fail.
//
// The pipeline is the graph: it exists from the start, and changes with the graph. Apps inside another app,
// such as a board's tasks, are not part of it, and neither are their counters, so that a Write never changes
// the pipeline. A client may set a P4Info whose objects are all in the device's own P4Info; that changes
// nothing.
package native
