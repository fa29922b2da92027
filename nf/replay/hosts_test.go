package replay_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/replay"
)

func TestHosts(t *testing.T) {
	const macs = "020000000002 020000000001 "
	frames := map[string]string{
		"IPv4":        macs + "0800 4500001c 00000000 40110000 0a000005 0a000105 0001 0002 0008 0000",
		"tagged IPv4": macs + "8100 0005 0800 4500001c 00000000 40110000 0a000005 0a000105 0001 0002 0008 0000",
		"IPv6":        macs + "86dd 60000000 0008 1140 fd000000000000000000000000000005 fd010000000000000000000000000005 0001 0002 0008 0000",
		"ARP":         macs + "0806 0001 0800 06 04 0001 020000000001 0a000005 000000000000 0a000105",
		"other":       macs + "88cc 0000",
		"cut IPv4":    macs + "0800 4500",
		"cut ARP":     macs + "0806 0001 0800 06 04 0001 020000000001 0a00",
		"short":       "020000000002 0200",
	}
	for hosts, sent := range map[string]string{
		"02:00:00:00:00:01":               "IPv4, tagged IPv4, IPv6, ARP, other, cut IPv4, cut ARP",
		"02:00:00:00:00:02":               "",
		"10.0.0.0/24":                     "IPv4, tagged IPv4, ARP",
		"10.0.0.5":                        "IPv4, tagged IPv4, ARP",
		"10.0.1.0/24":                     "", // where they go to
		"fd00::/64":                       "IPv6",
		"192.0.2.0/24, 10.0.0.5,fd00::5":  "IPv4, tagged IPv4, IPv6, ARP",
		"10.0.1.0/24,02:00:00:00:00:01":   "IPv4, tagged IPv4, IPv6, ARP, other, cut IPv4, cut ARP",
		"0.0.0.0/0":                       "IPv4, tagged IPv4, ARP",
		"02-00-00-00-00-01,192.0.2.0/24":  "IPv4, tagged IPv4, IPv6, ARP, other, cut IPv4, cut ARP",
		"fd00:0:0:0:8000::/65,fd01::5":    "",
		"ff:ff:ff:ff:ff:ff,10.0.0.128/25": "",
	} {
		h, err := replay.ParseHosts(strings.Split(hosts, ","))
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range frames {
			b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			want := false
			for _, s := range strings.Split(sent, ", ") {
				want = want || s == name
			}
			if got := h.Sent(b); got != want {
				t.Errorf("%s sent %s: %t", hosts, name, got)
			}
		}
	}
	for hosts, want := range map[string]string{
		"10.0.0.1/24": "want 10.0.0.0/24", "eth1": `"eth1": want MAC`, "": "want MAC", "10.0.0": "want MAC",
	} {
		if _, err := replay.ParseHosts([]string{hosts}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", hosts, err)
		}
	}
}
