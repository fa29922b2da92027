package sherman

import "math/bits"

// The lock table.
const (
	// LockTable is its size in bytes: what a ConnectX-5 has of device memory.
	LockTable = 256 << 10
	// Locks is how many locks there are.
	Locks = LockTable / 8
)

// LockOf is the index of a page's lock, on the node that holds the page.
func LockOf(a Addr) int { return int(cityHash64(uint64(a)) % Locks) }

// cityHash64 is CityHash64 1.1 of the 8 bytes of v, low byte first (Pike and
// Alakuijala, "CityHash", 2011): its case for 8 to 16 bytes.
func cityHash64(v uint64) uint64 {
	const k2, n = 0x9ae16a3b2f90404f, 8
	const mul = k2 + 2*n
	a, b := v+k2, v
	c := bits.RotateLeft64(b, -37)*mul + a
	d := (bits.RotateLeft64(a, -25) + b) * mul
	x := (c ^ d) * mul
	x ^= x >> 47
	y := (d ^ x) * mul
	y ^= y >> 47
	return y * mul
}

// maxHandOver is how often sessions of one client give a lock to each other
// before it is released.
const maxHandOver = 8

// lockKey names a lock among those that sessions wait for together.
type lockKey struct{ node, index, session int }

// lockKey is that of the lock of the page that s looks at.
func (s *session) lockKey() lockKey {
	k := lockKey{node: s.page.Node(), index: LockOf(s.page)}
	if s.c.cfg.Flat {
		k.session = s.Index
	}
	return k
}

// localLock is what the sessions of a client know of one lock.
type localLock struct {
	holder  *session
	waiting []*session
	handed  int
	tag     uint64 // with which it was taken, maybe by a session before the holder
}

// enter makes s the holder, or lets it wait its turn.
func (c *Client) enter(s *session) bool {
	k := s.lockKey()
	l := c.locks[k]
	if l == nil {
		l = &localLock{}
		c.locks[k] = l
	}
	if l.holder != nil {
		l.waiting = append(l.waiting, s)
		return false
	}
	l.holder = s
	return true
}

// nextHolder reports whether the lock that s holds goes to another session of the
// client, and not back to the table.
func (c *Client) nextHolder(s *session) bool {
	l := c.locks[s.lockKey()]
	return len(l.waiting) > 0 && l.handed < maxHandOver
}

// tag is what the lock that s takes, or holds, contains then.
func (c *Client) tag(s *session) uint64 {
	l := c.locks[s.lockKey()]
	if s.step == stepLock {
		l.tag = s.tag
	}
	return l.tag
}

// leave ends the holding of s; the next session begins, with the lock in hand if
// it was handed over.
func (c *Client) leave(s *session, handed bool) (next *session) {
	k := s.lockKey()
	l := c.locks[k]
	if len(l.waiting) == 0 {
		delete(c.locks, k)
		return nil
	}
	next = l.waiting[0]
	l.waiting = l.waiting[1:]
	l.holder = next
	l.handed++
	if !handed {
		l.handed = 0
	}
	return next
}
