package offload

// Slot is an entry as it lies in the memory that the program has, too. What one frame needs of it is in two lines of the processor's cache, or three.
type Slot struct {
	// Claim is the entry's turn in the place (32 bits) and its state. Who has it busy may read and write the rest.
	Claim  uint64
	Flags  uint32
	_      uint32
	Quiet  uint64 // ns; 0: for ever
	Quiets [2]uint64
	Last   [2]uint64 // times of the kernel
	Heads  [2]int16  // Change.Head
	Meters [2]uint16 // by direction; 0: none
	Dirs   [2]Dir
	Sides  [2]Side // by direction
	Rests  [2]Rest
	// The program's alone, in units of 1<<BehindShift ns: when a frame came up last that it does not run, and when one that is behind that.
	Odd, Behind uint32
}

// Dir is one direction of an entry.
type Dir struct {
	Key                             [KeyLen]byte // of its frames
	Out, Ops                        uint8
	Src, Dst, Ports                 [4]byte
	InMAC, OutMAC                   [12]byte
	Path, IPDelta, L4Delta, Longest uint16
}

// Rest is what else belongs to a direction, of those that go into a tunnel, or are tagged.
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

// Behind a frame that the program does not run all come up, until a frame comes that has had none of the entry before it for BehindGap, which is longer than the
// process has a frame, or BehindMost is over since.
const (
	BehindShift = 20 // a unit is 1<<BehindShift ns, about a millisecond
	BehindGap   = 5  // units
	BehindMost  = 96 // units
)

// AckWindow is how far behind an acknowledgement may be, at least.
const AckWindow = 66000

// Control is what the program reads with each frame.
type Control struct {
	TunnelPort uint32 // UDP port, as it stands in a header; 0: there are no tunnels
}

// Template is a tunnel's outer headers as the program has them.
type Template struct {
	Header     [TunnelLen]byte
	Mask, Base uint8
	// Sum is that of the IP header's words, in the machine's order: without TOS, length and checksum.
	Sum uint16
	_   [10]byte
}

// tunnelKey is what frames of a tunnel have in their outer headers.
type tunnelKey struct {
	VNI           uint32
	Remote, Local [4]byte // source and destination
	Port          uint16
}

// TunnelKeyLen is the length of a tunnel's key in the kernel.
const TunnelKeyLen = 16

func (k *tunnelKey) bytes() (b [TunnelKeyLen]byte) {
	ne.PutUint32(b[0:], k.VNI)
	copy(b[4:], k.Remote[:])
	copy(b[8:], k.Local[:])
	be.PutUint16(b[12:], k.Port)
	return b
}

// Kernel is where entries are run.
type Kernel interface {
	// Slots are all that there is room for, Sixes the addresses of direction 0 of those that are of IPv6, and Control what goes with them: memory of the program, too.
	Slots() []Slot
	Sixes() []Addrs
	Control() *Control
	// Meters are all that there is room for, and one that is none: number 0.
	Meters() []Meter
	// Put has frames of the key that a direction of a slot has be run by it, in the place of another one; Delete, by it no more.
	Put(slot, dir int) error
	Delete(slot, dir int)
	PutTunnel(key [TunnelKeyLen]byte, id uint16, local [6]byte, x *Template) error
	DeleteTunnel(key [TunnelKeyLen]byte)
	// Clock is the kernel's time that goes into a slot, in ns.
	Clock() int64
}

// MaxTunnels is how many tunnels there may be, but for one.
const MaxTunnels = 4096
