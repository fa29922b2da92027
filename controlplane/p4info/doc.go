// Package p4info checks and names P4Runtime entities by a P4Info. It finds objects by id and by name, checks
// the entities of Write and Read requests, brings them into a canonical form, and writes them as text. It does
// no I/O.
//
//	info, err := p4info.New(msg)
//	err = info.Update(update)   // checked, and canonical from now on
//	key := p4info.Key(update.Entity)
//	fmt.Println(info.Text(update.Entity))
//
// P4Runtime has a dozen kinds of entities and five kinds of matches, and its messages use different field names
// for the same things: an object, an id, an index, values. Of turns an entity into an Entity, and CondOf a
// match into a Cond; Entity.Message and Field.Matching turn them back. Only these four functions and the table
// of kinds know the messages. All other code works with Entity and Cond.
//
// Errors are of type *Error, with the canonical gRPC code that the P4Runtime specification names. Byte strings
// may come in with leading zeros; the canonical form has none.
package p4info
