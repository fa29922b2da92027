package clover

import wire "github.com/quillon/quillon/nf/hdr/clover"

// tag is the first 8 bytes of a workload's value: the number of the session that wrote it, and which of the
// session's writes it is, counted from 1. Values of the bulk load have 0.
type tag uint64

const seqBits = 40

func tagOf(session uint32, seq uint64) tag { return tag(session)<<seqBits | tag(seq) }
func (t tag) session() uint32              { return uint32(t >> seqBits) }
func (t tag) seq() uint64                  { return uint64(t) & (1<<seqBits - 1) }

// journal is the list of one session's writes: the key of every write, by sequence number from 1, and the set
// of writes that failed.
type journal struct {
	keys   []uint64
	failed map[uint64]bool
}

func (j *journal) begin(key uint64) (seq uint64) {
	j.keys = append(j.keys, key)
	return uint64(len(j.keys))
}

func (j *journal) fail(seq uint64) {
	if j.failed == nil {
		j.failed = make(map[uint64]bool)
	}
	j.failed[seq] = true
}

// ledger is the metadata server's log of the entries that it retired, in chain order for each key. The chains
// in memory no longer show them.
type ledger struct{ entries []ledgerEntry }

type ledgerEntry struct {
	key uint64
	tag tag
}

func (l *ledger) superseded(key, t uint64) {
	l.entries = append(l.entries, ledgerEntry{key, tag(t)})
}

// Integrity is the verdict on a store at rest. Every chain was walked in the memory nodes' memory, from the
// head that the metadata server knows.
type Integrity struct {
	Keys uint64 `json:"keys"`
	// AckedWrites are the writes that ended without an error for their writers.
	AckedWrites uint64 `json:"acked_writes"`
	// Lost are those of them that are neither in their key's chain nor in the metadata server's log.
	Lost uint64 `json:"lost"`
	// BrokenLinks counts chains that do not end properly: they lead to an entry that does not exist, that has
	// another version or another key, that was there before, or that no writer made. Entries of the metadata
	// server's log count, too, if they were there before or no writer made them.
	BrokenLinks uint64 `json:"broken_links"`
	// Reordered counts acknowledged writes that stand before an earlier write of the same client to the same
	// key. Nothing is lost by this.
	Reordered uint64 `json:"reordered"`
	// InChain entries were found in memory, Superseded ones in the metadata server's log.
	InChain    uint64 `json:"in_chain"`
	Superseded uint64 `json:"superseded"`
	// BrokenWalks is MetadataStats.Broken.
	BrokenWalks uint64 `json:"broken_walks"`
}

// OK reports whether nothing was lost or broken.
func (i *Integrity) OK() bool { return i.Lost == 0 && i.BrokenLinks == 0 && i.BrokenWalks == 0 }

// auditor walks chains and marks what it finds.
type auditor struct {
	journals []*journal // by session number - 1
	found    [][]uint64 // bit sets by session and sequence
	last     map[sessionKey]uint64
	v        Integrity
}

type sessionKey struct {
	session uint32
	key     uint64
}

func newAuditor(journals []*journal) *auditor {
	a := &auditor{journals: journals, last: make(map[sessionKey]uint64)}
	for _, j := range journals {
		a.found = append(a.found, make([]uint64, len(j.keys)/64+1))
	}
	return a
}

// tick marks one entry of key's chain as found. It returns false if the entry cannot be in that chain.
func (a *auditor) tick(key uint64, t tag) bool {
	if t == 0 {
		return true
	}
	s, seq := t.session(), t.seq()
	if s == 0 || int(s) > len(a.journals) {
		return false
	}
	j := a.journals[s-1]
	if seq == 0 || seq > uint64(len(j.keys)) || j.keys[seq-1] != key {
		return false
	}
	w, bit := &a.found[s-1][seq/64], uint64(1)<<(seq%64)
	if *w&bit != 0 {
		return false
	}
	*w |= bit
	sk := sessionKey{s, key}
	if seq < a.last[sk] {
		a.v.Reordered++
	} else {
		a.last[sk] = seq
	}
	return true
}

// audit compares the results that the sessions got with what the memory holds.
func audit(m *Metadata, memory []*Memory, journals []*journal) Integrity {
	a := newAuditor(journals)
	if m.ledger != nil {
		for _, e := range m.ledger.entries {
			a.v.Superseded++
			if !a.tick(e.key, e.tag) {
				a.v.BrokenLinks++
			}
		}
	}
	for _, k := range m.keys {
		a.v.Keys++
		a.chain(m.layout, memory, k, len(m.entries))
	}
	for i, j := range journals {
		for n := range j.keys {
			seq := uint64(n + 1)
			if j.failed[seq] {
				continue
			}
			a.v.AckedWrites++
			if a.found[i][seq/64]&(1<<(seq%64)) == 0 {
				a.v.Lost++
			}
		}
	}
	a.v.BrokenWalks = m.stats.Broken
	return a.v
}

func (a *auditor) chain(l Layout, memory []*Memory, k *keyMeta, longest int) {
	p := k.head
	for range longest {
		s, _ := l.Entry(p.LH())
		if s == nil || int(s.Node) >= len(memory) {
			break
		}
		e := memory[s.Node].entry(p.LH())
		if e == nil {
			break
		}
		h := pointerAt(e, 0)
		if h.Version() != p.Version() || u64(e, wire.KeyAt) != k.key || !a.tick(k.key, tag(u64(e, ValueAt))) {
			break
		}
		a.v.InChain++
		if p = h.Next(); p == 0 {
			return
		}
	}
	a.v.BrokenLinks++
}
