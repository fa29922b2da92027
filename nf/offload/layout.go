package offload

// Slot is an entry in the memory that process and program share. A frame needs two or three cache lines of
// it.
type Slot struct {
	// Claim has the state of the slot (Gone to Born) in its lower 32 bits, and above them how often the
	// slot was used. Who has set the state to Busy or Paused may read and write the other fields.
	Claim  uint64
	Flags  uint32
	Held   uint32 // see Until
	Quiet  uint64 // ns; 0: for ever
	Quiets [2]uint64
	Last   [2]uint64 // times of the kernel
	Heads  [2]int16  // Change.Head
	Meters [2]uint16 // by direction; 0: none
	Dirs   [2]Dir
	Sides  [2]Side // by direction
	Rests  [2]Rest
	// Held, Until and Behind are in units of 1<<BehindShift ns. They say of the last time in which frames came up
	// behind others (BehindGap): when it began, when it ends, and when its last frame came. The program writes them;
	// in a new entry Held is 0.
	Until, Behind uint32
}

// Dir is one direction of an entry: the key of its frames, and the Change that the program applies to them.
type Dir struct {
	Key                             [KeyLen]byte // of its frames
	Out, Ops                        uint8
	Src, Dst, Ports                 [4]byte
	InMAC, OutMAC                   [12]byte
	Path, IPDelta, L4Delta, Longest uint16
}

// Rest is the part of a direction's Change that only tunnels and VLAN tags need.
type Rest struct {
	Tunnel uint16
	Port   [2]byte
	VLAN   uint16
	_      uint16
}

// States of a Slot.
const (
	Gone = iota // the kernel does not run it
	Live
	Busy
	Paused // by a function, which looks at a frame
	Born   // not all functions have it yet
)

// Flags of a Slot.
const (
	FlagFollow  = 1 << iota // what TCP segments say is noted
	FlagWindows             // and their numbers are compared
	FlagSix                 // it is of IPv6
	FlagBehind              // a frame has come up that the program does not run: those behind it come up, too, so that they do not overtake it
	FlagMeter               // a direction goes by a Meter
)

// When a frame of an entry comes up that the program does not run, the frames behind it come up, too. That
// time ends with the first frame that comes BehindGap or more after the frame of the entry before it, or with the
// first frame after the time's share: the period since the last such time began, divided by 1<<BehindShare, and
// from BehindGap to BehindMost. In any case it lasts for BehindGap after each frame that the program did not run.
// BehindGap is longer than the process keeps a frame.
const (
	BehindShift = 20 // a unit is 1<<BehindShift ns, about a millisecond
	BehindGap   = 5  // units
	BehindMost  = 96 // units
	BehindShare = 3
)

// AckWindow is the smallest distance, in bytes, that an acknowledgement may be behind without being
// dropped.
const AckWindow = 66000

// Control is what the program reads for each frame, whatever its entry.
type Control struct {
	TunnelPort uint32 // UDP port, as it stands in a header; 0: there are no tunnels
}

// Template holds a tunnel's outer headers in the form that the program reads.
type Template struct {
	Header     [TunnelLen]byte
	Mask, Base uint8
	// Sum is the folded sum of the IP header's 16-bit words in the machine's byte order, with TOS, length
	// and checksum 0.
	Sum uint16
	_   [10]byte
}

// tunnelKey is what the outer headers of a tunnel's incoming frames have in common.
type tunnelKey struct {
	VNI           uint32
	Remote, Local [4]byte // source and destination
	Port          uint16
}

// TunnelKeyLen is the length in bytes of a tunnel's key in the program's map.
const TunnelKeyLen = 16

func (k *tunnelKey) bytes() (b [TunnelKeyLen]byte) {
	ne.PutUint32(b[0:], k.VNI)
	copy(b[4:], k.Remote[:])
	copy(b[8:], k.Local[:])
	be.PutUint16(b[12:], k.Port)
	return b
}

// Kernel is the program that runs entries, and the memory that it shares with the process.
type Kernel interface {
	// Slots returns the shared memory of all slots, used or not. Sixes returns, by slot, the addresses of
	// direction 0 of the entries that are IPv6. Control returns what the program reads for each frame.
	Slots() []Slot
	Sixes() []Addrs
	Control() *Control
	// Meters returns the shared memory of all meters. Number 0 is not a meter.
	Meters() []Meter
	// Put has the program run frames with the key of direction dir of slot by that slot, and by no other.
	// Delete ends that.
	Put(slot, dir int) error
	Delete(slot, dir int)
	PutTunnel(key [TunnelKeyLen]byte, id uint16, local [6]byte, x *Template) error
	DeleteTunnel(key [TunnelKeyLen]byte)
	// Clock returns the time in ns by the clock that the program reads (CLOCK_MONOTONIC).
	Clock() int64
}

// MaxTunnels is one more than the number of tunnels that there may be, because number 0 is none.
const MaxTunnels = 4096
