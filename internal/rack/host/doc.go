// Package host drives endpoints from ports: it is the loop that a machine of
// the rack runs.
//
//	port.Rx ──► Endpoint.Input ──► App.Step ──► Endpoint.Output ──► port.Tx
//
// A Node is an endpoint with its application and its port; Breath does what can be done without waiting. The
// same Node runs live (Run: one goroutine, which waits on the port until the earliest deadline), together
// with others on one goroutine under the wall clock (Spin: the rack in one process), and in virtual time
// (Sim: nothing waits, equal seeds give equal runs).
//
// Everything that a Node uses belongs to the goroutine that calls its Breath.
package host
