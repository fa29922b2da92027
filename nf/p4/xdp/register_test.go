package xdp

import (
	"encoding/json"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// adding is a program that adds 1 to a register of 96 bits, in halves of which each has the same, and sends the frame to the port in its first byte.
func adding(t testing.TB) []byte {
	r := func(name string) obj { return obj{"type": "register_array", "value": name} }
	m := func(i string, bits int) obj { return fieldOf(field{"m", i, bits}) }
	root := obj{"__meta__": obj{"version": arr{2, 23}},
		"header_types": arr{obj{"name": "std_t", "id": 1, "fields": stdFields}, obj{"name": "m_t", "id": 2, "fields": arr{arr{"a", 64, false}, arr{"b", 64, false}}},
			obj{"name": "h_t", "id": 3, "fields": arr{arr{"port", 16, false}}}},
		"headers": arr{obj{"name": "standard_metadata", "id": 1, "header_type": "std_t", "metadata": true}, obj{"name": "m", "id": 2, "header_type": "m_t", "metadata": true},
			obj{"name": "h", "id": 3, "header_type": "h_t", "metadata": false}},
		"register_arrays": arr{obj{"name": "a", "id": 0, "size": 2, "bitwidth": 64}, obj{"name": "b", "id": 1, "size": 2, "bitwidth": 64}},
		"actions": arr{obj{"name": "add", "id": 1, "runtime_data": arr{}, "primitives": arr{
			prim("register_read", m("a", 64), r("a"), hexs(1)), prim("register_read", m("b", 64), r("b"), hexs(1)),
			prim("assign", m("a", 64), expr("&", expr("+", m("a", 64), hexs(1)), hexs(1<<64-1))),
			prim("register_write", r("a"), hexs(1), m("a", 64)),
			prim("assign", m("b", 64), expr("&", expr("+", m("b", 64), hexs(1)), hexs(1<<64-1))),
			prim("register_write", r("b"), hexs(1), m("b", 64)),
			prim("register_write", r("b"), hexs(0), m("a", 64)),
			prim("register_write", r("b"), hexs(0), m("b", 64)),
			prim("assign", fieldOf(specField), fieldOf(field{"h", "port", 16}))}}},
	}
	return oneAction(t, root, "add", arr{prim("extract", obj{"type": "regular", "value": "h"})}, arr{"h"})
}

// TestRegistersOnce has the kernel and the engine run frames at the same time that add to registers: none is lost, and what the kernel has written of a frame that
// it gives to the engine is not seen.
func TestRegistersOnce(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("it takes two processors")
	}
	w := newTwin(t, adding(t))
	w.x.port(1)
	var stop atomic.Bool
	var finished, given, closed atomic.Uint64
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		runtime.LockOSThread()
		pin(t, 1)
		for n := 0; !stop.Load(); n++ {
			b := make([]byte, 64)
			b[1] = []byte{2, 7}[n%2] // the second is a port without an interface
			code, err := w.x.prog.Run(&ebpf.RunOptions{Data: b, Repeat: 50})
			if err != nil {
				t.Error(err)
				return
			}
			switch {
			case n%2 == 1:
				closed.Add(50)
			case code == xdpRedirect:
				finished.Add(1)
			default:
				given.Add(1)
			}
		}
	}()
	engine := 0
	b := make([]byte, 64)
	b[1] = 2
	for end := time.Now().Add(20 * time.Second); finished.Load() < 20 && time.Now().Before(end); {
		for range 200 {
			w.sw.Process(1, 1, b, func(uint32, []byte) {})
			engine++
		}
		time.Sleep(20 * time.Microsecond) // else the kernel would seldom come to the registers
	}
	stop.Store(true)
	group.Wait()
	// What it has written twice is as before the first.
	b[1] = 7
	if code, err := w.x.prog.Run(&ebpf.RunOptions{Data: b}); err != nil || code != xdpPass {
		t.Fatalf("code %d, %v", code, err)
	}
	all, err := w.x.Outcomes()
	if err != nil {
		t.Fatal(err)
	}
	want := uint64(engine) + all[Forwarded].Frames
	for _, of := range []struct {
		name string
		cell int
	}{{"a", 1}, {"b", 1}, {"b", 0}} {
		name := of.name
		got, err := w.sw.Register(name, of.cell)
		if err != nil {
			t.Fatal(err)
		}
		n := uint64(0)
		for _, x := range got {
			n = n<<8 | uint64(x)
		}
		if n != want {
			t.Errorf("register %s %d: %d, want %d", name, of.cell, n, want)
		}
	}
	if all[Forwarded].Frames < 20 || closed.Load() == 0 {
		t.Errorf("%d frames in the kernel, %d undone", all[Forwarded].Frames, closed.Load())
	}
	t.Logf("%d frames in the kernel, %d in the engine; of %d runs the last frame found the registers taken in %d", all[Forwarded].Frames, engine, finished.Load()+given.Load(), given.Load())
}

// oneAction gives a program a parser of one state with these operations, a table without a key that always runs the action, and a deparser
// with this order, and returns its JSON.
func oneAction(t testing.TB, root obj, action string, parse, order arr) []byte {
	t.Helper()
	root["parsers"] = arr{obj{"name": "parser", "id": 0, "init_state": "s", "parse_states": arr{obj{"name": "s", "id": 0,
		"parser_ops": parse, "transition_key": arr{}, "transitions": arr{obj{"type": "default", "value": nil, "mask": nil, "next_state": nil}}}}}}
	root["deparsers"] = arr{obj{"name": "deparser", "id": 0, "order": order}}
	root["pipelines"] = arr{obj{"name": "ingress", "init_table": "t", "conditionals": arr{}, "tables": arr{obj{"name": "t", "id": 1, "match_type": "exact",
		"type": "simple", "max_size": 1, "key": arr{}, "actions": arr{action}, "action_ids": arr{1}, "next_tables": obj{action: nil}, "base_default_next": nil,
		"default_entry": obj{"action_id": 1, "action_const": true, "action_data": arr{}, "action_entry_const": true}}}},
		obj{"name": "egress", "init_table": nil, "tables": arr{}, "conditionals": arr{}}}
	b, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
