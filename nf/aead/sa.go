package aead

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/journal"
)

var be = binary.BigEndian

// MaxSAs is the largest number of SAs of an app, of both directions together.
const MaxSAs = 1024

const saltLen = 4

// direction is the direction of an SA.
type direction uint8

const (
	outbound direction = iota // from a to b
	inbound
)

func (d direction) String() string {
	if d == outbound {
		return "out"
	}
	return "in"
}

// sa is a security association (of one direction).
type sa struct {
	spi  uint32
	dir  direction
	gcm  cipher.AEAD
	salt [saltLen]byte
	esn  bool
	iv0  uint64 // the IV of number 0

	shared bool // several workers
	mu     sync.Mutex
	// The worker that has the turn owns the fields below.
	seq      uint64 // outbound: the last number used
	win      window // inbound
	kept     []byte // where the number is kept beyond the process; nil: nowhere
	disk     reserve
	packets  uint64
	bytes    uint64 // of ESP payload data
	replayed uint64
	forged   uint64
}

func (s *sa) own() {
	if s.shared {
		s.mu.Lock()
	}
}

func (s *sa) release() {
	if s.shared {
		s.mu.Unlock()
	}
}

// next returns the sequence number of another packet, of n bytes, or 0 and the reason why there is none.
func (s *sa) next(n int, lifetime uint64) (seq uint64, why graph.Reason) {
	s.own()
	if s.seq >= s.disk.low {
		s.disk.ahead(s.seq, lifetime)
	}
	why = reasonExpired
	if s.seq >= s.disk.limit && (s.disk.limit == 0 || !s.disk.random) {
		why = reasonNotOnDisk
	} else if s.seq < lifetime {
		s.seq++
		seq = s.seq
		s.packets++
		s.bytes += uint64(n)
		if s.kept != nil {
			be.PutUint64(s.kept, seq)
		}
	}
	s.release()
	return seq, why
}

// expect returns the whole sequence number (64 bits with esn=) of a received packet before that is authenticated,
// or false if the number was received before, or is too old.
func (s *sa) expect(low uint32) (uint64, bool) {
	s.own()
	seq, ok := uint64(low), true
	if s.esn {
		seq, ok = s.win.extend(low)
	}
	ok = ok && s.win.fresh(seq)
	if !ok {
		s.replayed++
	}
	s.release()
	return seq, ok
}

// accept notes that seq, of a packet of n bytes, was authenticated. It returns false if another worker has
// accepted seq meanwhile.
func (s *sa) accept(seq uint64, n int) bool {
	s.own()
	ok := !s.shared || s.win.fresh(seq)
	if ok {
		s.win.take(seq)
		s.packets++
		s.bytes += uint64(n)
		if s.kept != nil {
			be.PutUint64(s.kept, s.win.top)
		}
		if s.win.top >= s.disk.low {
			s.disk.received(s.win.top)
		}
	} else {
		s.replayed++
	}
	s.release()
	return ok
}

func (s *sa) refuse() {
	s.own()
	s.forged++
	s.release()
}

// keymat is an AES key and its salt (RFC 4106 8.1). It is a string, so that keys can be compared.
type keymat string

// readKeys reads a file of lines "SPI KEYMAT"; # begins a comment.
func readKeys(name string) (map[uint32]keymat, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: others than its owner may read or write it (mode %04o): chmod 600", name, st.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil, err
	}
	keys, err := parseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return keys, nil
}

