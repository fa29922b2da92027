#include "textflag.h"

// func Line(address uintptr)
TEXT ·Line(SB), NOSPLIT, $0-8
	MOVQ address+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func Lines(a, b uintptr)
TEXT ·Lines(SB), NOSPLIT, $0-16
	MOVQ a+0(FP), AX
	MOVQ b+8(FP), CX
	PREFETCHT0 (AX)
	PREFETCHT0 (CX)
	RET
