package xsk

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// Guard is the port.Guard of a filter that is Guarded, in an array map that the process writes
// and programs read. The kernel keeps the map as long as a process or a program has it. The first
// entry of the map begins with port.Guard's Seen; each later entry is one set of places.
type Guard struct {
	m *ebpf.Map
	*port.Guard
}

const (
	guardMapName = "quillon_guard"
	guardEntry   = 64 // a set
	guardSets    = port.GuardLen*8/guardEntry - 1
)

// NewGuard makes a guard without words, whose Seen is the present time.
func NewGuard() (*Guard, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: guardMapName, Type: ebpf.Array, KeySize: 4, ValueSize: guardEntry,
		MaxEntries: 1 + guardSets, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return nil, fmt.Errorf("make the guard of words: %w", err)
	}
	g, err := openGuard(m)
	if err != nil {
		return nil, err
	}
	*g.Seen() = uint64(clock.Kernel())
	return g, nil
}

// openGuard maps the memory of m. It stays mapped until the port.Guard is garbage, because an
// app may write to it after the port was closed. If openGuard fails, it closes m.
func openGuard(m *ebpf.Map) (*Guard, error) {
	mem, err := unix.Mmap(m.FD(), 0, port.GuardLen*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the guard of words: %w", err), m.Close())
	}
	g := port.NewGuard(unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), port.GuardLen))
	runtime.AddCleanup(g, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return &Guard{m, g}, nil
}

// Guard opens the guard of the program, or returns nil if the program has none.
func (a *Attached) Guard() (g *Guard, err error) {
	err = a.maps(guardMapName, guardEntry, func(m *ebpf.Map) (err error) {
		if g != nil || m.MaxEntries() != 1+guardSets {
			return m.Close()
		}
		g, err = openGuard(m)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Close closes the process's descriptor of the map. A program that uses the guard keeps it alive.
func (g *Guard) Close() error {
	if g == nil {
		return nil
	}
	return g.m.Close()
}

// atomics are the opcodes of atomics without the three bits of the transport: those of IBTA, and
// Mellanox' masked ones, which begin with the same extended header.
var atomics = []int32{0x13, 0x14, 0x18, 0x19}

// guarded emits code that falls through if the guard stops the frame and the guard's Seen is at most
// port.GuardFor old, and that jumps to "cross" otherwise. R9 points to the base transport header, of
// which 12 bytes are known to be in the frame. The destination address is at keyAt, as in a setKey.
// The code may change every register.
func (a *assembler) guarded() {
	a.add(asm.LoadMem(asm.R1, asm.R9, 0, asm.Byte), asm.Mov.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, 0x1F))
	for _, op := range atomics {
		a.add(asm.JEq.Imm(asm.R2, op, "held-atomic"))
	}
	a.add(asm.Ja.Label("cross"))
	a.label("held-atomic")
	a.add(
		asm.And.Imm(asm.R1, 0xE0),
		asm.JEq.Imm(asm.R1, 0, "held-eth"), // RC
		asm.JNE.Imm(asm.R1, 0xA0, "cross"),
		asm.Add.Imm(asm.R9, 4), // XRC: an extended header is between
	)
	a.label("held-eth")
	a.need(asm.R9, 12+20, "cross")
	a.add(asm.LoadMem(asm.R8, asm.R9, 12, asm.DWord), asm.HostTo(asm.BE, asm.R8, asm.DWord)) // VA
	a.word()
	a.add(
		asm.Mov.Reg(asm.R1, asm.R8),
		asm.RSh.Imm(asm.R1, 53),
		asm.Add.Imm(asm.R1, 1),
	)
	a.guardEntry()
	// R6: the word's tag. R7: what a place has that guards it from all but this frame.
	a.add(
		asm.LSh.Imm(asm.R8, 11),
		asm.RSh.Imm(asm.R8, 32),
		asm.Or.Imm(asm.R8, 1),
		asm.Mov.Reg(asm.R6, asm.R8),
		asm.LoadMem(asm.R7, asm.R9, 12+12, asm.DWord), // swap operand
		asm.HostTo(asm.BE, asm.R7, asm.DWord),
		asm.RSh.Imm(asm.R7, port.GuardLink),
		asm.LoadImm(asm.R1, mul(port.GuardMul3), asm.DWord),
		asm.Mul.Reg(asm.R7, asm.R1),
		asm.RSh.Imm(asm.R7, 32),
		asm.LSh.Imm(asm.R8, 32),
		asm.Or.Reg(asm.R7, asm.R8),
		asm.Mov.Imm(asm.R9, 0), // 1: it is guarded
	)
	for i := int16(0); i < guardEntry; i += 8 {
		next := fmt.Sprintf("held-place%d", i)
		a.add(
			asm.LoadMem(asm.R1, asm.R0, i, asm.DWord),
			asm.JEq.Reg(asm.R1, asm.R7, "cross"),
			asm.RSh.Imm(asm.R1, 32),
			asm.JNE.Reg(asm.R1, asm.R6, next),
			asm.Mov.Imm(asm.R9, 1),
		)
		a.label(next)
	}
	a.add(asm.JEq.Imm(asm.R9, 0, "cross"), asm.Mov.Imm(asm.R1, 0))
	a.guardEntry()
	a.add(
		asm.LoadMem(asm.R6, asm.R0, 0, asm.DWord), // Seen
		asm.FnKtimeGetCoarseNs.Call(),
		asm.Sub.Reg(asm.R0, asm.R6),
		asm.LoadImm(asm.R1, int64(port.GuardFor), asm.DWord),
		asm.JSGT.Reg(asm.R0, asm.R1, "cross"),
	)
}

// mul returns a factor in the type of an instruction's constant.
func mul(f uint64) int64 { return int64(f) }

// word emits code that replaces the virtual address in R8 by its port.Word, for the server whose
// address is at keyAt.
func (a *assembler) word() {
	for i, f := range []uint64{port.GuardMul1, port.GuardMul2} {
		a.add(
			asm.LoadMem(asm.R1+asm.Register(i), asm.RFP, keyAt+int16(8*i), asm.DWord),
			asm.LoadImm(asm.R3, mul(f), asm.DWord),
			asm.Mul.Reg(asm.R1+asm.Register(i), asm.R3),
		)
	}
	a.add(
		asm.Add.Reg(asm.R1, asm.R2),
		asm.Xor.Reg(asm.R8, asm.R1),
		asm.LoadImm(asm.R3, mul(port.GuardMul3), asm.DWord),
		asm.Mul.Reg(asm.R8, asm.R3),
		asm.Mov.Reg(asm.R1, asm.R8),
		asm.RSh.Imm(asm.R1, 32),
		asm.Xor.Reg(asm.R8, asm.R1),
		asm.LoadImm(asm.R3, mul(port.GuardMul4), asm.DWord),
		asm.Mul.Reg(asm.R8, asm.R3),
	)
}

// guardEntry emits code that leaves in R0 the address of the guard's entry whose number is in R1.
func (a *assembler) guardEntry() {
	a.add(
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, a.guard),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "cross"),
	)
}
