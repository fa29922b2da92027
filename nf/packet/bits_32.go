//go:build 386 || arm || mips || mipsle

package packet

// Lengths, addresses and rates are kept in ints of 64 bits in many places. The name says
// what the compiler's message about it is to say.
var _ = quillon_needs_a_64_bit_machine
