package xsk

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/port"
)

// Names of the programs, as bpftool shows them.
const (
	WireProgram = "quillon_wire" // of a pair; outlives its process
	PortProgram = "quillon_port" // of one interface alone
	ShutProgram = "quillon_shut" // of one interface alone; outlives its process, and drops all frames then
)

// Cross is what the program does with frames that are not for a socket.
type Cross int

const (
	// Redirect sends frames out of the other interface.
	Redirect Cross = iota
	// Pass gives frames to the kernel's stack, or to the bridge that the interface is in.
	Pass
)

// ProgramSpec describes what a program does on one interface.
type ProgramSpec struct {
	Filter port.Filter
	// Cross applies to frames that the filter does not want, and to wanted frames that no worker takes.
	Cross Cross
	// Other is the index of the interface that Redirect sends to.
	Other int
	// Stale is the age of the heartbeat above which frames cross. If it is 0, the program does
	// not look at the heartbeat.
	Stale time.Duration
	// Longest is the length in bytes above which a frame does not go to a socket; 0 means no limit.
	Longest int
	// Shared has the program add to its counters atomically. Generic mode needs it, because several
	// processors may serve one queue there.
	Shared bool
}

// Program is an XDP program with its maps.
type Program struct {
	Prog *ebpf.Program
	maps []*ebpf.Map
}

// Close closes the process's descriptors. The program goes on where it is attached.
func (p *Program) Close() error {
	if p == nil {
		return nil
	}
	var errs []error
	if p.Prog != nil {
		errs = append(errs, p.Prog.Close())
	}
	for _, m := range p.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Clone returns a second Program with its own descriptor of the same program, and without maps.
func (p *Program) Clone() (*Program, error) {
	q, err := p.Prog.Clone()
	if err != nil {
		return nil, fmt.Errorf("XDP program: %w", err)
	}
	return &Program{Prog: q}, nil
}

// Unjoin empties the program's device maps. Frames that would be redirected to the other interface then go to the
// kernel's stack. This works also where the interface is in a network namespace that the process cannot reach.
func (p *Program) Unjoin() (err error) {
	if p == nil {
		return nil
	}
	for _, m := range p.maps {
		if m.Type() != ebpf.DevMap {
			continue
		}
		if e := m.Delete(uint32(0)); !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// NewSocketMap makes an XSKMAP from queue numbers to sockets.
func NewSocketMap(queues int) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: socketMapName, Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues)})
	if err != nil {
		return nil, fmt.Errorf("make the socket map: %w", err)
	}
	return m, nil
}

// NewFrontMap makes an empty map for Part.Front.
func NewFrontMap() (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "quillon_front", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("make the map of a program in front: %w", err)
	}
	return m, nil
}

// Part describes what a program does on one interface, and has the interface's maps.
type Part struct {
	Index   int // of the interface
	Spec    ProgramSpec
	State   *State
	Sockets *ebpf.Map
	Bound   *Set   // of a Filter that is Bound
	Guard   *Guard // of one that is Guarded
	// Front, if not nil, is a map with room for one program (NewFrontMap). A program in it gets each frame before
	// this one. The kernel removes it from the map when no process has the map open.
	Front *ebpf.Map
	// Device is the map of the interface that frames are redirected to. Only Resume sets it.
	Device *ebpf.Map
}

// Resumed returns a Program of prog, from which Resume took the part. The Program owns prog and the part's Device.
func (p *Part) Resumed(prog *ebpf.Program) *Program {
	q := &Program{Prog: prog}
	if p.Device != nil {
		q.maps = append(q.maps, p.Device)
	}
	return q
}

// Load assembles and loads a program for one interface or two. One program for both is
// attached to the second interface at once; the kernel would let a second program wait
// until all processors have forgotten the one before it, for 8 to 16 ms.
func Load(name string, parts ...Part) (_ *Program, err error) {
	p := &Program{}
	defer func() {
		if err != nil {
			_ = p.Close()
		}
	}()
	code := make([]assembler, len(parts))
	for n, part := range parts {
		if code[n], err = p.assembler(part); err != nil {
			return nil, err
		}
	}
	p.Prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.XDP, License: "GPL", Instructions: join(parts, code), Flags: unix.BPF_F_XDP_HAS_FRAGS,
	})
	if err != nil {
		return nil, fmt.Errorf("load the XDP program: %w", err)
	}
	return p, nil
}

