// Package hop is the last hop: a reliable link layer between two neighbours, an
// endpoint and its board or switch. Frames arrive exactly once and in order,
// whatever the cable loses, damages, repeats or mixes up. A Link is one end: a
// state machine, frames and a time in, frames and a deadline out.
//
// # Frames
//
// A frame keeps its addresses; behind them goes a header under EtherType
// 0x88B5, IEEE's local experimental EtherType 1 (IEEE 802 section 9.2.4), all
// numbers big-endian:
//
//	 0 destination | 6 source | 12 88B5
//	14 version 1 | 15 type | 16 length of what follows the header
//	18 epoch of the sender | 26 epoch of its peer, 0: not known
//	34 sequence number | 38 next number expected
//	42 CRC-32C of all but itself | 46 EtherType and payload of the frame
//
// so that a frame grows by 34 bytes; short ones may be padded. Types are DATA,
// ACK, NAK (of what is expected) and HELLO. A frame whose CRC is wrong is as good
// as lost. Frames of this layer itself go to 01-80-C2-00-00-0E, which no bridge
// forwards.
//
// # Retransmission
//
// What is not acknowledged stays in a buffer of 64 KB, more than what is under
// way on a cable in a rack. When it is full Send reports false: the sender
// stops, nothing is lost. Acknowledgements are cumulative and go with data, or by
// themselves. A gap is answered by a NAK, once; then, or when the oldest frame
// is not acknowledged in time, the sender goes back to it (go-back-N).
//
// # Flow control
//
// The receiver counts what it has handed out and what was consumed. Above a
// threshold (XOFF) it asks for a pause, by frames of priority-based flow control
// (PFC, IEEE 802.1Qbb, 802.3 annex 31D) for one class, repeated before they run
// out, below another (XON) it ends it. Above XOFF there is room for all that may
// still come (Headroom): what is on the cable, what the sender had begun to send,
// what goes out here before the pause does, and the time that a sender may take
// to obey. If a pause is lost nevertheless, what finds no room is not taken, and
// comes again. Only DATA is paused: the rest is in another class, so that two ends
// that pause each other do not wait for ever; and a pause ends by itself.
//
// # Epochs
//
// An end that starts takes an epoch, greater than any that it had before: the
// time will do. Frames count only when both of their epochs are right. HELLO tells
// the other end of a new epoch and of the sender's oldest number; data follows
// when both know of each other. So a restart is noticed, and what was not
// acknowledged before is sent again: across a restart, and only then, a frame may
// arrive twice. An end that is told that it once had a greater epoch (its clock
// went back) takes one above that.
//
// Package wire makes a network function of it.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), section 5.3; the format
// is ours.
package hop
