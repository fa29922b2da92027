package xdp

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/offload"
)

// Outcomes of frames, in the order of the program's counters.
const (
	finished = iota // left by its port
	other           // not plain: never run here
	unknown         // of no entry
	withdrawn
	busy   // another processor runs a frame of the entry
	silent // the flow was silent for longer than a function lets it be
	unlike // other MAC addresses, or too long
	window // numbers that the function has to look at
	noRoom // the kernel has no room in front of the frame
	behind // behind one that is not run
	red    // a meter would drop it, and functions behind it have a part in the flow
	broken // dropped: cannot be
	numOutcomes
)

var outcomeNames = [numOutcomes]string{
	finished: "finished", other: "not-plain", unknown: "no-entry", withdrawn: "withdrawn", busy: "busy", silent: "silent", unlike: "unlike", window: "window", behind: "behind",
	noRoom: "no-room", red: "red", broken: "broken",
}

// Offsets in a Slot, and in one of its directions.
var (
	slot offload.Slot
	tpl  offload.Template
	dir  offload.Dir
	rest offload.Rest
	pace offload.Meter

	atFlags  = int16(unsafe.Offsetof(slot.Flags))
	atBehind = int16(unsafe.Offsetof(slot.Behind))
	atHeld   = int16(unsafe.Offsetof(slot.Held))
	atUntil  = int16(unsafe.Offsetof(slot.Until))
	atQuiet  = int16(unsafe.Offsetof(slot.Quiet))
	atQuiets = int16(unsafe.Offsetof(slot.Quiets))
	atSides  = int32(unsafe.Offsetof(slot.Sides))
	atDirs   = int32(unsafe.Offsetof(slot.Dirs))
	atLast   = int16(unsafe.Offsetof(slot.Last))
	atHeads  = int32(unsafe.Offsetof(slot.Heads))
	atMeters = int32(unsafe.Offsetof(slot.Meters))
	atRests  = int32(unsafe.Offsetof(slot.Rests))
	restSize = int32(unsafe.Sizeof(rest))
	restPort = int16(unsafe.Offsetof(rest.Port))
	restVLAN = int16(unsafe.Offsetof(rest.VLAN))
	sideSize = int32(unsafe.Sizeof(slot.Sides[0]))
	dirSize  = int32(unsafe.Sizeof(dir))

	dirOut     = int16(unsafe.Offsetof(dir.Out))
	dirPath    = int16(unsafe.Offsetof(dir.Path))
	dirOps     = int16(unsafe.Offsetof(dir.Ops))
	dirIn      = int16(unsafe.Offsetof(dir.InMAC))
	dirMAC     = int16(unsafe.Offsetof(dir.OutMAC))
	dirSrc     = int16(unsafe.Offsetof(dir.Src))
	dirPorts   = int16(unsafe.Offsetof(dir.Ports))
	dirIPDelta = int16(unsafe.Offsetof(dir.IPDelta))
	dirL4Delta = int16(unsafe.Offsetof(dir.L4Delta))
	atSum      = int16(unsafe.Offsetof(tpl.Sum))
	dirLongest = int16(unsafe.Offsetof(dir.Longest))
)

// Offsets in an offload.Side.
const (
	sideEnd   = 0
	sideMax   = 4
	sideWin   = 8
	sideAck   = 12
	sideScale = 16
)

// Offsets of the program's variables from the stack's end.
const (
	stKey     = -24 // of 18 bytes: addresses, ports, VLAN, tunnel, port, protocol
	stClaim   = -32 // the entry's word when it is live
	stNow     = -40
	stLen     = -48 // of the frame
	stL2      = -56 // where the frame begins, inside a tunnel
	stDir     = -64 // the direction's part of the slot
	stPayload = -72 // of a segment
	stWhich   = -80 // its lowest bit is the direction
	stTOS     = -84 // outer ECN
	stIndex   = -88
	stTunnel  = -104 // a tunnel's key
	stEnd     = -108 // numbers of the segment
	stAck     = -112
	stWindow  = -116
	stMeter   = -128 // the meter
	stC       = -136 // what its buckets will have, and until when
	stP       = -144
	stAt      = -152
	stSize    = -160 // of the IP datagram
	stL3      = -168 // where it begins in the frame
	stColour  = -176
	stAct     = -184
	stPath    = -192 // what is added to the way: 1 for a frame with another DSCP, 2 for one that is dropped
	stUp      = -200 // not 0: the frame comes up, and those of its flow behind it
)

const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4

	// coarse is how far the kernel's coarse clock may be behind, in ns: a tick, of CONFIG_HZ=100 or more.
	coarse = 10_000_000

	// tries is how often the program looks whether an entry is free.
	tries = 64
)

// Fields of the word that the program reads for an interface (Kernel.Turn).
const (
	inOn    = 1 << 31
	inKnown = 1 << 30
	inPort  = 0xFF
)

// descriptors are the file descriptors of the program's maps. clock is 0 unless the program is told the time.
type descriptors struct{ meters, in, control, flows, slots, sixes, tunnels, templates, counts, devices, own, clock int }

// shape has the sizes and the random numbers that the program is made for.
type shape struct {
	entries, buckets, paces int
	secret                  secret
}

// A Slot has 1<<slotBits bytes, and a Dir 1<<dirBits.
const (
	slotBits = 8
	dirBits  = 6
)

// Layout of each processor's counts, in bytes: 8 for each outcome, and from countsPaths on 16 for each path.
const (
	countsPaths = 8 * 16
	countsSize  = countsPaths + 16*offload.MaxPaths
)

// emitter writes the program. R6 is the XDP context, R7 the frame's end, R8 the slot, and R9 a place in the
// frame. The methods emit code; their comments say what that code does.
type emitter struct {
	descriptors
	shape
	code   asm.Instructions
	labels int
	next   string // the label of the next instruction
}

func (g *emitter) add(ins ...asm.Instruction) {
	if g.next != "" {
		ins[0], g.next = ins[0].WithSymbol(g.next), ""
	}
	g.code = append(g.code, ins...)
}

func (g *emitter) fresh() string {
	g.labels++
	return fmt.Sprintf("l%d", g.labels)
}

// label gives the next instruction a name. If that has a name already, label adds an instruction without effect
// before it.
func (g *emitter) label(name string) {
	if g.next != "" {
		g.add(asm.Mov.Reg(asm.R6, asm.R6))
	}
	g.next = name
}

// need jumps to short if fewer than n bytes of the frame are left from r on. It changes R0.
func (g *emitter) need(r asm.Register, n int32, short string) {
	g.add(asm.Mov.Reg(asm.R0, r), asm.Add.Imm(asm.R0, n), asm.JGT.Reg(asm.R0, asm.R7, short))
}

func wire16(v uint16) int32 { return int32(be16(v)) }

// host converts a big-endian number to the machine's byte order.
func host(r asm.Register, s asm.Size) asm.Instruction { return asm.HostTo(asm.BE, r, s) }

// atomicOf returns an atomic operation on the word at dst. Version 0.22 of asm does not write the operation's
// number into the instruction, so that this is done here (atomicAt).
func atomicOf(op asm.AtomicOp, dst, src asm.Register) asm.Instruction {
	return atomicAt(op, dst, src, asm.DWord, 0)
}

