package xdp

import (
	"math"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/offload"
)

// Offsets in a Meter.
var (
	meterFlags  = int16(unsafe.Offsetof(pace.Flags))
	meterAt     = int16(unsafe.Offsetof(pace.At))
	meterC      = int16(unsafe.Offsetof(pace.C))
	meterP      = int16(unsafe.Offsetof(pace.P))
	meterCIR    = int16(unsafe.Offsetof(pace.CIR))
	meterPIR    = int16(unsafe.Offsetof(pace.PIR))
	meterRoomC  = int16(unsafe.Offsetof(pace.RoomC))
	meterRoomP  = int16(unsafe.Offsetof(pace.RoomP))
	meterCounts = int16(unsafe.Offsetof(pace.Counts))
	meterActs   = int16(unsafe.Offsetof(pace.Acts))
)

// Colours, as the function numbers them.
const (
	green = iota
	yellow
	tooMuch
)

// pacer emits the parts of the program that only entries with meters use.
type pacer struct{ *emitter }

// metered emits the path of frames whose entries have meters, beside the path of all other frames.
func (g pacer) metered() {
	g.unusual("m-")
	g.run("m-")
	g.add(asm.Ja.Label("change"))
	g.waits("m-")

	g.label("m-no-room")
	g.add(asm.LoadMem(asm.R5, asm.RFP, stMeter, asm.DWord), asm.JEq.Imm(asm.R5, 0, "free-no-room"))
	g.release()
	g.add(asm.Ja.Label("free-no-room"))
	g.label("m-gone")
	g.release()
	g.add(asm.Ja.Label("free-withdrawn"))
	g.label("m-red")
	g.release()
	g.add(asm.Ja.Label("free-red"))
	g.dropped()
}

// release emits giving the meter back. It changes R1 and R5.
func (g pacer) release() {
	g.add(asm.LoadMem(asm.R5, asm.RFP, stMeter, asm.DWord), asm.Mov.Imm(asm.R1, 0))
	if runtime.GOARCH == "amd64" { // stores are seen in their order
		g.add(asm.StoreMem(asm.R5, 0, asm.R1, asm.Word))
		return
	}
	g.add(atomicAt(asm.Xchg, asm.R5, asm.R1, asm.Word, 0))
}

// ours emits a jump to no if flag is not set in the slot. It changes R0.
func (g pacer) ours(flag int32, no string) {
	g.add(asm.LoadMem(asm.R0, asm.R8, atFlags, asm.Word), asm.And.Imm(asm.R0, flag), asm.JEq.Imm(asm.R0, 0, no))
}

