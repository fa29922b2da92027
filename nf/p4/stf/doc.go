// Package stf reads the files of the P4 community's Simple Test Framework, and
// runs them on the engine of nf/p4.
//
//	add ipv4_lpm dst:0x0a000000/8 set_next_hop(next_hop:1)
//	setdefault dmac unknown()
//	packet 1 ffffffffffff 0011223344** 0800
//	expect 2 ffffffffffff ************ 0800 $
//	check_counter port_rx(1) packets == 1
//
// Each line is a statement; # begins a comment. A name is a name of the program, or the end of one if no other
// name ends with it. A field of a key that is not named matches everything; if the field is matched exactly, it
// must be 0.
//
// The value of a field is a number (decimal, 0x, 0o or 0b) whose digits may be * for any digit, a prefix
// VALUE/LENGTH, a VALUE&&&MASK, or a range LOW..HIGH. As in p4c's runner, a ternary field with a number without
// a mask compares only the bits that the digits stand for, and a prefix without a length is as long as its
// digits. Of two entries that match, the one with the higher priority wins.
//
// At the end of the file the expects of a port are compared with the frames that left by the port, in their
// order. The frame may be longer than the data unless the data ends with $, and an expect without data accepts
// any frame. A frame that no statement expects is a failure, on any port. no_packet says that the last packet
// caused no frame to leave.
//
// Of bmv2's commands Run knows these, as p4c's files use them:
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
// Rates are packets or bytes a microsecond. Further statements are check_register NAME(INDEX) COND VALUE,
// remove all, and wait, which lets a second pass. Time is virtual: each packet comes a microsecond after the
// packet before it.
package stf
