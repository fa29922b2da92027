package ctl

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
)

// Event is a message of a device, with names in place of ids.
type Event struct {
	Kind   string            `json:"kind"` // digest, packet, idle, error
	Name   string            `json:"name,omitempty"`
	Fields map[string]string `json:"fields,omitempty"`
	Frame  string            `json:"frame,omitempty"` // hexadecimal
	Text   string            `json:"text"`
}

// Events returns the events in a message of a device; an arbitration update has none.
func Events(info *p4info.Info, m *p4v1.StreamMessageResponse) []Event {
	switch x := m.Update.(type) {
	case *p4v1.StreamMessageResponse_Digest:
		var out []Event
		d := info.Digest(x.Digest.DigestId)
		if d == nil {
			return nil
		}
		for _, data := range x.Digest.Data {
			e := Event{Kind: "digest", Name: d.Name, Fields: map[string]string{}}
			var parts []string
			for i, v := range d.Values(data) {
				f := d.Fields[i]
				e.Fields[f.Name] = p4info.FormatValue(f.Name, f.Type, v)
				parts = append(parts, f.Name+"="+e.Fields[f.Name])
			}
			if parts == nil {
				parts = []string{p4info.DataText(data)}
			}
			e.Text = "digest " + d.Name + " " + strings.Join(parts, " ")
			out = append(out, e)
		}
		return out
	case *p4v1.StreamMessageResponse_Packet:
		e := Event{Kind: "packet", Name: "packet_in", Fields: map[string]string{}, Frame: hex.EncodeToString(x.Packet.Payload)}
		var parts []string
		if info.PacketIn != nil {
			for _, v := range x.Packet.Metadata {
				if f := p4info.FieldByID(info.PacketIn.Fields, v.MetadataId); f != nil {
					e.Fields[f.Name] = p4info.FormatValue(f.Name, f.Type, v.Value)
					parts = append(parts, f.Name+"="+e.Fields[f.Name])
				}
			}
		}
		e.Text = fmt.Sprintf("packet %s: %d bytes %s", strings.Join(parts, " "), len(x.Packet.Payload), e.Frame)
		return []Event{e}
	case *p4v1.StreamMessageResponse_IdleTimeoutNotification:
		var out []Event
		for _, t := range x.IdleTimeoutNotification.TableEntry {
			e := p4info.EntryOf(t)
			out = append(out, Event{Kind: "idle", Name: name(info, t.TableId), Text: "idle " + info.Text(e)})
		}
		return out
	case *p4v1.StreamMessageResponse_Error:
		return []Event{{Kind: "error", Text: fmt.Sprintf("error %s: %s", codes.Code(x.Error.CanonicalCode), plain(x.Error.Message))}}
	}
	return nil
}

func name(info *p4info.Info, table uint32) string {
	if t := info.Table(table); t != nil {
		return t.Name
	}
	return fmt.Sprintf("0x%08x", table)
}

// Subscribe asks the device for the digests of a program, as c says, also for those that another controller asked for: what that one did not
// acknowledge is sent again when c's time for an acknowledgement is over, not its own. (PI, which bmv2 has, forgets it earlier if the digest is
// deleted, but its timers do not outlive that.)
func (s *Session) Subscribe(ctx context.Context, digests []*p4info.Digest, c *p4v1.DigestEntry_Config) error {
	for _, d := range digests {
		e := p4info.Entity{Kind: p4info.KindDigest, Object: d.ID, Digest: c}
		failed, err := s.Put(ctx, &p4v1.Update{Type: p4v1.Update_INSERT, Entity: e.Message()})
		if err == nil && len(failed) > 0 {
			err = failed[0]
		}
		if err != nil {
			return fmt.Errorf("%s: digest %s: %w", s.Target, d.Name, err)
		}
	}
	return nil
}
