package graph

import (
	"fmt"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// node is one app, or one port, in one worker's graph.
type node struct {
	name     string
	index    uint16 // the same in all workers, and for the life of the instance
	kind     *Kind
	app      App     // nil: a port
	share    *share  // what its instances share; nil: of an app inside another one
	inside   *Inside // of an app inside another one; nil: of others
	owner    uint32  // packet.Meta.Owner of its frames; 0: the app is not inside another one
	relay    *relay  // to the instances of other workers; nil: there is none
	ticker   Ticker
	hooks    Hooks
	next     clock.Time // when ticker wants to run
	out      []*link    // by output
	in       []*link    // links that lead here
	calls    uint32
	counters *counter.Set
	reasons  *counter.Set // Kind.Reasons, then the framework's
	stats    *counter.Set
	_        [line]byte
}

// line is the length of a line of the processor's cache: what a worker writes for each batch is on no line of another's.
const line = 64

func newNode(name string, index uint16, kind *Kind, app App) *node {
	n := &node{
		name: name, index: index, kind: kind, app: app,
		out:      make([]*link, len(kind.Out)),
		counters: counter.NewSet(kind.Counters),
		reasons:  counter.NewSet(slices.Concat(kind.Reasons, frameworkReasons[:])),
		stats:    counter.NewSet(nodeStats[:]),
		next:     clock.Never,
		hooks:    HooksOf(app),
	}
	if t, ok := app.(Ticker); ok {
		n.ticker, n.next = t, 0
	}
	return n
}

// framework is the Reason for one of the framework's reasons.
func (n *node) framework(r Reason) Reason { return Reason(len(n.kind.Reasons)) + r }

// describe words a trace record of the node's app; of an app inside another one, any instance does. n may be nil: the app has gone.
func (n *node) describe(kind uint16, args [4]uint64) (text string) {
	text = fmt.Sprintf("record %d %v", kind, args)
	if n == nil || n.kind == nil || n.kind.Describe == nil {
		return text
	}
	app := n.app
	if n.inside != nil {
		if len(n.inside.apps) == 0 {
			return text
		}
		app = n.inside.apps[0]
		defer func() { _ = recover() }() // a panic here, while words are made, ends no instance
	}
	return n.kind.Describe(app, kind, args)
}

func (n *node) commit() {
	n.counters.Commit()
	n.reasons.Commit()
	n.stats.Commit()
}

func (n *node) held() int {
	if h, ok := n.app.(Holder); ok {
		return h.Held()
	}
	return 0
}

// portNode is one port in one worker's graph: the queues that the worker
// serves. It sends on the first.
type portNode struct {
	node
	queues   []port.Port
	bypass   []port.Bypasser // by queue; nil: it is none
	missed   []uint64
	eof      []bool
	txClosed bool
	mark     *traceJob // frames to trace; nil: none
}

// portKind is how the books see a port: an app without reasons of its own.
func portKind() *Kind {
	return &Kind{Name: "port", In: []string{"in"}, Out: []string{"out"}}
}

func newPortNode(name string, index uint16, queues []port.Port) *portNode {
	p := &portNode{
		node: *newNode(name, index, portKind(), nil), queues: queues,
		bypass: make([]port.Bypasser, len(queues)),
		missed: make([]uint64, len(queues)),
		eof:    make([]bool, len(queues)),
	}
	for i, q := range queues {
		if b, ok := q.(port.Bypasser); ok {
			p.bypass[i], p.missed[i] = b, b.Missed()
		}
	}
	return p
}

// Counters of a link.
const (
	linkPackets counter.ID = iota
	linkDrops
	linkDepth
	numLinkStats
)

var linkStats = [numLinkStats]counter.Def{
	linkPackets: {Name: "packets", Help: "frames that crossed"},
	linkDrops:   {Name: "drops", Help: "frames that found it full"},
	linkDepth:   {Name: "depth", Help: "frames that wait on it"},
}

// link is the queue between an output and the next input.
type link struct {
	edge
	q        []*packet.Buf // cap linkCap
	to       *node         // nil: the link leads to toPort
	in       int
	toPort   *portNode
	fromNode *node
	tap      *ring // copies of the frames that cross; nil: none
	tapped   int   // how many of q were copied
	stats    *counter.Set
	_        [line]byte
}

func newLink(e edge) *link {
	return &link{edge: e, q: make([]*packet.Buf, 0, linkCap), stats: counter.NewSet(linkStats[:])}
}

// layout is one worker's graph. It is put together by whoever controls the
// instance and taken over by the worker between two breaths; outs and ins are
// what the nodes' out and in become then.
type layout struct {
	nodes  []*node // apps in topological order, each before those inside it
	outers []outer
	relays []*node     // apps that hand frames from worker to worker
	back   bool        // a link leads to an app that is earlier in nodes
	ports  []*portNode // by name
	links  []*link     // by text
	all    []*node     // apps, then ports
	outs   [][]*link   // of all
	ins    [][]*link
}

// outer is an app with others inside.
type outer struct {
	node *node
	apps []*Inside
}

func (l *layout) node(name string) *node {
	for _, n := range l.all {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (l *layout) port(name string) *portNode {
	for _, p := range l.ports {
		if p.name == name {
			return p
		}
	}
	return nil
}

// books are the sums of a worker's counters.
type books struct {
	received, generated, transmitted, dropped, punted, held uint64
	// handed to other workers, and taken from them
	handed, taken uint64
}

func (b *books) addNode(n *node, isPort bool) {
	if isPort {
		b.received += n.stats.Live(statIn)
		b.transmitted += n.stats.Live(statOut)
	}
	b.generated += n.stats.Live(statGenerated)
	b.dropped += n.stats.Live(statDropped)
	b.punted += n.stats.Live(statPunted)
	b.handed += n.stats.Live(statHanded)
	b.taken += n.stats.Live(statTaken)
}
