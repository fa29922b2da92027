// Package nffgo joins quillon and nff-go (github.com/intel-go/nff-go): a quillon graph runs in flows of nff-go, on DPDK's ports,
// and handlers of nff-go are network functions in a quillon graph.
//
// It is a module of its own, as nff-go needs cgo and DPDK. nff-go v0.9.2, its last version, is of DPDK 19.08; what makes it
// compile with the DPDK 22.11 of Debian 12 is in the command with:
//
//	go run ./with go test ./...
//
// nff-go keeps its state in globals and gives each flow function a processor: a process has one nff-go, and a graph between two
// ports wants seven processors (four where frames go one way only). Name no more in flow.Config.CPUList: where one is left, the start
// of nff-go may wait for ever, and its flows stop without an error.
package nffgo
