package swordbox

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/journal"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/tor/conn"
)

// A connection whose two ends count differently cannot go on without this app, because one end would take the
// other end's new requests for duplicates. Such connections are bound: each is on record, in memory that
// outlives the process, before the first frame that makes its ends differ leaves. The flows and operations of
// bound connections also lie there, so that the next process finds them as they were when this process ended,
// whatever ended it (see rebuild). That memory is stored to in the program's order. The data are written
// before the mark that says that they are there, and both before the frames leave, at the end of a breath.
//
//	 0 magic | 8 layout of the rows, flows and ops (of those fields that the next process reads) | 12 conns= | 16 window= | 20 places
//	24 last sign of life | 32 the clock's epoch (24), zeros where it is not known
//	64 records of 64 bytes, of each place as many as conns=: client, server (16 each) |
//	   their QPNs (4 each) | VLAN (2) | 1: RoCE v1 | 1: bound | PSN of the client's
//	   oldest request without an answer, and 2^31 (4) | 0
//	   then, of each place (a server's): rows, flows, ops and more, as they are in memory
const (
	memMagic  = 0x32786F62_77736C71 // "qlswbox2" (little-endian): the version of this head and of the records
	memMoving = 0x3F786F62_77736C71 // "qlswbox?": the contents are being moved (see fit)
	memHead   = 64
	recordLen = 64
	epochAt   = 32
	boundAt   = 43 // offset in a record
	unaAt     = 44
)

// geometry says how many connections, operations of a connection, and servers the memory has room for.
type geometry struct{ conns, window, places int }

func (s *settings) geometry() geometry {
	return geometry{s.conns, s.window, min(max(1, len(s.servers)+len(s.strangers())+s.discover), maxNodes)}
}

const sizeofRow = int(unsafe.Sizeof(conn.Row{}))

// place returns the length in bytes of what the memory has of one server, without the records.
func (g geometry) place() int {
	return g.conns * (sizeofRow + sizeofFlow + g.window*(sizeofOp+sizeofMore))
}

// at returns the offset of place p.
func (g geometry) at(p int) int { return memHead + g.places*g.conns*recordLen + p*g.place() }

// memory is the memory that outlives the process.
type memory struct {
	geometry
	b []byte // nil: no memory outlives the process
	// barred is the time until which requests that an earlier process let through may be under way.
	barred clock.Time
	epoch  clock.Epoch    // of this process's clock
	behind clock.Duration // how far this process's clock is ahead of that of the process before
	bound  atomic.Int32
	full   atomic.Int64 // until then the kernel is not asked to bind more
	ties   ties
	// journal names the bound connections on a disk, or nil: memory that outlives the process does not outlive a
	// reboot. The flow with index i of place p has slot p*conns+i.
	journal journal.Journal
	reboot  bool // b has what the journal of an earlier boot named
}

// ties holds the queue pairs of the bound connections of all servers. Queue pairs in two VLANs may have the
// same address and number; the kernel does not tell them apart.
type ties struct {
	sync.Mutex // held while the kernel is told, too, so that the kernel is told in the order of the changes
	of         map[port.QueuePair]tie
}

// tie says how many connections have a queue pair, and whether the kernel was told.
type tie struct {
	n    int32
	told bool
}

// add counts a connection that has queue pair q. It returns false if the kernel cannot be told.
func (t *ties) add(c *graph.Ctx, q port.QueuePair) bool {
	t.Lock()
	defer t.Unlock()
	x := t.of[q]
	x.n, x.told = x.n+1, x.told || c.Bind(q, true) == nil
	t.of[q] = x
	return x.told
}

// remove notes that a connection no longer has queue pair q.
func (t *ties) remove(c *graph.Ctx, q port.QueuePair) {
	t.Lock()
	defer t.Unlock()
	x := t.of[q]
	if x.n--; x.n > 0 {
		t.of[q] = x
		return
	}
	delete(t.of, q)
	_ = c.Bind(q, false) // frames that the kernel still holds back of a queue pair that is gone harm nobody
}

