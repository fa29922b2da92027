package hdr_test

import (
	"encoding/hex"
	"fmt"

	"github.com/quillon/quillon/nf/hdr"
)

// A compare-and-swap is sent to another address, in place.
func Example() {
	b, _ := hex.DecodeString("ec0d9a6821ccec0d9a6821a0080045020048533e4000401163f6c0a80111c0a8010d" +
		"cc2012b7003400001340ffff0000543580000c720000557a46b7a50000057251" +
		"00008f4800080800000000000000080043368c0c")
	var f hdr.Frame
	if why := hdr.Parse(b, &f); why != hdr.IsRoCE || f.Op != hdr.CompareSwap {
		fmt.Println("not mine:", why)
		return
	}
	h := f.AtomicETHOf(b)
	fmt.Printf("%v to QP %#x: VA %#x\n", f.Op, f.BTHOf(b).DestQP(), h.VA())
	old := [8]byte(h)
	h.SetVA(0x557a46b7c500)
	hdr.PatchICRC(b, &f, int(f.BTH)+hdr.BTHLen, old[:])
	fmt.Printf("VA %#x, ICRC right: %v\n", h.VA(), hdr.ICRC(b, &f) == hdr.StoredICRC(b, &f))
	// Output:
	// RC COMPARE SWAP to QP 0x5435: VA 0x557a46b7a500
	// VA 0x557a46b7c500, ICRC right: true
}
