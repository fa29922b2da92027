package swordbox

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// maxOps is the largest number of operations on record for one server (conns= times window=).
const maxOps = 1 << 24

const (
	sizeofWord   = int(unsafe.Sizeof(word{}))
	sizeofUnrest = int(unsafe.Sizeof(unrest{}))
	sizeofFlow   = int(unsafe.Sizeof(flow{}))
	sizeofOp     = int(unsafe.Sizeof(op{}))
	sizeofMore   = int(unsafe.Sizeof(more{}))
)

// Mode selects what the app does with operations on tracked words.
type Mode uint8

const (
	// Off: no operations move. Frames of connections whose two ends count differently are translated, and all
	// others pass unchanged.
	Off Mode = iota
	// Mux: operations move onto shared connections.
	Mux
	// Replace: as Mux, and atomics whose outcome is known go as WRITEs.
	Replace
	// End: as Off, and the clients of connections whose ends count differently are told that their
	// connections are gone.
	End
)

var modeNames = [...]string{"off", "mux", "replace", "end"}

// moves reports whether operations move in this mode. In the other modes operations that were moved before
// are completed.
func (m Mode) moves() bool { return m == Mux || m == Replace }

func (m Mode) String() string { return modeNames[m] }

// Reasons; the first ones are hdr.Why.
const (
	reasonBadChecksum graph.Reason = graph.Reason(hdr.NumWhy) + iota
	reasonBadICRC
	reasonReplaced
	reasonMoved
	reasonRepeated
	reasonAnswered
	reasonAbsorbed
	reasonMade
	reasonUnpaired
	reasonStranger
	reasonConnFull
	reasonTwin
	reasonSide
	reasonPSNGap
	reasonRepeat
	reasonBadRepeat
	reasonOldPSN
	reasonBadPSN
	reasonEarly
	reasonHoldFull
	reasonWindowFull
	reasonSpoofed
	reasonForged
	reasonPartition
	reasonAddress
	reasonShape
	reasonReset
	reasonNoBuf
	numReasons
)

