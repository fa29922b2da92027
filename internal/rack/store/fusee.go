package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/internal/rack/fusee"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

var fuseeKind = Kind{
	Name: "fusee", Summary: "a key/value store whose clients decide each slot by one-sided CASes, without locks (Shen et al., FAST 2023)",
	CheckSpec: func(s *Spec) error {
		s.Value = cmp.Or(s.Value, 8)
		if s.Value < 8 || s.Value > fuseeValue {
			return fmt.Errorf("value %d: want 8 to %d bytes (in an object)", s.Value, fuseeValue)
		}
		return nil
	},
	Memory:      func(s Spec) int64 { l := fuseeLayout(s); return l.Memory() },
	EachSession: true, New: newFusee, Client: fuseeClient,
}

const (
	// fuseePatience is the FailAfter of clients: longer than a machine pauses that is shared with others.
	// Memory is not reused earlier, so a session needs fuseeBlocks blocks.
	fuseePatience = 500 * time.Millisecond
	fuseeBlocks   = 16
	fuseeObjects  = 64 // in a block
	fuseeValue    = 8 << 10
	fuseeFiller   = 1 // owner of the objects that exist from the start; sessions have larger numbers
)

// fuseeLayout is one memory node with room for s: an index of which two fifths are used, and blocks of
// objects of one size.
func fuseeLayout(s Spec) fusee.Layout {
	l := fusee.Layout{Nodes: 1, Replicas: 1, Subtables: 32, Unit: 256}
	const slots = 3 * 7 // of a group
	l.Groups = 2 * (s.Keys*5/2/(l.Subtables*slots*2) + 1)
	l.Block = fuseeObjects * l.Unit * fuseeUnits(s.Value)
	l.Blocks = s.Keys/fuseeObjects + 1 + s.Sessions*fuseeBlocks
	return l
}

// fuseeUnits returns how many units of 256 bytes an object with a key of 8 bytes takes.
func fuseeUnits(value int) int { return (value + 48 + 255) / 256 }

type fuseeStore struct {
	cluster fusee.Cluster
	grant   fusee.Grant
	spec    Spec
	next    int // number of the next client's first session
	scratch []byte
}

func newFusee(s Spec) (Store, error) {
	c, err := fusee.NewCluster(fuseeLayout(s))
	if err != nil {
		return nil, err
	}
	f, value := c.Filler(fuseeFiller), make([]byte, s.Value)
	for k := uint64(1); k <= uint64(s.Keys); k++ {
		if err := f.Insert(fuseeKey(nil, k), fill(value, k)); err != nil {
			return nil, fmt.Errorf("key %d: %w", k, err)
		}
	}
	return &fuseeStore{cluster: c, spec: s, next: fuseeFiller + 1, scratch: make([]byte, s.Value)}, nil
}

func fuseeKey(b []byte, k uint64) []byte { return binary.LittleEndian.AppendUint64(b[:0], k) }

func (t *fuseeStore) Serve(pd *rnic.PD) (err error) {
	t.grant, err = t.cluster[0].Serve(pd)
	return err
}

// fuseeAnnounced is what a client is told when it connects.
type fuseeAnnounced struct {
	Subtables, Groups, Unit, Block, Blocks uint32
	Index, Owners, Objects                 region
	First                                  uint16 // number of the client's first session
	Room                                   uint16 // number of sessions for which there are blocks
	Dead                                   uint16 // first of the dead sessions whose memory the client takes over, one for each of its sessions; 0: there are none
	At                                     uint32 // first of the client's blocks: fuseeBlocks for the first session, then for the next one, and so on
}

func (t *fuseeStore) Join(sessions int) ([]byte, error) {
	l := t.grant.Layout
	if given := t.next - fuseeFiller - 1; given+sessions > t.spec.Sessions {
		return nil, fmt.Errorf("fusee: no room for %d sessions: %d of %d are given: start the memory node with more (--most-sessions)", sessions, given, t.spec.Sessions)
	}
	at := 0
	for i := range sessions * fuseeBlocks {
		b, err := t.cluster.Alloc(uint16(t.next+i/fuseeBlocks), 0, fuseeUnits(t.spec.Value))
		if err != nil {
			return nil, err
		}
		if i == 0 {
			at = b
		}
	}
	first := t.next
	t.next += sessions
	return pack(fuseeAnnounced{uint32(l.Subtables), uint32(l.Groups), uint32(l.Unit), uint32(l.Block), uint32(l.Blocks),
		t.grant.Index, t.grant.Blocks, t.grant.Objects, uint16(first), uint16(sessions), 0, uint32(at)}), nil
}

