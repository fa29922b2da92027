package dissector

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/port/pcap"
)

// decode has tshark show fields of each packet of a capture, a line each: name=value of those that are there.
func decode(t *testing.T, file string, options []string, fields ...string) []string {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("missing: apt-get install --no-install-recommends tshark")
	}
	args := []string{"-r", file, "-X", "lua_script:quillon.lua", "-T", "fields", "-E", "separator=|"}
	for _, o := range append(options, "ip.defragment:FALSE") { // the functions do not put fragments together
		args = append(args, "-o", o)
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command(tshark, args...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil || strings.Contains(diag.String()+out.String(), "Lua") {
		t.Fatalf("%v\n%s", err, diag.String())
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		var shown []string
		for i, v := range strings.Split(strings.TrimSuffix(line, "\n"), "|") {
			if v != "" {
				shown = append(shown, fields[i]+"="+v)
			}
		}
		lines = append(lines, strings.Join(shown, " "))
	}
	return lines
}

// frames are those of a capture.
func frames(t *testing.T, file string) (all [][]byte) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcap.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		var p pcap.Packet
		if err := r.Next(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, bytes.Clone(p.Data))
	}
}

var clioFields = []string{"clio.gbn.type", "clio.gbn.seq", "clio.gbn.src", "clio.gbn.dst", "clio.pid", "clio.id", "clio.opcode", "clio.status", "clio.replicate", "clio.size",
	"clio.session", "clio.key_size", "clio.value_size", "clio.key", "clio.value", "clio.malformed"}

// clioOf is what the fields are by the package that network functions use. A malformed frame is only said to be so.
func clioOf(b []byte, reliable bool) string {
	var f clio.Frame
	kind := clio.Parse(b, reliable, &f)
	switch kind {
	case clio.NotClio, clio.Fragment:
		return ""
	case clio.Malformed:
		if f.L4 != 0 && hdr.UDP(b[f.L4:]).Len() == hdr.UDPLen {
			return "" // Wireshark has nothing dissected
		}
		return "malformed"
	}
	var shown []string
	say := func(name, form string, v any) { shown = append(shown, fmt.Sprintf("clio.%s="+form, name, v)) }
	if f.GBN != 0 {
		g := clio.GBN(b[f.GBN:])
		say("gbn.type", "%d", g.Type())
		say("gbn.seq", "%d", g.Seq())
		say("gbn.src", "%d", g.Src())
		say("gbn.dst", "%d", g.Dst())
	}
	if kind == clio.Control {
		return strings.Join(shown, " ")
	}
	h := clio.Lego(b[f.Lego:])
	say("pid", "%d", h.PID())
	say("id", "%d", h.ID())
	say("opcode", "0x%02x", byte(h.Opcode()))
	say("status", "%d", h.Status())
	say("replicate", "%d", map[bool]int{true: 1}[h.Replicate()])
	say("size", "%d", h.Size())
	switch op := h.Opcode(); {
	case kind == clio.Other:
		return strings.Join(shown, " ")
	case op.OfSessions():
		say("session", "%d", clio.Session(b[f.Op:]))
		return strings.Join(shown, " ")
	case op.IsAnswer():
		say("value_size", "%d", clio.Answer(b[f.Op:]).ValueSize())
	default:
		q := clio.Request(b[f.Op:])
		say("key_size", "%d", q.KeySize())
		say("value_size", "%d", q.ValueSize())
		say("key", "0x%016x", q.Key())
	}
	if f.Data < f.Stop {
		say("value", "%x", b[f.Data:f.Stop])
	}
	return strings.Join(shown, " ")
}