var reasons = func() []counter.Def {
	d := make([]counter.Def, numReasons)
	for w := range hdr.NumWhy {
		d[w] = counter.Def{Name: w.String(), Help: "not looked at: " + w.String()}
	}
	for r, x := range map[graph.Reason]counter.Def{
		reasonBadChecksum: {Name: "bad-ip-checksum", Help: "IPv4 header checksum is wrong"},
		reasonBadICRC:     {Name: "bad-icrc", Help: "the invariant CRC is wrong"},
		reasonReplaced:    {Name: "replaced-atomic", Help: "an atomic on a cached word went on as a WRITE"},
		reasonMoved:       {Name: "moved", Help: "a request went on over another's connection"},
		reasonRepeated:    {Name: "repeated", Help: "a retransmission took the road of the original"},
		reasonAnswered:    {Name: "answered-here", Help: "a retransmission whose answer was known"},
		reasonAbsorbed:    {Name: "absorbed", Help: "an answer for which others were made, or that its client may not see yet"},
		reasonMade:        {Name: "made", Help: "a frame made here: an answer, a retransmission or a probe"},
		reasonUnpaired:    {Name: "unpaired", Help: "the connection's other direction is not known yet"},
		reasonStranger:    {Name: "stranger", Help: "of a connection that is not followed: it passes as it is"},
		reasonConnFull:    {Name: "conn-table-full", Help: "no row is free for a new connection (conns=)"},
		reasonSide:        {Name: "wrong-side", Help: "requests from the servers' side, or answers from the clients', of a followed connection whose ends count differently: the inputs are the wrong way round"},
		reasonTwin:        {Name: "twin", Help: "the first requests to another address of a server, until what is known of its words is not in use any more: their sender will repeat them"},
		reasonPSNGap:      {Name: "psn-gap", Help: "a request ahead of its turn; its client is told what is missing, or sends it again behind what the server had no buffer for"},
		reasonRepeat:      {Name: "repeat", Help: "a retransmission of what is held, under way or answered in its turn"},
		reasonBadRepeat:   {Name: "bad-repeat", Help: "a request with the PSN of another one"},
		reasonOldPSN:      {Name: "old-psn", Help: "a retransmission of what is long done"},
		reasonBadPSN:      {Name: "bad-psn", Help: "an answer to nothing"},
		reasonEarly:       {Name: "early", Help: "a retransmission before its turn, and no room to hold it"},
		reasonHoldFull:    {Name: "hold-full", Help: "a frame that had to wait, and no room to hold it (hold=): its sender will repeat it"},
		reasonWindowFull:  {Name: "window-full", Help: "more requests without answer than can be remembered (window=)"},
		reasonSpoofed:     {Name: "spoofed", Help: "for a known queue pair, but not from its peer"},
		reasonPartition:   {Name: "partition", Help: "a request with another P_Key than its server's: it passes as it is, and the server throws it away"},
		reasonAddress:     {Name: "other-mac", Help: "a request to another MAC address than its server answers from, or with a lower TTL than before, until several in a row have come so; or from no station's MAC address"},
		reasonShape:       {Name: "other-shape", Help: "a request with tags or IP options that its connection's others have not, or with a wrong UDP checksum: a server may throw it away unseen"},
		reasonForged:      {Name: "forged-cm", Help: "a connection manager's datagram that contradicts what is known"},
		reasonReset:       {Name: "reset", Help: "of a connection that could not be kept: its client was told"},
		reasonNoBuf:       {Name: "no-buffer", Help: "no buffer for an answer; it will be given to the retransmission"},
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
	ctrSynced
	ctrLanes
	ctrWords
	ctrCached
	ctrAtomics
	ctrReplaced
	ctrMoved
	ctrAcks
	ctrNAKs
	ctrLoose
	ctrProbes
	ctrMismatches
	ctrRepairs
	ctrResent
	ctrFailedLanes
	ctrGone
	ctrLapsed
	ctrResets
	ctrHeld
	ctrWordFull
	ctrStaticRefused
	ctrRestored
	ctrLost
	ctrRecorded
	ctrTwins
	ctrServerFull
	ctrUnbound
	ctrKeysForgotten
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrRequests:      {Name: "requests", Help: "RoCE requests seen"},
	ctrResponses:     {Name: "responses", Help: "RoCE responses seen"},
	ctrBytes:         {Name: "roce-bytes", Help: "bytes of RoCE frames seen, both directions"},
	ctrConns:         {Name: "conns", Help: "connections known now"},
	ctrSynced:        {Name: "synced", Help: "times that a connection's numbering was taken over"},
	ctrLanes:         {Name: "shared", Help: "connections that are shared now"},
	ctrWords:         {Name: "words", Help: "words tracked now"},
	ctrCached:        {Name: "filled", Help: "times that a word's value became known"},
	ctrAtomics:       {Name: "atomics", Help: "atomics on tracked words"},
	ctrReplaced:      {Name: "replaced", Help: "of those, sent as WRITEs"},
	ctrMoved:         {Name: "moved", Help: "operations sent over another's connection"},
	ctrAcks:          {Name: "acks", Help: "acknowledgements given to clients"},
	ctrNAKs:          {Name: "naks", Help: "negative acknowledgements given to clients"},
	ctrLoose:         {Name: "out-of-order", Help: "operations that could not be put in order with their word's others: its value was dropped"},
	ctrMismatches:    {Name: "mismatches", Help: "times that a word was not what it should have been: somebody changes it who is not seen here"},
	ctrProbes:        {Name: "probes", Help: "repetitions of what the server has acknowledged, sent to see whether its end of a connection lives"},
	ctrRepairs:       {Name: "repairs", Help: "times that the server missed requests of a connection"},
	ctrResent:        {Name: "resent", Help: "operations sent again by this app"},
	ctrFailedLanes:   {Name: "connections-failed", Help: "connections of no use any more: a fatal NAK, no answers, torn down under load"},
	ctrGone:          {Name: "connections-gone", Help: "quiet connections whose end at the server did not answer a probe: they are forgotten"},
	ctrLapsed:        {Name: "connections-lapsed", Help: "connections whose server did not answer what only their clients can repeat, while it answered others: words do not wait for it any more"},
	ctrResets:        {Name: "resets", Help: "clients whose connection could not be kept and who were told so by a NAK"},
	ctrHeld:          {Name: "held", Help: "frames held now"},
	ctrStaticRefused: {Name: "static-refused", Help: "connections of static= that contradict what is known"},
	ctrRestored:      {Name: "taken-over", Help: "connections taken over from the process before"},
	ctrLost:          {Name: "lost", Help: "connections that were lost with the process before; their clients are told"},
	ctrRecorded:      {Name: "recorded", Help: "connections whose two ends count differently now, which cannot do without this app"},
	ctrTwins:         {Name: "twins", Help: "server addresses that may be those of another known server, because they have its MAC address, or are its address in another VLAN: atomics there are not replaced. Where the MAC address is one, servers= says which address is which server's"},
	ctrServerFull:    {Name: "servers-full", Help: "answers of servers that there was no place for (discover=)"},
	ctrUnbound:       {Name: "unbound", Help: "times that the kernel was not told that frames of a connection must not cross without this process"},
	ctrKeysForgotten: {Name: "keys-forgotten", Help: "times that a right to an R_Key was forgotten for want of a place: operations under it go over their clients' own connections until it is learnt again"},
	ctrWordFull:      {Name: "words-full", Help: "words that were not tracked for want of room (words=)"},
}

// Kind declares swordbox.
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:     "swordbox",
		Summary:  "share connections to memory servers and turn atomics into WRITEs",
		Doc:      doc,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Counters: counters[:],
		Reasons:  reasons,
		Params:   arguments.Params(),
		Tables:   tables(),
		Control:  "mux_ingress",
		New:      newApp,
	}
}

