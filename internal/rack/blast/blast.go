package blast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port"
)

// The middlebox's interfaces, in the namespace Near.
const (
	A = "a1" // where the frames come in
	B = "b1" // where they go out
)

// maxFrame is the longest frame in bytes: what a test run of the kernel can take in one page.
const maxFrame = 3000

// Offsets in the state that generator, sink and process share; each word has a cache line of its own.
const (
	offSent     = 0
	offArrived  = 64
	stateLength = 128
)

// Frame is a frame that the generator sends once in each lap of its list.
type Frame struct {
	Bytes []byte
	// Step is the number of PSNs that the connection of a RoCE frame uses in a lap. In each lap after the
	// first, Step is added to the frame's PSN, and the ICRC is updated. 0: the frame is the same in every
	// lap.
	Step uint32
}

// Range is a generator, a sink, and the place for a middlebox between them.
type Range struct {
	// Near is the namespace of the middlebox.
	Near *topo.Space
	// Burst is the number of frames that one system call sends; Run ends only between two calls. To begin and
	// to end a call takes the kernel 20 ms, in which nothing is sent.
	Burst uint32

	far     [2]*topo.Space
	state   *ebpf.Map
	mem     []byte
	out     *ebpf.Program
	sink    link.Link
	frames  *ebpf.Map
	deltas  *ebpf.Map
	longest int
	same    []byte // the frame, if all are the same; nil: they differ

	answers   int // the socket of Answer; negative: it was not opened yet
	answersTo unix.SockaddrLinklayer
}

// New builds the range for a list of frames, which are sent in turn. window is the most frames under way; 0:
// no limit. Without root, or on a kernel that lacks something, the error wraps port.ErrNotSupported.
func New(frames []Frame, window int) (_ *Range, err error) {
	r := &Range{Burst: burst, answers: -1}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	for _, f := range frames {
		if n := len(f.Bytes); n < 14 || n > maxFrame {
			return nil, fmt.Errorf("a frame of %d bytes: 14 to %d can be sent", n, maxFrame)
		}
		r.longest = max(r.longest, len(f.Bytes))
	}
	if len(frames) == 0 {
		return nil, errors.New("no frame to send")
	}
	for _, s := range []**topo.Space{&r.Near, &r.far[0], &r.far[1]} {
		if *s, err = topo.NewSpace(s == &r.Near); err != nil {
			return nil, err
		}
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("locked memory: %w", err)
	}
	if err := r.wire(A, "a0", r.far[0]); err != nil {
		return nil, err
	}
	if err := r.wire(B, "b0", r.far[1]); err != nil {
		return nil, err
	}
	if err := r.load(frames, window); err != nil {
		return nil, fmt.Errorf("generator: %w: %w", port.ErrNotSupported, err)
	}
	return r, nil
}

