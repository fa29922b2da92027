package roce_test

import (
	"encoding/hex"
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/port/pcap/roce"
)

func ExampleRegister() {
	roce.Register()
	b, _ := hex.DecodeString("ec0d9a6821a0ec0d9a6821cc080045020038e63140004011d112c0a8010dc0a80111" +
		"effd12b7002400001240ffff00008d7c00000c74000000040000000000000800f15e7d0d")
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	for _, l := range p.Layers()[3:] {
		fmt.Println(l.LayerType())
	}
	fmt.Println(p.Layer(roce.LayerTypeBTH))
	// Output:
	// BTH
	// AETH
	// AtomicAckETH
	// RC ATOMIC ACK QP 0x008d7c PSN 0x000c74
}