func atomicAt(op asm.AtomicOp, dst, src asm.Register, size asm.Size, at int16) asm.Instruction {
	ins := op.Mem(dst, src, size, at)
	ins.Constant = int64(op >> 8)
	return ins
}

// program returns the whole program.
func program(m descriptors, s shape) asm.Instructions {
	g := &emitter{descriptors: m, shape: s}
	g.begin()
	g.parse()
	g.find()
	g.admit()
	g.run("")
	g.change()
	g.leave()
	g.six()
	g.odd()
	g.waits("")
	pacer{g}.metered()
	listener{g}.nearlySilent()
	g.ends()
	return g.code
}

// run does what comes between claiming an entry and changing the frame. The program has it twice: a second time
// for entries with meters, under labels that begin with m, so that other entries spend no time on meters.
func (g *emitter) run(m string) {
	g.windows(m)
	if m != "" {
		pacer{g}.meter()
	}
	g.move(m)
	if m != "" {
		pacer{g}.passed()
	}
	g.count(m)
}

// begin finds out at which port the frame came in, and whether the program runs frames of that port.
func (g *emitter) begin() {
	g.add(
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 12, asm.Word),
		asm.JGE.Imm(asm.R2, maxIndex, "pass"),
		asm.LSh.Imm(asm.R2, 2),
		asm.LoadMapValue(asm.R1, g.in, 0),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
		asm.JEq.Imm(asm.R2, 0, "pass"),
		asm.Mov.Reg(asm.R1, asm.R2),
		asm.And.Imm(asm.R1, inPort),
		asm.StoreMem(asm.RFP, stKey+16, asm.R1, asm.Half), // and protocol 0
		asm.RSh.Imm(asm.R2, 31),
		asm.JEq.Imm(asm.R2, 0, "own"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnXdpGetBuffLen.Call(),
		asm.StoreMem(asm.RFP, stLen, asm.R0, asm.DWord),
		asm.LoadMem(asm.R9, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R7, asm.R6, 4, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Sub.Reg(asm.R1, asm.R9),
		asm.Sub.Reg(asm.R0, asm.R1),
		asm.StoreMem(asm.RFP, stUp, asm.R0, asm.DWord), // a frame in several buffers
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, stL2, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, stPayload, asm.R1, asm.DWord),
	)
}

// parse leaves the frame's key on the stack, and the place of its (inner) IP header in R9.
func (g *emitter) parse() {
	g.datagram("outer")
	g.label("outer-udp")
	g.add(
		asm.LoadMapValue(asm.R1, g.control, 0),
		asm.LoadMem(asm.R1, asm.R1, 0, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "outer-ports"),
		asm.LoadMem(asm.R2, asm.R9, 22, asm.Half),
		asm.JNE.Reg(asm.R1, asm.R2, "outer-ports"),
	)
	g.tunnel()
	g.datagram("inner")
	g.label("inner-udp")
	g.label("inner-ports")
	// If the outer ECN field would change the inner one (RFC 6040), the function must handle the frame.
	g.add(
		asm.LoadMem(asm.R4, asm.RFP, stTunnel, asm.Word),
		asm.LSh.Imm(asm.R4, 48),
		asm.Or.Reg(asm.R5, asm.R4),
		asm.LoadMem(asm.R2, asm.RFP, stTOS, asm.Word),
		asm.JEq.Imm(asm.R2, 0, "outer-ports"),
		asm.LoadMem(asm.R1, asm.R9, 1, asm.Byte),
		asm.And.Imm(asm.R1, 3),
		asm.JEq.Reg(asm.R1, asm.R2, "outer-ports"),
		asm.JNE.Imm(asm.R1, 0, "congested"),
		asm.JEq.Imm(asm.R2, 3, "congested"),
	)
	g.label("outer-ports")
	g.add(
		asm.LoadMem(asm.R1, asm.R9, 12, asm.DWord),
		asm.StoreMem(asm.RFP, stKey, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R9, 20, asm.Word),
		asm.Or.Reg(asm.R1, asm.R5),
		asm.StoreMem(asm.RFP, stKey+8, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, stKey+17, asm.R3, asm.Byte),
	)
	g.label("parsed")
}

// six has the paths of IPv6 frames. After parse R9 is 20 bytes in front of the ports, as with IPv4: inside the IP
// header.
func (g *emitter) six() {
	g.datagram6("outer")
	g.label("outer-udp6") // no tunnel is over IPv6
	g.add(asm.Ja.Label("outer-ports6"))
	g.datagram6("inner")
	g.label("inner-udp6")
	g.label("inner-ports6")
	g.add(
		asm.LoadMem(asm.R4, asm.RFP, stTunnel, asm.Word),
		asm.LSh.Imm(asm.R4, 48),
		asm.Or.Reg(asm.R5, asm.R4),
		asm.LoadMem(asm.R2, asm.RFP, stTOS, asm.Word),
		asm.JEq.Imm(asm.R2, 0, "outer-ports6"),
		asm.LoadMem(asm.R1, asm.R9, -19, asm.Byte),
		asm.RSh.Imm(asm.R1, 4),
		asm.And.Imm(asm.R1, 3),
		asm.JEq.Reg(asm.R1, asm.R2, "outer-ports6"),
		asm.JNE.Imm(asm.R1, 0, "congested6"),
		asm.JEq.Imm(asm.R2, 3, "congested6"),
	)
	g.label("outer-ports6")
	for i := range int16(2) { // offload.Key.Bytes
		g.add(
			asm.LoadMem(asm.R1, asm.R9, -12+16*i, asm.DWord),
			asm.LoadMem(asm.R2, asm.R9, -4+16*i, asm.DWord),
			asm.Xor.Reg(asm.R1, asm.R2),
			asm.Mov.Reg(asm.R2, asm.R1),
			asm.RSh.Imm(asm.R2, 32),
			asm.Xor.Reg(asm.R1, asm.R2),
			asm.StoreMem(asm.RFP, stKey+4*i, asm.R1, asm.Word),
		)
	}
	g.add(
		asm.LoadMem(asm.R1, asm.R9, 20, asm.Word),
		asm.Or.Reg(asm.R1, asm.R5),
		asm.StoreMem(asm.RFP, stKey+8, asm.R1, asm.DWord),
		asm.Or.Imm(asm.R3, offload.Six),
		asm.StoreMem(asm.RFP, stKey+17, asm.R3, asm.Byte),
		asm.Ja.Label("parsed"),
	)
	for _, six := range [...]string{"", "6"} { // frames that come up because of their ECN fields
		g.label("congested" + six)
		g.add(asm.StoreMem(asm.RFP, stUp, asm.R2, asm.DWord), asm.Ja.Label("outer-ports"+six))
	}
	g.unusual("")
	g.write6()
}

