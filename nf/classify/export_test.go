package classify

// Left reports whether something of entries that were removed is left in a set without any.
func (s *Set) Left() bool {
	x := &s.root
	return x.n != 0 || x.chunk != noChunk || len(x.list)+len(x.rows) != 0 || x.vec != nil && x.vec.n != 0
}

// Parts are how many nodes there are, and how many entries are in vectors.
func (s *Set) Parts() (nodes, inVectors int) {
	var walk func(x *node)
	walk = func(x *node) {
		nodes++
		if x.vec != nil {
			inVectors += x.vec.n
		}
		if x.any != nil {
			walk(x.any)
		}
		for _, k := range x.kids {
			walk(k)
		}
	}
	walk(&s.root)
	return nodes, inVectors
}
