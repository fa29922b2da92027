package p4rt

import "sync/atomic"

// Stats counts what a server did. All values only grow, except Streams.
type Stats struct {
	Streams           atomic.Int64 // controllers that are connected
	ArbitrationErrors atomic.Uint64
	Writes            atomic.Uint64 // requests
	Updates           atomic.Uint64
	UpdateErrors      atomic.Uint64
	Reads             atomic.Uint64 // requests
	EntitiesRead      atomic.Uint64
	Pipelines         atomic.Uint64 // committed
	PacketIns         atomic.Uint64
	PacketInsLost     atomic.Uint64 // no primary, or it was too slow
	PacketOuts        atomic.Uint64
	PacketOutErrors   atomic.Uint64
	Digests           atomic.Uint64 // messages that came
	DigestLists       atomic.Uint64
	DigestsLost       atomic.Uint64 // not asked for, no primary, or it was too slow
	IdleNotices       atomic.Uint64
	IdleNoticesLost   atomic.Uint64
	ConnsRefused      atomic.Uint64 // not let in, or ended for going over a limit
	StreamsRefused    atomic.Uint64
	CallsRefused      atomic.Uint64
}

// Stats returns the server's counters.
func (s *Server) Stats() *Stats { return &s.stats }

// Each calls f for every counter, with its name in snake case. gauge says that the value may fall.
func (s *Stats) Each(f func(name, help string, gauge bool, value float64)) {
	f("streams", "Controllers that are connected.", true, float64(s.Streams.Load()))
	for _, c := range []struct {
		name, help string
		v          *atomic.Uint64
	}{
		{"arbitration_errors", "Streams that were ended for a wrong claim.", &s.ArbitrationErrors},
		{"writes", "Write requests.", &s.Writes},
		{"updates", "Updates of Write requests.", &s.Updates},
		{"update_errors", "Updates that were refused.", &s.UpdateErrors},
		{"reads", "Read requests.", &s.Reads},
		{"entities_read", "Entities in answers to Read requests.", &s.EntitiesRead},
		{"pipelines", "Pipelines that were committed.", &s.Pipelines},
		{"packet_ins", "Packets sent to controllers.", &s.PacketIns},
		{"packet_ins_lost", "Packets for controllers that had none to go to, or that was too slow.", &s.PacketInsLost},
		{"packet_outs", "Packets of controllers.", &s.PacketOuts},
		{"packet_out_errors", "Packets of controllers that were refused.", &s.PacketOutErrors},
		{"digests", "Digest messages of the devices.", &s.Digests},
		{"digest_lists", "Lists of digest messages sent to controllers.", &s.DigestLists},
		{"digests_lost", "Digest messages that nobody had asked for, or whose controller was too slow.", &s.DigestsLost},
		{"idle_notices", "Entries whose idle timeout was reported.", &s.IdleNotices},
		{"idle_notices_lost", "Entries whose idle timeout had no controller to go to, or that was too slow.", &s.IdleNoticesLost},
		{"connections_refused", "Connections that were not let in, or were ended, as a client had too many, sent too much or was not allowed in.", &s.ConnsRefused},
		{"streams_refused", "Streams that were ended as there were too many, or as they claimed nothing.", &s.StreamsRefused},
		{"calls_refused", "Requests that were refused as their client had too many under way.", &s.CallsRefused},
	} {
		f(c.name+"_total", c.help, false, float64(c.v.Load()))
	}
}