func parseKeys(text []byte) (map[uint32]keymat, error) {
	keys := map[uint32]keymat{}
	spis := map[keymat]uint32{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		word := strings.Fields(line)
		if len(word) == 0 {
			continue
		}
		if len(word) != 2 {
			return nil, fmt.Errorf("line %d: want an SPI and a key, not %d words", n, len(word))
		}
		spi, err := parseSPI(word[0])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		raw, err := hex.DecodeString(strings.TrimPrefix(word[1], "0x"))
		if err != nil || len(raw) != 16+saltLen && len(raw) != 24+saltLen && len(raw) != 32+saltLen {
			// The key itself is not printed.
			return nil, fmt.Errorf("line %d: the key of 0x%x is not 20, 28 or 36 bytes in hexadecimal digits (AES key, then 4 bytes of salt)", n, spi)
		}
		k := keymat(raw)
		if _, ok := keys[spi]; ok {
			return nil, fmt.Errorf("line %d: 0x%x has a key already", n, spi)
		}
		if other, ok := spis[k]; ok {
			return nil, fmt.Errorf("line %d: 0x%x has the key of 0x%x: nonces would repeat", n, spi, other)
		}
		keys[spi], spis[k] = k, spi
	}
	return keys, lines.Err()
}

func parseSPI(s string) (uint32, error) {
	v, err := strconv.ParseUint(s, 0, 32)
	if err != nil || v < 256 {
		return 0, fmt.Errorf("%q is no SPI: want a number from 256 (0x100) to 0xffffffff", s)
	}
	return uint32(v), nil
}

// identity is a hash of an SA's direction, SPI and key.
type identity [16]byte

func (d direction) identity(spi uint32, k keymat) identity {
	h := sha256.New()
	h.Write([]byte("quillon esp\x00"))
	h.Write(append(be.AppendUint32([]byte{byte(d)}, spi), k...))
	return identity(h.Sum(nil)[:16])
}

// The memory that outlives the process (graph.Env.Memory) has rows of an identity and a sequence number.
const (
	rowLen    = 24
	memoryLen = MaxSAs * rowLen
)

// store has the SAs of an app, which its workers share. An SA that no argument names stays, and continues with
// its number when an argument names it again.
type store struct {
	shared bool
	mu     sync.Mutex
	sas    map[identity]*sa
	mem    []byte
	disk   journal.Journal // rows of mem, in slots of the same numbers; nil: none
	limits []uint64        // what disk had of each row when the process opened it
	err    error
}

func openStore(env graph.Env, keep bool) *store {
	st := &store{shared: env.Workers > 1, sas: map[identity]*sa{}, limits: make([]uint64, MaxSAs)}
	if keep && env.Memory != nil {
		if st.mem, st.err = env.Memory(memoryLen); st.err != nil {
			st.err = fmt.Errorf("%w; or keep=off, with new keys at every start", st.err)
		}
	}
	if st.mem != nil && st.err == nil && env.Journal != nil && !env.Asked {
		st.disk, st.err = env.Journal(MaxSAs, st.arrange)
	}
	return st
}

// arrange puts the numbers of the journal into the memory where that is lost, and returns what the journal is to have.
func (st *store) arrange(left []journal.Entry, lost bool) (map[int]journal.Entry, error) {
	limits, all := map[identity]uint64{}, map[int]journal.Entry{}
	for _, e := range left {
		id := identityIn(e)
		limits[id] = e[2]
		row := st.row(id)
		if row == nil {
			return nil, fmt.Errorf("no room to keep the numbers of %d SAs: remove the journal once none of their keys is in use", len(left))
		}
		if lost || identity(row) == (identity{}) {
			copy(row, id[:])
			be.PutUint64(row[len(id):], max(e[2], be.Uint64(row[len(id):])))
		}
	}
	for i := range st.limits {
		row := st.mem[i*rowLen:][:rowLen]
		if id := identity(row); id != (identity{}) {
			st.limits[i] = max(limits[id], be.Uint64(row[len(id):]))
			all[i] = id.onDisk(st.limits[i])
		}
	}
	return all, nil
}

func (id identity) onDisk(number uint64) journal.Entry {
	return journal.Entry{be.Uint64(id[:]), be.Uint64(id[8:]), number, 1}
}

func identityIn(e journal.Entry) (id identity) {
	be.PutUint64(id[:], e[0])
	be.PutUint64(id[8:], e[1])
	return id
}

