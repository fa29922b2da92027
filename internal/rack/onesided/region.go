package onesided

import (
	"cmp"
	"reflect"

	"github.com/quillon/quillon/rack/rnic"
)

// Region is a memory region of a remote node, by its virtual address and R_Key.
type Region struct {
	VA   uint64
	RKey uint32
}

// Part is memory that a memory node registers at virtual address VA.
type Part struct {
	Mem []byte
	VA  uint64
	// To receives the address and R_Key of the memory.
	To *Region
	// Access has the allowed accesses; 0 means all.
	Access rnic.Access
}

// Serve registers the parts in pd, so that its queue pairs can access them.
func Serve(pd *rnic.PD, parts ...Part) error {
	for _, p := range parts {
		p.Access = cmp.Or(p.Access, rnic.LocalWrite|rnic.RemoteRead|rnic.RemoteWrite|rnic.RemoteAtomic)
		mr, err := pd.RegMR(p.Mem, p.VA, p.Access)
		if err != nil {
			return err
		}
		*p.To = Region{p.VA, mr.RKey}
	}
	return nil
}

// Totals are the counters that every client has.
type Totals struct {
	Errors     uint64 // operations that ended with one
	RoundTrips uint64
	Messages   uint64
	Broken     uint64 // queue pairs that failed
}

// Add adds the counts of from, a struct of unsigned numbers, to those of to.
func Add[S any](to *S, from S) {
	add(reflect.ValueOf(to).Elem(), reflect.ValueOf(from))
}

func add(to, from reflect.Value) {
	switch to.Kind() {
	case reflect.Struct:
		for i := range to.NumField() {
			add(to.Field(i), from.Field(i))
		}
	case reflect.Array:
		for i := range to.Len() {
			add(to.Index(i), from.Index(i))
		}
	default:
		to.SetUint(to.Uint() + from.Uint())
	}
}
