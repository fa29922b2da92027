package clover

// queue is a first-in-first-out ring that grows.
type queue[T any] struct {
	ring    []T
	head, n int
}

func (q *queue[T]) push(x T) {
	if q.n == len(q.ring) {
		r := make([]T, max(2*len(q.ring), 16))
		k := copy(r, q.ring[q.head:])
		copy(r[k:], q.ring[:q.head])
		q.ring, q.head = r, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = x
	q.n++
}

// front is the oldest element of a queue that is not empty.
func (q *queue[T]) front() *T { return &q.ring[q.head] }

func (q *queue[T]) pop() T {
	var zero T
	x := q.ring[q.head]
	q.ring[q.head] = zero
	q.head++
	if q.head == len(q.ring) {
		q.head = 0
	}
	q.n--
	return x
}
