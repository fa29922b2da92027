package swordbox

import (
	"fmt"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tor/conn"
)

// Report is the app's state as it shows it. All workers share this state.
type Report struct {
	Mode    string         `json:"mode"`
	Warning string         `json:"warning,omitempty"` // what the arguments promise and the app does not do
	Memory  Memory         `json:"memory"`
	State   *State         `json:"state,omitempty"`
	Servers []ServerReport `json:"servers"`
}

// Memory is the memory in use, in bytes. Conns, Operations and Words are those of one server; all servers
// have the same.
type Memory struct {
	Conns      int `json:"conns"`
	Operations int `json:"operations"`
	Words      int `json:"words"`
	// Total is the memory of all known servers; Spare is that set aside for servers that may come.
	Total int `json:"total"`
	Spare int `json:"spare"`
}

// State is the state of the memory that outlives the process.
type State struct {
	Bytes int `json:"bytes"`
	// Recorded is the number of connections whose two ends count differently.
	Recorded int `json:"recorded"`
	// Why says why nothing was taken over. It is empty if it was, or if nothing was there.
	Why string `json:"why,omitempty"`
	// Read says that the first breath has looked at what the process before left.
	Read bool `json:"read"`
}

// ServerReport shows a memory server and the connections to it.
type ServerReport struct {
	Addr   string   `json:"addr"`
	Also   []string `json:"also,omitempty"` // its other addresses, as servers= says
	Twin   bool     `json:"twin,omitempty"` // another server has the same MAC address: atomics are not replaced unless servers= says which addresses are one server
	Conns  int      `json:"conns"`
	Words  int      `json:"words"`
	Known  int      `json:"known"`  // words whose value is known
	Held   int      `json:"held"`   // frames held
	Open   int      `json:"open"`   // operations without an answer
	Shared int      `json:"shared"` // connections that are shared
	// Connections shows the first maxReported connections.
	Connections []ConnReport `json:"connections"`
}

// ConnReport shows a connection.
type ConnReport struct {
	Client string `json:"client"`
	Server string `json:"server"`
	From   string `json:"from"` // how the box learnt of it
	State  string `json:"state"`
	// Followed says that operations may move.
	Followed bool `json:"followed"`
	Shared   bool `json:"shared,omitempty"`
	MTU      int  `json:"mtu,omitempty"`
	// NextClient and NextServer are the PSNs of the next request, in the client's and in the server's
	// numbering. The fields from here to Waiting are 0 while the numberings are not known.
	NextClient uint32 `json:"next_client"`
	NextServer uint32 `json:"next_server"`
	MSN        uint32 `json:"msn"`
	Open       int    `json:"open"`   // operations of this client without an answer
	Guests     int    `json:"guests"` // other clients' operations that its connection carries
	Waiting    int    `json:"waiting"`
	// Ended says that the client was told that the connection is gone.
	Ended bool `json:"ended,omitempty"`
}

// maxReported is the largest number of connections of a server in a report.
const maxReported = 1000

// Report implements graph.Reporter.
func (s *Box) Report() any {
	r := Report{Mode: s.cfg.mode.String(), Servers: []ServerReport{}}
	if s.cfg.mode == Replace && !s.cfg.vouched && len(s.cfg.cover) == 0 {
		r.Warning = "mode=replace replaces no atomics: name memory that only these clients change (track=), or say replace=learnt"
	}
	if j := s.mem.journal; j != nil && j.Err() != nil {
		r.Warning = fmt.Sprintf("no connection's ends come to count differently any more, because the journal cannot be written: %v: make room, and start again", j.Err())
	}
	if s.mem.b != nil {
		r.State = &State{Bytes: len(s.mem.b), Recorded: s.recorded(), Read: s.begun.Load()}
		if r.State.Read {
			r.State.Why = s.why
		}
	}
	for _, n := range *s.nodes.Load() {
		_ = s.look(n, func() error {
			r.Servers = append(r.Servers, n.report(&r.Memory))
			return nil
		})
	}
	s.mu.Lock()
	for _, n := range s.places {
		var m Memory
		n.account(&m)
		r.Memory.Spare += m.Total
	}
	s.mu.Unlock()
	return r
}

// Warns returns the warning.
func (r Report) Warns() string { return r.Warning }

// Inherited returns why nothing was taken over from the process before. known is false before the first
// breath.
func (r Report) Inherited() (why string, known bool) {
	if r.State == nil {
		return "", true
	}
	return r.State.Why, r.State.Read
}

// account sets the sizes of one server's parts in m to those of n, and adds their sum to m.Total.
func (n *node) account(m *Memory) {
	m.Conns = n.conns.Bytes() + len(n.flows)*sizeofFlow
	m.Operations = len(n.ops) * (sizeofOp + sizeofMore)
	m.Words = n.words.bytes()
	m.Total += m.Conns + m.Operations + m.Words
}

func (n *node) report(m *Memory) ServerReport {
	n.account(m)
	v := ServerReport{Addr: n.addrs[0].String(), Twin: n.twin.Load(), Conns: n.conns.Len(), Words: n.words.n, Held: n.shelf.Len(), Connections: []ConnReport{}}
	n.each(func(x *nic) { v.Shared += x.keys.lending })
	for _, a := range n.addrs[1:] {
		v.Also = append(v.Also, a.String())
	}
	for i := range n.words.w[:n.words.born] {
		if w := &n.words.w[i]; w.va != nowhere && n.words.believes(w) {
			v.Known++
		}
	}
	for i := range n.flows {
		f := &n.flows[i]
		v.Open += int(f.open)
		if !n.conns.Used(conn.Slot(i)) || len(v.Connections) == maxReported {
			continue
		}
		row := n.conns.Row(conn.Slot(i))
		c := ConnReport{
			Client: endName(&row.Client), Server: endName(&row.Server), From: row.Learnt.String(), State: row.State.String(),
			Followed: f.synced && f.trusted, Ended: f.gone, MTU: int(row.MTU),
		}
		if f.synced {
			c.NextClient, c.NextServer, c.MSN = f.arrived, f.next, f.released()
			c.Open, c.Guests, c.Waiting = int(f.open), int(f.guests), int(f.stall.Len())
			if f.mtu != 0 {
				c.MTU = int(f.mtu)
			}
		}
		c.Shared = n.flows[i].lends > 0
		v.Connections = append(v.Connections, c)
	}
	return v
}

// endName returns an end of a connection in the form of static=.
func endName(e *conn.End) string { return fmt.Sprintf("%v/%#x", e.Addr, e.QPN) }

var _ graph.Reporter = (*Box)(nil)
