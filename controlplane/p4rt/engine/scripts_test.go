package engine_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

// TestScripts plays the tests of p4src's programs twice: on a switch that they
// set up by themselves, and on a device that gets by P4Runtime all that the
// switch has. What comes out must be the same.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("../../../tests/p4/*/*.stf")
	if err != nil || len(files) == 0 {
		t.Fatal("there are no scripts: ", err)
	}
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		t.Run(name+"/"+strings.TrimSuffix(filepath.Base(file), ".stf"), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			statements, err := stf.Parse(bytes.NewReader(src))
			if err != nil {
				t.Fatal(err)
			}
			newTwin(t, name).play(statements)
		})
	}
}

// array matches commands about arrays.
var array = regexp.MustCompile("register|counter|meter")

// twin is a switch, and a device behind a server.
type twin struct {
	*world
	c    *controller
	sw   *p4.Switch
	pipe p4rt.Pipeline
	held map[string]*p4v1.Entity // what the device was given, by key
}

func newTwin(t *testing.T, name string) *twin {
	x := &twin{world: newWorld(t, p4rt.Config{}), held: map[string]*p4v1.Entity{}}
	x.c = x.primary()
	x.program(name)
	info, json := programFiles(t, name)
	prog, err := p4.Load(json)
	if err != nil {
		t.Fatal(err)
	}
	if x.sw, err = p4.NewSwitch(prog, p4.Config{}); err != nil {
		t.Fatal(err)
	}
	if x.pipe, err = engine.Of(info, json, x.sw); err != nil {
		t.Fatal(err)
	}
	for _, e := range x.entities(false) {
		x.held[p4info.Key(e)] = e
	}
	return x
}

// entities are all that the switch has; cells: registers and so on, too.
func (x *twin) entities(cells bool) []*p4v1.Entity {
	x.t.Helper()
	var out []*p4v1.Entity
	read := func(q *p4v1.Entity) {
		if err := x.pipe.Read(q, func(e *p4v1.Entity) error { out = append(out, proto.CloneOf(e)); return nil }); err != nil {
			x.t.Fatal(err)
		}
	}
	info := x.pipe.Info()
	for _, p := range info.Profiles {
		read(&p4v1.Entity{Entity: &p4v1.Entity_ActionProfileMember{ActionProfileMember: &p4v1.ActionProfileMember{ActionProfileId: p.ID}}})
		ids, _ := x.sw.Groups(p.Name)
		for _, id := range ids {
			g := &p4v1.ActionProfileGroup{ActionProfileId: p.ID, GroupId: id}
			members, _ := x.sw.Group(p.Name, id)
			for _, m := range members {
				g.Members = append(g.Members, &p4v1.ActionProfileGroup_Member{MemberId: m.ID, Weight: int32(max(m.Weight, 1))})
			}
			out = append(out, &p4v1.Entity{Entity: &p4v1.Entity_ActionProfileGroup{ActionProfileGroup: g}})
		}
	}
	for _, tb := range info.Tables {
		if !tb.Const && len(tb.Fields) > 0 {
			read(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: tb.ID}}})
		}
		if tb.ConstDefault == nil && tb.Profile == nil {
			read(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: tb.ID, IsDefaultAction: true}}})
		}
	}
	ports := func(list []p4.Replica) (out []*p4v1.Replica) {
		for _, r := range list {
			out = append(out, &p4v1.Replica{PortKind: &p4v1.Replica_Port{Port: []byte{byte(r.Port >> 8), byte(r.Port)}}, Instance: uint32(r.Rid)})
		}
		return out
	}
	for id := uint32(1); id < 512; id++ {
		if list := x.sw.Multicast(id); len(list) > 0 {
			out = append(out, replicated(&p4v1.PacketReplicationEngineEntry{Type: &p4v1.PacketReplicationEngineEntry_MulticastGroupEntry{
				MulticastGroupEntry: &p4v1.MulticastGroupEntry{MulticastGroupId: id, Replicas: ports(list)}}}))
		}
		if s, ok := x.sw.Session(id); ok {
			out = append(out, replicated(&p4v1.PacketReplicationEngineEntry{Type: &p4v1.PacketReplicationEngineEntry_CloneSessionEntry{
				CloneSessionEntry: &p4v1.CloneSessionEntry{SessionId: id, Replicas: ports(s.Replicas)}}}))
		}
	}
	if cells {
		for _, e := range x.cells() {
			read(e)
		}
	}
	for _, e := range out {
		if err := info.Update(&p4v1.Update{Type: p4v1.Update_MODIFY, Entity: e}); err != nil {
			x.t.Fatalf("%v: %v", e, err)
		}
	}
	return out
}

// cells are queries for the elements of arrays that are not zero.
func (x *twin) cells() (out []*p4v1.Entity) {
	info := x.pipe.Info()
	for _, a := range info.Counters {
		for n := range a.Size {
			if c, _ := x.sw.Count(a.Name, int(n)); c != (p4.Count{}) {
				out = append(out, &p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: a.ID, Index: &p4v1.Index{Index: n}}}})
			}
		}
	}
	for _, a := range info.Meters {
		for n := range a.Size {
			if r, _ := x.sw.Meter(a.Name, int(n)); len(r) > 0 {
				out = append(out, &p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{MeterId: a.ID, Index: &p4v1.Index{Index: n}}}})
			}
		}
	}
	for _, a := range info.Registers {
		for n := range a.Size {
			if v, _ := x.sw.Register(a.Name, int(n)); len(bytes.Trim(v, "\x00")) > 0 {
				out = append(out, &p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: &p4v1.RegisterEntry{RegisterId: a.ID, Index: &p4v1.Index{Index: n}}}})
			}
		}
	}
	return out
}

