// Package ctl controls any number of switches by P4Runtime: bmv2's simple_switch_grpc, quillon's own server, or
// others.
//
//	intent.yaml ─► Intent ─┐
//	                       ├─ Diff ─► Plan ─► Session.Apply ─► device
//	device ──────► Scan ───┘
//
// A Session is a stream to one device. It dials, takes part in the arbitration with an election id made from
// the time, and connects again after a loss, at growing intervals. Only the primary may write: the Write of a
// Session that is not primary fails with ErrNotPrimary.
//
// An Intent says what devices should hold, with names and values as people write them. It is checked against
// the devices' P4Info before anything is sent. Session.Scan reads what a device holds. Diff compares the two
// and gives a Plan: batches of updates in an order in which no entity refers to one that does not exist. Within
// a batch the order does not matter, because servers may change it. Each update has an error of its own.
//
// A Controller keeps devices at an Intent, through restarts of the devices and of itself. An App writes tables
// that the intent leaves to it, with Device.Claim, Session.Entries, Put and Replace. examples/controller has
// two apps; ctltest is a server for tests of apps.
package ctl
