#include "go_asm.h"
#include "textflag.h"

// Products of polynomials over GF(2), bits reflected. A product of two 64-bit
// operands, in which bit j is the coefficient of x^(63-j), has that of
// x^(126-k) in bit k. X0 holds such a product of degree below 95; REDUCE
// leaves its remainder modulo the generator P in bits 31 to 62 of AX, after
// Barrett: with t the coefficients from x^31 on,
//
//	q = floor(t * floor(x^94/P) / x^63), remainder = X0 + q*P below x^32.
#define REDUCE \
	MOVOU ·barrett(SB), X14; \
	MOVO X0, X1; \
	PSRLO $4, X1; \
	PCLMULQDQ $0x00, X14, X1; \
	PCLMULQDQ $0x10, X14, X1; \
	PXOR X1, X0; \
	PEXTRQ $1, X0, AX; \
	SHRQ $31, AX

// func clmulMod(v uint64, k uint32) uint32
TEXT ·clmulMod(SB), NOSPLIT, $0-20
	MOVQ v+0(FP), X0
	MOVL k+8(FP), X1
	PSLLQ $32, X1
	PCLMULQDQ $0x00, X1, X0
	REDUCE
	MOVL AX, ret+16(FP)
	RET

// BLOCK adds the block in X2, times its powers at DI, to X0.
#define BLOCK \
	MOVOU (DI), X15; \
	MOVO X2, X3; \
	PCLMULQDQ $0x00, X15, X2; \
	PCLMULQDQ $0x11, X15, X3; \
	PXOR X2, X0; \
	PXOR X3, X0; \
	ADDQ $16, DI; \
	ADDQ $16, SI

// func blocksCRC(c uint32, p *byte, n int, ones *[128]byte) uint32
TEXT ·blocksCRC(SB), NOSPLIT, $0-36
	MOVL c+0(FP), X0
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ ones+24(FP), DX

	// The register counts as if n zero bytes followed it.
	LEAQ ·crcNear(SB), R8
	MOVL (R8)(CX*4), X1
	PSLLQ $32, X0
	PSLLQ $32, X1
	PCLMULQDQ $0x00, X1, X0

	// The first n%16 bytes, moved to the end of a block. CX blocks follow.
	MOVQ CX, BX
	ANDQ $15, BX
	SHRQ $4, CX
	MOVQ CX, AX
	SHLQ $4, AX
	LEAQ ·powers+(const_clmulBlocks*16)(SB), DI
	SUBQ AX, DI
	LEAQ ·toEnd(SB), R8
	MOVOU (SI), X2
	MOVOU (DX), X13
	POR X13, X2
	MOVOU (R8)(BX*1), X13
	PSHUFB X13, X2
	LEAQ -16(SI)(BX*1), SI
	ADDQ BX, DX
	BLOCK

	// Four with ones, or as many as there are.
	LEAQ 64(DX), R9
masked:
	SUBQ $1, CX
	JLT done
	MOVOU (SI), X2
	MOVOU (DX), X13
	POR X13, X2
	BLOCK
	ADDQ $16, DX
	CMPQ DX, R9
	JLT masked

	SUBQ $1, CX
	JLT done
plain:
	MOVOU (SI), X2
	BLOCK
	SUBQ $1, CX
	JGE plain
done:
	REDUCE
	MOVL AX, ret+32(FP)
	RET

// ROW adds the row of four blocks in Z2, times its powers at DI, to Z0.
#define ROW \
	VMOVDQU64 (DI), Z15; \
	VPCLMULQDQ $0x00, Z15, Z2, Z3; \
	VPCLMULQDQ $0x11, Z15, Z2, Z4; \
	VPTERNLOGD $0x96, Z3, Z4, Z0; \
	ADDQ $64, DI

// func clmulCRC(c uint32, p *byte, n int, ones *[128]byte) uint32
TEXT ·clmulCRC(SB), NOSPLIT, $0-36
	MOVQ p+8(FP), SI
	// What is masked of the 64 bytes at p takes long to load when it is in a
	// page that is not there.
	MOVL SI, AX
	ANDL $4095, AX
	CMPL AX, $4032
	JGT blocks
	CMPB ·hasRows(SB), $1
	JNE blocks
	MOVL c+0(FP), X0
	MOVQ n+16(FP), CX
	MOVQ ones+24(FP), DX

	// The register counts as if n zero bytes followed it.
	LEAQ ·crcNear(SB), R8
	VMOVD (R8)(CX*4), X1
	VPSLLQ $32, X0, X0
	VPSLLQ $32, X1, X1
	VPCLMULQDQ $0x00, X1, X0, X0

	// The first row is of 1 to 64 bytes, moved to its end; AX rows follow. (It
	// is not loaded from before p: nobody else reads there, so that cache line
	// would seldom be at hand.)
	SUBQ $1, CX
	MOVQ CX, AX
	SHRQ $6, AX
	NOTQ CX
	MOVQ $-1, BX
	SHLQ CX, BX
	KMOVQ BX, K1
	MOVQ $-1, BX
	SHRQ CX, BX
	KMOVQ BX, K2
	NOTQ CX
	ANDQ $63, CX
	MOVQ AX, BX
	SHLQ $6, BX
	LEAQ ·powers+(const_clmulBlocks*16-48)(SB), DI
	SUBQ BX, DI
	VMOVDQU8.Z (SI), K2, Z2
	VPORQ (DX), Z2, Z2
	VPEXPANDB.Z Z2, K1, Z2
	ADDQ CX, SI
	ADDQ CX, DX
	ROW

	// One more with ones.
	SUBQ $1, AX
	JLT done
	VMOVDQU64 1(SI), Z2
	VPORQ 1(DX), Z2, Z2
	ROW

	SUBQ $1, AX
	JLT done
