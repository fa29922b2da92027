package xdp

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
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

// TestTooFar: a program with a jump over more instructions than the kernel's jumps reach is refused before it is loaded. With 16 bits of the
// distance the jump would lead into the middle of the action.
func TestTooFar(t *testing.T) {
	v := obj{"type": "field", "value": arr{"h", "v"}}
	for _, steps := range []int{100, 3000} {
		code := arr{prim("_jump_if_zero", expr("==", v, hexs(0x01020304)), hexs(uint64(steps+1)))}
		for range steps {
			code = append(code, prim("assign", v, expr("&", expr("+", expr("*", v, v), hexs(0x1234567)), hexs(1<<32-1))))
		}
		var root obj
		if err := json.Unmarshal(extracting(t, 1, 0, v), &root); err != nil {
			t.Fatal(err)
		}
		a := root["actions"].([]any)[0].(obj)
		a["primitives"] = append(code, a["primitives"].([]any)...)
		src, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		_, tree, err := p4.LoadTree(src)
		if err != nil {
			t.Fatal(err)
		}
		if r := Analyse(tree, p4.Config{}); r.Kernel != (steps == 100) || !r.Kernel && (!strings.Contains(r.Why, "a jump over") || r.Instructions == 0) {
			t.Errorf("%d steps: the report says %v, %q, %d instructions", steps, r.Kernel, r.Why, r.Instructions)
		}
		requireKernel(t)
		if steps == 100 {
			w := newTwin(t, src)
			f := make([]byte, 64)
			w.frame(1, f)
			copy(f[4:], []byte{1, 2, 3, 4})
			w.frame(1, f)
			continue
		}
		x, err := New(tree, p4.Config{DropPort: 511, Queues: 8}, Options{})
		if err == nil {
			_ = x.Close()
		}
		if v := (*ebpf.VerifierError)(nil); err == nil || errors.As(err, &v) || !strings.Contains(err.Error(), "a jump over") {
			t.Errorf("%d steps: %v", steps, err)
		}
	}
}