// begin takes over what is bound when a process begins; was is what the one before had bound. False when the kernel has not
// all of it.
func (t *ties) begin(c *graph.Ctx, was, bound []port.QueuePair) bool {
	t.Lock()
	defer t.Unlock()
	var all []port.QueuePair
	for _, q := range bound {
		x := t.of[q]
		if x.n++; x.n == 1 {
			all = append(all, q)
		}
		t.of[q] = x
	}
	told := all[:min(len(all), port.MaxBound)]
	if c.Rebind(was, told) != nil {
		return false
	}
	for _, q := range told {
		x := t.of[q]
		x.told = true
		t.of[q] = x
	}
	return len(told) == len(all)
}

// arrays are the parts of the memory that one server has.
type arrays struct {
	rows  []conn.Row // beside flows: the rows of bound connections, as they were when these were bound
	flows []flow
	ops   []op // window places for each flow
	more  []more
}

// of returns the arrays of place p. If no memory outlives the process, they are new.
func (m *memory) of(p int) (a arrays) {
	n := m.conns * m.window
	if m.b == nil {
		return arrays{make([]conn.Row, m.conns), make([]flow, m.conns), make([]op, n), make([]more, n)}
	}
	b := m.b[m.at(p):]
	a.rows, b = carve[conn.Row](b, m.conns)
	a.flows, b = carve[flow](b, m.conns)
	a.ops, b = carve[op](b, n)
	a.more, _ = carve[more](b, n)
	return a
}

// carve returns the first n values of type T in b, and the rest of b. T has no pointers.
func carve[T any](b []byte, n int) ([]T, []byte) {
	var v T
	size := n * int(unsafe.Sizeof(v))
	return unsafe.Slice((*T)(unsafe.Pointer(&b[:size][0])), n), b[size:]
}

// remember gets the memory that outlives the process. Its contents are taken over later (inherit), because
// the app whose place this one takes may still write there.
func (s *shared) remember(env graph.Env) error {
	if env.Memory == nil || s.mem.b != nil {
		return nil
	}
	b, err := env.Memory(s.mem.at(s.mem.places))
	if err != nil {
		return err
	}
	if m := le.Uint64(b); m != 0 && m != memMagic {
		return errFormat
	}
	if n := left(b); n > 0 {
		if g := geometryIn(b); s.mem.conns < g.conns || s.mem.window < g.window || s.mem.places < used(b, g) {
			return fmt.Errorf("conns=%d, window=%d, for %d servers: %d connections are left of conns=%d, window=%d, for %d servers: give no less (discover= adds servers), or end them first (mode=end)",
				s.mem.conns, s.mem.window, s.mem.places, n, g.conns, g.window, used(b, g))
		}
	}
	if a, c, joined := s.cfg.servers.regroup(b); a != c {
		was, is := "one server", "two"
		if joined {
			was, is = "two servers", "one"
		}
		return fmt.Errorf("servers= says that %v and %v are %s, and connections are left for which they were %s: give servers= as it was, or end them first (mode=end)", a, c, is, was)
	}
	s.mem.b, s.mem.epoch = b, clock.EpochOf(env.Clock)
	return s.openJournal(env)
}

// regroup returns two server addresses of connections on record in b about which s and the process that left
// b disagree: whether they belong to one server. joined says that by s they do. regroup returns zero
// addresses if there are no such two.
func (s servers) regroup(b []byte) (a, c netip.Addr, joined bool) {
	g := geometryIn(b)
	type at struct {
		place int
		addr  conn.Addr
	}
	var all []at
	for k := range g.places * g.conns {
		r := recordIn(b, g, 0, k)
		if r[boundAt] == 0 {
			continue
		}
		var id identity
		id.read(r)
		x := at{k / g.conns, id.server}
		for _, y := range all {
			switch one := s.alike(x.addr.Netip(), y.addr.Netip()); {
			case x.place == y.place && !one:
				return y.addr.Netip(), x.addr.Netip(), false
			case x.place != y.place && one && x.addr.VLAN() == y.addr.VLAN():
				return y.addr.Netip(), x.addr.Netip(), true
			}
		}
		if !slices.Contains(all, x) {
			all = append(all, x)
		}
	}
	return a, c, false
}