func replicated(e *p4v1.PacketReplicationEngineEntry) *p4v1.Entity {
	return &p4v1.Entity{Entity: &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: e}}
}

// isCell reports that an entity is always there.
func isCell(e *p4v1.Entity) bool {
	return e.GetCounterEntry() != nil || e.GetMeterEntry() != nil || e.GetRegisterEntry() != nil
}

// sync gives the device what the switch has come to have since.
func (x *twin) sync(cells bool, before []*p4v1.Entity) {
	x.t.Helper()
	var updates []*p4v1.Update
	was := map[string]*p4v1.Entity{}
	for _, e := range before {
		was[p4info.Key(e)] = e
	}
	now := map[string]bool{}
	for _, e := range x.entities(cells) {
		k := p4info.Key(e)
		now[k] = true
		old, op := x.held[k], p4v1.Update_MODIFY
		switch {
		case isCell(e):
			old = was[k] // packets change the others
		case old == nil && !e.GetTableEntry().GetIsDefaultAction():
			op = p4v1.Update_INSERT
		}
		if old == nil || !proto.Equal(old, e) {
			updates = append(updates, &p4v1.Update{Type: op, Entity: e})
		}
		x.held[k] = e
	}
	for k, e := range x.held {
		if !isCell(e) && !now[k] {
			updates = append(updates, &p4v1.Update{Type: p4v1.Update_DELETE, Entity: e})
			delete(x.held, k)
		}
	}
	if _, err := x.write(goOn, updates...); err != nil {
		x.t.Fatal(err)
	}
}

func (x *twin) play(statements []stf.Statement) {
	var pending []stf.Statement
	cells := false
	packets := 0
	for n := range statements {
		s := statements[n]
		switch s.Op {
		case stf.Add, stf.SetDefault, stf.RemoveAll, stf.Command:
			pending = append(pending, s)
			cells = cells || s.Op == stf.Command && array.MatchString(s.Command)
		case stf.Wait:
			x.clk.advance(time.Second)
		case stf.Packet:
			if len(pending) > 0 {
				var before []*p4v1.Entity
				if cells {
					before = x.entities(true)
				}
				if err := stf.Configure(x.sw, pending); err != nil {
					x.t.Fatal(err)
				}
				x.sync(cells, before)
				pending, cells = nil, false
			}
			frame, err := hex.DecodeString(s.Data)
			if err != nil {
				x.t.Fatal(err)
			}
			packets++
			x.packet(s.Line, s.Port, frame)
		}
	}
	if packets == 0 {
		x.t.Error("the script has no packets")
	}
	// In the end both hold the same.
	for _, q := range x.cells() {
		var want *p4v1.Entity
		if err := x.pipe.Read(q, func(e *p4v1.Entity) error { want = e; return nil }); err != nil {
			x.t.Fatal(err)
		}
		if got := x.read(prototext.Format(q)); len(got) != 1 || !proto.Equal(got[0], want) {
			x.t.Errorf("got %v, want %s", got, x.info.Text(want))
		}
	}
}

// packet sends one packet to both.
func (x *twin) packet(line int, port uint32, frame []byte) {
	x.t.Helper()
	x.clk.advance(time.Microsecond)
	want := map[uint32][]string{}
	total := 0
	x.sw.Process(x.clk.Now(), port, frame, func(n uint32, f []byte) {
		want[n] = append(want[n], hex.EncodeToString(f))
		total++
	})
	if port == 510 {
		meta, payload, err := x.info.PacketOut.Unpack(frame)
		if err != nil {
			x.t.Fatal(err)
		}
		// Its refusal says that the one before was sent.
		for _, m := range []*p4v1.PacketOut{{Payload: payload, Metadata: meta}, {Metadata: []*p4v1.PacketMetadata{{MetadataId: 99, Value: []byte{1}}}}} {
			if err := x.c.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: m}}); err != nil {
				x.t.Fatal(err)
			}
		}
		for x.c.next().GetError() == nil {
		}
	} else {
		x.send(int(port), frame)
	}
	got := map[uint32][]string{}
	for n := range ports {
		for _, f := range x.got(n) {
			got[uint32(n)] = append(got[uint32(n)], hex.EncodeToString(f))
		}
	}
	for range want[510] {
		in := x.c.next().GetPacket()
		meta, err := x.info.PacketIn.Metadata(in.GetMetadata())
		if err != nil {
			x.t.Fatal(err)
		}
		got[510] = append(got[510], hex.EncodeToString(append(x.info.PacketIn.Pack(nil, meta), in.GetPayload()...)))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		x.t.Fatalf("line %d, port %d:\n got %v\nwant %v", line, port, got, want)
	}
}