// meter emits taking the direction's meter, if there is one, and finding the frame's colour and the action for
// it. It changes nothing in the meter; commit does.
func (g pacer) meter() {
	g.add(asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.RFP, stPath, asm.R1, asm.DWord), asm.StoreMem(asm.RFP, stMeter, asm.R1, asm.DWord))
	g.of(asm.R5, atMeters, 2)
	g.add(
		asm.LoadMem(asm.R1, asm.R5, 0, asm.Half),
		asm.JEq.Imm(asm.R1, 0, "m-free"),
		asm.JGE.Imm(asm.R1, int32(g.paces), "free-withdrawn"),
		asm.LSh.Imm(asm.R1, offload.MeterBits),
		asm.LoadMapValue(asm.R5, g.meters, 0),
		asm.Add.Reg(asm.R5, asm.R1),
		asm.StoreMem(asm.RFP, stMeter, asm.R5, asm.DWord),
		// R9 is 20 bytes in an IPv6 header.
		asm.LoadMem(asm.R1, asm.R6, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Sub.Reg(asm.R2, asm.R1),
	)
	g.ours(offload.FlagSix, "m-four")
	g.add(asm.Sub.Imm(asm.R2, 20))
	g.label("m-four")
	g.add(asm.And.Imm(asm.R2, 0xFF), asm.StoreMem(asm.RFP, stL3, asm.R2, asm.DWord), asm.Add.Reg(asm.R1, asm.R2))
	g.need(asm.R1, 20, "free-broken")
	g.ours(offload.FlagSix, "m-size")
	g.add(
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Half), host(asm.R2, asm.Half), asm.RSh.Imm(asm.R2, 4), asm.And.Imm(asm.R2, 0xFF),
		asm.LoadMem(asm.R4, asm.R1, 4, asm.Half), host(asm.R4, asm.Half), asm.Add.Imm(asm.R4, 40),
		asm.Ja.Label("m-sized"),
	)
	g.label("m-size")
	g.add(asm.LoadMem(asm.R2, asm.R1, 1, asm.Byte), asm.LoadMem(asm.R4, asm.R1, 2, asm.Half), host(asm.R4, asm.Half))
	g.label("m-sized")
	g.add(asm.StoreMem(asm.RFP, stTOS, asm.R2, asm.Word), asm.StoreMem(asm.RFP, stSize, asm.R4, asm.DWord))
	if g.clock == 0 {
		g.add(asm.FnKtimeGetNs.Call())
	} else { // the exact time is behind the coarse one
		g.add(asm.LoadMapValue(asm.R0, g.clock, 8), asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord))
	}
	g.add(asm.StoreMem(asm.RFP, stAt, asm.R0, asm.DWord), asm.LoadMem(asm.R5, asm.RFP, stMeter, asm.DWord), asm.Mov.Imm(asm.R4, tries))
	g.label("m-again")
	g.add(
		asm.Mov.Imm(asm.R0, 0),
		asm.Mov.Imm(asm.R2, 1),
		atomicAt(asm.CmpXchg, asm.R5, asm.R2, asm.Word, 0),
		asm.JEq.Imm(asm.R0, 0, "m-mine"),
		asm.Sub.Imm(asm.R4, 1),
		asm.JNE.Imm(asm.R4, 0, "m-again"),
		asm.Ja.Label("free-busy"),
	)
	g.label("m-mine")
	g.add(asm.LoadMem(asm.R0, asm.R5, meterFlags, asm.Word), asm.JSet.Imm(asm.R0, offload.MeterGone, "m-gone"))
	g.refill()
	g.mark()
	// What is dropped needs no room.
	g.add(
		asm.Mov.Reg(asm.R3, asm.R5),
		asm.Add.Reg(asm.R3, asm.R0),
		asm.LoadMem(asm.R1, asm.R3, meterActs, asm.Byte),
		asm.StoreMem(asm.RFP, stAct, asm.R1, asm.DWord),
		asm.JEq.Imm(asm.R1, offload.ActDrop, "m-drops"),
	)
	g.label("m-free")
}

// refill emits code that leaves the current contents of the meter's buckets in R2 and R4, and on the stack (stAt)
// the time until which they are filled.
func (g pacer) refill() {
	g.add(
		asm.LoadMem(asm.R2, asm.R5, meterC, asm.DWord),
		asm.LoadMem(asm.R4, asm.R5, meterP, asm.DWord),
		asm.LoadMem(asm.R3, asm.RFP, stAt, asm.DWord),
		asm.LoadMem(asm.R1, asm.R5, meterAt, asm.DWord),
		asm.JSGT.Reg(asm.R3, asm.R1, "m-later"),
		asm.StoreMem(asm.RFP, stAt, asm.R1, asm.DWord),
		asm.Ja.Label("m-filled"),
	)
	g.label("m-later")
	g.add(asm.Sub.Reg(asm.R3, asm.R1))
	g.earned(meterCIR)
	g.fill(asm.R2, meterRoomC)
	g.add(asm.LoadMem(asm.R0, asm.R5, meterFlags, asm.Word), asm.JSet.Imm(asm.R0, offload.MeterSingle, "m-rest"))
	g.earned(meterPIR)
	g.label("m-rest")
	g.fill(asm.R4, meterRoomP)
	g.label("m-filled")
}

// earned emits code that leaves in R1 what the time in R3 brings at the rate at off, or the largest number if the
// product is larger. It changes R0.
func (g pacer) earned(off int16) {
	fits, done := g.fresh(), g.fresh()
	g.add(
		asm.LoadMem(asm.R1, asm.R5, off, asm.DWord),
		asm.Mov.Imm(asm.R0, -1),
		asm.Div.Reg(asm.R0, asm.R1),
		asm.JLE.Reg(asm.R3, asm.R0, fits),
		asm.Mov.Imm(asm.R1, -1),
		asm.Ja.Label(done),
	)
	g.label(fits)
	g.add(asm.Mul.Reg(asm.R1, asm.R3))
	g.label(done)
}

// fill emits adding R1 to a bucket whose size is at off; R1 keeps what did not fit. It changes R0.
func (g pacer) fill(bucket asm.Register, off int16) {
	all, done := g.fresh(), g.fresh()
	g.add(
		asm.LoadMem(asm.R0, asm.R5, off, asm.DWord),
		asm.Sub.Reg(asm.R0, bucket),
		asm.JLT.Reg(asm.R1, asm.R0, all),
		asm.Add.Reg(bucket, asm.R0),
		asm.Sub.Reg(asm.R1, asm.R0),
		asm.Ja.Label(done),
	)
	g.label(all)
	g.add(asm.Add.Reg(bucket, asm.R1), asm.Mov.Imm(asm.R1, 0))
	g.label(done)
}

