package arbiter

import "github.com/quillon/quillon/nf/clock"

// due is a heap of ids, ordered by the times when they are due.
type due struct {
	heap []int32 // ids, the first one is due first
	at   []int32 // place in heap by id; -1: none
	when []clock.Time
}

func newDue(n int) due {
	d := due{heap: make([]int32, 0, n), at: make([]int32, n), when: make([]clock.Time, n)}
	for i := range d.at {
		d.at[i] = -1
	}
	return d
}

// next returns the id that is due first, and its time, which is clock.Never if there is none.
func (d *due) next() (id int32, at clock.Time) {
	if len(d.heap) == 0 {
		return -1, clock.Never
	}
	return d.heap[0], d.when[d.heap[0]]
}

// set makes id due at a time, in the place of an earlier one.
func (d *due) set(id int32, at clock.Time) {
	d.when[id] = at
	if d.at[id] < 0 {
		d.at[id] = int32(len(d.heap))
		d.heap = append(d.heap, id)
	}
	d.down(d.up(d.at[id]))
}

func (d *due) remove(id int32) {
	i := d.at[id]
	if i < 0 {
		return
	}
	d.at[id] = -1
	last := d.heap[len(d.heap)-1]
	d.heap = d.heap[:len(d.heap)-1]
	if last != id {
		d.put(i, last)
		d.down(d.up(i))
	}
}

func (d *due) put(i, id int32) { d.heap[i], d.at[id] = id, i }

func (d *due) before(i, j int32) bool { return d.when[d.heap[i]] < d.when[d.heap[j]] }

func (d *due) swap(i, j int32) {
	x, y := d.heap[i], d.heap[j]
	d.put(i, y)
	d.put(j, x)
}

func (d *due) up(i int32) int32 {
	for i > 0 && d.before(i, (i-1)/2) {
		d.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	return i
}

func (d *due) down(i int32) {
	for {
		k := 2*i + 1
		if int(k) >= len(d.heap) {
			return
		}
		if int(k)+1 < len(d.heap) && d.before(k+1, k) {
			k++
		}
		if !d.before(k, i) {
			return
		}
		d.swap(i, k)
		i = k
	}
}
