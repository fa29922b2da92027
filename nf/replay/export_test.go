package replay

import "bytes"

// FrameDiff is one line per field that two frames do not have in common, then
// the bytes that differ; a and b name the frames. Nil when they are equal.
func FrameDiff(x, y []byte, a, b string) []string {
	if bytes.Equal(x, y) {
		return nil
	}
	var t table
	t.frames(x, y)
	return t.lines(a, b)
}
