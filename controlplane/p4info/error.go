package p4info

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a refusal: a canonical gRPC code, and one line of text that names the object, the entry and the
// field.
type Error struct {
	Code codes.Code
	Text string
}

func (e *Error) Error() string { return e.Text }

// GRPCStatus returns the status of the error, so that status.Code and status.FromError find the code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Text) }

func refuse(c codes.Code, format string, args ...any) *Error {
	return &Error{c, fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error {
	return refuse(codes.InvalidArgument, format, args...)
}

// in puts where in front of an error's text.
func in(where string, err error) error {
	if e, ok := err.(*Error); ok {
		return &Error{e.Code, where + ": " + e.Text}
	}
	return err
}
