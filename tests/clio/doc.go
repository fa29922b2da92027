// Package clio proves the functions before Clio's devices, alone and together:
// clients on a switch, a chain of functions, devices behind them, and faults.
//
//	c0 ──[c0]──┐                                            ┌──[s0]── s0
//	c1 ──[c1]──┤ bridge ── gobackn, kvcache, replicate ── bridge
//	c2 ──[c2]──┘                                            └──[s1]── s1
//
// Names in brackets are links of a fault.Schedule. Whatever happens, what clients
// are told is linearizable, and devices that hold copies hold the same in the end.
package clio