// TestClio decodes golden captures, and their frames with payloads that were damaged or cut, with and without a go-back-N header: field by
// field what the network functions read.
func TestClio(t *testing.T) {
	var all [][]byte
	for _, name := range []string{"kvcache", "gobackn", "replicate", "hop"} {
		files, err := filepath.Glob("../../tests/pcap/" + name + "/*.pcap*")
		if err != nil || len(files) == 0 {
			t.Fatal(name, err)
		}
		for _, f := range files {
			all = append(all, frames(t, f)...)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		b := bytes.Clone(all[rnd.IntN(len(all))])
		var f clio.Frame
		if clio.Parse(b, false, &f); f.L4 == 0 || f.Lego == 0 || f.Stop <= f.Lego {
			continue
		}
		b = b[:f.Stop]
		for range rnd.IntN(4) {
			b[f.Lego+rnd.IntN(f.Stop-f.Lego)] = byte(rnd.Uint32())
		}
		if rnd.IntN(3) == 0 {
			b = b[:f.Lego+rnd.IntN(f.Stop-f.Lego)]
			hdr.UDP(b[f.L4:]).SetLen(uint16(len(b) - f.L4))
			hdr.IPv4(b[f.L3:]).SetTotalLen(uint16(len(b) - f.L3))
		}
		all = append(all, b)
	}
	file := t.TempDir() + "/all.pcap"
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pcap.NewWriter(out, pcap.NewHeader(pcap.Classic))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		if err := w.Write(&pcap.Packet{Data: b, OrigLen: uint32(len(b))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Flush(), out.Close()); err != nil {
		t.Fatal(err)
	}
	for _, reliable := range []bool{false, true} {
		lines := decode(t, file, []string{fmt.Sprintf("clio.gbn:%v", reliable)}, clioFields...)
		if len(lines) != len(all) {
			t.Fatalf("%d lines of %d frames", len(lines), len(all))
		}
		known, bad := 0, 0
		for i, line := range lines {
			want := clioOf(all[i], reliable)
			if strings.Contains(line, "clio.malformed=") {
				line = "malformed"
			}
			switch want {
			case "":
			case "malformed":
				bad++
			default:
				known++
			}
			if line != want {
				t.Fatalf("frame %d, reliable %v: %x\ntshark has %s\nwant       %s", i+1, reliable, all[i], line, want)
			}
		}
		if known < 100 || bad < 100 {
			t.Errorf("reliable %v: %d frames, %d malformed", reliable, known, bad)
		}
	}
}

var cloverFields = []string{"clover.role", "clover.lh", "clover.version", "clover.next_version", "clover.key"}

// cloverOf is what the fields of a frame are.
func cloverOf(b []byte) string {
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE || f.Op.Transport() != hdr.RC {
		return ""
	}
	var roles, lhs, versions, nexts []string
	say := func(role string, p clover.Pointer) {
		roles, lhs = append(roles, role), append(lhs, fmt.Sprintf("0x%08x", p.LH()))
		versions, nexts = append(versions, fmt.Sprint(p.Version())), append(nexts, fmt.Sprint(p.NextVersion()))
	}
	key := ""
	switch p := f.PayloadOf(b); {
	case f.Op == hdr.CompareSwap:
		say("compare", clover.Pointer(f.AtomicETHOf(b).Compare()))
		say("swap", clover.Pointer(f.AtomicETHOf(b).Swap()))
	case f.Op == hdr.AtomicAck:
		say("original", clover.Pointer(f.AtomicAckETHOf(b).Original()))
	case (f.Op == hdr.WriteFirst || f.Op == hdr.WriteOnly) && clover.ValidSlab(int(f.RETHOf(b).DMALength())) && len(p) >= 16,
		f.Op == hdr.ReadRespOnly && clover.ValidSlab(len(p)):
		say("entry", clover.Pointer(le64(p)))
		key = fmt.Sprintf(" clover.key=0x%016x", le64(p[clover.KeyAt:]))
	default:
		return ""
	}
	j := func(s []string) string { return strings.Join(s, ",") }
	return fmt.Sprintf("clover.role=%s clover.lh=%s clover.version=%s clover.next_version=%s%s", j(roles), j(lhs), j(versions), j(nexts), key)
}

func le64(p []byte) (v uint64) {
	for i := 7; i >= 0; i-- {
		v = v<<8 | uint64(p[i])
	}
	return v
}

// TestClover decodes golden captures of Clover's clients: each word is what clover-steer reads. Without the preference nothing is shown.
func TestClover(t *testing.T) {
	shown := 0
	for _, name := range []string{"clover-conflicts", "papers-steered-cas"} {
		files, err := filepath.Glob("../../tests/pcap/" + name + "/*.pcap*")
		if err != nil || len(files) == 0 {
			t.Fatal(name, err)
		}
		for _, file := range files {
			all := frames(t, file)
			for i, line := range decode(t, file, []string{"clover.show:TRUE"}, cloverFields...) {
				if want := cloverOf(all[i]); line != want {
					t.Fatalf("%s, frame %d: %x\ntshark has %s\nwant       %s", file, i+1, all[i], line, want)
				} else if want != "" {
					shown++
				}
			}
			for i, line := range decode(t, file, nil, cloverFields...) {
				if line != "" {
					t.Fatalf("%s, frame %d is shown as Clover's: %s", file, i+1, line)
				}
			}
		}
	}
	if shown < 50 {
		t.Errorf("%d frames with words", shown)
	}
}