// datagram6 is datagram for IPv6. At its start R9 is 14 bytes in front of the IP header. It leaves in R4 the
// length of what follows the header, plus 20.
func (g *emitter) datagram6(own string) {
	g.label(own + "-six")
	g.need(asm.R9, 14+48, "other")
	g.add(
		asm.Add.Imm(asm.R9, 14+20),
		asm.LoadMem(asm.R1, asm.R9, -20, asm.Byte),
		asm.RSh.Imm(asm.R1, 4),
		asm.JNE.Imm(asm.R1, 6, "other"),
		asm.LoadMem(asm.R4, asm.R9, -16, asm.Half),
		host(asm.R4, asm.Half),
		asm.Add.Imm(asm.R4, 20),
	)
	g.whole()
	g.add(
		asm.LoadMem(asm.R3, asm.R9, -14, asm.Byte),
		asm.JEq.Imm(asm.R3, unix.IPPROTO_TCP, own+"-tcp6"),
		asm.JNE.Imm(asm.R3, unix.IPPROTO_UDP, "other"),
		asm.JLT.Imm(asm.R4, 28, "other"),
		asm.Ja.Label(own+"-udp6"),
	)
	g.label(own + "-tcp6")
	g.segment(own + "-ports6")
}

// unusual is a part of windows for rare flags. It compares the addresses of an IPv6 frame with the entry's,
// because the key does not contain them in full.
func (g *emitter) unusual(m string) {
	g.label(m + "not-usual")
	if m == "" {
		g.add(asm.JSet.Imm(asm.R1, offload.FlagBehind|offload.FlagMeter, "waits"))
	} else {
		g.add(asm.JSet.Imm(asm.R1, offload.FlagBehind, m+"waits"))
	}
	g.label(m + "waited")
	g.add(asm.JSet.Imm(asm.R1, offload.FlagSix, m+"addresses6"), asm.Ja.Label(m+"follow?"))
	g.label(m + "addresses6")
	g.add(
		asm.LoadMem(asm.R2, asm.RFP, stWhich, asm.DWord),
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.And.Imm(asm.R3, 1),
		asm.LSh.Imm(asm.R3, 4), // of direction 1 they are swapped
		asm.RSh.Imm(asm.R2, 1),
		asm.LSh.Imm(asm.R2, 5),
		asm.LoadMapValue(asm.R1, g.sixes, 0),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.Add.Reg(asm.R1, asm.R3),
		asm.Xor.Imm(asm.R3, 16),
		asm.Add.Reg(asm.R2, asm.R3),
	)
	for i, r := range [2]asm.Register{asm.R1, asm.R2} {
		for _, at := range []int16{0, 8} {
			g.add(asm.LoadMem(asm.R3, r, at, asm.DWord), asm.LoadMem(asm.R4, asm.R9, -12+16*int16(i)+at, asm.DWord), asm.JNE.Reg(asm.R3, asm.R4, "free-unknown"))
		}
	}
	g.add(asm.LoadMem(asm.R1, asm.R8, atFlags, asm.Word))
	g.label(m + "follow?")
	g.add(asm.JSet.Imm(asm.R1, offload.FlagFollow, m+"follow"), asm.Ja.Label(m+"fits"))
}

// write6 is the part of change for IPv6 frames.
func (g *emitter) write6() {
	g.label("change6")
	g.add(
		asm.JSet.Imm(asm.R5, offload.OpTagged, "tagged6"),
		asm.Mov.Imm(asm.R1, wire16(0x86DD)),
		asm.StoreMem(asm.R9, 12, asm.R1, asm.Half),
		asm.Add.Imm(asm.R9, 14),
		asm.Ja.Label("headers6"),
	)
	g.label("tagged6")
	g.add(asm.Mov.Reg(asm.R2, asm.R5), asm.And.Imm(asm.R2, offload.OpTag), asm.JEq.Imm(asm.R2, 0, "has-tag6"))
	g.tag(0x86DD)
	g.label("has-tag6")
	g.add(asm.Add.Imm(asm.R9, 18))
	g.label("headers6")
	g.need(asm.R9, 40, "free-broken")
	g.add(
		asm.Mov.Reg(asm.R2, asm.R5),
		asm.And.Imm(asm.R2, offload.OpInto),
		asm.JEq.Imm(asm.R2, 0, "written"),
		asm.LoadMem(asm.R1, asm.R9, 0, asm.Half),
		host(asm.R1, asm.Half),
		asm.RSh.Imm(asm.R1, 4),
		asm.And.Imm(asm.R1, 0xFF),
		asm.Ja.Label("into"),
	)
}

// datagram parses a frame that begins at R9. For an IP datagram with ports it leaves the IP header's place in R9,
// the protocol in R3, the datagram's length in R4, and in R5 the VLAN tag, shifted to its place in a key.
func (g *emitter) datagram(own string) {
	l := func(s string) string { return own + "-" + s }
	g.need(asm.R9, 14+28, "other")
	g.add(
		asm.Mov.Imm(asm.R5, 0),
		asm.LoadMem(asm.R1, asm.R9, 12, asm.Half),
		asm.JEq.Imm(asm.R1, wire16(0x0800), l("untagged")),
		asm.JEq.Imm(asm.R1, wire16(0x86DD), l("six")),
		asm.JNE.Imm(asm.R1, wire16(0x8100), "other"),
	)
	g.need(asm.R9, 18+28, "other")
	g.add(
		asm.LoadMem(asm.R5, asm.R9, 14, asm.Half),
		host(asm.R5, asm.Half),
		asm.And.Imm(asm.R5, 0xFFF),
		asm.Or.Imm(asm.R5, offload.Tagged),
		asm.LSh.Imm(asm.R5, 32),
		asm.LoadMem(asm.R1, asm.R9, 16, asm.Half),
		asm.Add.Imm(asm.R9, 4),
		asm.JEq.Imm(asm.R1, wire16(0x86DD), l("six")),
		asm.JNE.Imm(asm.R1, wire16(0x0800), "other"),
	)
	g.label(l("untagged"))
	g.add(
		asm.Add.Imm(asm.R9, 14),
		// No options, and no fragment.
		asm.LoadMem(asm.R4, asm.R9, 0, asm.DWord),
		asm.LoadImm(asm.R1, plainMask, asm.DWord),
		asm.And.Reg(asm.R1, asm.R4),
		asm.LoadImm(asm.R2, plainIP, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, l("odd")),
		asm.LoadMem(asm.R4, asm.R9, 2, asm.Half),
		host(asm.R4, asm.Half),
	)
	g.whole()
	g.add(
		asm.LoadMem(asm.R3, asm.R9, 9, asm.Byte),
		asm.JEq.Imm(asm.R3, unix.IPPROTO_TCP, l("tcp")),
		asm.JNE.Imm(asm.R3, unix.IPPROTO_UDP, "other"),
		asm.JLT.Imm(asm.R4, 28, "other"),
		asm.Ja.Label(l("udp")),
	)
	g.label(l("tcp"))
	g.segment(l("ports"))
}

// whole jumps to other if a datagram of R4 bytes at R9 is longer than the frame, unless the frame is in several
// buffers.
func (g *emitter) whole() {
	fits := g.fresh()
	g.add(
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Sub.Reg(asm.R1, asm.R9),
		asm.JLE.Reg(asm.R4, asm.R1, fits),
		asm.LoadMem(asm.R1, asm.RFP, stUp, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "other"),
	)
	g.label(fits)
}

