package counter_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/counter"
)

// A worker counts for itself, and others see the counts that it has committed.
func ExampleSet() {
	const hits counter.ID = 0
	s := counter.NewSet([]counter.Def{hits: {Name: "hits", Help: "keys that were found"}})
	s.Add(hits, 3)
	fmt.Println(s.Live(hits), s.Load(hits))
	s.Commit()
	fmt.Println(s.Live(hits), s.Load(hits))
	// Output:
	// 3 0
	// 3 3
}