// alike reports whether the addresses a and b belong to one server.
func (s servers) alike(a, b netip.Addr) bool {
	return a == b || slices.ContainsFunc(s, func(of []netip.Addr) bool { return slices.Contains(of, a) && slices.Contains(of, b) })
}

// geometryIn returns the geometry of the contents of b. It returns the zero geometry if b is empty or its
// numbers do not fit.
func geometryIn(b []byte) geometry {
	g := geometry{int(le.Uint32(b[12:])), int(le.Uint32(b[16:])), int(le.Uint32(b[20:]))}
	if le.Uint64(b) != memMagic || g.conns > maxOps || g.window > maxOps || g.places > maxNodes || g.places*g.conns*recordLen > len(b)-memHead {
		return geometry{}
	}
	return g
}

// recordIn returns the record of flow i of place p in b, which has geometry g.
func recordIn(b []byte, g geometry, p, i int) []byte {
	return b[memHead+(p*g.conns+i)*recordLen:][:recordLen]
}

// recordsOf returns the records of place p, or nil if no memory outlives the process.
func (m *memory) recordsOf(p int) []byte {
	if m.b == nil {
		return nil
	}
	return m.b[memHead+p*m.conns*recordLen:][:m.conns*recordLen]
}

// recordOf returns the record of flow f.
func (l *ledger) recordOf(f *flow) []byte {
	return l.records[int(l.r.index(f))*recordLen:][:recordLen]
}

// left returns the number of connections on record in b.
func left(b []byte) (n int) {
	g := geometryIn(b)
	for k := range g.places * g.conns {
		n += int(recordIn(b, g, 0, k)[boundAt] & 1)
	}
	return n
}

// inherited returns the servers of the connections that were on record when this process began.
func (s *shared) inherited() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem.b != nil && !s.begun.Load() {
		s.leftServers = serversIn(s.mem.b)
	}
	return s.leftServers
}

// inheritedEnds implements graph.Hooks: the kernel has no queue pair that is not on record (see bind and strike).
func (s *shared) inheritedEnds() (known []port.QueuePair, more bool) {
	if s.mem.b == nil {
		return nil, false
	}
	g := geometryIn(s.mem.b)
	for k := range g.places * g.conns {
		if b := recordIn(s.mem.b, g, 0, k); b[boundAt] != 0 {
			var r identity
			r.read(b)
			ends := r.ends()
			known = append(known, ends[:]...)
		}
	}
	return known, false
}

// serversIn are the servers of the connections on record in b.
func serversIn(b []byte) (all []netip.Addr) {
	g := geometryIn(b)
	for k := range g.places * g.conns {
		var r identity
		b := recordIn(b, g, 0, k)
		if r.read(b); b[boundAt] != 0 && !slices.Contains(all, r.server.Netip()) {
			all = append(all, r.server.Netip())
		}
	}
	return all
}

// used returns the number of places in b up to the last one that has a connection on record.
func used(b []byte, g geometry) int {
	for k := g.places*g.conns - 1; k >= 0; k-- {
		if recordIn(b, g, 0, k)[boundAt] != 0 {
			return k/g.conns + 1
		}
	}
	return 0
}

// identity names a bound connection by its two ends.
type identity struct {
	client, server conn.Addr
	cqpn, sqpn     uint32
	v1             bool
}

func identityOf(r *conn.Row) identity {
	return identity{client: r.Client.Addr, server: r.Server.Addr, cqpn: r.Client.QPN, sqpn: r.Server.QPN, v1: r.Net == hdr.NetGRH}
}

func (r *identity) read(b []byte) {
	vlan := le.Uint16(b[40:])
	r.client, r.server, r.v1 = conn.AddrOf([16]byte(b)).In(vlan), conn.AddrOf([16]byte(b[16:])).In(vlan), b[42] != 0
	r.cqpn, r.sqpn = le.Uint32(b[32:]), le.Uint32(b[36:])
}

