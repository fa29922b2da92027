package clover

import (
	"net/netip"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// Mode selects the requests that are steered: none, CASes, or CASes and READs.
type Mode uint8

const (
	Off Mode = iota
	Write
	ReadWrite
)

var modeNames = [...]string{"off", "write", "read-write"}

func (m Mode) String() string { return modeNames[m] }

// Reasons: why a frame went the way it did. The first NumWhy are hdr's.
const (
	reasonSteeredCAS graph.Reason = graph.Reason(hdr.NumWhy) + iota
	reasonSteeredRead
	reasonRestoredAck
	reasonRestoredRead
	reasonRepeated
	reasonRepaired
	reasonBadChecksum
	reasonBadICRC
	reasonConnFull
	reasonKeyFull
	reasonPSNGap
	reasonUnpaired
	reasonUnknownTail
	reasonUnattributed
	reasonUnproven
	reasonVersion
	reasonOtherRegion
	reasonWindowFull
	reasonOtherAtomic
	reasonReadMiss
	reasonReadClass
	reasonAhead
	reasonHere
	reasonHoldFull
	reasonNoRoom
	reasonUnheld
	reasonCut
	reasonJournalFull
	reasonEnding
	reasonAsked
	reasonAwaits
	reasonInstead
	numReasons
)

var reasons = func() []counter.Def {
	d := make([]counter.Def, numReasons)
	whyHelp := [hdr.NumWhy]string{
		"RoCE, forwarded", "not RoCE, forwarded", "a header does not fit in the frame", "length fields contradict each other",
		"IP version or header length is wrong", "an IP fragment", "more than two VLAN tags", "no such RoCE opcode", "RoCE transport version is not 0",
	}
	for w := hdr.Why(0); w < hdr.NumWhy; w++ {
		d[w] = counter.Def{Name: w.String(), Help: whyHelp[w]}
	}
	for r, x := range map[graph.Reason]counter.Def{
		reasonSteeredCAS:   {Name: "steered-cas", Help: "a compare-and-swap was sent to the key's tail instead of a stale entry"},
		reasonSteeredRead:  {Name: "steered-read", Help: "a read was sent to the key's tail instead of a stale entry"},
		reasonRestoredAck:  {Name: "restored-ack", Help: "the answer to a steered compare-and-swap was put into the terms of the request"},
		reasonRestoredRead: {Name: "restored-read", Help: "the answer to a steered read got the version of the entry that was asked for"},
		reasonRepeated:     {Name: "repeated", Help: "a retransmission took the road of the original"},
		reasonRepaired:     {Name: "repaired", Help: "a steered compare-and-swap stayed unanswered and was sent again"},
		reasonBadChecksum:  {Name: "bad-ip-checksum", Help: "IPv4 header checksum is wrong"},
		reasonBadICRC:      {Name: "bad-icrc", Help: "the invariant CRC is wrong"},
		reasonConnFull:     {Name: "conn-table-full", Help: "no row is free for a new connection (conns=)"},
		reasonKeyFull:      {Name: "key-not-steered", Help: "the key is not chosen, not hot enough, or the table is full (keys=, only=, hot=)"},
		reasonPSNGap:       {Name: "psn-gap", Help: "a request ahead of its turn; the server will ask for the missing ones"},
		reasonUnpaired:     {Name: "unpaired", Help: "the connection's other direction is not known yet"},
		reasonUnknownTail:  {Name: "unknown-tail", Help: "the key's tail is not known for sure"},
		reasonUnattributed: {Name: "unattributed-cas", Help: "a compare-and-swap whose written entry is not known for sure"},
		reasonUnproven:     {Name: "unproven", Help: "a compare-and-swap behind a request that is not answered, or of a connection whose first atomic it is, or whose answers do not count yet: others are led behind those alone that nothing keeps from being executed"},
		reasonVersion:      {Name: "other-version", Help: "the tail's version is not that of the entry that was asked for (recycled=)"},
		reasonOtherRegion:  {Name: "other-region", Help: "the tail was written under another R_Key than the request's: its memory may be another server's, or gone"},
		reasonWindowFull:   {Name: "window-full", Help: "too many unanswered requests on the connection to remember one more"},
		reasonOtherAtomic:  {Name: "other-atomic", Help: "an atomic that is not Clover's append"},
		reasonReadMiss:     {Name: "read-miss", Help: "a read of an address that no tracked write went to"},
		reasonAhead:        {Name: "tail-not-linked", Help: "more appends of the key are under way than others may stand behind (ahead=)"},
		reasonHere:         {Name: "answer-held", Help: "an answer like it is held until what it stands behind is linked"},
		reasonHoldFull:     {Name: "hold-full", Help: "not steered, since there would be no room for an answer that had to wait (hold=)"},
		reasonNoRoom:       {Name: "no-room", Help: "an answer behind one that waits, and no room to hold it (hold=): it will be asked for again"},
		reasonUnheld:       {Name: "unheld", Help: "an answer that was held when its connection ended, or the app stopped or forgot; or that another worker sent a copy of"},
		reasonCut:          {Name: "chain-cut", Help: "an append succeeded behind one that never will: its client must not believe it"},
		reasonJournalFull:  {Name: "journal-full", Help: "not steered, since as many steered compare-and-swaps are on record as can be that are not known to be linked"},
		reasonEnding:       {Name: "ending", Help: "not steered, since the process ends"},
		reasonAsked:        {Name: "asked", Help: "an empty WRITE that the server takes for a repetition: it says where a connection is that was on record"},
		reasonAwaits:       {Name: "awaits", Help: "an atomic to where a steered compare-and-swap is under way, which may be lost: it is asked for again"},
		reasonInstead:      {Name: "instead", Help: "another request with the PSN of a steered compare-and-swap that the server has not answered: that is sent again"},
		reasonReadClass:    {Name: "read-class", Help: "the tail has another size than the entry that was asked for"},
	} {
		d[r] = x
	}
	return d
}()

// Counters.
const (
	ctrRequests counter.ID = iota
	ctrResponses
	ctrBytes
	ctrConns
	ctrKeys
	ctrKnown
	ctrAppends
	ctrConfirmed
	ctrFailed
	ctrDropped
	ctrOrphans
	ctrGivenUp
	ctrCut
	ctrHeld
	ctrWaited
	ctrDoubts
	ctrFlushes
	ctrEvicted
	ctrInherited
	ctrDisowned
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrRequests:  {Name: "requests", Help: "RoCE requests seen"},
	ctrResponses: {Name: "responses", Help: "RoCE responses seen"},
	ctrBytes:     {Name: "roce-bytes", Help: "bytes of RoCE frames seen, both directions"},
	ctrConns:     {Name: "conns", Help: "connections tracked now"},
	ctrKeys:      {Name: "keys", Help: "keys tracked now"},
	ctrKnown:     {Name: "tails-learnt", Help: "times that a key's tail became known"},
	ctrAppends:   {Name: "appends", Help: "compare-and-swaps of tracked keys sent to a known tail, rewritten or not"},
	ctrConfirmed: {Name: "appends-acked", Help: "of those, answered with success"},
	ctrFailed:    {Name: "appends-failed", Help: "of those, answered with failure"},
	ctrDropped:   {Name: "tails-dropped", Help: "times that a known tail was given up"},
	ctrOrphans:   {Name: "orphans", Help: "failed appends behind which others stand until their client links them"},
	ctrGivenUp:   {Name: "given-up", Help: "steered compare-and-swaps that stayed unanswered after all repairs"},
	ctrCut:       {Name: "chains-cut", Help: "times that appends were given up, and the clients of those behind them with them"},
	ctrHeld:      {Name: "held", Help: "answers held now"},
	ctrWaited:    {Name: "waited", Help: "answers that had to be held"},
	ctrDoubts:    {Name: "doubts", Help: "times that all of a server's memory became unknown: a frame passed that may write anywhere"},
	ctrFlushes:   {Name: "flushes", Help: "times that everything was forgotten: start, mode switch, bypass"},
	ctrInherited: {Name: "inherited", Help: "steered compare-and-swaps that were taken over from the record: of a process before this one, or of before a bypass"},
	ctrDisowned:  {Name: "disowned", Help: "of those, not taken over: too old, damaged, or no room (see the app's report)"},
	ctrEvicted:   {Name: "keys-evicted", Help: "keys that made room for hotter ones"},
}

// Kind declares clover-steer.
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "clover-steer",
		Summary: "resolve Clover's write and read conflicts in flight",
		Doc: `Clover's clients append to a key's chain by writing an entry and then
linking it with a compare-and-swap on the entry that they take for the tail.
When another client was faster, the request fails and the client walks the
chain. This app, on the path of all requests to the memory node, knows the
true tail: it sends a stale compare-and-swap (and, in mode read-write, a stale
read) to it instead, and turns the answer back into what the client expects.

What it remembers of keys is not needed for correctness: what it does not know for
sure passes untouched, and Clover's own recovery takes over. What a frame claims
is not known: it is when the server has answered it. Connections are learnt from
the connection manager's datagrams, or from requests and their answers.

Name the memory nodes (servers=): other traffic then crosses in the kernel, and
takes no room in the tables. What was not used for as long as idle= makes room
for what is. Give idle= longer than the clients repeat a request: a request that
is lost behind the app is waited for as long.

A client is told that its append succeeded when all before it, back to the
chain's beginning, did: answers that come earlier are held, and a request that
was lost behind the app is repeated. If the app dies at that moment, and with it
the client whose request was lost, the next process repeats it from the state file
(run --state). Until then other clients' atomics at that place are held, for a minute
at most: they are repeated. If the request was refused before, and its client died before
it had linked its entry elsewhere, appends behind it were acknowledged and cannot be
reached. With ahead=0 that cannot happen, since no request is sent behind what is not
known to be linked; hot keys are then steered less.

With recycled=adjust one thing is: requests that expect another entry version
than the tail's are steered, too, and their answers turned back. When an answer
then passes while this process is gone, a client takes success for failure, or
another key's entry for its own, unless it looks at the key of what it reads
and asks whether its entry is linked. So the default is to let them pass.

Port a faces the clients, port b the memory nodes.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons,
		Describe: describe,
		Soft:     true,
		Tables:   tables(),
		Control:  "steer_ingress",
		New:      newApp,
	}
}

// settings are the parsed arguments.
type settings struct {
	seed    uint64        // of what hashes are keyed with
	mode    Mode          `arg:"mode" words:"off write read-write" help:"off, write, or read-write; can be changed while running"`
	keys    int           `arg:"keys" range:"1..16777214" help:"keys to track at most"`
	addrs   int           `arg:"addrs" range:"1..2^28" default:"64 per key, from 1,024 keys on fewer, down to 16" help:"entry addresses to remember, 16 bytes each"`
	conns   int           `arg:"conns" range:"1..2^20" help:"connections to track at most"`
	servers []netip.Addr  `arg:"servers" keep:"any" help:"memory nodes, as IP+IP+..., in whichever VLAN; requests to others pass"`
	adjust  bool          `arg:"recycled" words:"pass adjust" help:"requests for an entry of another version than the tail's: pass, or adjust them and their answers (see above)"`
	only    choice        `arg:"only" default:"all" help:"keys to steer, as 1+2+10-20, or all, or none; also @SERVER[/MASK], then #PRIORITY, then :leave behind keys or any: 5@10.0.0.1#7:leave+all steers all keys but one; can be changed while running, and is the table steered_keys"`
	hot     int           `arg:"hot" range:"0..2^16" help:"steer only the N most written keys, found at run time (then keys=N)"`
	settle  time.Duration `arg:"settle" range:"0.." help:"learn but do not steer for this long after a start, a mode switch or a bypass: until retransmissions from before have ended"`
	pair    time.Duration `arg:"pair" range:"0..1s" help:"how long a server takes at most to answer what it answers at all. A connection that no connection manager announced is paired when its client went on asking for three times this long, and no other queue pair was answered alike; 0: when three answers fit. Too short, connections that begin with the same PSN are taken for each other: appends that were told to clients are not in memory"`
	ahead   uint32        `arg:"ahead" range:"0..2^14" help:"unanswered appends of a key behind which a request is still sent; 0: only behind entries that are known to be linked (see above)"`
	hold    int           `arg:"hold" range:"1..2^14" help:"answers to hold at most until what they stand behind is known to be linked; half of them for those behind these on the same connection. What might find no place is not steered"`
	repair  time.Duration `arg:"repair" range:"0..1h" help:"send a steered compare-and-swap again when it stays unanswered this long, then twice as long, and so on; 0 = never"`
	anySide bool          `arg:"answers" words:"b any" help:"the side whose answers count: b; or any, where both directions come by one port, as when a capture is played: then who is on side a can answer for servers"`
	trusted bool          `arg:"clients" words:"any trusted" help:"any: a compare-and-swap is steered, and others are led behind it, only when its client cannot keep it from being executed: when all in front of it on its connection was answered, and an atomic under its R_Key was executed there before. trusted: that is not asked, for clients whose threads share queue pairs; one that has a request refused just before its append then ends the connections of those behind it"`
	dropBad bool          `arg:"bad" words:"pass drop" help:"frames with a wrong checksum, ICRC or length: pass or drop"`
	idle    time.Duration `arg:"idle" range:"0.." help:"what was not used for this long is forgotten: a connection; and, where others want its place, a key, a region, a server. An append that others stand behind is waited for as long. 0: for ever"`
}

var arguments = arg.Declare("clover-steer", settings{
	mode: ReadWrite, keys: 1024, conns: 512, hold: 1024, ahead: maxUnlinked, only: choice{rest: true},
	settle: 200 * time.Millisecond, pair: time.Millisecond, repair: 20 * time.Millisecond, idle: 5 * time.Minute,
})

func parseArgs(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	if len(s.servers) > maxServers {
		r.Failf("servers: at most %d", maxServers)
	}
	if s.hot > 0 {
		s.keys = s.hot
	}
	if s.addrs == 0 {
		// Clients remember old entries of keys that they seldom use: fewer
		// than 64 addresses a key cost reads in the demo (1,024 keys, Zipf
		// 0.99: 94 % instead of 96 % at the first try with 16).
		s.addrs = max(16*s.keys, min(64*s.keys, 1<<16))
	}
	return s, r.Err()
}
