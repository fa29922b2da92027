package rnic

import "github.com/quillon/quillon/nf/hdr"

// NAKs counts NAKs by their syndrome.
type NAKs struct {
	RNR, Sequence, InvalidRequest, RemoteAccess, RemoteOperation uint64
}

func (n *NAKs) count(s hdr.Syndrome) {
	switch {
	case s.RNR():
		n.RNR++
	case s == hdr.SynNAKSequence:
		n.Sequence++
	case s == hdr.SynNAKInvalidRequest:
		n.InvalidRequest++
	case s == hdr.SynNAKRemoteAccess:
		n.RemoteAccess++
	case s == hdr.SynNAKRemoteOperation:
		n.RemoteOperation++
	}
}

// QPStats holds a queue pair's counters since its creation.
type QPStats struct {
	// RxRequests and RxResponses count all packets for this queue pair that passed the NIC's
	// filter, whether they were executed, dropped or duplicates.
	RxRequests, RxResponses uint64
	Duplicates              uint64 // requests older than the expected PSN
	NAKTx, NAKRx            NAKs
	CERx                    uint64 // frames that were marked CE on the way
	CNPTx, CNPRx            uint64 // congestion notifications
}

// Failure says why a queue pair went to the error state.
type Failure struct {
	Status    Status       // Success: the queue pair did not fail, or its owner ended it
	Responder bool         // the queue pair refused a request of its peer
	Syndrome  hdr.Syndrome // of the NAK that was sent or received; 0 = none
	PSN       uint32       // of the request
	Why       string
}

// Stats returns the queue pair's counters.
func (q *QP) Stats() QPStats { return q.stats }

// Failure returns the cause that ended the queue pair since the last Connect.
func (q *QP) Failure() Failure { return q.cause }

// statusOf returns the completion status of a request that a NAK with syndrome s ends, or Success
// if s ends no request.
func statusOf(s hdr.Syndrome) Status {
	switch s {
	case hdr.SynNAKInvalidRequest:
		return RemoteInvalidRequestError
	case hdr.SynNAKRemoteAccess:
		return RemoteAccessError
	case hdr.SynNAKRemoteOperation:
		return RemoteOperationError
	}
	return Success
}

// end moves the queue pair to the error state and notes the cause.
func (q *QP) end(f Failure) {
	if q.state == StateReady {
		q.cause = f
		q.fail()
	}
}

// broke completes the oldest request with status s, and ends the queue pair.
func (q *QP) broke(s Status, f Failure) {
	f.Status = s
	q.req.complete(q, s)
	q.end(f)
}