// join returns the code of one program of these parts, which tells the interfaces apart by their index.
func join(parts []Part, as []assembler) (code asm.Instructions) {
	if len(parts) == 1 {
		return as[0].assemble()
	}
	for n, part := range parts {
		one := as[n].assemble()
		// Each part has labels of its own, and a frame of another interface skips it.
		own := func(label string) string { return fmt.Sprintf("%d-%s", n, label) }
		for i, ins := range one {
			if l := ins.Symbol(); l != "" {
				ins = ins.WithSymbol(own(l))
			}
			if l := ins.Reference(); l != "" {
				ins = ins.WithReference(own(l))
			}
			one[i] = ins
		}
		next := own("next")
		code = append(code, asm.LoadMem(asm.R2, asm.R1, offIngress, asm.Word), asm.JNE.Imm(asm.R2, int32(part.Index), next))
		code = append(code, one...)
		code = append(code, asm.Mov.Imm(asm.R0, xdpPass).WithSymbol(next))
	}
	return append(code, asm.Return())
}

// assembler returns the assembler of a part. It makes the part's device and host maps, which p owns.
func (p *Program) assembler(part Part) (assembler, error) {
	spec := part.Spec
	a := assembler{spec: spec, state: part.State.m.FD(), sockets: part.Sockets.FD()}
	if part.Front != nil {
		a.front = part.Front.FD()
	}
	if spec.Filter.Bound {
		if part.Bound == nil {
			return a, errors.New("a filter is Bound, and there is no set of queue pairs")
		}
		a.bound = part.Bound.m.FD()
	}
	if spec.Filter.Guarded {
		if part.Guard == nil {
			return a, errors.New("a filter is Guarded, and there is no guard")
		}
		a.guard = part.Guard.m.FD()
	}
	if spec.Cross == Redirect {
		dev, err := ebpf.NewMap(&ebpf.MapSpec{Name: "quillon_other", Type: ebpf.DevMap, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err != nil {
			return a, fmt.Errorf("make the device map: %w", err)
		}
		p.maps = append(p.maps, dev)
		if err := dev.Put(uint32(0), uint32(spec.Other)); err != nil {
			return a, fmt.Errorf("redirect to interface %d: %w", spec.Other, err)
		}
		a.device = dev.FD()
	}
	if hosts := spec.Filter.Hosts; len(hosts) > 0 && !spec.Filter.All {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "quillon_hosts", Type: ebpf.Hash, KeySize: 16, ValueSize: 1, MaxEntries: uint32(len(hosts))})
		if err != nil {
			return a, fmt.Errorf("make the host map: %w", err)
		}
		p.maps = append(p.maps, m)
		for _, h := range hosts {
			if !h.IsValid() {
				return a, errors.New("a filter's host is not a valid address")
			}
			if err := m.Put(hostKey(h), uint8(1)); err != nil {
				return a, fmt.Errorf("host %v: %w", h, err)
			}
		}
		a.hosts = m.FD()
	}
	return a, nil
}

// hostKey returns the address as IPv6. IPv4 is mapped into IPv6, as in RoCE's GIDs.
func hostKey(a netip.Addr) [16]byte { return a.As16() }

// assembler assembles a part's code. Registers of the program: R6 data, R7 data_end, R8 queue, R9 network
// header. Stack: the queue at -4, a map's key (the queue plus one) at -8, a host's address at -24,
// the context at -32, the frame's length at -36, the key of a queue pair at -56 (keyAt).
type assembler struct {
	spec    ProgramSpec
	state   int
	sockets int
	device  int
	hosts   int // 0: none
	bound   int
	guard   int
	front   int // 0: none
	code    asm.Instructions
}

const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
	offIngress  = 12 // of xdp_md: ingress_ifindex
)

// be16 returns v, an Ethernet type or UDP port, as a native load of its two bytes in network
// byte order gives it.
func be16(v uint16) int32 {
	b := [2]byte{byte(v >> 8), byte(v)}
	return int32(nativeUint16(b))
}

func (a *assembler) add(ins ...asm.Instruction) { a.code = append(a.code, ins...) }

// label adds a move that does nothing and gives it the label name, so that every
// label has an instruction of its own.
func (a *assembler) label(name string) {
	a.add(asm.Mov.Reg(asm.R8, asm.R8).WithSymbol(name))
}