// span is a range of tracked memory. The priority is that of its entry in the table.
type span struct {
	va, end  uint64
	priority int32
}

// String returns the span in the form that parseSpans reads.
func (t *span) String() string {
	if t.priority != 1 {
		return fmt.Sprintf("%x+%x#%d", t.va, t.end-t.va, t.priority)
	}
	return fmt.Sprintf("%x+%x", t.va, t.end-t.va)
}

// settings are the app's parsed arguments.
type settings struct {
	mode        Mode          `arg:"mode" words:"off mux replace end" help:"off, mux (move operations on tracked words onto shared connections), replace (and send atomics as WRITEs), or end (off, and connections that cannot do without this app are ended: their clients are told)"`
	vouched     bool          `arg:"replace" words:"tracked learnt" help:"which atomics mode=replace sends as WRITEs: those on memory of track= (tracked), or on all of these servers' (learnt). Name only memory that nobody changes but clients behind port a, under one address: what a process on the server writes, or somebody under another address of the same memory, such a WRITE would undo"`
	track       spans         `arg:"track" keep:"none" help:"memory whose operations move, besides the words that atomics go to: VA+LENGTH:VA+LENGTH..., hexadecimal, each perhaps with #PRIORITY of its entry; can be changed while running, and is the table tracked"`
	learn       bool          `arg:"learn" words:"off on" help:"track every word that an atomic goes to: on or off"`
	shared      int           `arg:"shared" range:"1..64" help:"connections to a server over which its memory is hashed"`
	strict      bool          `arg:"order" words:"word strict" help:"strict: a client's operations are executed in its order; word: those on different tracked words may pass each other, and go over several connections"`
	conns       int           `arg:"conns" range:"1..2^16" help:"connections to follow at most, for each server; others pass untouched"`
	window      int           `arg:"window" range:"16..2^16" help:"operations of a connection to remember"`
	words       int           `arg:"words" range:"1..2^24" help:"words to track at most, for each server"`
	hold        int           `arg:"hold" range:"0..2^20" help:"frames to hold at most, for each server"`
	rdatomic    int32         `arg:"rdatomic" range:"1..128" keep:"learnt" help:"READs and atomics that a shared connection may carry at once, where no connection manager told (max_dest_rd_atomic of the server's queue pairs); learnt: as many as its own client was seen to have at once"` // 0: learnt
	writable    bool          `arg:"writable" words:"proven assume" help:"send atomics as WRITEs where the server was seen to allow WRITEs under the same R_Key (proven), or everywhere (assume): a region that refuses them would end the shared connection"`
	mtu         uint32        `arg:"mtu" range:"256..4096" keep:"learnt" help:"path MTU of the connections, where no connection manager tells"`
	servers     servers       `arg:"servers" keep:"any" help:"memory servers, as IP+IP+..., the addresses of one joined by =, as in 10.0.0.1=fd00::1+10.0.0.2; requests to others pass"`
	discover    int           `arg:"discover" range:"0..16" help:"memory servers to find by their answers; with servers=, those of it that are in VLANs. Memory for so many is taken from the start (see quillon report); one that has no connection for idle= makes room for another"`
	_           struct{}      `arg:"static" own:"true" default:"none" help:"connections that nothing else tells, CLIENT/QPN-SERVER/QPN[,psn=N] separated by semicolons; can be changed while running, and is the tables static and static_ipv6"`
	infer       bool          `arg:"infer" words:"off on" help:"pair the two directions of a connection by their PSNs when no connection manager told: on or off"`
	pair        time.Duration `arg:"pair" range:"0..1s" help:"how long a server takes at most to answer what it answers at all. A connection that no connection manager announced is paired when its client went on asking for three times this long, and no other queue pair was answered alike; 0: when three answers fit. Too short, connections that begin with the same PSN are taken for each other"`
	dropSpoofed bool          `arg:"guard" words:"pass drop" help:"frames for a known queue pair that are not from its peer, and forged datagrams of the connection manager: pass or drop; can be changed while running, as can bad="`
	dropBad     bool          `arg:"bad" words:"pass drop" help:"frames with a wrong checksum, ICRC or length: pass or drop"`
	settle      time.Duration `arg:"settle" range:"1ns.." help:"how long a request of a connection that is not followed may be under way"`
	verify      time.Duration `arg:"verify" range:"1ns.." help:"how often an atomic on a known word goes as it is, so that its answer tells whether the word is what it should be"`
	alive       time.Duration `arg:"alive" range:"1ns.." help:"a connection carries others' operations while its server answered so lately"`
	giveup      time.Duration `arg:"giveup" range:"1ns.." help:"a connection has failed when its server says nothing on it and speaks on others for so long; while it is silent on all it may be that it pauses, and nobody is told"`
	idle        time.Duration `arg:"idle" range:"1ns.." help:"forget a connection that was quiet for so long"`

	cover  []span // the memory of track in ascending order, without overlaps
	seed   uint64 // the key of the hashes; set in shared.cfg only
	static []string
}

