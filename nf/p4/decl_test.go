package p4

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	apptable "github.com/quillon/quillon/nf/table"
	values "github.com/quillon/quillon/nf/value"
)

// TestShownEntries: what a table shows, in slices, are its entries: each field means the same, and reads back as it is written.
func TestShownEntries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"exact", "lpm", "ternary", "range"}).Draw(t, "kind")
		width := rapid.SampledFrom([]int{1, 9, 16, 32, 48, 64, 65, 128, 129, 160})
		keys := []KeyInfo{{Match: Exact, Bits: width.Draw(t, "bits")}, {Match: map[string]MatchKind{"exact": Exact, "lpm": LPM, "ternary": Ternary, "range": Range}[kind], Bits: width.Draw(t, "bits")}}
		p, err := Load(matchProgram(kind, keys).json())
		if err != nil {
			t.Fatal(err)
		}
		sw, _ := NewSwitch(p, Config{})
		a := &App{}
		a.Use(sw)
		for range rapid.IntRange(0, 20).Draw(t, "entries") {
			e := Entry{Action: Action{Name: "send", Args: [][]byte{{byte(rapid.IntRange(0, 255).Draw(t, "port"))}}}}
			for _, k := range keys {
				v := genNumber(t, k.Bits)
				m := Match{Value: v.Bytes()}
				switch k.Match {
				case LPM:
					m.Prefix = rapid.IntRange(0, k.Bits).Draw(t, "prefix")
				case Ternary:
					m.Mask = genNumber(t, k.Bits).Bytes()
				case Range:
					m.Mask = ones(k.Bits).Bytes()
				}
				e.Key = append(e.Key, m)
			}
			if kind == "ternary" || kind == "range" {
				e.Priority = int32(rapid.IntRange(1, 100).Draw(t, "priority"))
			}
			_, _ = sw.Insert("t", e) // an entry that exists already, or has bits beyond its mask, is refused
		}
		decls := declared(a)
		if len(decls) != 1 || decls[0].Default != nil {
			t.Fatalf("%+v", decls)
		}
		d := &decls[0]
		var shown []*apptable.Entry
		step := rapid.IntRange(1, 8).Draw(t, "step")
		for from := 0; from >= 0; {
			from = a.scan(nil, 0, from, step, func(e *apptable.Entry) { shown = append(shown, e.Clone()) })
		}
		var all []Entry
		_ = sw.Entries("t", func(_ Handle, e Entry) bool { all = append(all, e); return true })
		if len(shown) != len(all) {
			t.Fatalf("%d entries are shown of %d", len(shown), len(all))
		}
		for i, e := range all {
			if back, err := d.Parse(d.Text(shown[i])); err != nil || !reflect.DeepEqual(&back, shown[i]) {
				t.Errorf("%+v reads back as %+v, %v", shown[i], back, err)
			}
			if e.Priority != 0 && int64(shown[i].Priority)+int64(e.Priority) != 1<<31-1 {
				t.Errorf("priority %d is shown as %d", e.Priority, shown[i].Priority)
			}
			for k, m := range e.Key {
				if err := sameCond(keys[k], m, shown[i].Key[k]); err != nil {
					t.Errorf("%+v is shown as %+v: %v", m, shown[i].Key[k], err)
				}
			}
		}
	})
}

// sameCond is an error if a field of an entry's key is shown as another.
func sameCond(k KeyInfo, m Match, c apptable.Cond) error {
	if k.Bits > 128 {
		want := fmt.Sprintf("0x%x", m.Value)
		if k.Match == Ternary {
			want += fmt.Sprintf("&&&0x%x", m.Mask)
		} else if k.Match == Range {
			want += fmt.Sprintf("..0x%x", m.Mask)
		} else if k.Match == LPM {
			want += fmt.Sprintf("/%d", m.Prefix)
		}
		if c.V.Str() != want {
			return fmt.Errorf("want %s", want)
		}
		return nil
	}
	mask := m.Mask
	if k.Match == LPM {
		mask = values.Prefix(m.Prefix, k.Bits)
	}
	if (k.Match == LPM || k.Match == Ternary) && values.IsZero(mask) || k.Match == Range && values.IsZero(m.Value) && values.Compare(mask, values.Ones(k.Bits)) == 0 {
		if !c.Any {
			return fmt.Errorf("want anything")
		}
		return nil
	}
	if !bytes.Equal(values.Canonical(m.Value), c.V.Bytes()) || k.Match != Exact && !bytes.Equal(values.Canonical(mask), c.M.Bytes()) {
		return fmt.Errorf("want %x, mask %x", m.Value, mask)
	}
	return nil
}
