package pcap_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// decoding is what tshark is to tell of a case's outputs.
type decoding struct {
	Fields  []string `yaml:"fields"`  // beside those of every case
	Options []string `yaml:"options"` // of tshark
	// Bad is how many packets that the function made or changed tshark finds wrong, by
	// file: those that were so when they came.
	Bad map[string]int `yaml:"bad"`
}

// always are the fields of every case: what became of a packet (its comment), and what
// tshark thinks of its checksums: 0 bad, 1 good, 2 not verified, 3 not there; one for
// each header of the kind, the outermost first.
var always = []string{"frame.comment", "frame.len", "ip.checksum.status", "udp.checksum.status", "tcp.checksum.status", "icmp.checksum.status", "icmpv6.checksum.status"}

// errorSeverity is Wireshark's PI_ERROR (epan/proto.h): malformed, a wrong checksum or length.
const errorSeverity = 0x00800000

// check compares what tshark says with tshark.txt. Whatever that says, no packet
// that the function made or changed may be wrong.
func (d *decoding) check(t *testing.T, dir string, files []string) {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark): the outputs are not decoded by it")
	}
	fields := append(slices.Clip(always), d.Fields...)
	args := []string{"-n", "-T", "fields", "-E", "separator=|", "-e", "_ws.malformed", "-e", "_ws.expert.severity"}
	for _, proto := range []string{"ip", "udp", "tcp"} {
		args = append(args, "-o", proto+".check_checksum:TRUE")
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	args = append(args, d.Options...)
	var text strings.Builder
	for _, f := range files {
		cmd := exec.Command(tshark, append([]string{"-r", filepath.Join(dir, f)}, args...)...)
		var diag strings.Builder
		cmd.Stderr = &diag
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", cmd, err, diag.String())
		}
		fmt.Fprintf(&text, "# %s: packet|%s\n", f, strings.Join(fields, "|"))
		bad := 0
		for i, line := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
			all := strings.Split(line, "|")
			if len(all) != 2+len(fields) {
				t.Fatalf("%s: packet %d: tshark says %q", f, i+1, line)
			}
			if why := wrong(all); why != "" && !strings.HasPrefix(all[2], "forwarded") && !strings.HasPrefix(all[2], "dropped") {
				bad++
				if bad > d.Bad[f] {
					t.Errorf("%s: packet %d, %s: %s: %s", f, i+1, all[2], why, line)
				}
			}
			fmt.Fprintf(&text, "%d|%s\n", i+1, strings.Join(all[2:], "|"))
		}
		if bad < d.Bad[f] {
			t.Errorf("%s: %d packets are wrong, want %d", f, bad, d.Bad[f])
		}
	}
	golden(t, filepath.Join(dir, "tshark.txt"), text.String())
}

// wrong says what tshark found wrong with a packet of these fields; "": nothing. ICMP errors quote the beginning of
// a packet: of TCP in it tshark judges the checksum as if that were all.
func wrong(all []string) string {
	if all[0] != "" {
		return "malformed"
	}
	status := map[string][]string{}
	for i, name := range always {
		status[name] = strings.Split(all[2+i], ",")
	}
	quotes := (all[2+slices.Index(always, "icmp.checksum.status")] != "" || all[2+slices.Index(always, "icmpv6.checksum.status")] != "") && status["tcp.checksum.status"][0] != ""
	for _, s := range strings.Split(all[1], ",") {
		if n, err := strconv.Atoi(s); err == nil && n >= errorSeverity && !quotes {
			return "an error"
		}
	}
	for name, values := range status {
		if strings.HasSuffix(name, ".status") && slices.Contains(values, "0") && (!quotes || name != "tcp.checksum.status") {
			return name + " is bad"
		}
	}
	return ""
}
