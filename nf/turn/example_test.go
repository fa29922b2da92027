package turn_test

import (
	"fmt"
	"sync"

	"github.com/quillon/quillon/nf/turn"
)

// Workers change what they share in turns.
func ExampleTurn() {
	var t turn.Turn
	var wg sync.WaitGroup
	n := 0
	for range 4 {
		wg.Go(func() {
			for range 100 {
				t.Take()
				n++
				t.Give()
			}
		})
	}
	wg.Wait()
	fmt.Println(n)
	// Output:
	// 400
}
