package onesided

import (
	"net/netip"

	"github.com/quillon/quillon/nf/clock"
)

// Dead names a session that seems dead, by the address of its host and the QPN of the server's end of its connection.
type Dead struct {
	Addr netip.Addr
	QPN  uint32
}

// Shut is the state of a request to shut a Dead out from a server.
type Shut uint8

const (
	// Asked means that there is no answer yet.
	Asked Shut = iota
	// ShutOut means that no frame of the session reaches the memory.
	ShutOut
	// NotShut means that no box on the way shuts sessions out, or that it refused for this client.
	NotShut
)

// Shutter asks that session d be shut out from the memory of these R_Keys. The caller calls it again until how is not
// Asked, which takes a bounded time. From the time settled on, no frame of the session is under way.
type Shutter func(now clock.Time, d Dead, keys []uint32) (settled clock.Time, how Shut)