func (a *assembler) assemble() asm.Instructions {
	if a.front != 0 {
		a.add(
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMapPtr(asm.R2, a.front),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnTailCall.Call(),
			asm.Mov.Reg(asm.R1, asm.R6), // there is no program
		)
	}
	a.add(
		asm.LoadMem(asm.R6, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R7, asm.R1, 4, asm.Word),
		asm.LoadMem(asm.R8, asm.R1, 16, asm.Word),
		asm.StoreMem(asm.RFP, -4, asm.R8, asm.Word),
		asm.StoreMem(asm.RFP, -32, asm.R1, asm.DWord),
	)
	f := a.spec.Filter
	some := f.RoCE || len(f.UDP) > 0
	if some && !f.All {
		a.filter()
	}
	if some || f.All {
		a.wanted()
	}
	if !f.All {
		a.label("unwanted")
		if f.Watched && a.spec.Cross == Redirect {
			a.take("cross", "untaken")
			a.label("untaken")
		}
		a.entry("cross")
		a.count(offBypassed)
	}
	switch {
	case f.All && f.Closed: // nothing ever crosses
	case a.spec.Cross == Redirect:
		a.label("cross")
		a.fits("redirect")
		a.label("redirect")
		a.add(
			asm.LoadMapPtr(asm.R1, a.device),
			asm.Mov.Imm(asm.R2, 0),
			asm.Mov.Imm(asm.R3, xdpPass), // where no interface is in the map any more
			asm.FnRedirectMap.Call(),
		)
	default:
		a.label("cross")
		a.add(asm.Mov.Imm(asm.R0, xdpPass))
	}
	a.add(asm.Return().WithSymbol("exit"))
	return a.code
}

// wanted emits code that sends the frame to the queue's socket if a worker lives there. Otherwise the
// frame is counted as missed, and crosses or is dropped, as the filter says.
func (a *assembler) wanted() {
	missed := "cross"
	switch f := a.spec.Filter; {
	case f.Closed:
		missed = "closed"
	case f.Bound, f.Guarded:
		missed = "held"
	}
	a.label("wanted")
	a.take(missed, "missed")
	a.label("missed")
	a.entry(missed)
	a.count(offMissed)
	switch f := a.spec.Filter; {
	case f.Closed:
		a.count(offShutOut)
		a.label("closed")
		for _, m := range []struct {
			in bool
			fd int
		}{{f.Bound, a.bound}, {f.Guarded, a.guard}} {
			if m.in {
				a.add(asm.LoadMapPtr(asm.R1, m.fd)) // so that it lives as long as the program
			}
		}
		a.add(asm.Mov.Imm(asm.R0, xdpDrop), asm.Ja.Label("exit"))
	case f.Bound, f.Guarded:
		a.label("held")
		a.held()
	default:
		a.add(asm.Ja.Label("cross"))
	}
}

// take emits code that gives the frame to the queue's socket. The code falls through if the queue has no
// socket, jumps to missed if the heartbeat is older than Stale or the frame is longer than Longest,
// and jumps to none if the state map has no entry for the queue.
func (a *assembler) take(none, missed string) {
	if n := a.spec.Longest; n > 0 {
		a.add(
			asm.LoadMem(asm.R1, asm.RFP, -32, asm.DWord),
			asm.FnXdpGetBuffLen.Call(),
			asm.JGT.Imm(asm.R0, int32(n), missed),
		)
	}
	a.entry(none)
	if a.spec.Stale > 0 {
		a.add(
			asm.Mov.Reg(asm.R9, asm.R0),
			asm.FnKtimeGetCoarseNs.Call(),
			asm.LoadMem(asm.R1, asm.R9, offHeartbeat, asm.DWord),
			asm.Sub.Reg(asm.R0, asm.R1),
			asm.LoadImm(asm.R1, int64(a.spec.Stale), asm.DWord),
			asm.JSGT.Reg(asm.R0, asm.R1, missed),
		)
	}
	a.add(
		asm.LoadMapPtr(asm.R1, a.sockets),
		asm.LoadMem(asm.R2, asm.RFP, -4, asm.Word),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRedirectMap.Call(),
		asm.JEq.Imm(asm.R0, xdpRedirect, "exit"),
	)
}

// surelyFits is the length in bytes up to which a frame is not compared with the MTU: IPv6's least MTU, 1280, and
// Ethernet's header.
const surelyFits = 1280 + 14