// wire makes a veth pair between Near and a far namespace, and brings it up.
func (r *Range) wire(near, far string, space *topo.Space) error {
	var fd int
	err := space.Do(func() (err error) {
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = r.Near.Do(func() error {
		la := netlink.NewLinkAttrs()
		la.Name = near
		v := &netlink.Veth{LinkAttrs: la, PeerName: far, PeerNamespace: netlink.NsFd(fd)}
		if err := netlink.LinkAdd(v); err != nil {
			return fmt.Errorf("veth %s: %w", near, err)
		}
		return netlink.LinkSetUp(v)
	})
	if err != nil {
		return err
	}
	return space.Do(func() error {
		l, err := netlink.LinkByName(far)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
}

// load loads the two programs and their maps.
func (r *Range) load(frames []Frame, window int) (err error) {
	if r.state, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "blast_state", Type: ebpf.Array, KeySize: 4, ValueSize: stateLength, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
	}); err != nil {
		return err
	}
	if r.mem, err = unix.Mmap(r.state.FD(), 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	size := prefix + (r.longest+7)&^7
	if r.frames, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "blast_frames", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size), MaxEntries: uint32(len(frames)),
	}); err != nil {
		return err
	}
	var tables deltas
	keys, values := make([]uint32, len(frames)), make([]byte, len(frames)*size)
	for i, f := range frames {
		keys[i] = uint32(i)
		v := values[i*size:]
		if err := tables.describe(v, &f); err != nil {
			return err
		}
		copy(v[prefix:], f.Bytes)
	}
	if r.deltas, err = tables.load(); err != nil {
		return err
	}
	for i := range keys {
		if err := r.frames.Put(keys[i], values[i*size:(i+1)*size]); err != nil {
			return err
		}
	}
	var from, to int
	for _, x := range []struct {
		space *topo.Space
		name  string
		index *int
	}{{r.far[0], "a0", &from}, {r.far[1], "b0", &to}} {
		err := x.space.Do(func() error {
			l, err := netlink.LinkByName(x.name)
			if err == nil {
				*x.index = l.Attrs().Index
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if len(frames) == 1 && frames[0].Step == 0 && window == 0 {
		r.same = frames[0].Bytes
	}
	if r.out, err = program("blast_out", r.generator(from, len(frames), window)); err != nil {
		return err
	}
	sink, err := program("blast_sink", asm.Instructions{
		asm.LoadMapValue(asm.R1, r.state.FD(), offArrived),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord),
		asm.Add.Imm(asm.R2, 1),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, xdpDrop),
		asm.Return(),
	})
	if err != nil {
		return err
	}
	defer sink.Close()
	return r.far[1].Do(func() (err error) {
		r.sink, err = link.AttachXDP(link.XDPOptions{Program: sink, Interface: to, Flags: link.XDPDriverMode})
		return err
	})
}

const xdpDrop = 1

// generator returns the program that turns the test run's frame, which is as long as the longest one, into
// the next frame of the list, as it is in this lap.
func (r *Range) generator(ifindex, frames, window int) asm.Instructions {
	send := asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(ifindex)).WithSymbol("send"),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
	}
	if r.same != nil {
		return send // the frame of the test run is sent as it is
	}
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapValue(asm.R7, r.state.FD(), 0),
		asm.LoadMem(asm.R8, asm.R7, offSent, asm.DWord),
	}
	if window > 0 {
		ins = append(ins,
			asm.LoadMem(asm.R1, asm.R7, offArrived, asm.DWord),
			asm.Mov.Reg(asm.R2, asm.R8),
			asm.Sub.Reg(asm.R2, asm.R1),
			asm.JGE.Imm(asm.R2, int32(window), "drop"),
		)
	}
	ins = append(ins, r.next(frames)...)
	return slices.Concat(ins, patch(), send, asm.Instructions{
		asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("drop"),
		asm.Return(),
	})
}

// next returns the part that copies the next frame of the list into the test run's frame. Then R9 points to
// the frame's entry, R8 has the bits of the PSN that differ from the first lap, and R0 points to the table of
// what these bits change in the ICRC.
func (r *Range) next(frames int) asm.Instructions {
	const frame, lap = -4, -16 // on the stack
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R8),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R7, offSent, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R8),
		asm.Div.Imm(asm.R1, int32(frames)),
		asm.StoreMem(asm.RFP, lap, asm.R1, asm.DWord),
		asm.Mod.Imm(asm.R8, int32(frames)),
		asm.StoreMem(asm.RFP, frame, asm.R8, asm.Word),
		asm.LoadMapPtr(asm.R1, r.frames.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, frame),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.LoadMem(asm.R8, asm.R9, atLen, asm.Word),
		asm.JLT.Imm(asm.R8, 14, "drop"),
		asm.JGT.Imm(asm.R8, int32(r.longest), "drop"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R8),
		asm.Sub.Imm(asm.R2, int32(r.longest)),
		asm.FnXdpAdjustTail.Call(),
		asm.JNE.Imm(asm.R0, 0, "drop"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R9),
		asm.Add.Imm(asm.R3, prefix),
		asm.Mov.Reg(asm.R4, asm.R8),
		asm.FnXdpStoreBytes.Call(),

		// R8: the bits of the PSN that differ from the first lap.
		asm.LoadMem(asm.R1, asm.R9, atStep, asm.Word),
		asm.LoadMem(asm.R2, asm.RFP, lap, asm.DWord),
		asm.Mul.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R2, asm.R9, atPSN, asm.Word),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.Xor.Reg(asm.R1, asm.R2),
		asm.And.Imm(asm.R1, hdr.PSNMask),
		asm.JEq.Imm(asm.R1, 0, "send"),
		asm.Mov.Reg(asm.R8, asm.R1),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Add.Imm(asm.R2, atTable),
		asm.LoadMapPtr(asm.R1, r.deltas.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
	}
}

