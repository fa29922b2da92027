package packet

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// TestRefuses32Bits: where ints have 32 bits the compiler's error says what is wanted.
func TestRefuses32Bits(t *testing.T) {
	const file = "bits_32.go"
	for arch, refused := range map[string]bool{"386": true, "arm": true, "mips": true, "mipsle": true, "amd64": false, "arm64": false, "riscv64": false} {
		ctx := build.Default
		ctx.GOARCH, ctx.GOOS = arch, "linux"
		p, err := ctx.ImportDir(".", 0)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(p.GoFiles, file) != refused {
			t.Errorf("%s is refused: %v, want %v", arch, !refused, refused)
		}
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := new(types.Config).Check("packet", set, []*ast.File{f}, nil); err == nil || !strings.Contains(err.Error(), "quillon_needs_a_64_bit_machine") {
		t.Errorf("the compiler says: %v", err)
	}
}
