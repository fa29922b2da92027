package pool

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Bounds of what a message may hold.
const (
	MaxBoards = 256
	maxList   = 4096
	maxPages  = 1 << 40
	maxBytes  = 1 << 40 // of a bitstream
	maxAddr   = 64
)

// MaxState is the most bytes of chains' states in a message. A chain with more state cannot move.
const MaxState = 16 << 20

// shortState is the length of a state, in bytes, up to which every message repeats it until it has arrived.
const shortState = 512

// Hosted is a chain that a board runs.
type Hosted struct {
	Chain int     `json:"chain"`
	Left  float64 `json:"left"` // bits a second that it could handle more
	// Closed says that the chain has state, so that it cannot be shared with another owner.
	Closed bool `json:"closed,omitempty"`
	// Stay is the recent waiting time of its packets on the board, in ns: a power of two.
	Stay int64 `json:"stay,omitempty"`
}

// Info is what a board tells its peers about itself.
type Info struct {
	Regions []int    `json:"regions,omitempty"` // areas of the free ones, victims among them
	Chains  []Hosted `json:"chains,omitempty"`
	Pages   int      `json:"pages"`          // free
	Page    int      `json:"page,omitempty"` // bytes of one: pages go to boards with the same
	Load    float64  `json:"load"`           // bits a second through its ports
	// Deployment is a number that is the same on boards with the same chains. No chain goes to a
	// board with another number.
	Deployment uint64 `json:"deployment,omitempty"`
	Addr       string `json:"addr,omitempty"` // where frames for it go
	// Leaving says that the board stops soon: owners must fetch their chains from it.
	Leaving bool `json:"leaving,omitempty"`
}

func (i *Info) clone() Info {
	c := *i
	c.Regions, c.Chains = slices.Clone(i.Regions), slices.Clone(i.Chains)
	return c
}

// Phase says how far an ask has come.
type Phase uint8

const (
	Reserving Phase = iota // a region is asked for
	Loaded                 // the bitstream was sent
	Handed                 // State is what the chain knew
	Moving                 // the chain is to stop, and its state to be sent
)

// Ask is a chain that a board wants its peer to run.
type Ask struct {
	ID    uint32  `json:"id"` // of the owner, never used again in its incarnation
	Chain int     `json:"chain"`
	Rate  float64 `json:"rate"`
	Phase Phase   `json:"phase"`
	Copy  uint32  `json:"copy,omitempty"` // number of the newest copy that the owner has
	Size  int     `json:"size,omitempty"` // of State; set by Encode
	State []byte  `json:"-"`
}

// Status says what became of an ask.
type Status uint8

const (
	Refused Status = iota
	Granted        // reserved
	Loading
	Ready
	Serving // it has the state that was Handed
	Saved   // stopped; State is what it knew
	Failed  // taken away
	Kept    // it cannot be moved, and goes on
)

// Answer answers an ask of the message's receiver.
type Answer struct {
	ID     uint32 `json:"id"`
	Status Status `json:"status"`
	Copy   uint32 `json:"copy,omitempty"` // number of the copy that State is; 0: it is none
	Size   int    `json:"size,omitempty"` // of State; set by Encode
	State  []byte `json:"-"`
}

// State is the message: all that From has to say to To.
type State struct {
	From    int      `json:"from"`
	To      int      `json:"to"`
	Inc     uint64   `json:"inc"`     // incarnation of From
	Seq     uint64   `json:"seq"`     // number of the message, in this incarnation, to this peer
	SeenInc uint64   `json:"seeninc"` // of To, and the newest message of it
	Seen    uint64   `json:"seen"`
	Info    Info     `json:"info"`
	Asks    []Ask    `json:"asks,omitempty"`
	Answers []Answer `json:"answers,omitempty"`
}

// Holds reports whether a message holds the state of a chain.
func (s *State) Holds() bool {
	return slices.ContainsFunc(s.Asks, func(a Ask) bool { return len(a.State) > 0 }) || slices.ContainsFunc(s.Answers, func(a Answer) bool { return len(a.State) > 0 })
}

