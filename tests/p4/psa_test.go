package p4

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	engine "github.com/quillon/quillon/nf/p4"
)

// TestPSA runs the programs for PSA that have test files.
func TestPSA(t *testing.T) {
	for _, name := range []string{"paths", "externs", "sums"} {
		t.Run(name, func(t *testing.T) {
			prog := load(t, "testdata/psa/"+name+".json")
			if prog.Arch() != "psa" {
				t.Errorf("the architecture is %s", prog.Arch())
			}
			if runFile(t, prog, "testdata/psa/"+name+".stf") == 0 {
				t.Error("checks nothing")
			}
		})
	}
}

// left is a frame that left a switch.
type left struct {
	port  uint32
	frame string
}

// String shows bytes that are no text.
func (l left) String() string { return fmt.Sprintf("%d:%q", l.port, l.frame) }

// datagram returns an IPv4 header with a checksum that is right, and a byte of payload, in Ethernet.
func datagram(ttl byte, src, dst [4]byte) string {
	h := []byte{0x45, 0, 0, 21, 0, 0, 0, 0, ttl, 17, 0, 0}
	h = append(append(h, src[:]...), dst[:]...)
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum+sum>>16))
	return string(h) + "x"
}

// Parts of frames to and from the router, without the IPv4 header.
const (
	toRouter   = "\x02\x00\x00\x00\x00\x99\x0a\x00\x00\x00\x00\x07\x08\x00"
	fromRouter = "\x00\x00\x00\x00\x01\x08\x00" // behind the last byte of the next hop's address, and 02
)

// TestPSARouter: tables, a counter, a meter, a mirror, digests, and frames from and to the
// controller.
func TestPSARouter(t *testing.T) {
	var learned []string
	sw, err := engine.NewSwitch(load(t, "testdata/psa/router.json"), engine.Config{Digest: func(d engine.Digest) { learned = append(learned, string(d.Data)) }})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(port uint32, frame string) (out []left) {
		sw.Process(0, port, []byte(frame), func(port uint32, f []byte) { out = append(out, left{port, string(f)}) })
		return out
	}
	expect := func(got []left, want ...left) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	for net, port := range map[byte]byte{1: 6, 2: 5} {
		_, err = sw.Insert("ingress.routes", engine.Entry{Key: []engine.Match{{Value: []byte{10, net, 0, 0}, Prefix: 16}},
			Action: engine.Action{Name: "ingress.forward", Args: [][]byte{{port}, {2, 0, 0, 0, 0, port}, {2, 0, 0, 0, 0, 1}}}})
		must(err)
	}

	from := [4]byte{10, 3, 0, 1}
	hop := func(port byte) string { return "\x02\x00\x00\x00\x00" + string([]byte{port}) + "\x02" + fromRouter }
	expect(run(1, toRouter+datagram(64, from, [4]byte{10, 2, 0, 1})), left{5, hop(5) + datagram(63, from, [4]byte{10, 2, 0, 1})})
	if want := "\x0a\x00\x00\x00\x00\x07\x00\x00\x00\x01"; !slices.Equal(learned, []string{want}) {
		t.Errorf("learned %q", learned)
	}
	wrong := []byte(toRouter + datagram(64, from, [4]byte{10, 2, 0, 1}))
	wrong[len(toRouter)+11]++
	expect(run(1, string(wrong)))
	expect(run(1, toRouter+datagram(1, from, [4]byte{10, 2, 0, 1})))

	expect(run(1, toRouter+datagram(64, from, [4]byte{10, 1, 0, 1})), left{6, hop(6) + datagram(63, from, [4]byte{10, 1, 0, 1})})
	if n, err := sw.Count("ingress.routed", 6); err != nil || n != (engine.Count{Packets: 1, Bytes: 35}) {
		t.Errorf("%+v, %v", n, err)
	}

	// What has no route goes to the controller, with the port before it; the controller says where its frames go.
	nowhere := datagram(64, from, [4]byte{10, 9, 0, 1})
	expect(run(0x1234, toRouter+nowhere), left{0xfffffffd, "\x00\x00\x12\x34" + toRouter + nowhere})
	expect(run(0xfffffffd, "\x00\x00\x00\x07"+toRouter+nowhere), left{7, toRouter + nowhere})

	// An entry of acl mirrors, and the meter that it names drops what is red, but not the mirrored copy.
	must(sw.SetSession(3, engine.Session{Replicas: []engine.Replica{{Port: 9}}}))
	_, err = sw.Insert("ingress.acl", engine.Entry{Priority: 1, Action: engine.Action{Name: "ingress.mirror", Args: [][]byte{{3}, {8}}},
		Key: []engine.Match{{Any: true}, {Value: from[:], Mask: []byte{255, 255, 255, 255}}, {Value: []byte{17}, Mask: []byte{17}}}})
	must(err)
	must(sw.SetMeter("ingress.limit", 8, engine.Rate{Burst: 1}, engine.Rate{Burst: 2}))
	in := toRouter + datagram(64, from, [4]byte{10, 2, 0, 1})
	copied, routed := left{9, in}, left{5, hop(5) + datagram(63, from, [4]byte{10, 2, 0, 1})}
	expect(run(1, in), copied, routed) // green
	expect(run(1, in), copied, routed) // yellow
	expect(run(1, in), copied)         // red
}
