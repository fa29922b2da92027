// Package hop is the last hop: a reliable link layer between two neighbours, an endpoint and its board
// or switch. Frames arrive exactly once and in order, even if the cable loses, damages, repeats or
// reorders them. A Link is one end of it: a state machine that takes frames and the time, and returns
// frames and a deadline.
//
// # Frames
//
// A frame keeps its addresses. Behind them, a header is inserted under EtherType 0x88B5, IEEE's local
// experimental EtherType 1 (IEEE 802 section 9.2.4). All numbers are big-endian:
//
//	 0 destination | 6 source | 12 88B5
//	14 version 1 | 15 type | 16 length of what follows the header
//	18 epoch of the sender | 26 epoch of its peer, 0: not known
//	34 sequence number | 38 next number expected
//	42 CRC-32C of all but itself | 46 EtherType and payload of the frame
//
// A frame grows by 34 bytes by that; short frames may be padded. Types are DATA, ACK, NAK (of the next
// number expected) and HELLO. A frame with a wrong CRC counts as lost. Frames other than DATA go to
// 01-80-C2-00-00-0E, which no bridge forwards.
//
// # Retransmission
//
// Frames stay in a buffer of 64 KB until they are acknowledged. That is more than can be under way on
// a cable in a rack. When the buffer is full, Send returns false: the sender must stop, and nothing is
// lost. Acknowledgements are cumulative, and travel with data or alone. The receiver answers a gap by
// one NAK. After a NAK, or when the oldest frame is not acknowledged in time, the sender sends again
// from the oldest frame on (go-back-N).
//
// # Flow control
//
// The receiver counts the bytes that it has delivered and that are not yet consumed. Above a threshold
// (XOFF) it asks for a pause, by frames of priority-based flow control (PFC, IEEE 802.1Qbb, 802.3 annex
// 31D) for one class, which it repeats before the pause runs out. Below another threshold (XON) it ends
// the pause. Above XOFF there is room for all that may still arrive (Headroom): bytes on the cable, a
// frame that the sender has begun, a frame that goes out here before the pause does, and the time that
// a sender may take to obey. If a pause is lost nevertheless, frames without room are not taken, and are
// sent again. Only DATA is paused: other frames are in another class, so that two ends that pause each
// other do not wait for ever. A pause also ends by itself.
//
// # Epochs
//
// An end that starts chooses an epoch that is greater than all of its earlier ones; the time serves.
// Frames count only if both of their epochs are right. HELLO tells the other end the sender's new epoch
// and its oldest number; data follows when both ends know each other. So each end notices a restart of
// the other, and sends again what was not acknowledged before: across a restart, and only then, a frame
// may arrive twice. An end that learns that it once had a greater epoch (its clock went back) takes one
// above that, by up to 4.3 s of its clock.
//
// Package wire makes a network function of a Link.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), section 5.3. This package defines the format.
package hop
