package aead

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/quillon/quillon/nf/graph/graphtest"
)

// TestTshark: Wireshark, given the keys, finds the ICVs right and the packets
// inside.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, x := range []struct {
		spi, proto string
		more       []string
	}{
		{"0x100", "0x11", nil}, {"0x200", "0x11", []string{"iv", "random"}},
		{"0x100", "0x04", tunnel()}, {"0x200", "0x04", append([]string{"iv", "random"}, tunnel()...)},
		{"0x100", "0x04", []string{"mode", "tunnel", "local", "2001:db8::1", "remote", "2001:db8::2"}},
	} {
		near, _ := ends(t, x.more...)
		box := graphtest.New(t, *Kind(), with(near, "out", x.spi+"@10.0.2.0/24", "in", map[string]string{"0x100": "0x200", "0x200": "0x100"}[x.spi]))
		for _, n := range []int{0, 1, 2, 3, 64, 1300} {
			b, _ := only(t, box.Push("a", sized(n)), "b")
			if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(b), Length: len(b)}, b); err != nil {
				t.Fatal(err)
			}
			want += "1\t" + x.proto + "\t2000\t\n"
		}
	}
	name := filepath.Join(t.TempDir(), "esp.pcap")
	if err := os.WriteFile(name, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-n", "-r", name, "-o", "esp.enable_encryption_decode:TRUE", "-o", "esp.enable_authentication_check:TRUE",
		"-T", "fields", "-e", "esp.icv_good", "-e", "esp.protocol", "-e", "udp.dstport", "-e", "_ws.malformed"}
	for _, ip := range []string{"IPv4", "IPv6"} {
		for spi, key := range map[string]string{"0x00000100": key128, "0x00000200": key256} {
			args = append(args, "-o", `uat:esp_sa:"`+ip+`","*","*","`+spi+`","AES-GCM with 16 octet ICV [RFC4106]","0x`+key+`","NULL",""`)
		}
	}
	cmd := exec.Command(tshark, args...)
	var diag strings.Builder
	cmd.Stderr = &diag
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, diag.String())
	}
	if string(out) != want {
		t.Errorf("tshark says\n%s\nwant\n%s%s", out, want, diag.String())
	}
}
