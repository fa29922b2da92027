// Package ctl drives switches by P4Runtime: bmv2's simple_switch_grpc, quillon's
// own server, any number of them at once.
//
//	intent.yaml ─► Intent ─┐
//	                       ├─ Diff ─► Plan ─► Session.Apply ─► device
//	device ─────► Snapshot ┘
//
// A Session is a stream to one device. It dials, takes part in the arbitration
// with an election id made from the time, and connects again after a loss, later
// and later. Only the primary writes: a Session that is not says so, and refuses.
//
// An Intent is what devices shall hold, by names and in people's notation; it is
// checked against the devices' P4Info before anything is sent. A Snapshot is what
// a device holds. Diff compares the two and gives a Plan: updates in an order in
// which nothing refers to what is not there, in batches in which the order does
// not matter, because servers may change it. What failed is told per update.
//
// A Controller keeps devices at an Intent, whatever they and it go through. An App
// writes tables that the intent leaves to it: Device.Claim, Session.Entries, Put and
// Replace are its doors. Two apps are in examples/controller; ctltest is a server
// for tests of one.
package ctl
