// Package gbn is Clio's go-back-N transport as a state machine: time and frames go in, frames and a next deadline
// come out. nf/gobackn runs it for devices without a transport, and internal/rack/clio runs it inside clients and
// devices.
//
//	c := gbn.Config{...}          numbers of both ends alike
//	s := gbn.NewServer(c)         the end that sessions are opened to
//	s.FromNet(now, b, out)        a frame with a go-back-N header came
//	s.ToNet(now, b, out)          a frame without one is to be sent
//	s.Tick(now, out)              at s.Deadline()
//
// A Session is one end of one session; an opener uses it by itself. In both directions of a session, each frame
// is delivered once and in order, although the network may lose, duplicate, delay or damage frames; if that
// fails, the session ends.
//
// # The protocol
//
// The receiver delivers the frame with the expected number. It answers the first frame that is ahead with a NACK
// of the last frame that came in order, and frames that are behind with an ACK. ACK and NACK are cumulative. The
// sender has at most a window of frames on their way; after a NACK or a timeout it sends all unacknowledged
// frames again. Numbers begin at 1 and wrap at 2^32.
//
// Source: github.com/WukLab/Clio, include/uapi/gbn.h, board/fpga/net_reliable and
// host/net/transport_gbn.c: window 128, an ACK every 100 frames, 4 ms until frames
// are sent again, 1024 sessions of which 0 is unreliable.
//
// # What the source leaves open
//
//   - Frames that came in order are also acknowledged after a delay, if fewer than one hundred follow. Otherwise
//     each pause would end in a retransmission. (Clio's hosts turn their timer off.)
//   - An end gives a session up after a number of timeouts in a row.
//   - A second NACK of the same number is a duplicate that the network made, and is ignored.
//   - A session is opened by a request on session 0, which may be repeated. A repetition has the same address, UDP
//     port, VLANs (of both tags), pid and request number. Another pid or number from the same port opens the
//     session anew.
//   - The number of sessions of an address is limited. If there is no room for another session, the one that was
//     idle for longest ends, of all sessions or, at the limit, of that address. It must have been idle for
//     Config.Idle, or for a second if it never carried a frame: requests from forged addresses thus block others
//     for a second, not for minutes.
//   - Frames with UDP checksums are verified, and keep having checksums. Clio's own frames have none: then only the
//     Ethernet FCS detects damage.
package gbn
