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
	o.block.Encrypt(o.sealed[:16], o.plain[:16]) // CBC-MAC of two blocks
	for i := range 12 {
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
	hosts flow.Table[[4]byte, int32]
}

// settles counts another client of an address, or returns false if the address has as many as it may have.
func (s *census) settles(ip [4]byte) bool {
	k := clientKey{ip: ip}
	hash := k.hash(s.seed)
	at := s.hosts.Find(&ip, hash)
	if at < 0 {
		at = s.hosts.Add(&ip, hash)
	}
	if at < 0 || s.hosts.At(at).Val >= message.Clients {
		return false
	}
	s.hosts.At(at).Val++
	return true
}

// goes counts one client less of an address.
func (s *census) goes(ip [4]byte) {
	k := clientKey{ip: ip}
	if at := s.hosts.Find(&ip, k.hash(s.seed)); at >= 0 {
		if s.hosts.At(at).Val--; s.hosts.At(at).Val == 0 {
			s.hosts.Del(at)
		}
	}
}