// patch returns the part that XORs R8 into the PSN, and into the ICRC what the table at R0 has for R8.
func patch() (ins asm.Instructions) {
	for i := range 3 {
		ins = append(ins,
			asm.Mov.Reg(asm.R1, asm.R8),
			asm.RSh.Imm(asm.R1, int32(16-8*i)),
			asm.And.Imm(asm.R1, 0xFF),
			asm.LSh.Imm(asm.R1, 2),
			asm.Mov.Reg(asm.R2, asm.R0),
			asm.Add.Reg(asm.R2, asm.R1),
			asm.LoadMem(asm.R3, asm.R2, int16(i*1024), asm.Word),
		)
		if i == 0 {
			ins = append(ins, asm.Mov.Reg(asm.R4, asm.R3))
		} else {
			ins = append(ins, asm.Xor.Reg(asm.R4, asm.R3))
		}
	}
	ins = append(ins, asm.HostTo(asm.BE, asm.R8, asm.Word))
	for _, x := range []struct {
		at   int16
		bits asm.Register
	}{{atWord, asm.R8}, {atICRC, asm.R4}} {
		ins = append(ins,
			asm.LoadMem(asm.R2, asm.R6, 0, asm.Word), // data
			asm.LoadMem(asm.R3, asm.R6, 4, asm.Word), // end of data
			asm.LoadMem(asm.R1, asm.R9, x.at, asm.Word),
			asm.JGT.Imm(asm.R1, maxFrame, "drop"),
			asm.Add.Reg(asm.R2, asm.R1),
			asm.Mov.Reg(asm.R5, asm.R2),
			asm.Add.Imm(asm.R5, 4),
			asm.JGT.Reg(asm.R5, asm.R3, "drop"),
			asm.LoadMem(asm.R5, asm.R2, 0, asm.Word),
			asm.Xor.Reg(asm.R5, x.bits),
			asm.StoreMem(asm.R2, 0, asm.R5, asm.Word),
		)
	}
	return ins
}

func program(name string, ins asm.Instructions) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.XDP, License: "GPL", Instructions: ins, Flags: unix.BPF_F_XDP_HAS_FRAGS})
}

func (r *Range) word(off int) *uint64 { return (*uint64)(unsafe.Pointer(&r.mem[off])) }

// Arrived returns how many frames the sink has seen.
func (r *Range) Arrived() uint64 { return atomic.LoadUint64(r.word(offArrived)) }

// Sent returns how many frames the generator has sent, if its list has several.
func (r *Range) Sent() uint64 { return atomic.LoadUint64(r.word(offSent)) }

// burst is the default of Range.Burst: the frames of about a second.
const burst = 1 << 23

// Run sends until ctx is done, on processor 0.
func (r *Range) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { r.unstick(ctx) })
	defer watch.Wait()
	defer cancel()
	return r.far[0].Do(func() error {
		var cpu unix.CPUSet
		cpu.Set(0)
		_ = unix.SchedSetaffinity(0, &cpu) // the namespace's thread runs nothing else
		frame := r.same
		if frame == nil {
			frame = make([]byte, r.longest)
		}
		for ctx.Err() == nil {
			if _, err := r.out.Run(&ebpf.RunOptions{Data: frame, Repeat: r.Burst, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES}); err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("generator: %w", err)
			}
		}
		return nil
	})
}

// patience is the time without an arrival after which frames under way count as lost.
const patience = 500 * time.Millisecond

// unstick gives up frames that were lost, because they would take up places in the window for ever.
func (r *Range) unstick(ctx context.Context) {
	tick := time.NewTicker(patience)
	defer tick.Stop()
	last := r.Arrived()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := r.Arrived()
		if now == last {
			atomic.StoreUint64(r.word(offSent), now)
		}
		last = now
	}
}

// Settle waits until n more frames have arrived; false: they did not arrive within limit.
func (r *Range) Settle(ctx context.Context, n int, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	from := r.Arrived()
	for r.Arrived()-from < uint64(n) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// Close removes everything. Run must have returned.
func (r *Range) Close() {
	if r.sink != nil {
		_ = r.sink.Close()
	}
	if r.out != nil {
		_ = r.out.Close()
	}
	if r.answers >= 0 {
		_ = unix.Close(r.answers)
	}
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
		r.mem = nil
	}
	for _, m := range []*ebpf.Map{r.frames, r.deltas, r.state} {
		if m != nil {
			_ = m.Close()
		}
	}
	for _, s := range []*topo.Space{r.Near, r.far[0], r.far[1]} {
		if s != nil {
			s.Close()
		}
	}
}

// Answer sends frames from the far end of B, like a host that answers frames that arrive there. Only one
// goroutine may call it.
func (r *Range) Answer(frames [][]byte) error {
	if r.answers < 0 {
		if err := r.far[1].Do(r.answerer); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	for _, f := range frames {
		if err := unix.Sendto(r.answers, f, 0, &r.answersTo); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("answer: %w", err)
		}
	}
	return nil
}

// answerer opens the socket of Answer; it must run in the far namespace of B.
func (r *Range) answerer() error {
	l, err := netlink.LinkByName("b0")
	if err != nil {
		return err
	}
	r.answersTo = unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Halen: 6}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		r.answers = fd
	}
	return err
}
