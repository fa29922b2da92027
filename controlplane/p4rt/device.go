package p4rt

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
)

// Device is a data plane that the server controls. Any goroutine may call its methods; no two goroutines call
// Build, Commit or the Write of one of its pipelines at the same time. An error carries a canonical gRPC code
// if it is a *p4info.Error or an error of grpc's package status; any other error counts as Internal.
type Device interface {
	// Pipeline returns the pipeline that runs, or nil if no program was loaded yet.
	Pipeline() Pipeline
	// Build makes a pipeline of a configuration, in the program's initial state. It does not change the
	// pipeline that runs; a device with one fixed pipeline returns that one. The error is InvalidArgument if
	// the device cannot run the configuration.
	Build(info *p4info.Info, config []byte) (Pipeline, error)
	// Commit makes a pipeline that Build returned run, with the state that it has, in place of the one that ran
	// before.
	Commit(p Pipeline) error
	// PacketOut sends a packet of the controller. The device checks the packet's metadata.
	PacketOut(p *p4v1.PacketOut) error
	// Listen makes one goroutine of the device call f with each Event, until stop is called. f does not block,
	// and may keep the Event. A device has one listener.
	Listen(f func(Event)) (stop func(), err error)
}

// Pipeline is a program with its state, whether it runs or not. The entities that its methods get were checked
// by Info and are canonical. Those that it yields must be canonical, too, and the pipeline must not use them
// afterwards.
type Pipeline interface {
	Info() *p4info.Info
	// Config returns the configuration that Build got, or nil if it is unknown.
	Config() []byte
	// Atomic returns an error if Write cannot make these updates with this atomicity, else nil. The updates
	// were not checked yet. Every pipeline supports CONTINUE_ON_ERROR.
	Atomic(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) error
	// Write makes updates in order. It returns an error for each update, nil for those that it made, or no list
	// at all if it made all of them. With CONTINUE_ON_ERROR it tries each update; otherwise it makes all or
	// none, and the updates that did not fail themselves get Aborted. Write never gets updates of digest
	// entries.
	Write(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) []error
	// Read yields the entities that a query asks for. If yield returns an error, Read stops and returns it. The
	// pipeline may change between two entities. A query asks for table entries, members, groups, counters,
	// meters, registers, multicast groups, clone sessions or value sets. The id of its object is never 0; other
	// parts of a key may be left out. For table entries, Read yields only the default entry if
	// is_default_action is set, else all other entries. It may yield entries whose match, priority, action or
	// metadata differ from the query's, because the server filters them. It fills in counter data, meter
	// configuration and the time since the last hit if the query has them set. It sets is_const only on single
	// entries; the server sets it for tables whose entries are all constant.
	Read(query *p4v1.Entity, yield func(*p4v1.Entity) error) error
}

// Event is a message from a device to the server.
type Event struct {
	PacketIn *p4v1.PacketIn
	// Digest is one message of a digest. The server puts the messages into lists.
	Digest   *p4v1.P4Data
	DigestID uint32
	// Idle are entries that were not hit during their idle timeout, with their key, metadata and idle timeout.
	// An entry is reported again after each further timeout.
	Idle []*p4v1.TableEntry
	// The numbers of packets and digest messages that were lost before they reached the server.
	PacketInsLost, DigestsLost uint64
}
