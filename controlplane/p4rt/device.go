package p4rt

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
)

// Device is a data plane that the server stands in front of. Its methods are
// called by any goroutine; Build, Commit and the Write of its pipelines never by
// two at once. Refusals carry a canonical gRPC code: *p4info.Error, or an error
// of grpc's package status; any other error counts as Internal.
type Device interface {
	// Pipeline is what runs; nil: nothing yet, as no program was given.
	Pipeline() Pipeline
	// Build makes a pipeline of a configuration, in the state in which the
	// program begins. What runs is not touched, and is what it makes where the
	// device has one pipeline, for good. InvalidArgument: it cannot be realised.
	Build(info *p4info.Info, config []byte) (Pipeline, error)
	// Commit makes a pipeline that Build made run, with the state it has, in the
	// place of what ran before.
	Commit(p Pipeline) error
	// PacketOut sends a packet of the controller, whose metadata it checks.
	PacketOut(p *p4v1.PacketOut) error
	// Listen has f called for what the device has to say, by one goroutine of
	// the device, until stop is called. f does not block, and may keep what it
	// gets. There is one listener.
	Listen(f func(Event)) (stop func(), err error)
}

// Pipeline is a program with its state, in a device or built and not yet
// committed. What it gets has been checked by Info and is canonical; what it
// yields must be, and it must not be used by the pipeline afterwards.
type Pipeline interface {
	Info() *p4info.Info
	// Config is what Build was given; nil: it is not known.
	Config() []byte
	// Atomic is why Write cannot do that with these updates, which were not
	// checked yet; nil: it can. Every pipeline can CONTINUE_ON_ERROR.
	Atomic(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) error
	// Write makes updates in order and returns an error for each, nil for
	// those that were made; or nil: all were. With CONTINUE_ON_ERROR it tries
	// each, otherwise it makes all or none; those that would have been made
	// get Aborted then. Updates of digest entries do not come here.
	Write(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) []error
	// Read yields the entities that a query asks for, while the pipeline may go
	// on changing between two of them, until yield returns an error, which it
	// returns. An id of an object is never 0, other parts of a key may be left
	// out. Queries are table entries, members, groups, counters, meters,
	// registers, multicast groups, clone sessions and value sets. Of table
	// entries it yields the default entry alone when is_default_action is set,
	// else all others; it may yield more than the match, the priority, the
	// action and the metadata of the query ask for: the server leaves these
	// out. Counter data, meter configuration and the time since the last hit
	// are there if the query has them set; is_const is for the server to set
	// unless single entries are.
	Read(query *p4v1.Entity, yield func(*p4v1.Entity) error) error
}

// Event is one of the things that a device has to say.
type Event struct {
	PacketIn *p4v1.PacketIn
	// Digest is one message of a digest; the server makes lists of them.
	Digest   *p4v1.P4Data
	DigestID uint32
	// Idle are entries that had no hit for their idle timeout, with their key,
	// metadata and idle timeout. An entry is named again after another timeout.
	Idle []*p4v1.TableEntry
	// What was lost before it could be said: to be counted.
	PacketInsLost, DigestsLost uint64
}
