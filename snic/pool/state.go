package pool

import (
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

// Hosted is a chain that a board runs.
type Hosted struct {
	Chain int     `json:"chain"`
	Left  float64 `json:"left"` // bits a second that it could handle more
}

// Info is what a board tells about itself.
type Info struct {
	Regions []int    `json:"regions,omitempty"` // areas of the free ones, victims among them
	Chains  []Hosted `json:"chains,omitempty"`
	Pages   int      `json:"pages"` // free
	Load    float64  `json:"load"`  // bits a second through its ports
	// Deployment is a number that boards share which have the same chains. No
	// chain goes to a board with another.
	Deployment uint64 `json:"deployment,omitempty"`
	Addr       string `json:"addr,omitempty"` // where frames for it go
	// Leaving: it stops soon. What runs there is to be taken away.
	Leaving bool `json:"leaving,omitempty"`
}

func (i *Info) clone() Info {
	c := *i
	c.Regions, c.Chains = slices.Clone(i.Regions), slices.Clone(i.Chains)
	return c
}

// Phase is how far an ask is.
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
	State []byte  `json:"state,omitempty"`
}

// Status is what became of an ask.
type Status uint8

const (
	Refused Status = iota
	Granted        // reserved
	Loading
	Ready
	Serving // it has the state that was Handed
	Saved   // stopped; State is what it knew
	Failed  // taken away
)

// Answer is to an ask of the receiver.
type Answer struct {
	ID     uint32 `json:"id"`
	Status Status `json:"status"`
	State  []byte `json:"state,omitempty"`
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

// Encode is the message in bytes.
func (s *State) Encode() ([]byte, error) { return json.Marshal(s) }

// Decode reads a message, and checks it.
func Decode(p []byte) (*State, error) {
	s := &State{}
	if err := json.Unmarshal(p, s); err != nil {
		return nil, fmt.Errorf("pool: message: %w", err)
	}
	return s, s.check()
}

func number(v float64) bool { return v >= 0 && v <= math.MaxFloat64 }

// check refuses what no Node would say.
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
		if c.Chain < 0 || !number(c.Left) {
			return fmt.Errorf("pool: message of board %d: chain %d with %g bit/s left", s.From, c.Chain, c.Left)
		}
	}
	for _, a := range s.Asks {
		if a.ID == 0 || a.Chain < 0 || !number(a.Rate) || a.Phase > Moving {
			return fmt.Errorf("pool: message of board %d: ask %+v", s.From, a)
		}
	}
	for _, a := range s.Answers {
		if a.ID == 0 || a.Status > Failed {
			return fmt.Errorf("pool: message of board %d: answer %d to ask %d", s.From, a.Status, a.ID)
		}
	}
	return nil
}
