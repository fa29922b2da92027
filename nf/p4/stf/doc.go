// Package stf reads the files of the P4 community's Simple Test Framework, and
// runs them on the engine of nf/p4.
//
//	add ipv4_lpm dst:0x0a000000/8 set_next_hop(next_hop:1)
//	setdefault dmac unknown()
//	packet 1 ffffffffffff 0011223344** 0800
//	expect 2 ffffffffffff ************ 0800 $
//	check_counter port_rx(1) packets == 1
//
// A statement is a line; # begins a comment. Names are those of the program, or
// an end of them that only one has. A field of a key that is not named matches
// everything (0 where a match is exact).
//
// A field's value is a number (decimal, 0x, 0o, 0b) whose digits may be * where
// any will do, a prefix VALUE/LENGTH, a VALUE&&&MASK, or a range LOW..HIGH. As
// with p4c's runner, a ternary field counts only the bits that the digits of a
// number without a mask stand for, and a prefix is as long as its digits. Of two
// entries that match, the one with the higher priority wins.
//
// An expect is compared with the frames that leave by its port, in their order,
// at the end of the file: the frame may be longer unless the data ends with $,
// and without data any frame will do. A frame that nothing expects is a failure
// on any port. no_packet says that nothing came of the last packet.
//
// Of bmv2's commands these are known, as p4c's files use them:
//
//	mirroring_add SESSION PORT             mc_mgrp_create GROUP
//	mirroring_add_mc SESSION GROUP         mc_node_create RID PORT...
//	mirroring_delete SESSION               mc_node_update NODE PORT...
//	mirroring_get SESSION                  mc_node_associate GROUP NODE
//	counter_read NAME INDEX                counter_write NAME INDEX BYTES PACKETS
//	register_read NAME INDEX               register_write NAME INDEX VALUE
//	register_reset NAME                    meter_get_rates NAME INDEX
//	meter_set_rates NAME INDEX RATE:BURST RATE:BURST
//	meter_array_set_rates NAME RATE:BURST RATE:BURST
//
// Rates are packets or bytes a microsecond. Besides: check_register NAME(INDEX)
// COND VALUE, remove all, and wait, which lets a second pass. Time is virtual: a
// packet comes a microsecond after the one before it.
package stf