// odd has the path of IPv4 frames with options, and of fragments. The first fragment has the ports: its entry is
// found, so that the frames behind it come up, too (wait).
func (g *emitter) odd() {
	g.label("inner-odd")
	g.add(asm.LoadMem(asm.R1, asm.RFP, stTunnel, asm.Word), asm.LSh.Imm(asm.R1, 48), asm.Or.Reg(asm.R5, asm.R1))
	g.label("outer-odd")
	g.add(
		asm.LoadMem(asm.R1, asm.R9, 6, asm.Half),
		asm.And.Imm(asm.R1, wire16(0x1FFF)),
		asm.JNE.Imm(asm.R1, 0, "other"),
		asm.LoadMem(asm.R2, asm.R9, 0, asm.Byte),
		asm.Mov.Reg(asm.R1, asm.R2),
		asm.RSh.Imm(asm.R1, 4),
		asm.JNE.Imm(asm.R1, 4, "other"),
		asm.And.Imm(asm.R2, 15),
		asm.JLT.Imm(asm.R2, 5, "other"),
		asm.LSh.Imm(asm.R2, 2),
		asm.LoadMem(asm.R3, asm.R9, 9, asm.Byte),
		asm.JEq.Imm(asm.R3, unix.IPPROTO_UDP, "odd-ports"),
		asm.JNE.Imm(asm.R3, unix.IPPROTO_TCP, "other"),
	)
	g.label("odd-ports")
	g.add(
		asm.LoadMem(asm.R1, asm.R9, 12, asm.DWord),
		asm.StoreMem(asm.RFP, stKey, asm.R1, asm.DWord),
		asm.Add.Reg(asm.R2, asm.R9),
	)
	g.need(asm.R2, 4, "other")
	g.add(
		asm.LoadMem(asm.R1, asm.R2, 0, asm.Word),
		asm.Or.Reg(asm.R1, asm.R5),
		asm.StoreMem(asm.RFP, stKey+8, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, stKey+17, asm.R3, asm.Byte),
	)
	g.look("odd-found", "other")
	for _, p := range keyParts {
		g.add(asm.LoadMem(asm.R1, asm.R5, p.at, p.size), asm.LoadMem(asm.R2, asm.RFP, stKey+p.at, p.size), asm.JNE.Reg(asm.R1, asm.R2, "other"))
	}
	g.wait()
	g.add(asm.Ja.Label("other"))
}

// waits decides whether a frame of an entry with FlagBehind comes up, or the flag is cleared (see
// offload.BehindGap).
func (g *emitter) waits(m string) {
	g.label(m + "waits")
	if m == "" {
		g.add(asm.JSet.Imm(asm.R1, offload.FlagMeter, "m-not-usual"))
	}
	g.now(asm.FnKtimeGetNs)
	g.add(
		asm.RSh.Imm(asm.R0, offload.BehindShift),
		asm.LoadMem(asm.R2, asm.R8, atUntil, asm.Word),
		asm.Mov.Reg32(asm.R3, asm.R0),
		asm.Sub.Reg32(asm.R3, asm.R2),
		jump32(asm.JSGE.Imm(asm.R3, 0, m+"goes-on")),
		asm.LoadMem(asm.R2, asm.R8, atBehind, asm.Word),
		asm.Mov.Reg32(asm.R3, asm.R0),
		asm.Sub.Reg32(asm.R3, asm.R2),
		jump32(asm.JSGE.Imm(asm.R3, offload.BehindGap, m+"goes-on")),
		asm.StoreMem(asm.R8, atBehind, asm.R0, asm.Word),
		asm.Ja.Label("free-behind"),
	)
	g.label(m + "goes-on")
	g.add(
		asm.Mov.Imm(asm.R2, ^offload.FlagBehind),
		atomicAt(asm.AndAtomic, asm.R8, asm.R2, asm.Word, atFlags),
		asm.LoadMem(asm.R1, asm.R8, atFlags, asm.Word),
		asm.Ja.Label(m+"waited"),
	)
}

// wait sets FlagBehind in the slot in R8, because a frame of it comes up. It does not change R6 to R9.
func (g *emitter) wait() {
	goes, least, most, until, set := g.fresh(), g.fresh(), g.fresh(), g.fresh(), g.fresh()
	g.now(asm.FnKtimeGetNs)
	g.add(
		asm.RSh.Imm(asm.R0, offload.BehindShift),
		asm.LoadMem(asm.R1, asm.R8, atFlags, asm.Word),
		asm.JSet.Imm(asm.R1, offload.FlagBehind, goes),
		asm.LoadMem(asm.R1, asm.R8, atHeld, asm.Word),
		asm.StoreMem(asm.R8, atHeld, asm.R0, asm.Word),
		asm.Mov.Reg32(asm.R2, asm.R0),
		asm.Sub.Reg32(asm.R2, asm.R1),
		asm.RSh.Imm(asm.R2, offload.BehindShare),
		asm.JGE.Imm(asm.R2, offload.BehindGap, least),
		asm.Mov.Imm(asm.R2, offload.BehindGap),
	)
	g.label(least)
	g.add(asm.JLE.Imm(asm.R2, offload.BehindMost, most), asm.Mov.Imm(asm.R2, offload.BehindMost))
	g.label(most)
	g.add(asm.Add.Reg32(asm.R2, asm.R0), asm.Ja.Label(until))
	g.label(goes)
	g.add(
		asm.Mov.Reg32(asm.R2, asm.R0),
		asm.Add.Imm(asm.R2, offload.BehindGap),
		asm.LoadMem(asm.R1, asm.R8, atUntil, asm.Word),
		asm.Mov.Reg32(asm.R3, asm.R2),
		asm.Sub.Reg32(asm.R3, asm.R1),
		jump32(asm.JSLE.Imm(asm.R3, 0, set)),
	)
	g.label(until)
	g.add(asm.StoreMem(asm.R8, atUntil, asm.R2, asm.Word))
	g.label(set)
	g.add(
		asm.StoreMem(asm.R8, atBehind, asm.R0, asm.Word),
		asm.Mov.Imm(asm.R1, offload.FlagBehind),
		atomicAt(asm.OrAtomic, asm.R8, asm.R1, asm.Word, atFlags),
	)
}

// now leaves the time of one of the kernel's clocks in R0.
func (g *emitter) now(clock asm.BuiltinFunc) {
	switch {
	case g.clock == 0:
		g.add(clock.Call())
	case clock == asm.FnKtimeGetCoarseNs:
		g.add(asm.LoadMapValue(asm.R0, g.clock, 0), asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord))
	default:
		g.add(asm.LoadMapValue(asm.R0, g.clock, 0), asm.LoadMem(asm.R0, asm.R0, 8, asm.DWord))
	}
}

// segment parses a TCP segment whose header is 20 bytes behind R9, and jumps to plain. If the segment must come
// up because of its flags, stUp is not 0 then.
func (g *emitter) segment(plain string) {
	g.need(asm.R9, 40, "other")
	g.add(
		asm.LoadMem(asm.R1, asm.R9, 32, asm.Byte),
		asm.RSh.Imm(asm.R1, 4),
		asm.JLT.Imm(asm.R1, 5, "other"),
		asm.LSh.Imm(asm.R1, 2),
		asm.Add.Imm(asm.R1, 20),
		asm.JGT.Reg(asm.R1, asm.R4, "other"),
		asm.Sub.Reg(asm.R4, asm.R1),
		asm.StoreMem(asm.RFP, stPayload, asm.R4, asm.DWord),
		asm.LoadMem(asm.R1, asm.R9, 33, asm.Byte),
		asm.And.Imm(asm.R1, 0x17),
		asm.JEq.Imm(asm.R1, 0x10, plain),
		asm.StoreMem(asm.RFP, stUp, asm.R1, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, plain),
		asm.Ja.Label("other"), // no segment of a connection is without a flag
	)
}

