// Package sim is a rack in virtual time: the endpoints of rack, the graphs of
// nf/graph with the apps of tor, and models of what lies between them.
//
//	host.Worker ─ Port ─ NIC model ─ link ─┐          ┌─ link ─ NIC model ─ Port ─ host.Worker
//	                                       switch ─ middlebox (graph.Instance)
//
// The code of endpoints and apps is the code that runs live. The models only
// say when a frame gets in, when a verb executes and when a frame gets out:
// rates of links, queue pairs and NICs, round trips on PCIe, the atomic unit's
// serialisation of addresses, and stalls inside a NIC that let requests of
// different queue pairs overtake each other.
//
// A World is driven by one goroutine, and equal seeds give equal runs, event by
// event. Its constants are those of ConnectX5, calibrated from micro-benchmarks
// alone; Verbs reruns those, Clover and CAS are what they should predict.
package sim
