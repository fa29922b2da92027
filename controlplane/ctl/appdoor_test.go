package ctl

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/p4info"
)

const (
	hopText   = "{table: next_hop, match: {next_hop: 1}, action: forward, params: {dst: 1, src: 2, port: 3}}"
	hop2Text  = "{table: next_hop, match: {next_hop: 1}, action: forward, params: {dst: 1, src: 2, port: 4}}"
	routeText = "{table: ipv4_lpm, match: {dst: 10.0.0.0/8}, action: set_next_hop, params: {next_hop: 1}}"
)

// Put makes the device hold entities, and not hold others, whatever it held.
func TestPut(t *testing.T) {
	f := ctltest.New(1)
	s, d := connect(t, f, "ipv4_router", "")
	apply(t, s, d)
	put := func(u p4v1.Update_Type, text string) []*UpdateError {
		t.Helper()
		failed, err := s.Put(within(t), &p4v1.Update{Type: u, Entity: entity(t, d.Info, text)})
		if err != nil {
			t.Fatal(err)
		}
		return failed
	}
	port := func() (ports []uint32) {
		err := s.Entries(within(t), d.Info, func(e *p4v1.Entity) error {
			params := e.GetTableEntry().Action.GetAction().Params
			ports = append(ports, p4info.PortNumber(params[len(params)-1].Value))
			return nil
		}, d.Info.Table(entity(t, d.Info, hopText).GetTableEntry().TableId))
		if err != nil {
			t.Fatal(err)
		}
		return ports
	}
	for _, x := range []struct {
		what string
		u    p4v1.Update_Type
		text string
		want []uint32
	}{
		{"a deletion of nothing", p4v1.Update_DELETE, hopText, nil},
		{"a modification of nothing", p4v1.Update_MODIFY, hopText, []uint32{3}},
		{"an insertion of what is there", p4v1.Update_INSERT, hop2Text, []uint32{4}},
		{"a deletion", p4v1.Update_DELETE, hopText, nil},
	} {
		if failed := put(x.u, x.text); len(failed) > 0 {
			t.Errorf("%s: %v", x.what, failed[0])
		}
		if got := port(); !slices.Equal(got, x.want) {
			t.Errorf("%s: the device has entries of ports %v, want %v", x.what, got, x.want)
		}
	}
	f.Lock()
	f.Refuse = func(*p4v1.Update) *p4v1.Error { return ctltest.Failed(codes.ResourceExhausted, "no room") }
	f.Unlock()
	if failed := put(p4v1.Update_INSERT, hopText); len(failed) != 1 || failed[0].Code != codes.ResourceExhausted {
		t.Errorf("%v", failed)
	}
}

// Replace writes what differs: what is referred to before what refers to it, and away the other way around.
func TestReplace(t *testing.T) {
	f := ctltest.New(1)
	s, d := connect(t, f, "ipv4_router", "")
	apply(t, s, d)
	hop, route := entity(t, d.Info, hopText), entity(t, d.Info, routeText)
	var updates []string
	f.Lock()
	f.Refuse = func(u *p4v1.Update) *p4v1.Error {
		name := d.Info.Table(u.Entity.GetTableEntry().TableId).Name
		updates = append(updates, strings.ToLower(u.Type.String())+" "+name[strings.LastIndex(name, ".")+1:])
		return nil
	}
	f.Unlock()
	tables := []*p4info.Table{d.Info.Table(hop.GetTableEntry().TableId), d.Info.Table(route.GetTableEntry().TableId)}
	set := func(list ...*p4v1.Entity) map[string]*p4v1.Entity {
		m := map[string]*p4v1.Entity{}
		for _, e := range list {
			m[p4info.Key(e)] = e
		}
		return m
	}
	both, other := set(hop, route), set(entity(t, d.Info, hop2Text), route)
	for _, x := range []struct {
		have, want map[string]*p4v1.Entity
		updates    string
	}{
		{nil, both, "insert next_hop, insert ipv4_lpm"},
		{both, both, ""},
		{both, other, "modify next_hop"},
		{other, nil, "delete ipv4_lpm, delete next_hop"},
	} {
		updates = nil
		if err := s.Replace(within(t), d.Info, x.have, x.want, tables...); err != nil || strings.Join(updates, ", ") != x.updates {
			t.Errorf("%v, %q, want %q", err, updates, x.updates)
		}
	}
}

// A table that an app claims is left alone, and the intent may have nothing of it.
func TestClaim(t *testing.T) {
	f := ctltest.New(1)
	s, d := connect(t, f, "ipv4_router", "")
	apply(t, s, d)
	hop := entity(t, d.Info, hopText)
	if _, err := s.Put(within(t), update(hop)); err != nil {
		t.Fatal(err)
	}
	changes := func() int {
		diff, err := s.Diff(within(t), d, LeaveValues)
		if err != nil {
			t.Fatal(err)
		}
		return len(diff.Changes)
	}
	if n := changes(); n != 1 {
		t.Fatalf("%d changes before the claim, want the entry's deletion", n)
	}
	table := d.Info.Table(hop.GetTableEntry().TableId)
	for range 2 {
		if err := d.Claim(table); err != nil || len(d.Leave) != 1 || changes() != 0 {
			t.Errorf("%v, %v, %d changes", err, d.Leave, changes())
		}
	}
	d.Entities = append(d.Entities, hop)
	if err := d.Claim(table); err == nil || !strings.Contains(err.Error(), "is written by what runs here") {
		t.Error(err)
	}
}