// plainIP is what the first 8 bytes of a plain frame's IP header are under plainMask.
var (
	plainMask = word64([8]byte{0xFF, 0, 0, 0, 0, 0, 0x3F, 0xFF})
	plainIP   = word64([8]byte{0x45})
)

func word64(b [8]byte) int64 { return int64(binary.NativeEndian.Uint64(b[:])) }

// tunnel checks the outer headers, of a datagram of R4 bytes at R9. It leaves the tunnel's number on the stack,
// and moves R9 to the frame inside.
func (g *emitter) tunnel() {
	g.need(asm.R9, offload.TunnelLen-14, "other")
	g.add(
		asm.JNE.Imm(asm.R5, 0, "other"),
		asm.Mov.Reg(asm.R1, asm.R4),
		asm.Add.Imm(asm.R1, 14),
		asm.LoadMem(asm.R2, asm.RFP, stLen, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "other"),
		asm.LoadMem(asm.R1, asm.R9, 24, asm.Half),
		host(asm.R1, asm.Half),
		asm.Add.Imm(asm.R1, 20),
		asm.JNE.Reg(asm.R1, asm.R4, "other"),
		asm.LoadMem(asm.R1, asm.R9, 26, asm.Half),
		asm.JNE.Imm(asm.R1, 0, "other"),
		asm.LoadMem(asm.R1, asm.R9, 28, asm.Byte),
		asm.And.Imm(asm.R1, 8),
		asm.JEq.Imm(asm.R1, 0, "other"),
	)
	g.sum(asm.R9, asm.R2)
	g.add(
		asm.JNE.Imm(asm.R2, 0xFFFF, "other"),
		asm.LoadMem(asm.R1, asm.R9, 32, asm.Word),
		host(asm.R1, asm.Word),
		asm.RSh.Imm(asm.R1, 8),
		asm.StoreMem(asm.RFP, stTunnel, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R9, 12, asm.Word),
		asm.StoreMem(asm.RFP, stTunnel+4, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R9, 16, asm.Word),
		asm.StoreMem(asm.RFP, stTunnel+8, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R9, 22, asm.Half),
		asm.StoreMem(asm.RFP, stTunnel+12, asm.R1, asm.Half),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, stTunnel+14, asm.R1, asm.Half),
		asm.LoadMem(asm.R1, asm.R9, 1, asm.Byte),
		asm.And.Imm(asm.R1, 3),
		asm.StoreMem(asm.RFP, stTOS, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, g.tunnels),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stTunnel),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "other"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.StoreMem(asm.RFP, stTunnel, asm.R1, asm.Word), // its number
		asm.LoadMem(asm.R1, asm.R0, 4, asm.Word),
		asm.LoadMem(asm.R2, asm.R9, -14, asm.Word),
		asm.JNE.Reg(asm.R1, asm.R2, "other"),
		asm.LoadMem(asm.R1, asm.R0, 8, asm.Half),
		asm.LoadMem(asm.R2, asm.R9, -10, asm.Half),
		asm.JNE.Reg(asm.R1, asm.R2, "other"),
		asm.Add.Imm(asm.R9, offload.TunnelLen-14),
		asm.Mov.Imm(asm.R1, offload.TunnelLen),
		asm.StoreMem(asm.RFP, stL2, asm.R1, asm.DWord),
	)
}

// sum leaves the folded sum of the 20-byte IP header at r in to. It changes R1.
func (g *emitter) sum(r, to asm.Register) {
	g.add(asm.Mov.Imm(to, 0))
	for i := int16(0); i < 20; i += 2 {
		g.add(asm.LoadMem(asm.R1, r, i, asm.Half), asm.Add.Reg(to, asm.R1))
	}
	g.fold(to)
}

// fold reduces the sum in r to 16 bits. It changes R1.
func (g *emitter) fold(r asm.Register) {
	for range 2 {
		g.add(asm.Mov.Reg(asm.R1, r), asm.RSh.Imm(asm.R1, 16), asm.And.Imm(r, 0xFFFF), asm.Add.Reg(r, asm.R1))
	}
}

// find finds the frame's entry, claims it, and leaves its slot in R8 and the direction's Dir in R5.
func (g *emitter) find() {
	g.look("found", "unknown")
	g.add(
		asm.StoreMem(asm.RFP, stDir, asm.R5, asm.DWord),
		asm.LoadMem(asm.R3, asm.R8, 0, asm.DWord),
		asm.RSh.Imm(asm.R3, 32),
		asm.LSh.Imm(asm.R3, 32),
		asm.Or.Imm(asm.R3, offload.Live),
		asm.StoreMem(asm.RFP, stClaim, asm.R3, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R3),
		asm.Add.Imm(asm.R2, offload.Busy-offload.Live),
		asm.Mov.Imm(asm.R4, tries),
	)
	g.label("again")
	g.add(
		asm.Mov.Reg(asm.R0, asm.R3),
		atomicOf(asm.CmpXchg, asm.R8, asm.R2),
		asm.JEq.Reg(asm.R0, asm.R3, "claimed"),
		asm.JNE.Reg(asm.R0, asm.R2, "withdrawn"),
		asm.Sub.Imm(asm.R4, 1),
		asm.JNE.Imm(asm.R4, 0, "again"),
		asm.Ja.Label("busy"),
	)
	g.label("claimed")
	// The slot may have got another entry since the index was read.
	for _, p := range keyParts {
		g.add(asm.LoadMem(asm.R1, asm.R5, p.at, p.size), asm.LoadMem(asm.R2, asm.RFP, stKey+p.at, p.size), asm.JNE.Reg(asm.R1, asm.R2, "free-unknown"))
	}
}

// part is a piece of memory that one instruction loads.
type part struct {
	at   int16
	size asm.Size
}

// The parts in which keys and pairs of MAC addresses are compared.
var (
	keyParts = [...]part{{0, asm.DWord}, {8, asm.DWord}, {16, asm.Half}}
	macParts = [...]part{{0, asm.DWord}, {8, asm.Word}}
)

// admit checks that the entry is not silent for too long, and that the frame's MAC addresses and length fit it.
func (g *emitter) admit() {
	g.add(asm.LoadMem(asm.R1, asm.RFP, stUp, asm.DWord), asm.JNE.Imm(asm.R1, 0, "free-up"))
	g.now(asm.FnKtimeGetCoarseNs)
	listener{g}.heard(coarse, "nearly-silent")
	g.label("heard")
	g.add(asm.StoreMem(asm.RFP, stNow, asm.R0, asm.DWord))
	// The direction's part, and the MAC addresses.
	g.add(
		asm.LoadMem(asm.R4, asm.RFP, stDir, asm.DWord),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R1, asm.RFP, stL2, asm.DWord),
		asm.Add.Reg(asm.R2, asm.R1),
	)
	g.need(asm.R2, 14, "free-unlike")
	for _, p := range macParts {
		g.add(asm.LoadMem(asm.R1, asm.R2, p.at, p.size), asm.LoadMem(asm.R3, asm.R4, dirIn+p.at, p.size), asm.JNE.Reg(asm.R1, asm.R3, "free-unlike"))
	}
	g.add(
		asm.LoadMem(asm.R1, asm.RFP, stLen, asm.DWord),
		asm.LoadMem(asm.R2, asm.R4, dirLongest, asm.Half),
		asm.JGT.Reg(asm.R1, asm.R2, "free-unlike"),
	)
}

