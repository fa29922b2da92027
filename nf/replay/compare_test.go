package replay_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port/pcap"
	"github.com/quillon/quillon/nf/replay"
)

const golden = "../../tests/pcap/"

// packets reads the frames of a capture of the golden cases.
func packets(t testing.TB, name string) []pcap.Packet {
	t.Helper()
	b, err := os.ReadFile(golden + name)
	if err != nil {
		t.Fatal(err)
	}
	r := reader(t, b)
	var ps []pcap.Packet
	for {
		var p pcap.Packet
		if err := r.Next(&p); err == io.EOF {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		p.Data = bytes.Clone(p.Data)
		ps = append(ps, p)
	}
}

func field(b []byte, name string) string {
	for _, f := range replay.Decode(b) {
		if f.Name == name {
			return f.Value
		}
	}
	return "none"
}

func TestCompareShowsFields(t *testing.T) {
	ps := packets(t, "connectx-write-steering/10-packet-ingress.pcap")
	i := -1
	var f hdr.Frame
	for n := range ps {
		if hdr.Parse(ps[n].Data, &f) == hdr.IsRoCE && f.Op == hdr.CompareSwap {
			i = n
			break
		}
	}
	if i < 0 {
		t.Fatal("no atomic in the capture")
	}
	old := bytes.Clone(ps[i].Data)
	f.BTHOf(ps[i].Data).SetPSN(f.BTHOf(ps[i].Data).PSN() ^ 1)
	a := capture(t, pcap.NewHeader(pcap.Classic), nil, ps...)
	ps[i].Data = old
	b := capture(t, pcap.NewHeader(pcap.Classic), nil, ps...)
	c, err := replay.Compare(reader(t, a), reader(t, b), replay.CompareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := c.String()
	for _, want := range []string{`bth\.psn +got \d+ +want \d+\n`, `icrc +got 0x\w+ \(wrong\) +want 0x\w+ \(right\)\n`, `byte \d+ +got \w\w +want \w\w\n`, `^packet \d+\n`, `\n1 packets differ \(got has \d+, want has \d+\)\n$`} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n != 5 {
		t.Errorf("%d lines, want 5:\n%s", n, text)
	}
}

func TestCompare(t *testing.T) {
	h := pcap.NewHeader(pcap.Classic)
	ng := pcap.NewHeader(pcap.NG)
	micro := h
	micro.Nano = false
	p := func(ns int64, data string, comment string) pcap.Packet {
		q := pcap.Packet{Time: clock.Time(1e18 + ns), Data: []byte(data)}
		if comment != "" {
			q.Comments = [][]byte{[]byte(comment)}
		}
		return q
	}
	long := make([]pcap.Packet, 25)
	other := make([]pcap.Packet, 25)
	for i := range long {
		long[i], other[i] = p(int64(i), "x", ""), p(int64(i), "y", "")
	}
	cut := p(0, "x", "")
	cut.OrigLen = 99
	for _, c := range []struct {
		name string
		a, b []byte
		o    replay.CompareOptions
		want string
	}{
		{"equal", capture(t, h, nil, p(5, "x", "")), capture(t, h, nil, p(5, "x", "")), replay.CompareOptions{}, "1 packets, no difference\n"},
		{"coarser time", capture(t, micro, nil, p(5999, "x", "")), capture(t, h, nil, p(5001, "x", "")), replay.CompareOptions{}, "1 packets, no difference\n"},
		{"time", capture(t, h, nil, p(1, "x", "")), capture(t, h, nil, p(2, "x", "")), replay.CompareOptions{},
			"packet 1\n  time  got 1000000000.000000001  want 1000000000.000000002\n1 packets differ (got has 1, want has 1)\n"},
		{"ignored time", capture(t, h, nil, p(1, "x", "")), capture(t, h, nil, p(2, "x", "")), replay.CompareOptions{IgnoreTime: true}, "1 packets, no difference\n"},
		{"original length", capture(t, h, nil, cut), capture(t, h, nil, p(0, "x", "")), replay.CompareOptions{},
			"packet 1\n  original length  got 99  want 1\n1 packets differ (got has 1, want has 1)\n"},
		{"comment", capture(t, ng, []string{""}, p(0, "x", "dropped: bad")), capture(t, ng, []string{""}, p(0, "x", "")), replay.CompareOptions{A: "l", B: "r"},
			"packet 1\n  comment  l \"dropped: bad\"  r none\n1 packets differ (l has 1, r has 1)\n"},
		{"interface", capture(t, ng, []string{"x", "y"}, p(0, "x", "")), capture(t, ng, []string{"x", "y"}, on(1, p(0, "x", ""))), replay.CompareOptions{},
			"packet 1\n  interface  got 0 x  want 1 y\n1 packets differ (got has 1, want has 1)\n"},
		{"ignored comment", capture(t, ng, []string{""}, p(0, "x", "c")), capture(t, ng, []string{""}, p(0, "x", "")), replay.CompareOptions{IgnoreComments: true}, "1 packets, no difference\n"},
		{"comment against classic", capture(t, ng, []string{""}, p(0, "x", "c")), capture(t, h, nil, p(0, "x", "")), replay.CompareOptions{}, "1 packets, no difference\n"},
		{"length", capture(t, h, nil, p(0, "xyz", "")), capture(t, h, nil, p(0, "xy", "")), replay.CompareOptions{},
			"packet 1\n  original length  got 3        want 2\n  length           got 3        want 2\n  frame.short      got 3 bytes  want 2 bytes\n  byte 2           got 7a       want -\n1 packets differ (got has 1, want has 1)\n"},
		{"missing", capture(t, h, nil, p(0, "x", "")), capture(t, h, nil, p(0, "x", ""), p(1, "y", "")), replay.CompareOptions{},
			"packet 2\n  only in want\n  frame short 1 bytes\n1 packets differ (got has 1, want has 2)\n"},
	} {
		got, err := replay.Compare(reader(t, c.a), reader(t, c.b), c.o)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.name, got, c.want)
		}
	}
	c, err := replay.Compare(reader(t, capture(t, h, nil, long...)), reader(t, capture(t, h, nil, other...)), replay.CompareOptions{})
	if err != nil || c.Differences != 25 || len(c.Shown) != 10 || !strings.Contains(c.String(), "and 15 packets more\n") {
		t.Errorf("%v\n%s", err, c)
	}
	broken := capture(t, h, nil, long...)
	if _, err := replay.Compare(reader(t, broken), reader(t, broken[:len(broken)-1]), replay.CompareOptions{}); !errors.Is(err, pcap.ErrTruncated) || !strings.HasPrefix(err.Error(), "want: packet 25") {
		t.Errorf("%v", err)
	}
}

