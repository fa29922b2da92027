package xdp

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4"
)

// growing is a program whose every read of a generation has the generation grow right behind it: as if entries came or went while the frame
// looks.
func growing(_ descriptors, code asm.Instructions) (to asm.Instructions) {
	for i, ins := range code {
		to = append(to, ins)
		if i == 0 || ins.OpCode.JumpOp() != asm.JSet || ins.Constant != 1 {
			continue
		}
		if read := code[i-1]; read.OpCode == asm.LoadMem(asm.R1, asm.R4, 0, asm.DWord).OpCode && read.Dst == ins.Dst {
			to = append(to, asm.Add.Imm(read.Dst, 2), asm.StoreMem(read.Src, 0, read.Dst, asm.DWord), asm.Sub.Imm(read.Dst, 2))
		}
	}
	return to
}

// TestGenerationIsAsked: a frame goes to the engine if entries come or go while it looks, whether it hits an entry or not.
func TestGenerationIsAsked(t *testing.T) {
	for _, kind := range []string{"ternary", "range"} {
		t.Run(kind, func(t *testing.T) {
			for _, edit := range []func(descriptors, asm.Instructions) asm.Instructions{nil, growing} {
				w := newEditedTwin(t, pairs(t, kind), edit)
				m := p4.Match{Value: bigEndian(0x100), Mask: bigEndian(0x1ff)}
				w.both(func(sw *p4.Switch) error {
					_, err := sw.Insert("t", p4.Entry{Key: []p4.Match{m}, Priority: 1, Action: p4.Action{Name: "set", Args: [][]byte{{1}, {1}}}})
					return err
				})
				w.frame(1, padded(0x100))
				hit := w.engine["table t: "+whyChanging]
				w.frame(1, padded(0x8000))
				missed := w.engine["table t: "+whyChanging] - hit
				if want := map[bool]int{true: 0, false: 1}[edit == nil]; hit != want || missed != want || w.kernel != 2-2*want {
					t.Errorf("of the frame that hits %d met a change, of the one that misses %d, want %d", hit, missed, want)
				}
			}
		})
	}
	t.Run("value set", func(t *testing.T) {
		w := newEditedTwin(t, asking(t), growing)
		w.both(func(sw *p4.Switch) error { return sw.SetValueSet("vs", []p4.ValueMember{{Value: bigEndian(3)}}) })
		for _, key := range []uint16{3, 4} {
			w.frame(1, padded(key))
		}
		if w.engine["state s: "+whyValues] != 2 {
			t.Errorf("%d frames in the kernel, in the engine: %v", w.kernel, w.engine)
		}
	})
}

// TestValueSetsBetween: a frame that asks a value set twice goes to the engine if its members change between.
func TestValueSetsBetween(t *testing.T) {
	turns := 0
	w := newEditedTwin(t, askingOf(t, 2), func(m descriptors, code asm.Instructions) (to asm.Instructions) {
		for i, ins := range code {
			to = append(to, ins)
			if ins.OpCode.JumpOp() == asm.JNE && ins.Dst == asm.R3 && ins.Src == asm.R4 && code[i-1].Src == asm.RFP && code[i-1].Offset == keyGeneration {
				turns++ // behind the check of the generation
				to = append(to, asm.LoadMapValue(asm.R3, m.values[0], 0), asm.LoadMem(asm.R4, asm.R3, 0, asm.DWord), asm.Add.Imm(asm.R4, 4), asm.StoreMem(asm.R3, 0, asm.R4, asm.DWord))
			}
		}
		return to
	})
	if turns != 2 {
		t.Fatalf("the program checks generations %d times", turns)
	}
	w.both(func(sw *p4.Switch) error { return sw.SetValueSet("vs", values(3)) })
	w.frame(1, askingFrame(3, 9)) // asks once
	w.frame(1, askingFrame(9, 3))
	if w.kernel != 1 || w.engine["state s1: "+whyValues] != 1 {
		t.Errorf("%d frames in the kernel, in the engine: %v", w.kernel, w.engine)
	}
}

// padded is a frame of 64 bytes that begins with a key.
func padded(key uint16) []byte {
	b := make([]byte, 64)
	binary.BigEndian.PutUint16(b, key)
	return b
}

