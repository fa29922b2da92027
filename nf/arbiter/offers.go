package arbiter

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
)

// offers computes the sessions that senders of a Hello are offered. Nothing is stored for them.
type offers struct {
	block         cipher.Block
	plain, sealed [2 * aes.BlockSize]byte
}

// cookie returns the session that a client is offered in an epoch. Nobody without the secret can compute it.
func (o *offers) cookie(from *peer, m *message.Message, epoch uint64) uint64 {
	be := binary.BigEndian
	clear(o.plain[:])
	copy(o.plain[:], from.ip[:])
	be.PutUint16(o.plain[4:], from.port)
	be.PutUint64(o.plain[8:], m.Incarnation)
	be.PutUint64(o.plain[16:], epoch)
	be.PutUint32(o.plain[24:], m.Client)
	be.PutUint32(o.plain[28:], from.vids())
	o.block.Encrypt(o.sealed[:16], o.plain[:16]) // CBC-MAC of two blocks
	for i := range 16 {
		o.sealed[i] ^= o.plain[16+i]
	}
	o.block.Encrypt(o.sealed[:16], o.sealed[:16])
	return be.Uint64(o.sealed[:]) | 1 // never 0
}

func (o *offers) offered(now clock.Time, from *peer, m *message.Message) bool {
	e := uint64(now) / uint64(epoch)
	return m.Session == o.cookie(from, m, e) || m.Session == o.cookie(from, m, e-1)
}

// census counts the clients of each address.
type census struct {
	seed  uint64
	hosts flow.Table[clientKey, int32] // the number in the key is 0
}

// settles counts client k for its address, or returns false if the address has as many clients as it may have.
func (s *census) settles(k clientKey) bool {
	k.number = 0
	hash := k.hash(s.seed)
	at := s.hosts.Find(&k, hash)
	if at < 0 {
		at = s.hosts.Add(&k, hash)
	}
	if at < 0 || s.hosts.At(at).Val >= message.Clients {
		return false
	}
	s.hosts.At(at).Val++
	return true
}

// goes counts client k for its address no more.
func (s *census) goes(k clientKey) {
	k.number = 0
	if at := s.hosts.Find(&k, k.hash(s.seed)); at >= 0 {
		if s.hosts.At(at).Val--; s.hosts.At(at).Val == 0 {
			s.hosts.Del(at)
		}
	}
}
