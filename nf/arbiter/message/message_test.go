package message_test

import (
	"fmt"
	"testing"

	"github.com/quillon/quillon/nf/arbiter/message"
)

// A request for two words, one of them alone.
func Example() {
	m := message.Message{Op: message.Acquire, Request: 1, Lease: 10_000, Session: 0x1122334455667788, N: 2}
	m.Words[0] = message.Word{Space: 0x0A000009, Addr: 0x1000, Exclusive: true}
	m.Words[1] = message.Word{Space: 0x0A000009, Addr: 0x2000}
	b := m.Append(nil)
	fmt.Printf("%d bytes, %x\n", len(b), b[:8])
	var back message.Message
	fmt.Println(back.Parse(b), back == m)
	// Output:
	// 88 bytes, 5141010200000001
	// true true
}

// FuzzParse: what is taken is written as it was read.
func FuzzParse(f *testing.F) {
	m := message.Message{Op: message.Acquire, N: 1}
	f.Add(m.Append(nil))
	m.Answer = true
	f.Add(m.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message.Message
		if m.Parse(b) {
			if again := m.Append(nil); string(again) != string(b) {
				t.Fatalf("%x\n%x", b, again)
			}
		}
	})
}
