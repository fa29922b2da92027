// Package effect says what a network function does to packets: which parts of a
// packet it reads and writes, whether a packet may end in it, whether packets come out
// of it at a time of its own choice, and whether it remembers packets. A function declares
// that (graph.Kind.Effects); what runs functions finds out from it which of them may
// change places.
//
// # Independence
//
// Two functions are independent, and may change places or run side by side on
// copies of a packet's header, if all of these hold:
//
//   - Neither writes what the other reads or writes.
//   - Neither adds or removes bytes, unless the other looks at no byte: where a
//     field is depends on every byte in front of it, and two copies of which
//     one has grown cannot be merged field by field.
//   - Where one may end packets (Drops or Answers), the other neither remembers
//     packets (State) nor answers them itself: it must not have seen, or
//     answered, a packet that would never have come to it.
//   - Where one Answers, the other writes nothing: an answer is made of the packet
//     as those before have left it, and goes back through them.
//
// Checksums, the lengths in headers and the ICRC are derived from the rest and
// are no fields: what merges copies computes them again.
//
// To find it from what functions declare to read and write is NFP's idea (Sun et
// al., SIGCOMM 2017: 53.8 % of the pairs of network functions can run side by
// side, 41.5 % without more resources). The rules here are stricter, and
// symmetric: on copies of packets, a function could also write beside one in front
// of it that reads the same. Here it does not, so that independent functions may
// change places in a sequence, too. That what a function remembers or answers
// must not change is this package's rule.
package effect

// Effects declares what a function does to packets.
type Effects struct {
	Reads  Field // what its work depends on
	Writes Field // what it may change
	// Drops: it may drop packets.
	Drops bool
	// Answers: it may answer or hold packets, or make packets of its own.
	Answers bool
	// State: it remembers packets. The packets of a flow come to it in order, and what it
	// remembers is saved when it is taken away for a while.
	State bool
}

// Unknown has all effects. It stands for a function of which nothing is known.
var Unknown = Effects{Reads: AllFields, Writes: AllFields, Drops: true, Answers: true, State: true}

// Touches returns the fields that the function reads or writes.
func (e *Effects) Touches() Field { return e.Reads | e.Writes }

// Reach returns the fields that the function may change or move. A function that adds or removes
// bytes moves all fields.
func (e *Effects) Reach() Field {
	if e.Writes&Length != 0 {
		return AllFields
	}
	return e.Writes
}

// NeedsPayload reports whether the function needs a packet's payload, and not only its
// headers. A function that adds or removes bytes needs it, because it moves the payload.
func (e *Effects) NeedsPayload() bool { return (e.Touches()|e.Reach())&Payload != 0 }

// ends reports whether a packet that comes in may not go out.
func (e *Effects) ends() bool { return e.Drops || e.Answers }

// lasts reports whether a packet matters after it has passed, because the function remembers or answers packets.
func (e *Effects) lasts() bool { return e.State || e.Answers }

// Independent reports whether two functions may change places, or run side by side
// on copies of the header. The rules are in the package comment.
func Independent(a, b *Effects) bool {
	switch {
	case a.Reach()&b.Touches() != 0, b.Reach()&a.Touches() != 0:
		return false
	case a.ends() && b.lasts(), b.ends() && a.lasts():
		return false
	case a.Answers && b.Writes != 0, b.Answers && a.Writes != 0:
		return false
	}
	return true
}
