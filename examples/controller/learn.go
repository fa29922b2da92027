// Package controller holds two P4Runtime controller applications to start from: Learner makes a learning bridge
// from digests, and Router makes a router from packet-in and packet-out. The commands "quillon ctl learn" and
// "quillon ctl route" run them.
package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/value"
)

// Learner turns a device into a learning bridge. The device's program must report source addresses with digest
// learn_t (fields src, vid and port), as p4src's l2_bridge does. Learner writes two tables: smac (key vid, src;
// action known, with the idle timeout) and dmac (key vid, dst; action forward). When an address shows up at
// another port, Learner changes its entries; when the entry in smac was idle for the timeout, Learner deletes
// both entries.
type Learner struct {
	// Idle is the time after which an address that sends nothing is deleted; 0: never.
	Idle time.Duration
	// Most is the highest number of addresses that are learnt; 0: only the size of the tables limits them.
	Most int
	// Report, if it is not nil, gets a line of text for each address that is learnt or deleted.
	Report func(string)

	info           *p4info.Info
	digest         *p4info.Digest
	src, vid, port int // of the digest's fields
	smac, dmac     *p4info.Table
	known, forward *p4info.ActionRef
	at             map[place]uint32 // port, of each address
	full           bool             // and reported
}

// place is a VLAN and a MAC address, both as canonical byte strings.
type place struct{ vid, mac string }

// Claim implements ctl.App.
func (l *Learner) Claim(d *ctl.Device) (err error) {
	l.info = d.Info
	if l.digest, err = p4info.ByName(d.Info.Digests, "digest", "learn_t"); err != nil {
		return fmt.Errorf("%s: the program does not learn: %w", d.Target, err)
	}
	for name, i := range map[string]*int{"src": &l.src, "vid": &l.vid, "port": &l.port} {
		*i = slices.IndexFunc(l.digest.Fields, func(f p4info.Field) bool { return f.Name == name })
		if *i < 0 {
			return fmt.Errorf("%s: digest %s has no field %s", d.Target, l.digest.Name, name)
		}
	}
	for name, t := range map[string]**p4info.Table{"smac": &l.smac, "dmac": &l.dmac} {
		if *t, err = p4info.ByName(d.Info.Tables, "table", name); err != nil {
			return fmt.Errorf("%s: %w", d.Target, err)
		}
		if len((*t).Fields) != 2 {
			return fmt.Errorf("%s: table %s: want a key of a VLAN and an address", d.Target, (*t).Name)
		}
	}
	if l.known, err = l.smac.Action("known"); err != nil {
		return fmt.Errorf("%s: %w", d.Target, err)
	}
	if l.forward, err = l.dmac.Action("forward"); err != nil {
		return fmt.Errorf("%s: %w", d.Target, err)
	}
	return d.Claim(l.smac, l.dmac)
}

// entryFor returns the entry of table t for p.
func entryFor(t *p4info.Table, a *p4info.ActionRef, p place, port uint32, idle time.Duration) *p4v1.Entity {
	exact := func(f p4info.Field, v string) *p4v1.FieldMatch {
		return &p4v1.FieldMatch{FieldId: f.ID, FieldMatchType: &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: []byte(v)}}}
	}
	return &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{
		TableId: t.ID, Match: []*p4v1.FieldMatch{exact(t.Fields[0], p.vid), exact(t.Fields[1], p.mac)}, IdleTimeoutNs: int64(idle),
		Action: &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: &p4v1.Action{ActionId: a.ID, Params: []*p4v1.Action_Param{{ParamId: a.Params[0].ID, Value: value.Bytes(uint64(port))}}}}},
	}}}
}

// entries returns updates of type t for the entries of p in both tables.
func (l *Learner) entries(t p4v1.Update_Type, p place, port uint32) []*p4v1.Update {
	return []*p4v1.Update{
		{Type: t, Entity: entryFor(l.dmac, l.forward, p, port, 0)},
		{Type: t, Entity: entryFor(l.smac, l.known, p, port, l.Idle)},
	}
}

// placeOf returns the address and the port of an entry of dmac or smac. ok is false if the key has another
// shape; port is 0 if the action has not exactly one parameter.
func placeOf(t *p4v1.TableEntry) (p place, port uint32, ok bool) {
	if len(t.Match) != 2 {
		return p, 0, false
	}
	p = place{string(t.Match[0].GetExact().GetValue()), string(t.Match[1].GetExact().GetValue())}
	if params := t.Action.GetAction().GetParams(); len(params) == 1 {
		port = p4info.PortNumber(params[0].Value)
	}
	return p, port, true
}