// write fills record b. The mark that the record is bound comes last.
func (r *identity) write(b []byte) {
	c, v := r.client.As16(), r.server.As16()
	copy(b, c[:])
	copy(b[16:], v[:])
	le.PutUint32(b[32:], r.cqpn)
	le.PutUint32(b[36:], r.sqpn)
	le.PutUint16(b[40:], r.server.VLAN())
	b[42] = 0
	if r.v1 {
		b[42] = 1
	}
	setBound(b, true)
}

// setBound sets the mark that record b is bound, or clears it, by one store, after all earlier stores.
func setBound(b []byte, on bool) {
	v := le.Uint32(b[40:]) &^ (0xFF << 24)
	if on {
		v |= 1 << 24
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[40])), v)
}

// ends returns the two queue pairs of the connection.
func (r *identity) ends() [2]port.QueuePair {
	return [2]port.QueuePair{{Addr: r.client.Netip(), QPN: r.cqpn}, {Addr: r.server.Netip(), QPN: r.sqpn}}
}

// ledger has the records of a server's bound connections. diverge comes before the first frame that makes the
// two ends of a connection count differently, note after the client was told something, strike when the
// connection is gone. When a process begins, adopt and bereave take over what another process left.
type ledger struct {
	records []byte     // beside flows; nil if no memory outlives the process
	barred  clock.Time // as memory.barred, of requests that this process sent before frames crossed without it (Flush)
	mem     *memory
	r       *record
	by      *owner
}

// bar returns the time until which requests may be under way that were sent before frames crossed without the box.
func (l *ledger) bar() clock.Time { return max(l.mem.barred, l.barred) }

// diverge notes that the two ends of flow f will count differently.
func (l *ledger) diverge(f *flow) {
	if !f.bound {
		l.bind(f)
	}
}

// fullFor is how long the kernel is not asked to bind more after it refused.
const fullFor = time.Second

// mayDiverge does what diverge does, before it is known to be needed. It returns false if the kernel has no
// room for f's queue pairs, whose frames it would have to hold back while no process runs; then both ends of
// f must go on to count alike.
func (l *ledger) mayDiverge(f *flow) bool { return f.bound || l.mayBind(f) }

func (l *ledger) mayBind(f *flow) bool {
	now := l.by.c.Now()
	if now < clock.Time(l.mem.full.Load()) || !l.journaled(f) {
		return false
	}
	if !l.bind(f) {
		l.strike(f)
		l.mem.full.Store(int64(now.Add(fullFor)))
	}
	return f.bound
}

// bind puts flow f on record. It returns false if the kernel could not be told.
func (l *ledger) bind(f *flow) bool {
	f.bound = true
	told := true
	l.mem.bound.Add(1)
	row := &l.r.rows[l.r.index(f)]
	*row = *l.r.row(f)
	r := identityOf(row)
	if l.records != nil {
		r.write(l.recordOf(f))
		l.note(f)
	}
	for _, q := range r.ends() {
		if !l.mem.ties.add(l.by.c, q) {
			l.by.c.Count(ctrUnbound, 1)
			told = false
		}
	}
	return told
}

// strike takes flow f off the record, behind what the kernel has: a process that ends between both leaves no queue pair
// bound that is not on record.
func (l *ledger) strike(f *flow) {
	defer l.unjournal(f)
	if !f.bound {
		return
	}
	f.bound = false
	l.mem.bound.Add(-1)
	r := identityOf(&l.r.rows[l.r.index(f)])
	for _, q := range r.ends() {
		l.mem.ties.remove(l.by.c, q)
	}
	if l.records != nil {
		setBound(l.recordOf(f), false)
	}
}

// knownPSN is a flag beside a PSN: the PSN is known.
const knownPSN = 1 << 31

// note puts on record the PSN of the oldest request of flow f without an answer. A process of another
// version, which cannot take the connection over, needs it: the client must not take the NAK that tells of
// the loss for the acknowledgement of earlier requests.
func (l *ledger) note(f *flow) {
	if f.bound && f.lost == 0 && l.records != nil {
		le.PutUint32(l.recordOf(f)[unaAt:], l.r.una(f)|knownPSN)
	}
}

