package native_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/native"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tor/clover"
	"github.com/quillon/quillon/tor/swordbox"
)

// few are values of a width that often meet each other.
func few(t *rapid.T, bits int) []byte {
	full := make([]byte, (bits+7)/8)
	switch rapid.IntRange(0, 3).Draw(t, "value") {
	case 0:
		full[len(full)-1] = byte(rapid.IntRange(0, 1).Draw(t, "low") & (1<<min(bits, 8) - 1))
	case 1: // an address of a host
		full[0], full[len(full)-1] = 10, byte(rapid.IntRange(1, 2).Draw(t, "host"))
	case 2:
		for i := range full {
			full[i] = 0xFF
		}
	default:
		full[len(full)-1] = byte(rapid.IntRange(2, 5).Draw(t, "high"))
	}
	if r := bits % 8; r != 0 {
		full[0] &= 1<<r - 1
	}
	return full
}

// someEntry is an entry of a table, often one of those that are there.
func someEntry(t *rapid.T, info *p4info.Info, there map[string]*p4v1.TableEntry) *p4v1.TableEntry {
	var tables []*p4info.Table
	for _, x := range info.Tables {
		if !x.Const {
			tables = append(tables, x)
		}
	}
	x := rapid.SampledFrom(tables).Draw(t, "table")
	old := there[rapid.SampledFrom(slices.Sorted(maps.Keys(there))).Draw(t, "old")]
	again := rapid.Bool().Draw(t, "again")
	if again {
		x = info.Table(old.GetTableId())
	}
	e := &p4v1.TableEntry{TableId: x.ID, IsDefaultAction: len(x.Fields) == 0 || x.ConstDefault == nil && rapid.IntRange(0, 3).Draw(t, "default") == 0}
	if !e.IsDefaultAction {
		if x.Priority {
			e.Priority = int32(rapid.IntRange(1, 2).Draw(t, "priority"))
		}
		for _, f := range x.Fields {
			m := &p4v1.FieldMatch{FieldId: f.ID}
			switch f.Match {
			case configv1.MatchField_EXACT:
				m.FieldMatchType = &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: few(t, f.Type.Bits)}}
			case configv1.MatchField_TERNARY:
				mask := few(t, f.Type.Bits)
				v := few(t, f.Type.Bits)
				for i := range v {
					v[i] &= mask[i]
				}
				m.FieldMatchType = &p4v1.FieldMatch_Ternary_{Ternary: &p4v1.FieldMatch_Ternary{Value: v, Mask: mask}}
			case configv1.MatchField_RANGE:
				m.FieldMatchType = &p4v1.FieldMatch_Range_{Range: &p4v1.FieldMatch_Range{Low: few(t, f.Type.Bits), High: few(t, f.Type.Bits)}}
			}
			if f.Match == configv1.MatchField_EXACT || rapid.Bool().Draw(t, "there") {
				e.Match = append(e.Match, m)
			}
		}
	}
	if again {
		e.IsDefaultAction, e.Match, e.Priority = old.GetIsDefaultAction(), proto.CloneOf(old).GetMatch(), old.GetPriority()
	}
	if rapid.IntRange(0, 5).Draw(t, "act") > 0 {
		a := rapid.SampledFrom(x.Actions).Draw(t, "action")
		call := &p4v1.Action{ActionId: a.ID}
		for _, p := range a.Params {
			call.Params = append(call.Params, &p4v1.Action_Param{ParamId: p.ID, Value: few(t, p.Type.Bits)})
		}
		e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: call}}
	}
	if rapid.IntRange(0, 3).Draw(t, "noted") == 0 {
		e.Metadata = []byte("note")
	}
	return e
}

// mayRefuse reports whether an entry that P4Info allows means nothing to its
// app.
func mayRefuse(info *p4info.Info, e *p4v1.TableEntry) bool {
	args := e.GetAction().GetAction().GetParams()
	switch x := info.Table(e.GetTableId()); x.Alias {
	case "static", "static_ipv6": // no host, no queue pair, no MTU
		return true
	case "tracked": // the last byte of memory
		return len(e.GetMatch()) == 0 || len(e.GetMatch()[0].GetRange().GetHigh()) == 8
	case "steered_keys": // an IPv4 and an IPv6 address
		return len(e.GetMatch()) > 1 && e.GetMatch()[0].GetFieldId() == 1 && e.GetMatch()[len(e.GetMatch())-1].GetFieldId() == 3
	case "steer_ingress.mode": // reads alone
		return len(args) == 3 && args[0].GetValue()[0] == 0 && args[1].GetValue()[0] == 1
	}
	return false
}

