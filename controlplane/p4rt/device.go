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
	// Pipeline is the pipeline that runs; nil: no program was loaded yet.
	Pipeline() Pipeline
	// Build makes a pipeline of a configuration, in the program's initial state. The
	// pipeline that runs is not touched; a device with one fixed pipeline returns
	// that one. InvalidArgument: the device cannot run the configuration.
	Build(info *p4info.Info, config []byte) (Pipeline, error)
	// Commit has a pipeline of Build run, with the state that it has, instead of the one
	// that ran before.
	Commit(p Pipeline) error
	// PacketOut sends a packet of the controller, whose metadata it checks.
	PacketOut(p *p4v1.PacketOut) error
	// Listen has one goroutine of the device call f with each Event, until stop is
	// called. f does not block, and may keep the Event. There is one listener.
	Listen(f func(Event)) (stop func(), err error)
}

// Pipeline is a program with its state, committed to a device or not yet. The entities that it
// gets were checked by Info and are canonical; those that it yields must be canonical, too, and
// the pipeline must not use them afterwards.
type Pipeline interface {
	Info() *p4info.Info
	// Config is the configuration that Build got; nil: unknown.
	Config() []byte
	// Atomic says why Write cannot do these updates with this atomicity; nil: it can. The updates
	// were not checked yet. Every pipeline can CONTINUE_ON_ERROR.
	Atomic(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) error
	// Write makes updates in order and returns an error for each, nil for
	// those that were made; or nil: all were. With CONTINUE_ON_ERROR it tries
	// each, otherwise it makes all or none; those that would have been made
	// get Aborted then. Updates of digest entries do not come here.
	Write(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) []error
	// Read yields the entities that a query asks for. If yield returns an error, Read
	// stops and returns it. The pipeline may change between two entities. The id of
	// the query's object is never 0; other parts of a key may be left out. Queries are table entries, members, groups, counters, meters,
	// registers, multicast groups, clone sessions and value sets. Of table
	// entries it yields the default entry alone when is_default_action is set,
	// else all others; it may yield more than the match, the priority, the
	// action and the metadata of the query ask for: the server leaves these
	// out. Counter data, meter configuration and the time since the last hit
	// are there if the query has them set; is_const is for the server to set
	// unless single entries are.
	Read(query *p4v1.Entity, yield func(*p4v1.Entity) error) error
}

// Event is a message of a device to the server.
type Event struct {
	PacketIn *p4v1.PacketIn
	// Digest is one message of a digest; the server makes lists of them.
	Digest   *p4v1.P4Data
	DigestID uint32
	// Idle are entries that had no hit for their idle timeout, with their key,
	// metadata and idle timeout. An entry is named again after another timeout.
	Idle []*p4v1.TableEntry
	// How many of each were lost before the server got them.
	PacketInsLost, DigestsLost uint64
}
