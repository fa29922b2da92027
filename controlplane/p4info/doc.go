// Package p4info knows what a P4Info allows: it finds objects by id and by name,
// checks the entities of P4Runtime's Write and Read against them, gives them
// their canonical form, and writes them as text. It does no I/O.
//
//	info, err := p4info.New(msg)
//	err = info.Update(update)   // checked, and canonical from now on
//	key := p4info.Key(update.Entity)
//	fmt.Println(info.Text(update.Entity))
//
// Refusals are of type *Error, with the canonical gRPC code that the P4Runtime
// specification names. Byte strings are taken with any number of leading zeros
// and leave in as few bytes as hold the value.
package p4info