// listener emits the checks of how long a flow was silent.
type listener struct{ *emitter }

// heard jumps to over if, at the time in R0 plus margin, the flow was silent for longer than its functions allow.
// It changes R1 to R4.
func (g listener) heard(margin int32, over string) {
	g.add(asm.LoadMem(asm.R3, asm.R8, atLast, asm.DWord), asm.LoadMem(asm.R4, asm.R8, atLast+8, asm.DWord))
	quiet := func(last asm.Register, at int16) {
		skip := g.fresh()
		g.add(
			asm.LoadMem(asm.R1, asm.R8, at, asm.DWord),
			asm.JEq.Imm(asm.R1, 0, skip),
			asm.Mov.Reg(asm.R2, asm.R0),
			asm.Sub.Reg(asm.R2, last),
		)
		if margin != 0 {
			g.add(asm.Add.Imm(asm.R2, margin))
		}
		g.add(asm.JSGT.Reg(asm.R2, asm.R1, over))
		g.label(skip)
	}
	quiet(asm.R3, atQuiets)
	quiet(asm.R4, atQuiets+8)
	newer := g.fresh()
	g.add(asm.JGE.Reg(asm.R3, asm.R4, newer), asm.Mov.Reg(asm.R3, asm.R4))
	g.label(newer)
	quiet(asm.R3, atQuiet)
}

// nearlySilent repeats admit's check with the exact time, which takes longer to read.
func (g listener) nearlySilent() {
	g.label("nearly-silent")
	g.now(asm.FnKtimeGetNs)
	g.heard(0, "free-silent")
	g.add(asm.Ja.Label("heard"))
}

// windows reads the numbers of a TCP segment, and with FlagWindows compares them as package firewall does.
func (g *emitter) windows(m string) {
	if m == "" {
		g.add(asm.LoadMem(asm.R1, asm.R8, atFlags, asm.Word), asm.JEq.Imm(asm.R1, 0, "fits"), asm.JSet.Imm(asm.R1, offload.FlagSix|offload.FlagBehind|offload.FlagMeter, "not-usual"))
	}
	g.label(m + "follow")
	g.need(asm.R9, 40, "free-window")
	g.sides()
	g.add(
		asm.LoadMem(asm.R0, asm.R9, 34, asm.Half),
		host(asm.R0, asm.Half),
		asm.LoadMem(asm.R3, asm.R1, sideScale, asm.Byte),
		asm.And.Imm(asm.R3, 15),
		asm.LSh.Reg(asm.R0, asm.R3),
		asm.StoreMem(asm.RFP, stWindow, asm.R0, asm.Word),
		asm.LoadMem(asm.R5, asm.R9, 28, asm.Word), // what it acknowledges
		host(asm.R5, asm.Word),
		asm.StoreMem(asm.RFP, stAck, asm.R5, asm.Word),
		asm.LoadMem(asm.R3, asm.R9, 24, asm.Word), // its number
		host(asm.R3, asm.Word),
		asm.LoadMem(asm.R4, asm.RFP, stPayload, asm.DWord),
		asm.Add.Reg32(asm.R4, asm.R3), // behind its last byte
		asm.StoreMem(asm.RFP, stEnd, asm.R4, asm.Word),
		asm.LoadMem(asm.R0, asm.R8, atFlags, asm.Word),
		asm.And.Imm(asm.R0, offload.FlagWindows),
		asm.JEq.Imm(asm.R0, 0, m+"fits"),
		// It begins within the room that its receiver has made.
		asm.LoadMem(asm.R0, asm.R1, sideMax, asm.Word),
		asm.Sub.Reg32(asm.R3, asm.R0),
		jump32(asm.JSGT.Imm(asm.R3, 0, "free-window")),
		// It does not end before what its receiver may still want.
		asm.LoadMem(asm.R3, asm.R1, sideEnd, asm.Word),
		asm.LoadMem(asm.R0, asm.R2, sideWin, asm.Word),
		asm.Sub.Reg32(asm.R3, asm.R0),
		asm.Sub.Reg32(asm.R4, asm.R3),
		jump32(asm.JSLT.Imm(asm.R4, 0, "free-window")),
		// It acknowledges nothing that was not sent, nor what was long ago.
		asm.LoadMem(asm.R4, asm.R2, sideEnd, asm.Word),
		asm.Mov.Reg32(asm.R0, asm.R5),
		asm.Sub.Reg32(asm.R0, asm.R4),
		jump32(asm.JSGT.Imm(asm.R0, 0, "free-window")),
		asm.LoadMem(asm.R0, asm.R1, sideWin, asm.Word),
		asm.JGE.Imm(asm.R0, offload.AckWindow, m+"behind"),
		asm.Mov.Imm(asm.R0, offload.AckWindow),
	)
	g.label(m + "behind")
	g.add(asm.Sub.Reg32(asm.R4, asm.R0), asm.Sub.Reg32(asm.R5, asm.R4), jump32(asm.JSLT.Imm(asm.R5, 0, "free-window")))
	g.label(m + "fits")
}

// sides leaves the Side that has sent the frame in R1, and the other Side in R2.
func (g *emitter) sides() {
	g.of(asm.R1, atSides, sideSize)
	g.add(asm.LoadMem(asm.R2, asm.RFP, stWhich, asm.DWord), asm.And.Imm(asm.R2, 1), asm.Xor.Imm(asm.R2, 1), asm.Mul.Imm(asm.R2, sideSize), asm.Add.Imm(asm.R2, atSides),
		asm.Add.Reg(asm.R2, asm.R8))
}

// note updates the Sides by the segment, and the time of the direction. After it nothing may stop the frame.
func (g *emitter) note() {
	noted := g.fresh()
	g.add(asm.LoadMem(asm.R1, asm.R8, atFlags, asm.Word), asm.And.Imm(asm.R1, offload.FlagFollow), asm.JEq.Imm(asm.R1, 0, noted))
	// later stores the number in R3 at off of a Side, if it is higher (modulo 2^32) than the one there.
	later := func(r asm.Register, off int16) {
		skip := g.fresh()
		g.add(
			asm.LoadMem(asm.R0, r, off, asm.Word),
			asm.Mov.Reg32(asm.R4, asm.R3),
			asm.Sub.Reg32(asm.R4, asm.R0),
			jump32(asm.JSLE.Imm(asm.R4, 0, skip)),
			asm.StoreMem(r, off, asm.R3, asm.Word),
		)
		g.label(skip)
	}
	g.sides()
	g.add(asm.LoadMem(asm.R3, asm.RFP, stEnd, asm.Word))
	later(asm.R1, sideEnd)
	wider := g.fresh()
	one := g.fresh()
	g.add(
		asm.LoadMem(asm.R5, asm.RFP, stWindow, asm.Word),
		asm.LoadMem(asm.R0, asm.R1, sideWin, asm.Word),
		asm.JLE.Reg(asm.R5, asm.R0, wider),
		asm.StoreMem(asm.R1, sideWin, asm.R5, asm.Word),
	)
	g.label(wider)
	g.add(asm.LoadMem(asm.R3, asm.RFP, stAck, asm.Word))
	later(asm.R1, sideAck)
	g.add(asm.JNE.Imm(asm.R5, 0, one), asm.Mov.Imm(asm.R5, 1))
	g.label(one)
	g.add(asm.Add.Reg32(asm.R3, asm.R5))
	later(asm.R2, sideMax)
	g.label(noted)
	g.of(asm.R4, int32(atLast), 8)
	g.add(asm.LoadMem(asm.R1, asm.RFP, stNow, asm.DWord), asm.StoreMem(asm.R4, 0, asm.R1, asm.DWord))
}