// mark emits code that leaves the frame's colour in R0, and on the stack the colour and the buckets' contents
// after the frame.
func (g pacer) mark() {
	const nano = 1_000_000_000
	g.add(
		asm.Mov.Imm(asm.R1, green),
		asm.LoadMem(asm.R0, asm.R5, meterFlags, asm.Word),
		asm.And.Imm(asm.R0, offload.MeterAware),
		asm.JEq.Imm(asm.R0, 0, "m-came"),
		// AF classes are 1 to 4, and the drop precedences 2 and 3 yellow and red.
		asm.LoadMem(asm.R0, asm.RFP, stTOS, asm.Word),
		asm.RSh.Imm(asm.R0, 2),
		asm.JSet.Imm(asm.R0, 1, "m-came"),
		asm.Mov.Reg(asm.R3, asm.R0),
		asm.RSh.Imm(asm.R3, 3),
		asm.JEq.Imm(asm.R3, 0, "m-came"),
		asm.JGT.Imm(asm.R3, 4, "m-came"),
		asm.RSh.Imm(asm.R0, 1),
		asm.And.Imm(asm.R0, 3),
		asm.JLT.Imm(asm.R0, 2, "m-came"),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.Sub.Imm(asm.R1, 1),
	)
	g.label("m-came")
	g.add(
		asm.LoadMem(asm.R0, asm.R5, meterFlags, asm.Word),
		asm.LoadMem(asm.R3, asm.RFP, stSize, asm.DWord),
		asm.LSh.Imm(asm.R3, 3),
		asm.JSet.Imm(asm.R0, offload.MeterPackets, "m-packet"),
		asm.Ja.Label("m-cost"),
	)
	g.label("m-packet")
	g.add(asm.Mov.Imm(asm.R3, 1))
	g.label("m-cost")
	g.add(
		asm.Mul.Imm(asm.R3, nano),
		asm.JSet.Imm(asm.R0, offload.MeterSingle, "m-single"),
		asm.JEq.Imm(asm.R1, tooMuch, "m-too-much"),
		asm.JLT.Reg(asm.R4, asm.R3, "m-too-much"),
		asm.Sub.Reg(asm.R4, asm.R3),
		asm.JEq.Imm(asm.R1, yellow, "m-yellow"),
		asm.JLT.Reg(asm.R2, asm.R3, "m-yellow"),
		asm.Sub.Reg(asm.R2, asm.R3),
		asm.Mov.Imm(asm.R0, green),
		asm.Ja.Label("m-marked"),
	)
	g.label("m-single")
	g.add(
		asm.JNE.Imm(asm.R1, green, "m-excess"),
		asm.JLT.Reg(asm.R2, asm.R3, "m-excess"),
		asm.Sub.Reg(asm.R2, asm.R3),
		asm.Mov.Imm(asm.R0, green),
		asm.Ja.Label("m-marked"),
	)
	g.label("m-excess")
	g.add(
		asm.JEq.Imm(asm.R1, tooMuch, "m-too-much"),
		asm.JLT.Reg(asm.R4, asm.R3, "m-too-much"),
		asm.Sub.Reg(asm.R4, asm.R3),
	)
	g.label("m-yellow")
	g.add(asm.Mov.Imm(asm.R0, yellow), asm.Ja.Label("m-marked"))
	g.label("m-too-much")
	g.add(asm.Mov.Imm(asm.R0, tooMuch))
	g.label("m-marked")
	g.add(asm.StoreMem(asm.RFP, stC, asm.R2, asm.DWord), asm.StoreMem(asm.RFP, stP, asm.R4, asm.DWord), asm.StoreMem(asm.RFP, stColour, asm.R0, asm.DWord))
}

// commit emits storing in the meter what was computed on the stack, counting the frame, and giving the meter
// back.
func (g pacer) commit() {
	g.add(asm.LoadMem(asm.R5, asm.RFP, stMeter, asm.DWord))
	for _, x := range [...][2]int16{{stC, meterC}, {stP, meterP}, {stAt, meterAt}} {
		g.add(asm.LoadMem(asm.R1, asm.RFP, x[0], asm.DWord), asm.StoreMem(asm.R5, x[1], asm.R1, asm.DWord))
	}
	g.add(
		asm.LoadMem(asm.R1, asm.RFP, stColour, asm.DWord),
		asm.And.Imm(asm.R1, 3),
		asm.LSh.Imm(asm.R1, 4),
		asm.Add.Reg(asm.R1, asm.R5),
		asm.LoadMem(asm.R2, asm.R1, meterCounts, asm.DWord),
		asm.Add.Imm(asm.R2, 1),
		asm.StoreMem(asm.R1, meterCounts, asm.R2, asm.DWord),
		asm.LoadMem(asm.R2, asm.R1, meterCounts+8, asm.DWord),
		asm.LoadMem(asm.R3, asm.RFP, stSize, asm.DWord),
		asm.Add.Reg(asm.R2, asm.R3),
		asm.StoreMem(asm.R1, meterCounts+8, asm.R2, asm.DWord),
	)
	g.release()
}