// Again tells the next client to recover the sessions of the client before, and to take over their memory.
func (t *fuseeStore) Again(announced []byte, sessions int) ([]byte, error) {
	var a fuseeAnnounced
	if err := unpack(announced, &a); err != nil {
		return nil, err
	}
	if t.next+2*sessions > 1<<16-1 {
		return nil, errors.New("fusee: sessions have no numbers left: start the memory node anew")
	}
	// No session ever had the numbers from Dead on. Now they own all blocks of the place, whichever sessions
	// owned these before.
	a.Dead, a.First = uint16(t.next), uint16(t.next+sessions)
	t.next += 2 * sessions
	for i := range int(a.Room) * fuseeBlocks {
		t.cluster.Give(a.Dead+uint16(i/fuseeBlocks%sessions), 0, int(a.At)+i)
	}
	return pack(a), nil
}

func (t *fuseeStore) Shared() []Span {
	return []Span{{t.grant.Index.VA, uint64(t.grant.Layout.Capacity()) * 8 * 8 / 7}}
}

func (t *fuseeStore) Walk(bool) (Contents, error) {
	values, err := t.cluster.Check()
	if err != nil {
		return nil, err
	}
	held := Contents{}
	for k, v := range values {
		n, ok := numberOf(v, t.scratch)
		if len(k) != 8 || len(v) != t.spec.Value || !ok {
			return nil, fmt.Errorf("fusee: key %q: %w", k, errForeign)
		}
		held[binary.LittleEndian.Uint64([]byte(k))] = n
	}
	return held, nil
}

type fuseeLibrary struct{ *fusee.Client }

func (l fuseeLibrary) Facts() []Fact {
	s := l.Stats()
	return []Fact{{"reads", s.Done[fusee.Read]}, {"updates", s.Done[fusee.Update]}, {"round-trips", s.RoundTrips}, {"messages", s.Messages},
		{"updates-overtaken", s.Lost}, {"begun-again", s.Again}}
}

func fuseeClient(c ClientSpec) (Library, error) {
	var a fuseeAnnounced
	if err := unpack(c.Announced, &a); err != nil {
		return nil, err
	}
	l := fusee.Layout{Nodes: 1, Replicas: 1, Subtables: int(a.Subtables), Groups: int(a.Groups), Unit: int(a.Unit), Block: int(a.Block), Blocks: int(a.Blocks)}
	grant := fusee.Grant{Layout: l, Index: a.Index, Blocks: a.Owners, Objects: a.Objects}
	keys, v := make([][]byte, c.Sessions), newValues(c)
	given := make([]int, c.Sessions)      // how many of a session's blocks were given to it
	recovered := make([]bool, c.Sessions) // whether a session has taken over a dead session's memory, or has none to take over
	for i := range given {
		if recovered[i] = a.Dead == 0; !recovered[i] {
			given[i] = fuseeBlocks // recovery finds the blocks
		}
	}
	x, err := fusee.NewClient(fusee.Config{
		Layout: l, Sessions: c.Sessions, ID: a.First, CQ: c.CQ, FailAfter: fuseePatience,
		Dial: func(now clock.Time, session, _ int) (*rnic.QP, fusee.Grant, error) {
			qp, err := c.Dial(now, session)
			return qp, grant, err
		},
		Alloc: func(_ clock.Time, owner uint16, region, units int) (int, error) {
			i := int(owner) - int(a.First)
			if i < 0 || i >= c.Sessions || region != 0 || units != fuseeUnits(c.Value) || given[i] == fuseeBlocks {
				return 0, fusee.ErrNoMemory
			}
			given[i]++
			return int(a.At) + i*fuseeBlocks + given[i] - 1, nil
		},
		Next: func(now clock.Time, session int) (fusee.Op, bool) {
			if !recovered[session] {
				recovered[session] = true
				return fusee.Op{Kind: fusee.Recover, Dead: a.Dead + uint16(session)}, true
			}
			op, ok := c.Next(now, session)
			keys[session] = fuseeKey(keys[session], op.Key)
			k := fusee.Op{Kind: fusee.Read, Key: keys[session]}
			if op.Write {
				k.Kind, k.Value = fusee.Update, v.of(session, op.Value)
			}
			return k, ok
		},
		Done: func(r *fusee.Result) {
			if r.Kind == fusee.Recover && (r.Err == nil || errors.Is(r.Err, fusee.ErrUnknown)) {
				recovered[r.Session] = r.Err == nil
				return
			}
			v.done(r.End, Done{Session: r.Session, Start: r.Start, Write: r.Kind != fusee.Read, First: r.Retries == 0, Err: r.Err}, r.Found, r.Got, fusee.ErrUnknown)
		},
	})
	return fuseeLibrary{x}, err
}
