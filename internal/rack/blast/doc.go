// Package blast sends frames through a middlebox on two veth pairs as fast as possible, and counts the frames
// that arrive:
//
//	generator ─ a0══a1 [ middlebox ] b1══b0 ─ sink
//
// a1 and b1 are in one anonymous network namespace, each far end in another.
// The generator is an XDP program that the kernel runs over and over in one
// thread, on its own processor if there are several; each run sends the next
// frame of a list. The sink is an XDP program that counts and drops.
//
// A window limits the number of frames that are under way. Then no frame is lost, which a middlebox that
// follows flows would notice.
package blast
