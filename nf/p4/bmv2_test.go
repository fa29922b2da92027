package p4

import "testing"

func TestBMv2Add(t *testing.T) {
	act := Action{Name: "a.b", Args: [][]byte{{0, 1}, {0xff, 0}}}
	keys := func(kinds ...MatchKind) (k []KeyInfo) {
		for _, m := range kinds {
			k = append(k, KeyInfo{Match: m, Bits: 12})
		}
		return k
	}
	for _, c := range []struct {
		table TableInfo
		entry Entry
		want  string
	}{
		{TableInfo{Name: "t", Keys: keys(Exact, Valid)}, Entry{Key: []Match{{Value: []byte{1, 2}}, {Value: []byte{1}}}, Action: act}, "table_add t a.b 0x102 0x1 => 0x1 0xff00"},
		{TableInfo{Name: "t", Keys: keys(LPM)}, Entry{Key: []Match{{Value: []byte{1, 0}, Prefix: 4}}, Action: act}, "table_add t a.b 0x100/4 => 0x1 0xff00"},
		{TableInfo{Name: "t", Keys: keys(LPM)}, Entry{Key: []Match{{Any: true}}}, "table_add t  0x0/0 =>"},
		{TableInfo{Name: "t", Keys: keys(Ternary, Ternary, Ternary), Priority: true},
			Entry{Key: []Match{{Value: []byte{7}, Mask: []byte{3}}, {Any: true}, {Value: []byte{7}}}, Action: act, Priority: 5},
			"table_add t a.b 0x7&&&0x3 0x0&&&0x0 0x7&&&0xfff => 0x1 0xff00 5"},
		{TableInfo{Name: "t", Keys: keys(Range, Range), Priority: true},
			Entry{Key: []Match{{Value: []byte{7}, Mask: []byte{9}}, {Any: true}}, Action: act},
			"table_add t a.b 0x7->0x9 0x0->0xfff => 0x1 0xff00 0"},
	} {
		if got := BMv2Add(c.table, c.entry); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
