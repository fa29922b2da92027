package pcap_test

import (
	"time"

	"github.com/quillon/quillon/snic/hop"
)

// pfcScene: senders on side a, whose priority 3 the board keeps from losing frames; what they send to on side b.
func pfcScene(s *scene) {
	k := talk{from: at("10.0.0.2"), to: at("192.0.2.9"), vlans: []uint16{100}}
	with := func(priority byte, f []byte) []byte {
		f[14] |= priority << 5 // of the VLAN tag
		return f
	}
	s.a(with(3, k.udp(1, 2, filling(10))))
	s.wait(20 * time.Millisecond) // its task is loaded
	// Ten times what the task can do: the board asks priority 3 to pause, and ends that when it has room again.
	for range 40 {
		s.a(with(3, k.udp(1, 2, filling(1000))))
	}
	s.wait(5 * time.Millisecond)
	s.a(with(3, k.udp(1, 2, filling(20))))
	// The senders ask for a pause: frames of priority 3 that leave there wait until it ends, others do not.
	pause := func(quanta uint16) []byte {
		f := make([]byte, hop.MinFrame)
		hop.EncodePause(f, k.from.mac6(), 3, quanta)
		return f
	}
	s.a(pause(65535))
	s.b(with(3, k.back().udp(2, 1, filling(30))), with(5, k.back().udp(2, 1, filling(31))))
	s.wait(50 * time.Microsecond)
	s.a(pause(0))
	s.b(with(3, k.back().udp(2, 1, filling(32))))
	s.wait(5 * time.Millisecond)
	s.b(with(3, k.back().udp(2, 1, filling(33))))
}
