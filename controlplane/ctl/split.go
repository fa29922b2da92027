package ctl

import (
	"google.golang.org/protobuf/proto"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// Limits bound one Write request; more updates take several requests. They are needed because the answer has an
// error for each update in the trailer, and gRPC clients bound the size of the trailer.
type Limits struct {
	Updates int // at most; 0: 1,000
	Bytes   int // of the message, about; 0: 1 MiB. A single larger update goes alone
}

func (l Limits) orDefault() Limits {
	if l.Updates <= 0 {
		l.Updates = 1000
	}
	if l.Bytes <= 0 {
		l.Bytes = 1 << 20
	}
	return l
}

// split cuts updates into parts within the limits, in order.
func (l Limits) split(updates []*p4v1.Update) [][]*p4v1.Update {
	l = l.orDefault()
	var runs [][]*p4v1.Update
	from, size := 0, 0
	for i, u := range updates {
		n := proto.Size(u) + 6 // tag and length
		if i > from && (i-from == l.Updates || size+n > l.Bytes) {
			runs = append(runs, updates[from:i])
			from, size = i, 0
		}
		size += n
	}
	if from < len(updates) {
		runs = append(runs, updates[from:])
	}
	return runs
}
