package onesided

import (
	"net/netip"

	"github.com/quillon/quillon/nf/clock"
)

// Dead is a session that seems dead: its host, and the server's end of its connection.
type Dead struct {
	Addr netip.Addr
	QPN  uint32
}

// Shut is how far it is that a Dead is shut out from a server.
type Shut uint8

const (
	// Asked: there is no answer yet.
	Asked Shut = iota
	// ShutOut: what it sends does not get to the memory any more.
	ShutOut
	// NotShut: nobody on the way does that, or not for this client.
	NotShut
)

// Shutter asks that a session be shut out from what R_Keys stand for. It is called again until there is an answer, which
// comes in bounded time. settled is since when, or from when on, nothing of the session is under way any more.
type Shutter func(now clock.Time, d Dead, keys []uint32) (settled clock.Time, how Shut)
