// Package rxe tests middleboxes between RDMA endpoints that are not ours:
// unmodified Debian kernels with the soft RoCE driver (rdma_rxe), perftest,
// and a libibverbs client, in QEMU guests.
//
//	g1 ==tap1--+
//	g2 ==tap2--+-- br0 --c0==c1 [quillon run] s1==s0 -- br1 --tap0== g0
//
// g0 is the server, the others are clients. What is between c1 and s1 is the
// network function under test, as a process, or a plain bridge: what a client
// sees through a middlebox is compared with what it sees without. Frames can
// be lost, doubled, late and damaged on either side of it. All of this is in a
// network namespace of its own. The long form also stops the server for a while,
// kills the middlebox and starts it again, and has programs of many kinds use
// RDMA over plain frames and over frames with a VLAN tag.
//
// In one of the guests tests/pcap runs, too: its kernel has the ends of tunnels that
// the host's may not have.
//
// Everything comes from Debian's archive and is kept under bin/rxe. The guests
// run in software emulation; a guest is up within some seconds.
package rxe

import "fmt"

// IP4, IP6 and MAC are the addresses of guest i's eth0; 0 is the server.
func IP4(i int) string { return fmt.Sprintf("10.77.0.%d", i+1) }
func IP6(i int) string { return fmt.Sprintf("fd77::%d", i+1) }
func MAC(i int) string { return fmt.Sprintf("52:54:00:77:00:%02x", i+1) }

// VLAN is that of the guests' interface eth0.7, and these are its addresses.
const VLAN = 7

func TaggedIP4(i int) string { return fmt.Sprintf("10.78.0.%d", i+1) }
func TaggedIP6(i int) string { return fmt.Sprintf("fd78::%d", i+1) }

// A guest's first process (./guest) takes Requests and gives Replies, a line
// of JSON each, over its second serial line. Its first Reply, with ID 0, says
// that it is up.

// Request asks a guest to run a program, to end one, or to read files.
type Request struct {
	ID      int      // not 0
	Argv    []string // program and arguments
	Seconds int      // after which the program is killed
	Read    string   // in place of a program: pattern of the files to read
	Kill    int      // in place of a program: the Request whose program, with all that it started, is to end
}

// Reply answers the Request with the same ID.
type Reply struct {
	ID     int
	Output string // stdout and stderr
	Exit   int    // -1: did not start, or was killed
	Files  map[string][]byte
}
