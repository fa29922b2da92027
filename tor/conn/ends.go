package conn

import "github.com/quillon/quillon/nf/hdr"

// Ends are source and destination of a frame that a table looks at; ok is false
// for others.
func Ends(b []byte, f *hdr.Frame) (src, dst Addr, ok bool) { return addrs(b, f) }
