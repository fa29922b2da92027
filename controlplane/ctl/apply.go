package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
)

// program returns why d's program must be loaded, or "" if the device has it.
func (s *Session) program(ctx context.Context, d *Device) (why string, err error) {
	cookie := p4v1.GetForwardingPipelineConfigRequest_COOKIE_ONLY
	have, err := s.GetPipeline(ctx, cookie)
	switch {
	case errors.Is(err, ErrNoPipeline):
		if d.Pipeline == nil {
			return "", fmt.Errorf("%w, or name its config in the intent", err)
		}
		return "the device has none", nil
	case err != nil:
		return "", err
	case d.Pipeline != nil && have.Cookie == d.Pipeline.Cookie:
		return "", nil
	}
	// Another controller loaded this program, or another program.
	if have, err = s.GetPipeline(ctx, p4v1.GetForwardingPipelineConfigRequest_ALL); err != nil {
		return "", err
	}
	if have.Info == nil {
		if d.Pipeline == nil {
			return "", fmt.Errorf("%w, or name its config in the intent", ErrNoPipeline)
		}
		return "the device has none", nil
	}
	same := proto.Equal(have.Info, d.Info.Proto)
	switch {
	case d.Pipeline == nil && !same:
		return "", fmt.Errorf("%s: the device runs another program than the one of its p4info in the intent", s.Target)
	case d.Pipeline == nil || same && bytes.Equal(have.Config, d.Pipeline.Config):
		return "", nil
	}
	return "the device has another", nil
}

// Compare returns the difference between the session's device and d, including the program.
func (s *Session) Compare(ctx context.Context, d *Device, v Values) (*Diff, error) {
	why, err := s.program(ctx, d)
	if err != nil {
		return nil, err
	}
	if why == "" {
		return s.Diff(ctx, d, v)
	}
	out := &Diff{Device: d, Load: why}
	for _, e := range d.Entities {
		out.Changes = append(out.Changes, Change{Type: update(e).Type, Entity: e})
	}
	out.order(nil)
	return out, nil
}

// Load gives the device a program; the entities of the old program are lost. Load deletes multicast groups and
// clone sessions first, because bmv2 keeps them when it changes the program and does not show them.
func (s *Session) Load(ctx context.Context, p *Pipeline) error {
	var gone []*p4v1.Update
	err := s.Read(ctx, func(e *p4v1.Entity) error {
		gone = append(gone, &p4v1.Update{Type: p4v1.Update_DELETE, Entity: e})
		return nil
	}, p4info.Entity{Kind: p4info.KindMulticast}.Message(), p4info.Entity{Kind: p4info.KindClone}.Message())
	if err == nil { // else there is no program, or the device has neither groups nor sessions
		if _, err = s.Put(ctx, gone...); err != nil {
			return err
		}
	}
	return s.SetPipeline(ctx, p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, p)
}

// Outcome is the result of applying a Diff.
type Outcome struct {
	Loaded bool           // whether the program was loaded
	Done   int            // updates that were done
	Failed []*UpdateError // updates that failed
}

// Err returns an error if updates failed.
func (o *Outcome) Err() error {
	if len(o.Failed) == 0 {
		return nil
	}
	return &WriteError{Total: o.Done + len(o.Failed), Failed: o.Failed}
}

// Apply makes the changes of d, batch by batch. After an update that failed it continues with the other
// updates; it stops with an error if the connection is lost or another controller becomes primary.
func (s *Session) Apply(ctx context.Context, d *Diff, l Limits) (*Outcome, error) {
	o := &Outcome{}
	if d.Load != "" {
		if err := s.Load(ctx, d.Device.Pipeline); err != nil {
			return o, fmt.Errorf("%s: the program: %w", s.Target, err)
		}
		o.Loaded = true
		// The program may begin with entries; groups may outlive the program before.
		var err error
		if d, err = s.Diff(ctx, d.Device, WriteValues); err != nil {
			return o, err
		}
	}
	for _, b := range d.Plan(l) {
		var failed *WriteError
		err := s.Write(ctx, p4v1.WriteRequest_CONTINUE_ON_ERROR, b.Updates()...)
		if errors.As(err, &failed) {
			failed, err = s.insist(ctx, b, failed)
		}
		if err != nil {
			return o, fmt.Errorf("%s: %w", s.Target, err)
		}
		o.Done += len(b.Changes)
		if failed != nil {
			o.Done -= len(failed.Failed)
			o.Failed = append(o.Failed, failed.Failed...)
		}
	}
	return o, nil
}

// insist modifies the entities whose blind insertion (Change.Blind) failed because they existed already.
func (s *Session) insist(ctx context.Context, b Batch, failed *WriteError) (*WriteError, error) {
	blind := map[*p4v1.Entity]bool{}
	for _, c := range b.Changes {
		if c.Blind {
			blind[c.Entity] = true
		}
	}
	var again []*p4v1.Update
	rest := &WriteError{Total: failed.Total}
	for _, f := range failed.Failed {
		if f.Code == codes.AlreadyExists && blind[f.Update.Entity] {
			again = append(again, &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: f.Update.Entity})
		} else {
			rest.Failed = append(rest.Failed, f)
		}
	}
	if len(again) > 0 {
		var more *WriteError
		err := s.Write(ctx, p4v1.WriteRequest_CONTINUE_ON_ERROR, again...)
		if errors.As(err, &more) {
			rest.Failed, err = append(rest.Failed, more.Failed...), nil
		}
		if err != nil {
			return nil, err
		}
	}
	if len(rest.Failed) == 0 {
		return nil, nil
	}
	return rest, nil
}

// Text returns the update's entity as text, with the error.
func (e *UpdateError) Text(info *p4info.Info) string {
	sign := map[p4v1.Update_Type]string{p4v1.Update_INSERT: "insert ", p4v1.Update_MODIFY: "modify ", p4v1.Update_DELETE: "delete "}[e.Update.GetType()]
	return sign + info.Text(e.Update.GetEntity()) + ": " + e.Error()
}
