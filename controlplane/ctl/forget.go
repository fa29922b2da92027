package ctl

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4rt"
)

// Forget makes a device of quillon's server forget the arbitration of a role: the streams of all controllers of
// the role end, and the next primary may have any election id. The server allows it only to clients of its Unix
// socket.
func (d *Dialer) Forget(ctx context.Context, t Target) error {
	if err := d.Check(t.Address); err != nil {
		return fmt.Errorf("%s: %w", t, err)
	}
	c, err := d.get(t.Address)
	if err != nil {
		return fmt.Errorf("%s: %w", t, err)
	}
	defer d.put(c, true)
	err = c.Invoke(ctx, p4rt.ForgetMethod, &p4v1.MasterArbitrationUpdate{DeviceId: t.DeviceID, Role: &p4v1.Role{Name: t.Role}}, &emptypb.Empty{})
	if status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%s: only a quillon forgets, and only by its Unix socket: name that with --grpc-addr unix:PATH", t)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t, d.hint(requestError(err)))
	}
	return nil
}
