package pcap_test

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
)

// locker is a client of an arbiter at 10.0.0.9.
type locker struct {
	s    *scene
	talk talk
	last byte // of its address
	life uint64
	id   uint32
}

// session is what the arbiter offers, in replay, where its secret is zeros: a CBC-MAC of what it knows of the client.
func (l *locker) session() uint64 {
	k, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		l.s.Fatal(err)
	}
	b := make([]byte, 32)
	copy(b, []byte{10, 0, 0, l.last, 5000 >> 8, 5000 & 255})
	binary.BigEndian.PutUint64(b[8:], l.life)
	binary.BigEndian.PutUint64(b[16:], uint64(l.s.now)/16e9)
	if len(l.talk.vlans) > 0 {
		binary.BigEndian.PutUint32(b[28:], uint32(l.talk.vlans[0]))
	}
	cipher.NewCBCEncrypter(k, make([]byte, 16)).CryptBlocks(b, b)
	return binary.BigEndian.Uint64(b[16:]) | 1
}

func (l *locker) says(m message.Message) []byte {
	if m.Op != message.Hello {
		m.Session = l.session()
	}
	m.Incarnation, m.Attempt = l.life, 1
	m.Lease = cmp.Or(m.Lease, 15)
	return l.talk.udp(5000, message.Port, m.Append(nil))
}

// acquire asks for words, of which the even ones are shared.
func (l *locker) acquire(wait uint32, addrs ...uint64) {
	l.id++
	m := message.Message{Op: message.Acquire, Request: l.id, Wait: wait, N: len(addrs)}
	for i, a := range addrs {
		m.Words[i] = message.Word{Space: 0x0A000009, Addr: a, Exclusive: a%2 != 0}
	}
	l.s.a(l.says(m))
}

// release gives back what request id has got, by its number.
func (l *locker) release(id uint32) {
	l.id++
	l.s.a(l.says(message.Message{Op: message.Release, Request: l.id, Handle: id}))
}

func arbiterScene(s *scene) {
	client := func(ip string, last byte) *locker {
		return &locker{s: s, talk: talk{from: at(ip), to: at("10.0.0.9"), id: 9}, last: last, life: 1}
	}
	one, two, three := client("10.0.0.1", 1), client("10.0.0.2", 2), client("10.0.0.3", 3)
	three.talk.vlans = []uint16{100}
	s.a(one.says(message.Message{Op: message.Hello, Token: 42}))
	one.acquire(0, 1) // too early: nobody knows what was granted before
	s.wait(25 * time.Millisecond)
	one.acquire(0, 1, 2, 3)
	two.acquire(0, 2)
	two.acquire(0, 4, 3) // denied whole
	three.acquire(10, 5, 1)
	one.id--
	one.acquire(0, 1, 2, 3) // once more
	one.release(2)          // host 3 is next
	bad := one.says(message.Message{Op: message.Renew, Request: 9})
	bad[len(bad)-1] ^= 1
	s.a(bad, one.talk.udp(5000, message.Port, filling(20)), one.talk.udp(5000, 7475, filling(20)))
	lie := *one
	lie.life = 7 // nobody was offered that session
	m := message.Message{Op: message.Release, Request: 1, Incarnation: 7, Session: 12345, Lease: 15}
	s.a(lie.talk.udp(5000, message.Port, m.Append(nil)))
	s.b(one.talk.back().udp(7475, 5000, filling(8)))
	s.wait(5 * time.Millisecond)
	l := *two
	l.id = 10
	s.a(l.says(message.Message{Op: message.Renew, Request: 10}))
	s.wait(12 * time.Millisecond) // host 3 is silent
	two.acquire(0, 1)
	s.wait(2 * time.Millisecond)
	two.acquire(0, 1)
	s.wait(20 * time.Millisecond)
}
