package flow

// Ages is an order of rows that are kept elsewhere, the oldest first. Rows are
// numbered from 0; NewAges makes room for them. A row is in it, or not, as its
// owner remembers.
type Ages struct {
	// The neighbours of row i are in ring[i+1], as numbers of places here; ring[0]
	// lies between the newest and the oldest.
	ring []age
}

type age struct{ newer, older int32 }

// NewAges makes an order of up to n rows, with none in it.
func NewAges(n int) Ages { return Ages{make([]age, n+1)} }

// Oldest is the oldest row; negative: there is none.
func (a *Ages) Oldest() int32 { return a.ring[0].newer - 1 }

// Newer is the row that follows on row i, which is there; negative: none does.
func (a *Ages) Newer(i int32) int32 { return a.ring[i+1].newer - 1 }

// Add puts in row i, which is not there, as the newest.
func (a *Ages) Add(i int32) {
	end := &a.ring[0]
	a.ring[i+1] = age{older: end.older}
	a.ring[end.older].newer = i + 1
	end.older = i + 1
}

// Remove takes out row i, which is there.
func (a *Ages) Remove(i int32) {
	x := a.ring[i+1]
	a.ring[x.older].newer = x.newer
	a.ring[x.newer].older = x.older
}

// Renew makes row i, which is there, the newest.
func (a *Ages) Renew(i int32) {
	if a.ring[i+1].newer != 0 {
		a.Remove(i)
		a.Add(i)
	}
}
