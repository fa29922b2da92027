package flow

// Ages keeps the order of age of rows. The caller stores the rows themselves, numbers
// them from 0, and remembers which rows are in the order.
type Ages struct {
	// ring[i+1] holds the neighbours of row i as indexes of ring. ring[0] lies between the
	// newest row and the oldest, and closes the ring.
	ring []age
}

type age struct{ newer, older int32 }

// NewAges returns an empty order with room for the rows 0 to n-1.
func NewAges(n int) Ages { return Ages{make([]age, n+1)} }

// Oldest returns the oldest row, or a negative number if the order is empty.
func (a *Ages) Oldest() int32 { return a.ring[0].newer - 1 }

// Newer returns the row that was added or renewed next after row i, or a negative number if i
// is the newest. Row i must be in the order.
func (a *Ages) Newer(i int32) int32 { return a.ring[i+1].newer - 1 }

// Add adds row i as the newest. Row i must not be in the order.
func (a *Ages) Add(i int32) {
	end := &a.ring[0]
	a.ring[i+1] = age{older: end.older}
	a.ring[end.older].newer = i + 1
	end.older = i + 1
}

// Remove takes row i out of the order. Row i must be in the order.
func (a *Ages) Remove(i int32) {
	x := a.ring[i+1]
	a.ring[x.older].newer = x.newer
	a.ring[x.newer].older = x.older
}

// Renew makes row i the newest. Row i must be in the order.
func (a *Ages) Renew(i int32) {
	if a.ring[i+1].newer != 0 {
		a.Remove(i)
		a.Add(i)
	}
}