plain:
	ADDQ $64, SI
	VMOVDQU64 1(SI), Z2
	ROW
	SUBQ $1, AX
	JGE plain
done:
	VEXTRACTI64X4 $1, Z0, Y1
	VPXOR Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPXOR X1, X0, X0
	VZEROUPPER
	REDUCE
	MOVL AX, ret+32(FP)
	RET
blocks:
	JMP ·blocksCRC(SB)

// func goodRows(p *byte, n int) bool
TEXT ·goodRows(SB), NOSPLIT, $0-17
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	VMOVDQU64 ·icrcOnes+(const_NetIPv4*128)(SB), Z3
	MOVQ $-1, BX
	CMPQ CX, $64
	JGT long

	// One row, of which the last 64-n bytes are zeros.
	BZHIQ CX, BX, BX
	KMOVQ BX, K1
	VMOVDQU8.Z (SI), K1, Z2
	VPTERNLOGQ $0x56, ·seedRow(SB), Z3, Z2 // (Z2|ones)^seed
	VMOVDQU64 ·powers+(const_clmulBlocks*16-48)(SB), Z15
	VPCLMULQDQ $0x00, Z15, Z2, Z0
	VPCLMULQDQ $0x11, Z15, Z2, Z4
	VPXORQ Z4, Z0, Z0
	NEGQ CX
	ANDQ $63, CX
done:
	VEXTRACTI64X4 $1, Z0, Y1
	VPXOR Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPXOR X1, X0, X0
	VZEROUPPER
	REDUCE
	LEAQ ·goodRest(SB), R8
	CMPL AX, (R8)(CX*4)
	SETEQ ret+16(FP)
	RET

long:
	// AX rows follow the first; the last has -n%64 bytes less than the others, which are zeros.
	LEAQ -1(CX), AX
	SHRQ $6, AX
	NEGQ CX
	ANDQ $63, CX
	SHRQ CX, BX
	KMOVQ BX, K1
	MOVQ AX, DX
	SHLQ $6, DX
	LEAQ ·powers+(const_clmulBlocks*16-48)(SB), DI
	SUBQ DX, DI
	VMOVDQU64 (SI), Z2
	VPTERNLOGQ $0x56, ·seedRow(SB), Z3, Z2
	VMOVDQU64 (DI), Z15
	VPCLMULQDQ $0x00, Z15, Z2, Z0
	VPCLMULQDQ $0x11, Z15, Z2, Z4
	VPXORQ Z4, Z0, Z0
	ADDQ $64, DI
	ADDQ $64, SI
	SUBQ $1, AX
	JEQ last
whole:
	VMOVDQU64 (SI), Z2
	ROW
	ADDQ $64, SI
	SUBQ $1, AX
	JNE whole
last:
	VMOVDQU8.Z (SI), K1, Z2
	ROW
	JMP done

// func rowsCRC(p *byte, n int, powers *[16]uint64) uint32
TEXT ·rowsCRC(SB), NOSPLIT, $0-28
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ powers+16(FP), DI

	// The last row has -n%64 bytes less than 64, which are zeros.
	MOVQ CX, AX
	NEGQ CX
	MOVQ $-1, BX
	SHRQ CX, BX
	KMOVQ BX, K1
	VMOVDQU64 ·icrcOnes+(const_NetIPv4*128)(SB), Z5
	CMPQ AX, $64
	JLE short
	VMOVDQU64 (SI), Z2
	VPTERNLOGQ $0x56, ·seedRow(SB), Z5, Z2 // (Z2|ones)^seed
	VMOVDQU64 (DI), Z15
	VPCLMULQDQ $0x00, Z15, Z2, Z0
	VPCLMULQDQ $0x11, Z15, Z2, Z4
	VPXORQ Z4, Z0, Z0
	ADDQ $64, DI
	VMOVDQU8.Z 64(SI), K1, Z2
	ROW
done:
	VEXTRACTI64X4 $1, Z0, Y1
	VPXOR Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPXOR X1, X0, X0
	VZEROUPPER
	REDUCE
	MOVL AX, ret+24(FP)
	RET
short:
	VMOVDQU8.Z (SI), K1, Z2
	VPTERNLOGQ $0x56, ·seedRow(SB), Z5, Z2
	VMOVDQU64 64(DI), Z15
	VPCLMULQDQ $0x00, Z15, Z2, Z0
	VPCLMULQDQ $0x11, Z15, Z2, Z4
	VPXORQ Z4, Z0, Z0
	JMP done
