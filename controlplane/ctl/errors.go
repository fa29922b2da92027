package ctl

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// ErrNotPrimary says that the device does not accept writes from the session, because another controller has a
// higher election id.
var ErrNotPrimary = errors.New("not primary")

// ErrNotConnected says that there is no connection to the device.
var ErrNotConnected = errors.New("not connected")

// ErrNoPipeline says that the device has no program.
var ErrNoPipeline = errors.New("the device has no program: quillon ctl set-pipeline loads one")

// UpdateError is the device's error for one update.
type UpdateError struct {
	Update  *p4v1.Update
	Code    codes.Code // the canonical one
	Message string
	Space   string // of Own, the device's
	Own     int32  // the device's own number of the reason
}

func (e *UpdateError) Error() string {
	msg := plain(e.Message)
	msg = cmp.Or(msg, "the device gives no reason")
	if e.Own != 0 {
		return fmt.Sprintf("%s: %s (%s %d)", e.Code, msg, e.Space, e.Own)
	}
	return fmt.Sprintf("%s: %s", e.Code, msg)
}

// WriteError is the error of a request of which some updates failed; the other updates were done.
type WriteError struct {
	Total  int
	Failed []*UpdateError
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("%d of %d updates failed: %v", len(e.Failed), e.Total, e.Failed[0])
}

// Unwrap returns the errors of the updates.
func (e *WriteError) Unwrap() []error {
	all := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		all[i] = f
	}
	return all
}

// writeError decodes the answer to a Write. PI, the library in bmv2, answers UNKNOWN with a p4.v1.Error for
// every update, including those that succeeded. Other servers use another code for the request, wrap each error
// in a google.rpc.Status, or give no details, which is enough for a single update.
func writeError(err error, updates []*p4v1.Update) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	var each []*UpdateError
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *p4v1.Error:
			each = append(each, &UpdateError{Code: codes.Code(d.CanonicalCode), Message: d.Message, Space: d.Space, Own: d.Code})
		case *rpcstatus.Status:
			each = append(each, &UpdateError{Code: codes.Code(d.Code), Message: d.Message})
		}
	}
	if len(each) == len(updates) {
		w := &WriteError{Total: len(updates)}
		for i, e := range each {
			if e.Code != codes.OK {
				e.Update = updates[i]
				w.Failed = append(w.Failed, e)
			}
		}
		if len(w.Failed) > 0 {
			return w
		}
	}
	if len(updates) == 1 && len(each) == 0 && perUpdate(st.Code()) {
		return &WriteError{Total: 1, Failed: []*UpdateError{{Update: updates[0], Code: st.Code(), Message: st.Message()}}}
	}
	if len(each) > 0 {
		why := make([]string, 0, len(each))
		for _, e := range each {
			if e.Code != codes.OK {
				why = append(why, e.Error())
			}
		}
		if len(why) > 0 {
			return fmt.Errorf("%w; the device gives %d reasons for %d updates: %s", requestError(err), len(each), len(updates), strings.Join(why, ", "))
		}
	}
	return requestError(err)
}

// perUpdate reports whether the code of a request with a single update can be the code of that update.
func perUpdate(c codes.Code) bool {
	switch c {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.PermissionDenied, codes.Unauthenticated:
		return false
	}
	return true
}

// readError decodes the answer to a Read. By the specification its code is UNKNOWN, with a p4.v1.Error for each
// query; readError returns the first that is not OK. Other servers answer with the code of the query that
// failed.
func readError(err error) error {
	if st := status.Convert(err); st.Code() == codes.Unknown {
		for _, d := range st.Details() {
			if e, ok := d.(*p4v1.Error); ok && codes.Code(e.CanonicalCode) != codes.OK {
				return &callError{status.New(codes.Code(e.CanonicalCode), e.Message)}
			}
		}
	}
	return requestError(err)
}

// requestError returns the error of a whole request, in words.
func requestError(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch msg := st.Message(); {
	case st.Code() == codes.PermissionDenied && (msg == "" || strings.Contains(strings.ToLower(msg), "primary") || strings.Contains(strings.ToLower(msg), "master")):
		return fmt.Errorf("%w: %s", ErrNotPrimary, strings.TrimPrefix(plain(msg), ErrNotPrimary.Error()+": "))
	case st.Code() == codes.Unavailable, st.Code() == codes.Canceled:
		return fmt.Errorf("%w: %w", ErrNotConnected, &callError{st})
	default:
		return &callError{st}
	}
}

// plain returns a device's message as one line of printable characters.
func plain(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
}

// callError is a gRPC status as one line: what happened, then the code.
type callError struct{ st *status.Status }

func (e *callError) Error() string {
	if e.st.Message() == "" {
		return e.st.Code().String()
	}
	return fmt.Sprintf("%s (%s)", plain(dialed(e.st.Message())), e.st.Code())
}

// dialed returns the reason that gRPC's message about a failed connection contains.
func dialed(msg string) string {
	quoted, ok := strings.CutPrefix(msg, "connection error: desc = ")
	if !ok {
		return msg
	}
	why, err := strconv.Unquote(quoted)
	if err != nil {
		return msg
	}
	return strings.TrimPrefix(why, "transport: Error while dialing: ")
}

func (e *callError) GRPCStatus() *status.Status { return e.st }