// held is all that a pipeline's tables hold but what the apps have by
// themselves: their entries, by key.
func held(t *rapid.T, p p4rt.Pipeline) map[string]*p4v1.TableEntry {
	out := map[string]*p4v1.TableEntry{}
	for _, x := range p.Info().Tables {
		for _, d := range []bool{false, true} {
			if x.Const || d && x.ConstDefault != nil {
				continue
			}
			err := p.Read(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: x.ID, IsDefaultAction: d}}}, func(e *p4v1.Entity) error {
				k := p4info.Key(e)
				if out[k] != nil {
					t.Fatalf("twice: %s", p.Info().Text(e))
				}
				out[k] = e.GetTableEntry()
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

// Writes of any sort against a map: what is answered, and what is read then; what
// is in the arguments is all there is.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := &graph.Spec{Apps: map[string]graph.AppSpec{"steer": {Kind: "clover-steer"}, "box": {Kind: "swordbox", Args: graph.Args{"conns": "4", "window": "16", "words": "16", "hold": "4"}}}}
		inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{*clover.Kind(), *swordbox.Kind()}})
		if err != nil {
			t.Fatal(err)
		}
		defer inst.Close()
		dev, err := native.New(inst)
		if err != nil {
			t.Fatal(err)
		}
		p := dev.Pipeline()
		model := held(t, p)
		first := maps.Clone(model)
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			var updates []*p4v1.Update
			for range rapid.IntRange(1, 5).Draw(t, "updates") {
				u := &p4v1.Update{Type: rapid.SampledFrom([]p4v1.Update_Type{insert, insert, modify, remove}).Draw(t, "type"),
					Entity: &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: someEntry(t, p.Info(), model)}}}
				if u.GetEntity().GetTableEntry().GetIsDefaultAction() {
					u.Type = modify
				}
				if p.Info().Update(u) == nil { // the server's matter
					updates = append(updates, u)
				}
			}
			a := rapid.SampledFrom([]p4v1.WriteRequest_Atomicity{0, 0, p4v1.WriteRequest_ROLLBACK_ON_ERROR}).Draw(t, "atomicity")
			errs := p.Write(updates, a)
			next := maps.Clone(model)
			failed := false
			for n, u := range updates {
				e := proto.CloneOf(u.GetEntity().GetTableEntry())
				k := p4info.Key(u.GetEntity())
				want := codes.OK
				switch {
				case u.GetType() == insert && next[k] != nil:
					want = codes.AlreadyExists
				case u.GetType() != insert && next[k] == nil:
					want = codes.NotFound
				}
				got := status.Code(errs[n])
				if want == codes.OK && got == codes.InvalidArgument && mayRefuse(p.Info(), e) {
					want, failed = got, true
					continue
				}
				failed = failed || want != codes.OK
				if a != 0 && got == codes.Aborted {
					failed = true
				} else if got != want && a == 0 {
					t.Fatalf("%v %s: %v, want %v", u.GetType(), p.Info().Text(u.GetEntity()), errs[n], want)
				}
				if want != codes.OK {
					continue
				}
				switch {
				case u.GetType() == remove:
					delete(next, k)
				case e.Action == nil && e.IsDefaultAction:
					e.Action = first[k].GetAction()
					next[k] = e
				case e.Action == nil:
					e.Action = next[k].GetAction()
					next[k] = e
				default:
					next[k] = e
				}
			}
			if a == 0 || !failed {
				model = next
			}
			for n := range errs {
				if a != 0 && failed != (errs[n] != nil) {
					t.Fatalf("together, and yet: %v", errs)
				}
			}
			got := held(t, p)
			for _, k := range slices.Sorted(maps.Keys(model)) {
				if !proto.Equal(model[k], got[k]) {
					t.Fatalf("want %v\ngot  %v\nargs %v", model[k], got[k], inst.Spec().Apps)
				}
			}
			if len(got) != len(model) {
				t.Fatalf("%d entries, want %d; args %v", len(got), len(model), inst.Spec().Apps)
			}
		}
		// Another process with these arguments holds the same.
		again, err := graph.New(graph.Config{Spec: inst.Spec(), Kinds: []graph.Kind{*clover.Kind(), *swordbox.Kind()}})
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		dev, err = native.New(again)
		if err != nil {
			t.Fatal(err)
		}
		other := held(t, dev.Pipeline())
		for k, e := range held(t, p) {
			e.Metadata = nil
			if !proto.Equal(e, other[k]) {
				t.Fatalf("%v is %v with arguments %v", e, other[k], fmt.Sprint(again.Spec().Apps))
			}
		}
	})
}
