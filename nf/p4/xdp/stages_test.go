package xdp

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4"
)

// TestStages: the stages of a program are together the program, but for the jumps from block to block. The programs of p4src have
// their tables and most of their code in ingress.
func TestStages(t *testing.T) {
	for _, name := range []string{"l2_bridge", "ipv4_router", "swordbox_steer", "swordbox_mux"} {
		_, tree, err := p4.LoadTree(read(t, "../../../p4src/"+name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		s := &settings{DropPort: 511, Queues: 8, Indices: 2, Processors: 2}
		c, err := compile(tree, s, dryMaps(tree, s))
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, s := range c.stages {
			sum += s.Instructions
		}
		for i := range c.code {
			if isJump(&c.code[i]) && c.code[i].OpCode.JumpOp() == asm.Ja {
				sum++
			}
		}
		if text := c.stages.String(); sum != len(c.code) || !strings.HasPrefix(text, "ingress ") {
			t.Errorf("%s: %d instructions, in stages %d: %s", name, len(c.code), sum, text)
		}
	}
}