var arguments = arg.Declare("", settings{
	mode: Replace, discover: 4, learn: true, infer: true, strict: true, shared: 1, conns: 512, window: 256, words: 65536, hold: 1024,
	pair: time.Millisecond, settle: 200 * time.Millisecond, alive: 100 * time.Millisecond, giveup: 300 * time.Millisecond, idle: 10 * time.Minute,
	verify: 10 * time.Millisecond,
})

// tracked reports whether track= names any of that memory.
func (s *settings) tracked(va uint64, n uint32) bool {
	at := s.span(va)
	return at < len(s.cover) && va+uint64(n) > s.cover[at].va
}

// vouches reports whether the operator says that nobody changes the word at va in a way that the box does not
// see, or under another address.
func (s *settings) vouches(va uint64) bool {
	at := s.span(va)
	return s.vouched || at < len(s.cover) && s.cover[at].va <= va && va+8 <= s.cover[at].end
}

// span returns the index of the first span of s.cover that ends behind va.
func (s *settings) span(va uint64) int {
	at, end := 0, len(s.cover)
	for at < end {
		if m := (at + end) / 2; s.cover[m].end > va {
			end = m
		} else {
			at = m + 1
		}
	}
	return at
}

// merged returns the memory of spans in ascending order, without overlaps.
func merged(spans []span) (out []span) {
	for _, t := range slices.SortedFunc(slices.Values(spans), func(a, b span) int { return cmp.Compare(a.va, b.va) }) {
		if n := len(out) - 1; n >= 0 && t.va <= out[n].end {
			out[n].end = max(out[n].end, t.end)
		} else {
			out = append(out, span{va: t.va, end: t.end})
		}
	}
	return out
}

