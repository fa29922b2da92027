// Package p4info knows what a P4Info allows: it finds objects by id and by name,
// checks the entities of P4Runtime's Write and Read against them, gives them
// their canonical form, and writes them as text. It does no I/O.
//
//	info, err := p4info.New(msg)
//	err = info.Update(update)   // checked, and canonical from now on
//	key := p4info.Key(update.Entity)
//	fmt.Println(info.Text(update.Entity))
//
// P4Runtime's messages are a dozen kinds of entities and five kinds of matches, each with names of its own for what
// all have: an object, an id, an index, values. Of takes an entity apart into an Entity, CondOf a match into a Cond;
// Entity.Message and Field.Matching put them together. These four functions, and the table of kinds, are all that
// knows the messages: checks, keys, texts, the server, its devices and the controller work with the parts.
//
// Refusals are of type *Error, with the canonical gRPC code that the P4Runtime
// specification names. Byte strings are taken with any number of leading zeros
// and leave in as few bytes as hold the value.
package p4info