func TestCompareFiles(t *testing.T) {
	in, eg := golden+"connectx-write-steering/10-packet-ingress.pcap", golden+"connectx-write-steering/1-packet-ingress.pcap"
	if c, err := replay.CompareFiles(in, in, replay.CompareOptions{}); err != nil || !c.Equal() {
		t.Errorf("%v", err)
	}
	var d *replay.DifferentError
	if _, err := replay.CompareFiles(in, eg, replay.CompareOptions{}); !errors.As(err, &d) || d.A != in {
		t.Errorf("%v", err)
	}
	if _, err := replay.CompareFiles(in, filepath.Join(t.TempDir(), "none"), replay.CompareOptions{}); err == nil || errors.As(err, &d) {
		t.Errorf("%v", err)
	}
	if _, err := replay.CompareFiles("compare_test.go", in, replay.CompareOptions{}); !errors.Is(err, pcap.ErrFormat) {
		t.Errorf("%v", err)
	}
}

// TestDecodeAgreesWithTshark over captures of every kind.
func TestDecodeAgreesWithTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	same := map[string]string{ // tshark's name -> ours
		"eth.dst": "eth.dst", "eth.src": "eth.src", "ip.ttl": "ipv4.ttl", "ip.src": "ipv4.src", "ipv6.src": "ipv6.src", "ipv6.hlim": "ipv6.hop-limit",
		"udp.srcport": "udp.src", "udp.length": "udp.length", "infiniband.bth.psn": "bth.psn", "infiniband.bth.padcnt": "bth.padcnt",
		"infiniband.reth.dmalen": "reth.dmalen", "infiniband.aeth.msn": "aeth.msn", "infiniband.atomiceth.swapdt": "atomiceth.swap",
		"infiniband.atomiceth.cmpdt": "atomiceth.compare", "infiniband.bth.destqp": "bth.destqp", "infiniband.reth.va": "reth.va",
	}
	var names, args []string
	for n := range same {
		names = append(names, n)
		args = append(args, "-e", n)
	}
	for _, file := range []string{"connectx-write-steering/100-packet-ingress.pcap", "rxe/ipv6-lock-4qp.pcap", "rxe/perftest-read-128B-q4.pcap", "rxe/perftest-send-ud-64B.pcap"} {
		out, err := exec.Command(tshark, append([]string{"-n", "-r", golden + file, "-T", "fields"}, args...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		rows := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		ps := packets(t, file)
		if len(rows) != len(ps) {
			t.Fatalf("%s: %d packets, tshark has %d", file, len(ps), len(rows))
		}
		checked := 0
		for i, row := range rows {
			for k, v := range strings.Split(row, "\t") {
				if v == "" {
					continue
				}
				checked++
				got := field(ps[i].Data, same[names[k]])
				if got == "none" && names[k] == "infiniband.reth.va" { // its name for both
					got = field(ps[i].Data, "atomiceth.va")
				}
				if number(got) != number(v) {
					t.Errorf("%s: packet %d: %s is %s, tshark's %s is %s", file, i+1, same[names[k]], got, names[k], v)
				}
			}
		}
		if checked < 8*len(ps) {
			t.Errorf("%s: only %d fields of %d packets compared", file, checked, len(ps))
		}
	}
}

// number makes 0x0021 and 33 the same.
func number(s string) string {
	if n, err := strconv.ParseUint(s, 0, 64); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return s
}

// TestDecodeIsTotal: any bytes, and any cut of a real frame.
func TestDecodeIsTotal(t *testing.T) {
	ps := packets(t, "rxe/ipv6-lock-4qp.pcap")[:1]
	ps = append(ps, packets(t, "connectx-write-steering/10-packet-ingress.pcap")...)
	for _, p := range ps {
		for n := range p.Data {
			replay.Decode(p.Data[:n])
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		p := bytes.Clone(ps[rapid.IntRange(0, len(ps)-1).Draw(rt, "frame")].Data)
		for range rapid.IntRange(1, 10).Draw(rt, "changes") {
			p[rapid.IntRange(12, min(len(p), 80)-1).Draw(rt, "at")] = rapid.Byte().Draw(rt, "value")
		}
		if len(replay.Decode(p)) < 3 {
			rt.Fatal("not even an Ethernet header")
		}
		rest := rapid.SliceOf(rapid.Byte()).Draw(rt, "bytes")
		replay.Decode(rest)
		if d := replay.FrameDiff(p, rest, "a", "b"); d == nil {
			rt.Fatal("different frames without a difference")
		}
	})
}