// recorded returns the number of connections on record.
func (s *shared) recorded() int {
	if s.mem.b != nil && !s.begun.Load() {
		return left(s.mem.b)
	}
	return int(s.mem.bound.Load())
}

// keeps implements graph.Hooks.
func (s *shared) keeps(succeeded bool) error {
	n := s.recorded()
	switch {
	case n == 0 || succeeded && s.mem.b != nil:
		return nil
	case succeeded:
		return fmt.Errorf("%d connections cannot do without it, and it has no state to hand them over with", n)
	}
	return fmt.Errorf("%d connections cannot do without it: set mode=off and wait until their clients have closed them (its counter recorded), or mode=end and wait %v", n, keepGone)
}

// sort describes a type whose values lie in the memory that outlives the process.
type sort struct {
	kind    reflect.Type
	version int
	fields  string
}

// taken names the fields of each type that the next process reads (see reset, restart and conn.Table.Adopt).
// version is the version of their meaning: it must grow when the meaning changes and neither the names nor
// the places of the fields show it. All other fields are made anew, and may change between versions of the
// program while connections go on.
var taken = []sort{
	{reflect.TypeFor[op](), 1, "va out prior cpsn spsn npsn len rkey got lane flags kind state"},
	{reflect.TypeFor[more](), 1, "compareMask swapMask nak"},
	{reflect.TypeFor[flow](), 1, "synced trusted young onward start told lost mtu mtuLow client carrier msn"},
	{reflect.TypeFor[client](), 1, "gone failed misshapen unsure syn admitted first head tail span cur part base began down ended verdict past pastAt"},
	{reflect.TypeFor[carrier](), 1, "dead gated gate acked deep trip up"},
	{reflect.TypeFor[conn.Row](), 1, "Client Server PKey MTU Net Learnt State ready tid"},
}

// layout returns a hash of taken, which differs between versions whose records differ.
func layout() uint32 {
	h := fnv.New32a()
	for _, t := range taken {
		fmt.Fprint(h, t.version, " ", t.kind.Size())
		for _, name := range strings.Fields(t.fields) {
			f, _ := t.kind.FieldByName(name)
			fmt.Fprint(h, name, f.Offset)
			describe(h, f.Type)
		}
	}
	return h.Sum32()
}

// thisLayout is the layout of this version. earlier has the layouts of older versions whose records this
// version reads: they have the same fields in the same places, except that they lack the MSN of the server's
// end (its absence shows in the flag newestMSN) and the value that tells SENDs apart (op.prior is 0).
const thisLayout = 0x54FEF305

var earlier = []uint32{0xB111136C, 0xBACE34C6, 0x4C08D713}

// understood reports whether this version of the program can read records of layout was.
func understood(was uint32) bool {
	return was == layout() || layout() == thisLayout && slices.Contains(earlier, was)
}

func describe(h interface{ Write([]byte) (int, error) }, t reflect.Type) {
	fmt.Fprint(h, t.Kind(), t.Size())
	switch t.Kind() {
	case reflect.Struct:
		if slices.ContainsFunc(taken, func(x sort) bool { return x.kind == t }) {
			return // it is described by its own entry
		}
		for i := range t.NumField() {
			f := t.Field(i)
			fmt.Fprint(h, f.Name, f.Offset)
			describe(h, f.Type)
		}
	case reflect.Array:
		describe(h, t.Elem())
	}
}

var (
	errEnded  = errors.New("mode=end")
	errLayout = errors.New("what was left is of another version of this program")
	errFormat = errors.New("the state that was left is damaged, or another version of this program wrote it in a form that this one cannot read. It is not known which connections need it, so frames of none may cross. Start the version that wrote it (with mode=end it ends them all), or end their clients and remove the state")
	errSave   = errors.New("what was left is damaged")
	errNICs   = errors.New("a server's answers came from more NICs than this program follows")
)

// alive stores the time now as this process's last sign of life.
func (m *memory) alive(now clock.Time) {
	if m.b != nil {
		le.PutUint64(m.b[24:], uint64(now))
	}
}