// fits emits code that counts the frame in offTooLong if it is longer than the other interface may send, and then falls
// through; the kernel drops such a frame after the program without counting it. For other frames, and for a queue
// without an entry, the code jumps to done.
func (a *assembler) fits(done string) {
	a.add(
		asm.LoadMem(asm.R1, asm.RFP, -32, asm.DWord),
		asm.FnXdpGetBuffLen.Call(),
		asm.JLE.Imm(asm.R0, surelyFits, done),
		asm.Sub.Imm(asm.R0, 14),
		asm.StoreMem(asm.RFP, -36, asm.R0, asm.Word), // its length behind Ethernet's header
		asm.LoadMem(asm.R1, asm.RFP, -32, asm.DWord),
		asm.Mov.Imm(asm.R2, int32(a.spec.Other)),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -36),
		asm.Mov.Imm(asm.R4, -4), // a tag is not counted
		asm.Mov.Imm(asm.R5, 0),
		asm.FnCheckMtu.Call(),
		asm.JSLE.Imm(asm.R0, 0, done), // it fits, or the kernel does not know
	)
	a.entry(done)
	a.count(offTooLong)
}

// entry emits code that leaves the address of the queue's entry of the state map in R0, or jumps to none if there is none.
func (a *assembler) entry(none string) {
	a.add(
		asm.LoadMem(asm.R1, asm.RFP, -4, asm.Word),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, a.state),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, none),
	)
}

// count emits code that adds one to the counter at offset off of the entry in R0.
func (a *assembler) count(off int16) {
	if a.spec.Shared {
		a.add(asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, off))
		return
	}
	a.add(
		asm.LoadMem(asm.R1, asm.R0, off, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, off, asm.R1, asm.DWord),
	)
}

// need emits code that jumps to short if fewer than n bytes of the frame are left from reg on. It changes R2.
func (a *assembler) need(reg asm.Register, n int32, short string) {
	a.add(asm.Mov.Reg(asm.R2, reg), asm.Add.Imm(asm.R2, n), asm.JGT.Reg(asm.R2, asm.R7, short))
}

// extensions are the IPv6 extension headers that hdr.Parse skips, and the fragment header.
var extensions = []int32{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS}

// filter emits code that falls through or jumps to "wanted" if the frame is wanted, and jumps to
// "unwanted" if it is not wanted or cannot be parsed.
func (a *assembler) filter() {
	a.ethernet("", "unwanted")
	a.network()
	a.ipv4()
	a.ipv6()
}

// ethernet emits code that parses the Ethernet header and up to two tags. It leaves the address behind
// them in R9 and the Ethernet type in R3, and jumps to short if the frame is too short. Its labels
// begin with own.
func (a *assembler) ethernet(own, short string) {
	a.need(asm.R6, 14, short)
	a.add(
		asm.LoadMem(asm.R3, asm.R6, 12, asm.Half),
		asm.Mov.Reg(asm.R9, asm.R6),
		asm.Add.Imm(asm.R9, 14),
	)
	for _, tag := range []string{"tag1", "tag2"} {
		a.add(
			asm.JEq.Imm(asm.R3, be16(0x8100), own+tag),
			asm.JNE.Imm(asm.R3, be16(0x88A8), own+"untagged"),
		)
		a.label(own + tag)
		a.need(asm.R9, 4, short)
		a.add(asm.LoadMem(asm.R3, asm.R9, 2, asm.Half), asm.Add.Imm(asm.R9, 4))
	}
	a.label(own + "untagged")
}

// network emits code that branches by the Ethernet type in R3.
func (a *assembler) network() {
	a.add(
		asm.JEq.Imm(asm.R3, be16(0x0800), "ipv4"),
		asm.JEq.Imm(asm.R3, be16(0x86DD), "ipv6"),
		asm.JEq.Imm(asm.R3, be16(0x8100), "wanted"), // behind more tags than that
		asm.JEq.Imm(asm.R3, be16(0x88A8), "wanted"),
	)
	if !a.spec.Filter.RoCE {
		a.add(asm.Ja.Label("unwanted"))
		return
	}
	// RoCE v1: the global route header has IPv6's shape.
	a.add(asm.JNE.Imm(asm.R3, be16(0x8915), "unwanted"))
	if a.hosts == 0 {
		a.add(asm.Ja.Label("wanted"))
	} else {
		a.need(asm.R9, 40, "unwanted")
		a.add(asm.Ja.Label("hosts6"))
	}
}

