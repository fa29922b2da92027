// Package ctl drives switches by P4Runtime: bmv2's simple_switch_grpc, quillon's
// own server, or any other, and any number of them at once.
//
//	intent.yaml ─► Intent ─┐
//	                       ├─ Diff ─► Plan ─► Session.Apply ─► device
//	device ──────► Scan ───┘
//
// A Session is a stream to one device. It dials, takes part in the arbitration
// with an election id made from the time, and connects again after a loss, at growing
// intervals. Only the primary may write: another Session's Write fails with ErrNotPrimary.
//
// An Intent is what devices shall hold, with names and values as people write them. It is
// checked against the devices' P4Info before anything is sent. Session.Scan reads what
// a device holds. Diff compares the two and gives a Plan: batches of updates in an order in
// which no entity refers to one that is not there. Within a batch the order does
// not matter, because servers may change it. Errors are per update.
//
// A Controller keeps devices at an Intent, through restarts of either side. An App
// writes tables that the intent leaves to it: Device.Claim, Session.Entries, Put and
// Replace are its doors. Two apps are in examples/controller; ctltest is a server
// for tests of one.
package ctl