// Encode returns the message in bytes: 4 bytes with the length of its text, most significant first; the text, which
// is JSON; and the states of asks and answers, in their order.
func (s *State) Encode() ([]byte, error) {
	size := 0
	for i := range s.Asks {
		s.Asks[i].Size = len(s.Asks[i].State)
		size += len(s.Asks[i].State)
	}
	for i := range s.Answers {
		s.Answers[i].Size = len(s.Answers[i].State)
		size += len(s.Answers[i].State)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	p := make([]byte, 0, 4+len(text)+size)
	p = binary.BigEndian.AppendUint32(p, uint32(len(text)))
	p = append(p, text...)
	for i := range s.Asks {
		p = append(p, s.Asks[i].State...)
	}
	for i := range s.Answers {
		p = append(p, s.Answers[i].State...)
	}
	return p, nil
}

// Decode reads a message, and checks it. Its states are slices of p.
func Decode(p []byte) (*State, error) {
	if len(p) < 4 || uint64(binary.BigEndian.Uint32(p)) > uint64(len(p)-4) {
		return nil, fmt.Errorf("pool: message of %d bytes: cut short", len(p))
	}
	n := 4 + int(binary.BigEndian.Uint32(p))
	s := &State{}
	if err := json.Unmarshal(p[4:n], s); err != nil {
		return nil, fmt.Errorf("pool: message: %w", err)
	}
	p = p[n:]
	take := func(size int) (state []byte, err error) {
		if size < 0 || size > len(p) {
			return nil, fmt.Errorf("pool: message of board %d: a state of %d bytes, with %d left", s.From, size, len(p))
		}
		if size > 0 {
			state, p = p[:size:size], p[size:]
		}
		return state, nil
	}
	var err error
	for i := range s.Asks {
		if s.Asks[i].State, err = take(s.Asks[i].Size); err != nil {
			return nil, err
		}
	}
	for i := range s.Answers {
		if s.Answers[i].State, err = take(s.Answers[i].Size); err != nil {
			return nil, err
		}
	}
	if len(p) > 0 {
		return nil, fmt.Errorf("pool: message of board %d: %d bytes are nobody's", s.From, len(p))
	}
	return s, s.check()
}

func number(v float64) bool { return v >= 0 && v <= math.MaxFloat64 }

// check returns an error for a message that no Node would send.
func (s *State) check() error {
	switch {
	case s.From < 0 || s.From >= MaxBoards || s.To < 0 || s.To >= MaxBoards || s.From == s.To:
		return fmt.Errorf("pool: message from board %d to %d", s.From, s.To)
	case s.Inc == 0 || s.Seq == 0:
		return fmt.Errorf("pool: message of board %d without number", s.From)
	case len(s.Info.Regions) > maxList || len(s.Info.Chains) > maxList || len(s.Asks) > maxList || len(s.Answers) > maxList:
		return fmt.Errorf("pool: message of board %d: more than %d of a sort", s.From, maxList)
	case len(s.Info.Addr) > maxAddr:
		return fmt.Errorf("pool: message of board %d: address of %d bytes", s.From, len(s.Info.Addr))
	case s.Info.Pages < 0 || s.Info.Pages > maxPages || !number(s.Info.Load):
		return fmt.Errorf("pool: message of board %d: %d free pages, %g bit/s", s.From, s.Info.Pages, s.Info.Load)
	}
	for _, c := range s.Info.Chains {
		if c.Chain < 0 || !number(c.Left) || c.Stay < 0 {
			return fmt.Errorf("pool: message of board %d: chain %d with %g bit/s left", s.From, c.Chain, c.Left)
		}
	}
	for _, a := range s.Asks {
		if a.ID == 0 || a.Chain < 0 || !number(a.Rate) || a.Phase > Moving {
			return fmt.Errorf("pool: message of board %d: ask %+v", s.From, a)
		}
	}
	for _, a := range s.Answers {
		if a.ID == 0 || a.Status > Kept {
			return fmt.Errorf("pool: message of board %d: answer %d to ask %d", s.From, a.Status, a.ID)
		}
	}
	return nil
}