func parseArgs(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	r.Func("static", func(v string) error { s.static = slices.Collect(arg.Items(v, ";")); return nil }, "none", "")
	s.cover = merged(s.track)
	for s.window&(s.window-1) != 0 {
		s.window &= s.window - 1
	}
	if s.mtu&(s.mtu-1) != 0 {
		r.Failf("mtu=%d: want 256, 512, 1024, 2048 or 4096", s.mtu)
	}
	if s.conns*s.window > maxOps {
		r.Failf("conns=%d, window=%d: want no more than %d operations to remember in all", s.conns, s.window, maxOps)
	}
	if len(s.servers) > maxNodes {
		r.Failf("servers: want at most %d", maxNodes)
	}
	return s, r.Err()
}

// servers are memory servers, each with its addresses.
type servers [][]netip.Addr

// UnmarshalText implements encoding.TextUnmarshaler: it is parseServers.
func (l *servers) UnmarshalText(text []byte) (err error) {
	*l, err = parseServers(string(text))
	return err
}

func parseServers(v string) ([][]netip.Addr, error) {
	var out [][]netip.Addr
	seen := map[netip.Addr]bool{}
	for p := range arg.Items(v, "+") {
		var one []netip.Addr
		for q := range strings.SplitSeq(p, "=") {
			a, err := arg.ParseAddr(q)
			switch {
			case err != nil:
				return nil, fmt.Errorf("%q: %w", q, err)
			case seen[a]:
				return nil, fmt.Errorf("%v is there twice", a)
			}
			seen[a] = true
			one = append(one, a)
		}
		out = append(out, one)
	}
	return out, nil
}

// spans are ranges of tracked memory, as track= gives them.
type spans []span

// UnmarshalText implements encoding.TextUnmarshaler by parseSpans; empty text means no spans.
func (l *spans) UnmarshalText(text []byte) (err error) {
	if *l = nil; len(text) > 0 {
		*l, err = parseSpans(string(text))
	}
	return err
}

func parseSpans(v string) ([]span, error) {
	var out []span
	for p := range arg.Items(v, ":") {
		p, priority, ranked := strings.Cut(p, "#")
		t := span{priority: 1}
		if ranked {
			k, err := strconv.ParseInt(priority, 10, 32)
			if err != nil || k < 1 {
				return nil, errors.New("want a priority from 1 behind #")
			}
			t.priority = int32(k)
		}
		a, n, ok := strings.Cut(p, "+")
		va, err1 := strconv.ParseUint(strings.TrimPrefix(a, "0x"), 16, 64)
		l, err2 := strconv.ParseUint(strings.TrimPrefix(n, "0x"), 16, 64)
		if !ok || err1 != nil || err2 != nil || l == 0 || va+l < va {
			return nil, errors.New("want VA+LENGTH, hexadecimal, as in 7f0000000000+1000")
		}
		t.va, t.end = va, va+l
		out = append(out, t)
	}
	return out, nil
}

// trackable reports whether o makes its word a tracked one.
func (s *settings) trackable(o *op) bool {
	return o.modifies() && !o.wide() && s.mode.moves() && (o.kind.atomic() && s.learn || o.len == 8 && s.tracked(o.va, 8))
}
