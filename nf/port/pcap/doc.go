// Package pcap reads and writes capture files, and makes ports of them:
// classic pcap (microseconds and nanoseconds, both byte orders) and pcapng
// (several sections and interfaces, any timestamp resolution, a comment per
// packet).
//
//	classic:  file header 24 | record header 16 | frame | record header 16 | frame | ...
//	pcapng:   section | interface ... | packet block | packet block | ...
//
// Everything streams: a Reader and a Writer keep one buffer each, whatever the
// file's size, and allocate nothing per packet. A packet that a Reader delivers is valid
// until its next call. A file that is cut or damaged is delivered up to the
// damage; then Next says where it is.
//
// A classic capture that is copied packet by packet, with the Header of its
// Reader, comes out byte for byte. Of a pcapng file the packets, the
// interfaces (link type, snap length, name, description, time resolution and
// offset) and the packets' comments are kept; other blocks and options are
// not.
//
// Nothing here may be used by two goroutines at once, except Port.Stats.
//
// Sources: draft-ietf-opsawg-pcap (classic), draft-ietf-opsawg-pcapng.
package pcap