// TestChangesBetween: frames notice each change of a ternary table that they could see, also of an entry that is there before and behind it: else
// a frame could meet an entry as it is behind a change, and not the entry with more priority that was inserted before.
func TestChangesBetween(t *testing.T) {
	entry := func(n uint64, mask uint64, priority int32) p4.Entry {
		return p4.Entry{Key: []p4.Match{{Value: bigEndian(0x100), Mask: bigEndian(mask)}}, Priority: priority, Action: p4.Action{Name: "set", Args: [][]byte{bigEndian(n), bigEndian(n)}}}
	}
	w := newTwin(t, pairs(t, "ternary"))
	h, err := w.sw.Insert("t", entry(1, 0xff00, 1))
	if err != nil {
		t.Fatal(err)
	}
	m := w.x.tables[0]
	generation := func() uint64 { return *m.masks.word(masksGeneration(&w.x.tree.Tables[0])) }
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"insert", func() error { _, err := w.sw.Insert("t", entry(2, 0xffff, 2)); return err }},
		{"modify", func() error { return w.sw.Modify("t", h, entry(3, 0, 0)) }},
		{"delete", func() error { return w.sw.Delete("t", h) }},
		{"insert what is hidden", func() error { _, err := w.sw.Insert("t", entry(2, 0xffff, 3)); return err }},
	} {
		before := generation()
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if grown := generation() != before; grown == (c.name == "insert what is hidden") {
			t.Errorf("%s: frames notice: %v", c.name, grown)
		}
	}
}

// turning is a program before which a table's word becomes v whenever a frame comes to where an address of the default entries is loaded into a register.
func turning(r asm.Register, v int64, turns *int) func(descriptors, asm.Instructions) asm.Instructions {
	return func(m descriptors, code asm.Instructions) (to asm.Instructions) {
		for _, ins := range code {
			if ins.IsLoadFromMap() && ins.Dst == r && int(uint32(ins.Constant)) == m.defaults {
				turn := asm.LoadMapValue(asm.R5, m.defaults, uint32(uint64(ins.Constant)>>32)&^15) // of the only table
				if s := ins.Symbol(); s != "" {
					turn, ins = turn.WithSymbol(s), ins.WithSymbol("")
				}
				to = append(to, turn, storeImm(asm.R5, 0, v, asm.DWord))
				*turns++
			}
			to = append(to, ins)
		}
		return to
	}
}

// TestDefaultBetween: a frame that has missed does not take a default entry that was not there yet when the frame looked for an entry. Else it
// might see the second of two changes and not the first: an entry that was inserted, and then another default entry.
func TestDefaultBetween(t *testing.T) {
	set := func(i byte) p4.Entry { return p4.Entry{Action: p4.Action{Name: "set", Args: [][]byte{{i}, {i}}}} }
	change := func(w *twin) (word int) {
		w.both(func(sw *p4.Switch) error { return sw.SetDefault("t", set(2)) })
		if word = w.x.tables[0].place / 8; *w.x.defaults.word(word)&tablePlace != 0 {
			t.Fatal("the default entry that is set behind the program's is not in the first place")
		}
		return word
	}
	for _, kind := range []string{"exact", "ternary", "lpm", "range"} {
		t.Run(kind, func(t *testing.T) {
			turns := 0
			w := newEditedTwin(t, pairs(t, kind), turning(asm.R2, tableFull, &turns))
			if turns == 0 {
				t.Fatal("the program does not look at the word again")
			}
			e := set(1)
			e.Priority, e.Key = 1, []p4.Match{{Value: bigEndian(1)}}
			switch kind {
			case "exact":
				e.Priority = 0
			case "lpm":
				e.Priority, e.Key[0].Prefix = 0, 16
			case "range":
				e.Key[0].Mask = bigEndian(1)
			}
			w.both(func(sw *p4.Switch) error {
				_, err := sw.Insert("t", e)
				return err
			})
			w.x.defaults.store(change(w), tableFull|1) // the frame comes before
			w.frame(1, padded(8))
			if w.kernel != 0 || w.engine["table t: "+whyChanging] != 1 {
				t.Errorf("%d frames in the kernel, in the engine: %v", w.kernel, w.engine)
			}
			w.frame(1, padded(8)) // and this one behind
			if w.kernel != 1 {
				t.Errorf("behind the change: %d frames in the kernel, in the engine: %v", w.kernel, w.engine)
			}
		})
		// Of an empty table a frame takes the default entry that was there when the frame saw that the table is empty.
		t.Run(kind+"-empty", func(t *testing.T) {
			turns := 0
			w := newEditedTwin(t, pairs(t, kind), turning(rEntry, tableFull|1, &turns))
			if turns == 0 {
				t.Fatal("the program reads no default entry")
			}
			change(w)
			w.frame(1, padded(8))
			if w.kernel != 1 || *w.x.defaults.word(w.x.tables[0].place / 8) != tableFull|1 {
				t.Errorf("%d frames in the kernel, in the engine: %v", w.kernel, w.engine)
			}
		})
	}
}