// passed emits commit for a frame that the meter lets pass, and writing the DSCP of its colour.
func (g pacer) passed() {
	g.add(asm.LoadMem(asm.R5, asm.RFP, stMeter, asm.DWord), asm.JEq.Imm(asm.R5, 0, "m-done"))
	g.commit()
	g.add(
		asm.LoadMem(asm.R1, asm.RFP, stAct, asm.DWord),
		asm.JGE.Imm(asm.R1, offload.ActDrop, "m-done"),
		asm.LoadMem(asm.R2, asm.RFP, stTOS, asm.Word),
		asm.LSh.Imm(asm.R1, 2),
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.And.Imm(asm.R3, 3),
		asm.Or.Reg(asm.R1, asm.R3),
		asm.JEq.Reg(asm.R1, asm.R2, "m-done"),
		asm.Mov.Imm(asm.R3, 1),
		asm.StoreMem(asm.RFP, stPath, asm.R3, asm.DWord),
	)
	g.of(asm.R4, atHeads, 2)
	g.add(
		asm.LoadMem(asm.R3, asm.R4, 0, asm.Half),
		asm.LoadMem(asm.R2, asm.RFP, stL3, asm.DWord),
		asm.Sub.Reg(asm.R2, asm.R3),
		asm.And.Imm(asm.R2, 0xFF),
		asm.LoadMem(asm.R9, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R7, asm.R6, 4, asm.Word),
		asm.Add.Reg(asm.R9, asm.R2),
	)
	g.need(asm.R9, 20, "free-broken")
	g.add(asm.LoadMem(asm.R2, asm.R9, 0, asm.Half))
	g.ours(offload.FlagSix, "m-tos")
	g.add(
		host(asm.R2, asm.Half),
		asm.And.Imm(asm.R2, 0xF00F),
		asm.LSh.Imm(asm.R1, 4),
		asm.Or.Reg(asm.R2, asm.R1),
		host(asm.R2, asm.Half),
		asm.StoreMem(asm.R9, 0, asm.R2, asm.Half),
		asm.Ja.Label("m-done"),
	)
	g.label("m-tos")
	g.add(
		asm.StoreMem(asm.R9, 1, asm.R1, asm.Byte),
		asm.LoadMem(asm.R3, asm.R9, 0, asm.Half),
		asm.Xor.Imm(asm.R2, math.MaxUint16),
		asm.Add.Reg(asm.R2, asm.R3),
		asm.LoadMem(asm.R3, asm.R9, 10, asm.Half),
		asm.Xor.Imm(asm.R3, math.MaxUint16),
		asm.Add.Reg(asm.R2, asm.R3),
	)
	g.fold(asm.R2)
	g.add(asm.Xor.Imm(asm.R2, math.MaxUint16), asm.StoreMem(asm.R9, 10, asm.R2, asm.Half))
	g.label("m-done")
}

// dropped emits the path of a frame that the meter drops.
func (g pacer) dropped() {
	g.label("m-drops")
	g.add(
		asm.LoadMem(asm.R4, asm.RFP, stDir, asm.DWord),
		asm.LoadMem(asm.R2, asm.R4, dirOps, asm.Byte),
		asm.JSet.Imm(asm.R2, offload.OpDropUp, "m-red"),
	)
	g.commit()
	g.add(
		asm.Mov.Imm(asm.R1, 2),
		asm.StoreMem(asm.RFP, stPath, asm.R1, asm.DWord),
		asm.LoadMem(asm.R4, asm.RFP, stDir, asm.DWord),
		asm.LoadMem(asm.R2, asm.R4, dirOps, asm.Byte),
		asm.JSet.Imm(asm.R2, offload.OpDropNotes, "m-notes"),
		asm.Ja.Label("m-lost"),
	)
	g.label("m-notes")
	g.note()
	g.label("m-lost")
	g.counted("m-")
	g.free()
	g.add(asm.Mov.Imm(asm.R0, xdpDrop), asm.Return())
}