// jump32 returns a jump that compares the lower 32 bits only.
func jump32(ins asm.Instruction) asm.Instruction {
	ins.OpCode = ins.OpCode&^asm.OpCode(0x07) | asm.OpCode(asm.Jump32Class)
	return ins
}

// of leaves in r the address of the element for the frame's direction, in the slot's array at offset at. Elements
// have size bytes.
func (g *emitter) of(r asm.Register, at, size int32) {
	g.add(asm.LoadMem(r, asm.RFP, stWhich, asm.DWord), asm.And.Imm(r, 1), asm.Mul.Imm(r, size), asm.Add.Imm(r, at), asm.Add.Reg(r, asm.R8))
}

// move moves the beginning of the frame by the direction's head (offload.Change.Head).
func (g *emitter) move(m string) {
	g.of(asm.R4, atHeads, 2)
	g.add(
		asm.LoadMem(asm.R2, asm.R4, 0, asm.Half),
		asm.JEq.Imm(asm.R2, 0, m+"moved"),
		asm.LSh.Imm(asm.R2, 48),
		asm.ArSh.Imm(asm.R2, 48),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnXdpAdjustHead.Call(),
		asm.JNE.Imm(asm.R0, 0, map[bool]string{true: "free-no-room", false: "m-no-room"}[m == ""]),
	)
	g.label(m + "moved")
}

// count does note and counted.
func (g *emitter) count(m string) {
	g.note()
	g.counted(m)
}

// counted adds the frame to the counts of its path.
func (g *emitter) counted(m string) {
	g.add(
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, stIndex, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, g.counts),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stIndex),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "free-broken"),
		asm.LoadMem(asm.R4, asm.RFP, stDir, asm.DWord),
		asm.LoadMem(asm.R2, asm.R4, dirPath, asm.Half),
	)
	if m != "" {
		g.add(asm.LoadMem(asm.R1, asm.RFP, stPath, asm.DWord), asm.Add.Reg(asm.R2, asm.R1))
	}
	g.add(
		asm.And.Imm(asm.R2, offload.MaxPaths-1),
		asm.LSh.Imm(asm.R2, 4),
		asm.Add.Reg(asm.R0, asm.R2),
		asm.LoadMem(asm.R1, asm.R0, countsPaths, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, countsPaths, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R0, countsPaths+8, asm.DWord),
		asm.LoadMem(asm.R3, asm.RFP, stLen, asm.DWord),
		asm.Add.Reg(asm.R1, asm.R3),
		asm.StoreMem(asm.R0, countsPaths+8, asm.R1, asm.DWord),
	)
}

// change applies the direction's Change to the frame.
func (g *emitter) change() {
	g.label("change")
	g.add(
		asm.LoadMem(asm.R5, asm.R4, dirOps, asm.Byte),
		asm.LoadMem(asm.R9, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R7, asm.R6, 4, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R5),
		asm.And.Imm(asm.R2, offload.OpInto),
		asm.JEq.Imm(asm.R2, 0, "plain"),
		asm.Add.Imm(asm.R9, offload.TunnelLen),
	)
	g.label("plain")
	g.need(asm.R9, 18+20, "free-broken")
	for _, p := range macParts {
		g.add(asm.LoadMem(asm.R1, asm.R4, dirMAC+p.at, p.size), asm.StoreMem(asm.R9, p.at, asm.R1, p.size))
	}
	g.add(
		asm.JSet.Imm(asm.R5, offload.OpTagged|offload.OpSix, "tagged"),
		asm.Mov.Imm(asm.R1, wire16(0x0800)),
		asm.StoreMem(asm.R9, 12, asm.R1, asm.Half),
		asm.Add.Imm(asm.R9, 14),
		asm.Ja.Label("headers"),
	)
	g.label("tagged")
	g.add(
		asm.JSet.Imm(asm.R5, offload.OpSix, "change6"),
		asm.Mov.Reg(asm.R2, asm.R5),
		asm.And.Imm(asm.R2, offload.OpTag),
		asm.JEq.Imm(asm.R2, 0, "has-tag"),
	)
	g.tag(0x0800)
	g.label("has-tag")
	g.add(asm.Add.Imm(asm.R9, 18))
	g.label("headers")
	g.need(asm.R9, 28, "free-broken")
	g.rewrite()
	g.into()
}

// tag writes the direction's VLAN tag into a frame at R9, in front of EtherType ether.
func (g *emitter) tag(ether uint16) {
	g.add(asm.Mov.Imm(asm.R1, wire16(0x8100)), asm.StoreMem(asm.R9, 12, asm.R1, asm.Half))
	g.of(asm.R1, atRests, restSize)
	g.add(
		asm.LoadMem(asm.R1, asm.R1, restVLAN, asm.Half),
		host(asm.R1, asm.Half),
		asm.StoreMem(asm.R9, 14, asm.R1, asm.Half),
		asm.Mov.Imm(asm.R1, wire16(ether)),
		asm.StoreMem(asm.R9, 16, asm.R1, asm.Half),
	)
}

// patch adds the delta at off of R4 to the checksum in R2. It changes R1.
func (g *emitter) patch(off int16) {
	g.add(asm.Xor.Imm(asm.R2, 0xFFFF), asm.LoadMem(asm.R1, asm.R4, off, asm.Half), asm.Add.Reg(asm.R2, asm.R1))
	g.fold(asm.R2)
	g.add(asm.Xor.Imm(asm.R2, 0xFFFF))
}

