// Package gbn is Clio's go-back-N transport as a state machine: time and frames
// go in, frames and a next deadline come out. nf/gobackn runs it for devices
// that have none, internal/rack/clio inside clients and devices.
//
//	c := gbn.Config{...}          numbers of both ends alike
//	s := gbn.NewServer(c)         the end that sessions are opened to
//	s.FromNet(now, b, out)        a frame with a go-back-N header came
//	s.ToNet(now, b, out)          a frame without one is to be sent
//	s.Tick(now, out)              at s.Deadline()
//
// A Session is one end of one session, for the opener. Within a session frames are
// delivered once each and in order, in each direction, whatever the network loses,
// doubles, delays or damages, or the session ends.
//
// # The protocol
//
// Receiver: the frame that is expected is delivered; one ahead is answered by one
// NACK of the last that came in order, until the gap closes; one behind by an ACK.
// ACK and NACK are cumulative. Sender: at most a window of frames is on its way; a
// NACK, or a timeout, sends all that is not acknowledged again. Numbers begin at 1
// and wrap at 2^32.
//
// Source: github.com/WukLab/Clio, include/uapi/gbn.h, board/fpga/net_reliable and
// host/net/transport_gbn.c: window 128, an ACK every 100 frames, 4 ms until frames
// are sent again, 1024 sessions of which 0 is unreliable.
//
// # What the source leaves open
//
//   - Frames that came in order are acknowledged after a delay, too, when fewer than
//     one hundred follow: else each pause would end in a retransmission. (Clio's
//     hosts turn their timer off.)
//   - An end gives a session up after a number of timeouts in a row.
//   - A second NACK of the same number is the network's double: it is not heeded.
//   - A session is opened by a request on session 0, which may be repeated: it is
//     known by its opener's address, UDP port, VLANs (of both tags), pid and
//     request number. Another pid or number from the same port opens it anew.
//   - An address may have a part of all sessions. Where there is no room for another
//     session, that which was idle for the longest makes it, of all or of that
//     address: idle for long, or for a second when it never carried a frame. So
//     requests from made-up addresses hold others up for a second, not for minutes.
//   - Frames with UDP checksums are checked, and keep having one. Clio's own have
//     none: the Ethernet FCS is all that finds damage then.
package gbn
