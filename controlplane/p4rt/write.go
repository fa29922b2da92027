package p4rt

import (
	"context"
	"slices"
	"strings"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/quillon/quillon/controlplane/p4info"
)

// refusal is an error with a canonical code.
func refusal(c codes.Code, text string) error { return &p4info.Error{Code: c, Text: text} }

// Write implements the RPC.
func (s *Server) Write(ctx context.Context, r *p4v1.WriteRequest) (*p4v1.WriteResponse, error) {
	s.stats.Writes.Add(1)
	d, err := s.device(r.GetDeviceId())
	if err != nil {
		return nil, err
	}
	if r.GetRoleId() != 0 && r.GetRole() == "" { //nolint:staticcheck // to say what has become of it
		return nil, status.Error(codes.InvalidArgument, "a role has a name, since version 1.4 of P4Runtime, and no id")
	}
	who := callerOf(ctx)
	if _, err := d.primary(who, r.GetRole(), r.GetElectionId()); err != nil {
		return nil, err // before it waits for its turn
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	scope, err := d.primary(who, r.GetRole(), r.GetElectionId())
	if err != nil {
		return nil, err
	}
	p := d.current()
	if p == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "device %d has no pipeline: set one first", d.id)
	}
	switch a := r.GetAtomicity(); a {
	case p4v1.WriteRequest_CONTINUE_ON_ERROR:
	case p4v1.WriteRequest_ROLLBACK_ON_ERROR, p4v1.WriteRequest_DATAPLANE_ATOMIC:
		if err := p.Atomic(r.GetUpdates(), a); err != nil {
			return nil, statusOf(err).Err()
		}
	default:
		return nil, status.Errorf(codes.InvalidArgument, "an atomicity of %d", a)
	}
	errs := d.write(p, scope, r.GetUpdates(), r.GetAtomicity())
	s.stats.Updates.Add(uint64(len(errs)))
	refused, err := report("updates", errs)
	s.stats.UpdateErrors.Add(uint64(refused))
	return &p4v1.WriteResponse{}, err
}

// write makes updates, and returns an error for each.
func (d *device) write(p Pipeline, scope *scope, updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) []error {
	errs := make([]error, len(updates))
	all := a != p4v1.WriteRequest_CONTINUE_ON_ERROR
	pass := make([]*p4v1.Update, 0, len(updates))
	at := make([]int, 0, len(updates))
	var digests map[uint32]*p4v1.DigestEntry_Config
	failed := false
	for n, u := range updates {
		err := p.Info().Update(u)
		if err == nil && !scope.allows(p.Info(), u.GetEntity()) {
			err = refusal(codes.PermissionDenied, "outside of what the role may write: "+p.Info().Text(u.GetEntity()))
		}
		if e := u.GetEntity().GetDigestEntry(); e != nil && err == nil {
			if digests == nil {
				digests = d.digestConfigs()
			}
			err = writeDigest(p.Info(), digests, u.GetType(), e)
		} else if err == nil {
			pass, at = append(pass, u), append(at, n)
		}
		errs[n] = err
		failed = failed || err != nil
	}
	if !failed || !all {
		for k, err := range p.Write(pass, a) {
			errs[at[k]] = err
			failed = failed || err != nil
		}
	}
	if failed && all {
		for n := range errs {
			if errs[n] == nil {
				errs[n] = refusal(codes.Aborted, "not made, as another update of the request was refused")
			}
		}
		return errs
	}
	if digests != nil {
		d.setDigests(digests)
	}
	return errs
}

// writeDigest changes the configuration of a digest.
func writeDigest(i *p4info.Info, m map[uint32]*p4v1.DigestEntry_Config, op p4v1.Update_Type, e *p4v1.DigestEntry) error {
	id := e.GetDigestId()
	_, there := m[id]
	switch {
	case op == p4v1.Update_INSERT && there:
		return refusal(codes.AlreadyExists, "digest "+i.Digest(id).Name+" is there already")
	case op != p4v1.Update_INSERT && !there:
		return refusal(codes.NotFound, "digest "+i.Digest(id).Name+" was not inserted")
	case op == p4v1.Update_DELETE:
		delete(m, id)
	default:
		m[id] = e.GetConfig()
		if m[id] == nil {
			m[id] = &p4v1.DigestEntry_Config{}
		}
	}
	return nil
}

// maxErrorText bounds the text of one update's error, in bytes. The status has the errors of all updates, and
// clients bound the size of a status.
const maxErrorText = 240

// report is the status of a batch: nil, or Unknown with a p4.v1.Error for each of
// its elements; bad is how many were refused.
func report(what string, errs []error) (bad int, err error) {
	if !slices.ContainsFunc(errs, func(e error) bool { return e != nil }) {
		return 0, nil
	}
	details := make([]protoadapt.MessageV1, len(errs))
	first := ""
	for n, err := range errs {
		e := &p4v1.Error{}
		if err != nil {
			st := statusOf(err)
			e.CanonicalCode, e.Message, e.Space = int32(st.Code()), st.Message(), "quillon"
			if len(e.Message) > maxErrorText {
				e.Message = strings.ToValidUTF8(e.Message[:maxErrorText], "") + "…"
			}
			if bad == 0 {
				first = e.Message
			}
			bad++
		}
		details[n] = protoadapt.MessageV1Of(e)
	}
	st, err := status.Newf(codes.Unknown, "%d of %d %s were refused, the first: %s", bad, len(errs), what, first).WithDetails(details...)
	if err != nil {
		return bad, status.Error(codes.Internal, err.Error())
	}
	return bad, st.Err()
}
