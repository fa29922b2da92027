package sherman

import "math/bits"

// The lock table.
const (
	// LockTable is the size of the lock table in bytes: the device memory of a ConnectX-5.
	LockTable = 256 << 10
	// Locks is the number of locks.
	Locks = LockTable / 8
)

// LockOf returns the index of a page's lock, on the node that has the page.
func LockOf(a Addr) int { return int(cityHash64(uint64(a)) % Locks) }

// cityHash64 is CityHash64 1.1 of the 8 bytes of v, low byte first (Pike and Alakuijala, "CityHash", 2011):
// its case for 8 to 16 bytes.
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

// maxHandOver is how often sessions of one client hand a lock to each other before it is released.
const maxHandOver = 8

// lockKey names a lock. Sessions with the same lockKey share the lock; with Config.Flat no two do.
type lockKey struct{ node, index, session int }

// lockKey returns the key for the lock of the page s.page.
func (s *session) lockKey() lockKey {
	k := lockKey{node: s.page.Node(), index: LockOf(s.page)}
	if s.c.cfg.Flat {
		k.session = s.Index
	}
	return k
}

// localLock is what the sessions of a client know about a lock.
type localLock struct {
	holder  *session
	waiting []*session
	handed  int
	tag     uint64 // the tag with which the lock was taken, perhaps by a session before the holder
}

// enter makes s the holder, or makes s wait and returns false.
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

// nextHolder reports whether the lock that s holds is handed to another session of the client instead of
// being released.
func (c *Client) nextHolder(s *session) bool {
	l := c.locks[s.lockKey()]
	return len(l.waiting) > 0 && l.handed < maxHandOver
}

// tag returns the word that the lock contains while s holds it.
func (c *Client) tag(s *session) uint64 {
	l := c.locks[s.lockKey()]
	if s.step == stepLock {
		l.tag = s.tag
	}
	return l.tag
}

// leave ends the holding of s and returns the session that waits next, nil if there is none. handed: that
// session gets the lock in hand; otherwise it must take the lock.
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