func (a *assembler) ipv4() {
	a.label("ipv4")
	a.need(asm.R9, 20, "unwanted")
	a.add(
		asm.LoadMem(asm.R1, asm.R9, 0, asm.Byte),
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.RSh.Imm(asm.R2, 4),
		asm.JNE.Imm(asm.R2, 4, "unwanted"),
		asm.And.Imm(asm.R1, 15),
		asm.JLT.Imm(asm.R1, 5, "unwanted"),
		asm.LoadMem(asm.R2, asm.R9, 9, asm.Byte),
		asm.JNE.Imm(asm.R2, unix.IPPROTO_UDP, "unwanted"),
		asm.LoadMem(asm.R2, asm.R9, 6, asm.Half),
		asm.And.Imm(asm.R2, be16(0x1FFF)), // a later fragment: it has no port
		asm.JNE.Imm(asm.R2, 0, a.unseen("hosts4")),
		asm.LSh.Imm(asm.R1, 2),
		asm.Mov.Reg(asm.R3, asm.R9),
		asm.Add.Reg(asm.R3, asm.R1),
	)
	a.need(asm.R3, 8, "unwanted")
	a.udp(asm.R3, 0)
	if !a.spec.Filter.RoCE {
		return
	}
	a.label("hosts4")
	if a.hosts == 0 {
		a.add(asm.Ja.Label("wanted"))
	} else {
		for _, off := range []int16{12, 16} {
			a.add(
				asm.StoreImm(asm.RFP, -24, 0, asm.Word),
				asm.StoreImm(asm.RFP, -20, 0, asm.Word),
				asm.StoreImm(asm.RFP, -16, 0, asm.Half),
				asm.StoreImm(asm.RFP, -14, -1, asm.Half),
				asm.LoadMem(asm.R1, asm.R9, off, asm.Word),
				asm.StoreMem(asm.RFP, -12, asm.R1, asm.Word),
			)
			a.lookup()
		}
		a.add(asm.Ja.Label("unwanted"))
	}
}

// ipv6 emits code for IPv6 frames. It does not look behind extension headers.
func (a *assembler) ipv6() {
	a.label("ipv6")
	a.need(asm.R9, 48, "unwanted")
	a.add(
		asm.LoadMem(asm.R1, asm.R9, 0, asm.Byte),
		asm.RSh.Imm(asm.R1, 4),
		asm.JNE.Imm(asm.R1, 6, "unwanted"),
		asm.LoadMem(asm.R1, asm.R9, 6, asm.Byte),
	)
	for _, next := range extensions {
		a.add(asm.JEq.Imm(asm.R1, next, a.unseen("hosts6")))
	}
	a.add(asm.JNE.Imm(asm.R1, unix.IPPROTO_UDP, "unwanted"))
	a.udp(asm.R9, 40)
	if a.hosts != 0 {
		a.label("hosts6")
		for _, off := range []int16{8, 24} {
			for i := int16(0); i < 16; i += 4 {
				a.add(asm.LoadMem(asm.R1, asm.R9, off+i, asm.Word), asm.StoreMem(asm.RFP, -24+i, asm.R1, asm.Word))
			}
			a.lookup()
		}
		a.add(asm.Ja.Label("unwanted"))
	}
}

// unseen returns the label to jump to for a frame whose UDP header cannot be seen. Such a frame is wanted, unless the
// filter is for RoCE of some hosts alone: then hosts is the label of the code that compares the addresses.
func (a *assembler) unseen(hosts string) string {
	if f := a.spec.Filter; len(f.UDP) > 0 || a.hosts == 0 {
		return "wanted"
	}
	return hosts
}

// udp emits code that compares the ports of the UDP header at offset off from register at. It jumps to "wanted" for a
// port of Filter.UDP, falls through if RoCE is wanted and the destination is RoCE's port, and else jumps to "unwanted".
func (a *assembler) udp(at asm.Register, off int16) {
	f := a.spec.Filter
	a.add(asm.LoadMem(asm.R1, at, off+2, asm.Half))
	if len(f.UDP) > 0 {
		a.add(asm.LoadMem(asm.R2, at, off, asm.Half))
		for _, p := range f.UDP {
			a.add(asm.JEq.Imm(asm.R1, be16(p), "wanted"), asm.JEq.Imm(asm.R2, be16(p), "wanted"))
		}
	}
	if !f.RoCE {
		a.add(asm.Ja.Label("unwanted"))
		return
	}
	a.add(asm.JNE.Imm(asm.R1, be16(4791), "unwanted"))
}

// lookup emits code that jumps to "wanted" if the address at RFP-24 is one of the filter's hosts.
func (a *assembler) lookup() {
	a.add(
		asm.LoadMapPtr(asm.R1, a.hosts),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -24),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "wanted"),
	)
}