// ready reports whether all outbound SAs have numbers on the disk.
func (st *store) ready(lifetime uint64) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, s := range st.sas {
		s.own()
		if s.dir == outbound && s.disk.limit == 0 {
			s.disk.ahead(s.seq, lifetime)
		}
		ok := s.dir == inbound || s.disk.limit != 0
		s.release()
		if !ok {
			return false
		}
	}
	return true
}

// reserve is what the journal has of an SA. Of an outbound SA it has a number ahead of all packets, so that the numbers
// behind it are new after a reboot; of an inbound SA the highest number that was received some packets ago.
type reserve struct {
	journal journal.Journal
	id      identity
	slot    int
	asked   uint64 // the number that the journal was given
	limit   uint64 // outbound: the number that is on the disk, which numbers exceed only with iv=random, where nonces do not repeat all the same
	low     uint64 // from this number on the journal has to be given another one
	random  bool   // iv=random
}

// noReserve is the reserve of an SA without a journal.
var noReserve = reserve{limit: math.MaxUint64, low: math.MaxUint64}

const (
	mostAhead = 1 << 20 // numbers that a reboot takes from an outbound SA at most
	behind    = 1 << 14 // packets that an inbound SA receives until the journal is given its number
)

// ahead reserves more numbers for an SA whose last one is seq.
func (r *reserve) ahead(seq, lifetime uint64) {
	more := min(mostAhead, max(64, lifetime/256))
	if r.asked < seq || r.asked-seq <= more/2 {
		r.asked = seq + more
	}
	e := r.id.onDisk(r.asked)
	switch {
	case r.journal.Keep(r.slot, &e):
		r.limit, r.low = r.asked, r.asked-more/2
	case r.journal.Err() != nil && r.random:
		r.limit, r.low = math.MaxUint64, math.MaxUint64
	}
}

// received tells the journal the highest number that was received. The disk may have it later.
func (r *reserve) received(top uint64) {
	e := r.id.onDisk(top)
	r.journal.Keep(r.slot, &e)
	r.low = top + behind
}

// row returns the row of an SA, or a free row if the SA has none, or nil if no row is free.
func (st *store) row(id identity) []byte {
	var free []byte
	for at := 0; at+rowLen <= len(st.mem); at += rowLen {
		row := st.mem[at : at+rowLen]
		switch identity(row) {
		case id:
			return row
		case identity{}:
			if free == nil {
				free = row
			}
		}
	}
	return free
}

// get returns the SA of that direction, SPI and key, which it makes if it is not there yet.
func (st *store) get(d direction, spi uint32, k keymat, cfg *config) (*sa, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	id := d.identity(spi, k)
	if s := st.sas[id]; s != nil {
		return s, nil
	}
	block, err := aes.NewCipher([]byte(k[:len(k)-saltLen]))
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	s := &sa{spi: spi, dir: d, gcm: gcm, esn: cfg.esn, shared: st.shared, win: window{size: uint64(cfg.window)}, disk: noReserve}
	copy(s.salt[:], k[len(k)-saltLen:])
	if cfg.randomIV {
		var b [8]byte
		rand.Read(b[:])
		s.iv0 = be.Uint64(b[:])
	}
	if st.mem != nil {
		row := st.row(id)
		if row == nil {
			return nil, fmt.Errorf("no room to keep the numbers of 0x%x: %d SAs are kept already; remove the state file once none of their keys is in use", spi, MaxSAs)
		}
		copy(row, id[:])
		s.kept = row[len(id):]
		if n := be.Uint64(s.kept); d == outbound {
			s.seq = n
		} else if n > 0 {
			s.win.resume(n)
		}
		if st.disk != nil {
			slot := (cap(st.mem) - cap(row)) / rowLen
			s.disk = reserve{journal: st.disk, id: id, slot: slot, asked: st.limits[slot], random: cfg.randomIV}
			if d == outbound {
				s.disk.ahead(s.seq, cfg.lifetime)
			}
		}
	}
	st.sas[id] = s
	return s, nil
}
