package p4rt

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// recoverer turns a panic of a handler into an error, so that the server keeps running. Handlers unlock with
// defer, so that no lock stays locked after a panic.
type recoverer struct {
	log func(error)

	mu     sync.Mutex
	logged map[uintptr]bool // places whose panic was logged
}

// panicked returns the error for a request whose handler has panicked. It must be called from the deferred
// function.
func (r *recoverer) panicked(method string, v any) error {
	// The place is that of the panic: behind this one, the deferred function, and
	// those of the runtime.
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	place := uintptr(0)
	for {
		f, more := frames.Next()
		if place = f.PC; !more || !strings.HasPrefix(f.Function, "runtime.") {
			break
		}
	}
	r.mu.Lock()
	first := !r.logged[place]
	if r.logged == nil {
		r.logged = map[uintptr]bool{}
	}
	r.logged[place] = true
	r.mu.Unlock()
	if first && r.log != nil {
		r.log(fmt.Errorf("p4runtime: %s: a defect, and the request was given up: %v\n%s", method, v, debug.Stack()))
	}
	return status.Errorf(codes.Internal, "%s: a defect of the server: %v", method, v)
}

func (r *recoverer) unary(ctx context.Context, req any, i *grpc.UnaryServerInfo, h grpc.UnaryHandler) (answer any, err error) {
	defer func() {
		if v := recover(); v != nil {
			answer, err = nil, r.panicked(i.FullMethod, v)
		}
	}()
	return h(ctx, req)
}

func (r *recoverer) stream(srv any, s grpc.ServerStream, i *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = r.panicked(i.FullMethod, v)
		}
	}()
	return h(srv, s)
}