// Begin implements ctl.App: it asks for the digest, and takes over the entries that the tables hold where the
// two tables agree.
func (l *Learner) Begin(ctx context.Context, s *ctl.Session) error {
	l.at, l.full = map[place]uint32{}, false
	var updates []*p4v1.Update
	to := map[place]uint32{} // dmac's
	err := s.Entries(ctx, l.info, func(e *p4v1.Entity) error {
		t := e.GetTableEntry()
		p, port, ok := placeOf(t)
		if !ok {
			return nil
		}
		if t.TableId == l.dmac.ID {
			if t.Action.GetAction().GetActionId() != l.forward.ID {
				port = ^uint32(0)
			}
			to[p] = port
			return nil
		}
		l.at[p] = port
		if t.IdleTimeoutNs != int64(l.Idle) {
			updates = append(updates, &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: entryFor(l.smac, l.known, p, port, l.Idle)})
		}
		return nil
	}, l.dmac, l.smac)
	if err != nil {
		return err
	}
	for p, port := range l.at {
		if at, ok := to[p]; !ok || at != port {
			updates = append(updates, l.entries(p4v1.Update_MODIFY, p, port)[0])
		}
	}
	for p := range to {
		if _, ok := l.at[p]; !ok {
			updates = append(updates, l.entries(p4v1.Update_DELETE, p, 0)[0])
		}
	}
	if err := l.write(ctx, s, updates); err != nil {
		return err
	}
	return s.Subscribe(ctx, []*p4info.Digest{l.digest}, &p4v1.DigestEntry_Config{
		MaxTimeoutNs: int64(20 * time.Millisecond), MaxListSize: 100, AckTimeoutNs: int64(time.Second),
	})
}

// Handle implements ctl.App. It writes at most one change for each address, the last one, because a device may
// carry out the updates of one request in any order.
func (l *Learner) Handle(ctx context.Context, s *ctl.Session, messages []*p4v1.StreamMessageResponse) error {
	const gone = ^uint32(0)
	news := map[place]uint32{}
	var order []place
	note := func(p place, port uint32) {
		if _, ok := news[p]; !ok {
			order = append(order, p)
		}
		news[p] = port
	}
	for _, m := range messages {
		if d := m.GetDigest(); d != nil && d.DigestId == l.digest.ID {
			for _, data := range d.Data {
				if v := l.digest.Values(data); v != nil {
					vid, _ := p4info.Canonical(v[l.vid], l.digest.Fields[l.vid].Type.Bits)
					src, _ := p4info.Canonical(v[l.src], l.digest.Fields[l.src].Type.Bits)
					note(place{string(vid), string(src)}, p4info.PortNumber(v[l.port]))
				}
			}
		}
		for _, t := range m.GetIdleTimeoutNotification().GetTableEntry() {
			if t.TableId != l.smac.ID {
				continue
			}
			// The key is enough, and all that some servers tell.
			e := p4info.EntryOf(&p4v1.TableEntry{TableId: t.TableId, Match: t.Match})
			if l.info.Update(&p4v1.Update{Type: p4v1.Update_DELETE, Entity: e}) != nil {
				continue
			}
			if p, _, ok := placeOf(e.GetTableEntry()); ok {
				note(p, gone)
			}
		}
	}
	var updates []*p4v1.Update
	for _, p := range order {
		port := news[p]
		was, known := l.at[p]
		switch {
		case port == gone && known:
			delete(l.at, p)
			l.report("forgotten", p, was)
			updates = append(updates, l.entries(p4v1.Update_DELETE, p, 0)...)
		case port == gone:
		case !known:
			if l.Most > 0 && len(l.at) >= l.Most {
				if !l.full && l.Report != nil {
					l.Report(fmt.Sprintf("%d addresses are known: no more are learnt", len(l.at)))
				}
				l.full = true
				continue
			}
			l.at[p] = port
			l.report("learnt", p, port)
			updates = append(updates, l.entries(p4v1.Update_INSERT, p, port)...)
		case was != port:
			l.at[p] = port
			l.report("moved", p, port)
			updates = append(updates, l.entries(p4v1.Update_MODIFY, p, port)...)
		}
	}
	if err := l.write(ctx, s, updates); err != nil {
		return err
	}
	for _, m := range messages {
		if d := m.GetDigest(); d != nil {
			if err := s.Acknowledge(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// Tick implements ctl.App.
func (l *Learner) Tick(context.Context, *ctl.Session) error { return nil }

// write writes entries. It does not count a full table as an error.
func (l *Learner) write(ctx context.Context, s *ctl.Session, updates []*p4v1.Update) error {
	failed, err := s.Put(ctx, updates...)
	if err != nil {
		return err
	}
	var drop []*p4v1.Update
	for _, f := range failed {
		if f.Code != codes.ResourceExhausted {
			return fmt.Errorf("%s", f.Text(l.info))
		}
		p, port, _ := placeOf(f.Update.Entity.GetTableEntry())
		delete(l.at, p)
		l.report("not learnt, as a table is full:", p, port)
		drop = append(drop, l.entries(p4v1.Update_DELETE, p, 0)...)
	}
	if len(drop) > 0 {
		_, err = s.Put(ctx, drop...)
	}
	return err
}

func (l *Learner) report(what string, p place, port uint32) {
	if l.Report == nil {
		return
	}
	mac := p4info.FormatValue("mac", p4info.Type{Bits: 48}, []byte(p.mac))
	vid := p4info.FormatValue("vid", p4info.Type{Bits: 12}, []byte(p.vid))
	l.Report(fmt.Sprintf("%s %s in VLAN %s at port %d", what, mac, vid, port))
}