// rewrite writes addresses and ports of the IP header at R9.
func (g *emitter) rewrite() {
	g.add(asm.Mov.Reg(asm.R2, asm.R5), asm.And.Imm(asm.R2, offload.OpRewrite), asm.JEq.Imm(asm.R2, 0, "rewritten"))
	g.add(asm.LoadMem(asm.R1, asm.R4, dirIPDelta, asm.Half), asm.JEq.Imm(asm.R1, 0, "same-addresses"), asm.LoadMem(asm.R2, asm.R9, 10, asm.Half))
	g.patch(dirIPDelta)
	g.add(asm.StoreMem(asm.R9, 10, asm.R2, asm.Half))
	g.label("same-addresses")
	// Source and destination are adjacent, in the frame and in the Dir.
	g.add(
		asm.LoadMem(asm.R1, asm.R4, dirSrc, asm.DWord),
		asm.StoreMem(asm.R9, 12, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R4, dirPorts, asm.Word),
		asm.StoreMem(asm.R9, 20, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R4, dirL4Delta, asm.Half),
		asm.JEq.Imm(asm.R1, 0, "rewritten"),
		asm.LoadMem(asm.R1, asm.R9, 9, asm.Byte),
		asm.JEq.Imm(asm.R1, unix.IPPROTO_TCP, "tcp-sum"),
		asm.LoadMem(asm.R2, asm.R9, 26, asm.Half),
		asm.JEq.Imm(asm.R2, 0, "rewritten"),
	)
	g.patch(dirL4Delta)
	g.add(asm.JNE.Imm(asm.R2, 0, "udp-sum"), asm.Mov.Imm(asm.R2, 0xFFFF))
	g.label("udp-sum")
	g.add(asm.StoreMem(asm.R9, 26, asm.R2, asm.Half), asm.Ja.Label("rewritten"))
	g.label("tcp-sum")
	g.need(asm.R9, 40, "free-broken")
	g.add(asm.LoadMem(asm.R2, asm.R9, 36, asm.Half))
	g.patch(dirL4Delta)
	g.add(asm.StoreMem(asm.R9, 36, asm.R2, asm.Half))
	g.label("rewritten")
}

// into writes the outer headers of the direction's tunnel.
func (g *emitter) into() {
	g.add(
		asm.Mov.Reg(asm.R2, asm.R5),
		asm.And.Imm(asm.R2, offload.OpInto),
		asm.JEq.Imm(asm.R2, 0, "written"),
		asm.LoadMem(asm.R1, asm.R9, 1, asm.Byte),
	)
	g.label("into")
	g.add(asm.StoreMem(asm.RFP, stTOS, asm.R1, asm.Word)) // the inner one
	g.of(asm.R1, atRests, restSize)
	g.add(
		asm.LoadMem(asm.R1, asm.R1, 0, asm.Half),
		asm.StoreMem(asm.RFP, stIndex, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, g.templates),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stIndex),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "free-broken"),
		asm.Mov.Reg(asm.R3, asm.R0),
		asm.LoadMem(asm.R9, asm.R6, 0, asm.Word),
	)
	g.need(asm.R9, offload.TunnelLen, "free-broken")
	for i := int16(0); i < 48; i += 8 {
		g.add(asm.LoadMem(asm.R1, asm.R3, i, asm.DWord), asm.StoreMem(asm.R9, i, asm.R1, asm.DWord))
	}
	g.add(
		asm.LoadMem(asm.R1, asm.R3, 48, asm.Half),
		asm.StoreMem(asm.R9, 48, asm.R1, asm.Half),
		asm.LoadMem(asm.R1, asm.RFP, stTOS, asm.Word),
		asm.LoadMem(asm.R2, asm.R3, 50, asm.Byte),
		asm.And.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R2, asm.R3, 51, asm.Byte),
		asm.Or.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.R9, 15, asm.R1, asm.Byte),
		host(asm.R1, asm.Half),
		asm.LoadMem(asm.R5, asm.R3, atSum, asm.Half),
		asm.Add.Reg(asm.R5, asm.R1),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Sub.Reg(asm.R2, asm.R9),
		asm.Sub.Imm(asm.R2, 14),
		asm.Mov.Reg(asm.R1, asm.R2),
		host(asm.R1, asm.Half),
		asm.StoreMem(asm.R9, 16, asm.R1, asm.Half),
		asm.Add.Reg(asm.R5, asm.R1),
		asm.Sub.Imm(asm.R2, 20),
		host(asm.R2, asm.Half),
		asm.StoreMem(asm.R9, 38, asm.R2, asm.Half),
	)
	g.of(asm.R1, atRests, restSize)
	g.add(
		asm.LoadMem(asm.R1, asm.R1, restPort, asm.Half),
		asm.StoreMem(asm.R9, 34, asm.R1, asm.Half),
	)
	g.fold(asm.R5)
	g.add(asm.Xor.Imm(asm.R5, 0xFFFF), asm.StoreMem(asm.R9, 24, asm.R5, asm.Half))
	g.label("written")
}

// leave gives the entry back, and sends the frame.
func (g *emitter) leave() {
	g.add(asm.LoadMem(asm.R4, asm.RFP, stDir, asm.DWord), asm.LoadMem(asm.R2, asm.R4, dirOut, asm.Byte))
	g.free()
	g.add(
		asm.LoadMapPtr(asm.R1, g.devices),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	)
}

// free gives the claimed entry back. It changes R1.
func (g *emitter) free() {
	g.add(asm.LoadMem(asm.R1, asm.RFP, stClaim, asm.DWord))
	if runtime.GOARCH == "amd64" { // stores are seen in their order
		g.add(asm.StoreMem(asm.R8, 0, asm.R1, asm.DWord))
		return
	}
	g.add(atomicOf(asm.Xchg, asm.R8, asm.R1))
}

// outcome counts outcome n. Frames that leave are counted by their paths instead.
func (g *emitter) outcome(n int16) {
	skip := g.fresh()
	g.add(
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, stIndex, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, g.counts),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stIndex),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, skip),
		asm.LoadMem(asm.R1, asm.R0, 8*n, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 8*n, asm.R1, asm.DWord),
	)
	g.label(skip)
}

// ends has all other ways on which a frame leaves the program.
func (g *emitter) ends() {
	for _, x := range []struct {
		name string
		n    int16
	}{{"up", other}, {"silent", silent}, {"unlike", unlike}, {"window", window}, {"behind", behind}, {"no-room", noRoom}, {"unknown", unknown}, {"busy", busy}, {"withdrawn", withdrawn}, {"red", red}} {
		g.label("free-" + x.name)
		switch x.n {
		case other, unlike, window, red, busy, withdrawn:
			g.wait()
		}
		g.free()
		g.outcome(x.n)
		g.add(asm.Ja.Label("own"))
	}
	for _, x := range []struct {
		name string
		n    int16
	}{{"other", other}, {"unknown", unknown}, {"withdrawn", withdrawn}, {"busy", busy}} {
		g.label(x.name)
		if x.n == withdrawn || x.n == busy { // who has the entry may give it back before this frame is through
			skip := g.fresh()
			for _, p := range keyParts {
				g.add(asm.LoadMem(asm.R1, asm.R5, p.at, p.size), asm.LoadMem(asm.R2, asm.RFP, stKey+p.at, p.size), asm.JNE.Reg(asm.R1, asm.R2, skip))
			}
			g.wait()
			g.label(skip)
		}
		g.outcome(x.n)
		g.add(asm.Ja.Label("own"))
	}
	g.label("free-broken")
	g.free()
	g.outcome(broken)
	g.add(asm.Mov.Imm(asm.R0, xdpDrop), asm.Return())
	g.label("pass")
	g.add(asm.Mov.Imm(asm.R0, xdpPass), asm.Return())
	g.label("own")
	g.add(
		asm.LoadMem(asm.R3, asm.RFP, stKey+16, asm.Byte),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, g.own),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, xdpDrop),
		asm.Return(),
	)
}
