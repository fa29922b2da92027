package p4rt

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/quillon/quillon/controlplane/p4info"
)

// refusal returns an error with a canonical code.
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
	refused, err := report("updates", errs, room(ctx))
	s.stats.UpdateErrors.Add(uint64(refused))
	return &p4v1.WriteResponse{}, err
}

// write makes updates, and returns an error for each; nil for those that were made.
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
				digests = d.currentDigests()
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
		d.setCurrentDigests(digests)
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

// maxErrorText is the longest text of one update's error, in bytes. It is bounded because the status holds the
// errors of all updates, and clients bound the size of a status.
const maxErrorText = 240

// Bounds on the headers that a client accepts, in bytes. A status is one of the headers. A client that
// announces no bound gets unsaidHeaders, because gRPC in Go sends none. Other clients accept less than they
// announce: gRPC in C++ and Python announces 16 KiB, and may refuse headers longer than half of that; if it
// announces more, it refuses all that are longer than four fifths.
const (
	unsaidHeaders  = 16 << 20
	defaultHeaders = 16 << 10
)

// room returns how long the headers with a status may be for the client of a call.
func room(ctx context.Context) int {
	c := connOf(ctx)
	if c == nil {
		return unsaidHeaders
	}
	switch n := int(c.headers.Load()); {
	case n == 0:
		return unsaidHeaders
	case n <= defaultHeaders:
		return min(n*4/5, defaultHeaders/2)
	default:
		return min(n, 1<<30) * 4 / 5
	}
}

// headersSize returns an upper bound of the length of the headers with a status, including what gRPC and HTTP/2
// add to each of them.
func headersSize(st *status.Status) int {
	const names = len("grpc-status-details-bin") + len("grpc-message") + len("grpc-status") + len("content-type: application/grpc :status: 200") + 5*32
	return names + base64.RawStdEncoding.EncodedLen(proto.Size(st.Proto())) + 3*len(st.Message())
}

// report returns the status of a batch: nil, or Unknown with a p4.v1.Error for each element. bad is the number
// of elements that failed. If the status is longer than room, texts are cut; if it is too long even without
// texts, the code is ResourceExhausted without errors, as the P4Runtime specification says.
func report(what string, errs []error, room int) (bad int, err error) {
	if !slices.ContainsFunc(errs, func(e error) bool { return e != nil }) {
		return 0, nil
	}
	first := ""
	for _, err := range errs {
		if err == nil {
			continue
		}
		if bad == 0 {
			first = cut(statusOf(err).Message(), maxErrorText)
		}
		bad++
	}
	for _, most := range []int{maxErrorText, maxErrorText / 2, maxErrorText / 4, maxErrorText / 10, 0} {
		details := make([]protoadapt.MessageV1, len(errs))
		for n, err := range errs {
			e := &p4v1.Error{}
			if err != nil {
				st := statusOf(err)
				e.CanonicalCode, e.Message, e.Space = int32(st.Code()), cut(st.Message(), most), "quillon"
			}
			details[n] = protoadapt.MessageV1Of(e)
		}
		st, err := status.Newf(codes.Unknown, "%d of %d %s were refused, the first: %s", bad, len(errs), what, first).WithDetails(details...)
		if err != nil {
			return bad, status.Error(codes.Internal, err.Error())
		}
		if headersSize(st) <= room {
			return bad, st.Err()
		}
	}
	return bad, status.Errorf(codes.ResourceExhausted, "%d of %d %s were refused, and the client takes no answer with an error for each: let it take %d bytes of metadata (grpc.max_metadata_size), or send fewer at once; the first: %s",
		bad, len(errs), what, defaultHeaders/2+100*len(errs), first)
}

// cut returns at most the first most bytes of a text.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	if most == 0 {
		return ""
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
