package roce_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port/pcap/roce"
)

const data = "../../../hdr/testdata/"

func TestMain(m *testing.M) {
	roce.Register()
	roce.Register() // more calls change nothing
	os.Exit(m.Run())
}

func vectors(t testing.TB) map[string][]byte {
	t.Helper()
	file, err := os.Open(data + "vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	vs := map[string][]byte{}
	for s := bufio.NewScanner(file); s.Scan(); {
		if w := strings.Fields(s.Text()); len(w) == 3 && w[0] != "#" {
			if vs[w[0]], err = hex.DecodeString(w[2]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return vs
}

func frames(t testing.TB) (out [][]byte) {
	t.Helper()
	for _, b := range vectors(t) {
		out = append(out, b)
	}
	const golden = "../../../../tests/pcap/"
	names, err := filepath.Glob(golden + "rxe/*.pcap")
	if err != nil || len(names) == 0 {
		t.Fatal("no captures", err)
	}
	names = append(names, golden+"rcuckoo-masked-cas/in.pcap", golden+"connectx-write-steering/10-packet-ingress.pcap")
	for _, n := range names {
		file, err := os.Open(n)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		r, err := pcapgo.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		for {
			b, _, err := r.ReadPacketData()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(n, err)
			}
			out = append(out, b)
		}
	}
	return out
}

func decode(b []byte) gopacket.Packet {
	return gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
}

// names are the layers of a packet, those below the BTH left out.
func names(p gopacket.Packet) (out []string) {
	for _, l := range p.Layers() {
		if len(out) > 0 || l.LayerType() == roce.LayerTypeBTH {
			out = append(out, l.LayerType().String())
		}
	}
	return out
}

// What gopacket shows is what hdr reads, for every real frame.
func TestLayersAgreeWithHdr(t *testing.T) {
	seen := map[gopacket.LayerType]int{}
	for i, b := range frames(t) {
		var f hdr.Frame
		hdr.Parse(b, &f)
		p := decode(b)
		if e := p.ErrorLayer(); e != nil {
			t.Errorf("frame %d: %v", i, e.Error())
		}
		if l, ok := p.Layer(roce.LayerTypeBTH).(*roce.BTH); ok != (f.BTH != 0) {
			t.Errorf("frame %d: BTH %v, hdr says %v", i, l, f.Why)
		}
		if f.Why != hdr.IsRoCE {
			continue
		}
		for _, l := range p.Layers() {
			seen[l.LayerType()]++
			var got, want any
			switch l := l.(type) {
			case *roce.GRH:
				h := f.GRHOf(b)
				got = *l
				want = roce.GRH{BaseLayer: l.BaseLayer, TClass: h.TClass(), FlowLabel: h.FlowLabel(), PayLen: h.PayLen(), NxtHdr: h.NxtHdr(),
					HopLmt: h.HopLmt(), SGID: h.SGID(), DGID: h.DGID()}
			case *roce.BTH:
				h := f.BTHOf(b)
				got = *l
				want = roce.BTH{
					BaseLayer: layers.BaseLayer{Contents: h, Payload: b[int(f.BTH)+hdr.BTHLen : f.End-uint16(f.Pad)]},
					OpCode:    f.Op, Solicited: h.Solicited(), MigReq: h.MigReq(), PadCount: h.PadCount(), PKey: h.PKey(),
					FECN: h.FECN(), BECN: h.BECN(), DestQP: h.DestQP(), AckReq: h.AckReq(), PSN: h.PSN(), ICRC: hdr.StoredICRC(b, &f),
				}
			case *roce.DETH:
				got, want = *l, roce.DETH{BaseLayer: l.BaseLayer, QKey: f.DETHOf(b).QKey(), SrcQP: f.DETHOf(b).SrcQP()}
			case *roce.RETH:
				h := f.RETHOf(b)
				got, want = *l, roce.RETH{BaseLayer: l.BaseLayer, VA: h.VA(), RKey: h.RKey(), DMALength: h.DMALength()}
			case *roce.AtomicETH:
				h := f.AtomicETHOf(b)
				got, want = *l, roce.AtomicETH{BaseLayer: l.BaseLayer, VA: h.VA(), RKey: h.RKey(), Swap: h.Swap(), Compare: h.Compare()}
			case *roce.MaskedAtomicETH:
				h := f.MaskedAtomicETHOf(b)
				got, want = *l, roce.MaskedAtomicETH{BaseLayer: l.BaseLayer, VA: h.VA(), RKey: h.RKey(), Swap: h.Swap(), Compare: h.Compare(),
					SwapMask: h.SwapMask(), CompareMask: h.CompareMask()}
			case *roce.AETH:
				got, want = *l, roce.AETH{BaseLayer: l.BaseLayer, Syndrome: f.AETHOf(b).Syndrome(), MSN: f.AETHOf(b).MSN()}
			case *roce.AtomicAckETH:
				got, want = *l, roce.AtomicAckETH{BaseLayer: l.BaseLayer, Original: f.AtomicAckETHOf(b).Original()}
			case *roce.ImmDt:
				got, want = *l, roce.ImmDt{BaseLayer: l.BaseLayer, Data: f.ImmDtOf(b).Data()}
			case *roce.IETH:
				got, want = *l, roce.IETH{BaseLayer: l.BaseLayer, RKey: f.IETHOf(b).RKey()}
			case *gopacket.Payload:
				got, want = string(l.Payload()), string(f.PayloadOf(b))
			}
			if d := cmp.Diff(want, got, cmp.Comparer(func(a, b []byte) bool { return string(a) == string(b) }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Errorf("frame %d (-hdr +gopacket):\n%s", i, d)
			}
		}
		if got := p.ApplicationLayer(); (got != nil) != (len(f.PayloadOf(b)) != 0) {
			t.Errorf("frame %d: payload layer %v for %d bytes", i, got, len(f.PayloadOf(b)))
		}
	}
	for l := roce.LayerTypeGRH; l <= roce.LayerTypeIETH; l++ {
		if seen[l] == 0 && l != roce.LayerTypeFETH { // no capture has a FLUSH
			t.Errorf("no frame has %v", l)
		}
	}
}

func TestLayerOrder(t *testing.T) {
	vs := vectors(t)
	flush := append([]byte(nil), vs["V08"]...) // a READ REQUEST with four bytes more
	flush = append(flush[:54], append([]byte{0, 0, 0, 0x12}, flush[54:]...)...)
	flush[42] = byte(hdr.Flush)
	flush[17] += 4
	flush[39] += 4
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"write":         {vs["V01"], "BTH RETH Payload"},
		"atomic ack":    {vs["V07"], "BTH AETH AtomicAckETH"},
		"masked atomic": {vs["V20"], "BTH MaskedAtomicETH"},
		"datagram":      {vs["V30"], "BTH DETH Payload"},
		"CNP":           {vs["V40"], "BTH Payload"},
		"v1":            {vs["V51"], "BTH RETH Payload"},
		"flush":         {flush, "BTH FETH RETH"},
	} {
		p := decode(c.frame)
		if got := strings.Join(names(p), " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	p := decode(flush)
	if f := p.Layer(roce.LayerTypeFETH).(*roce.FETH); f.Placement != 2 || f.Selectivity != 1 {
		t.Errorf("%+v", f)
	}
	if s := p.Layer(roce.LayerTypeBTH).(*roce.BTH).String(); s != "RC FLUSH QP 0x005434 PSN 0x000c75" {
		t.Error(s)
	}
	if s := decode(vs["V05"]).String(); !strings.Contains(s, "Layer 5 (28 bytes) = AtomicETH") || !strings.Contains(s, "VA=") {
		t.Errorf("printed as:\n%s", s)
	}
}

// A header that does not fit is an error and a truncated packet.
func TestTruncated(t *testing.T) {
	b := vectors(t)["V05"]
	for n := 42; n < len(b); n++ {
		short := append([]byte(nil), b[:n]...)
		short[16], short[17] = 0, byte(n-14)
		short[38], short[39] = 0, byte(n-34)
		p := decode(short)
		if n == 42 {
			continue // UDP without payload: nothing to decode
		}
		if p.ErrorLayer() == nil || !p.Metadata().Truncated {
			t.Fatalf("%d bytes: %v", n, p)
		}
	}
	b = vectors(t)["V52"]
	for n := 15; n < len(b); n++ {
		if p := decode(b[:n]); p.ErrorLayer() == nil || !p.Metadata().Truncated {
			t.Fatalf("v1, %d bytes: %v", n, p)
		}
	}
}

// The allocation-free way through gopacket: one layer object of each sort.
func TestDecodingLayerParser(t *testing.T) {
	var (
		eth layers.Ethernet
		ip  layers.IPv4
		udp layers.UDP
		bth roce.BTH
		cas roce.AtomicETH
		pay gopacket.Payload
	)
	p := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip, &udp, &bth, &cas, &pay)
	var found []gopacket.LayerType
	if err := p.DecodeLayers(vectors(t)["V05"], &found); err != nil {
		t.Fatal(err)
	}
	if found[len(found)-1] != roce.LayerTypeAtomicETH || cas.VA != 0x557a46b7a500 || bth.PSN != 0xc72 {
		t.Errorf("%v %+v %+v", found, bth, cas)
	}
}

// No input makes a decoder panic; whatever decodes covers its bytes once.
func FuzzDecode(f *testing.F) {
	for _, b := range vectors(f) {
		f.Add(b[14:])
		f.Add(b[min(42, len(b)):])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, first := range []gopacket.LayerType{roce.LayerTypeBTH, roce.LayerTypeGRH, roce.LayerTypeRETH, roce.LayerTypeAETH} {
			p := gopacket.NewPacket(b, first, gopacket.DecodeOptions{SkipDecodeRecovery: true})
			n := 0
			for _, l := range p.Layers() {
				n += len(l.LayerContents())
			}
			if n > len(b) {
				t.Fatalf("%v: layers of %d bytes from %d", first, n, len(b))
			}
		}
	})
}
