package clio_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/hdr/clio"
)

// A request is written and found again.
func ExampleParse() {
	at := clio.Plain(false)
	frame := make([]byte, at.Lego+clio.LegoLen+clio.RequestLen)
	clio.Headers(frame, &clio.End{IP: [4]byte{192, 168, 1, 1}, Port: 40000}, &clio.End{IP: [4]byte{192, 168, 1, 10}, Port: clio.Port}, len(frame)-at.Lego)
	h := clio.Lego(frame[at.Lego:])
	h.SetPID(7)
	h.SetOpcode(clio.Read)
	h.SetSize(uint16(len(frame) - at.Lego))
	at.Seal(frame, len(frame), true)
	var f clio.Frame
	fmt.Println(clio.Parse(frame, false, &f) != clio.NotClio, f.Sound(frame), clio.Lego(frame[f.Lego:]).PID())
	// Output:
	// true true 7
}
