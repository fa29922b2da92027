package pcap_test

import (
	"bytes"
	"fmt"

	"github.com/quillon/quillon/nf/port/pcap"
)

func Example() {
	var file bytes.Buffer
	w, _ := pcap.NewWriter(&file, pcap.NewHeader(pcap.NG))
	w.AddInterface(pcap.Interface{Name: "swp1", Link: pcap.LinkEthernet, Resol: 9})
	w.Write(&pcap.Packet{Time: 1e9, OrigLen: 60, Data: make([]byte, 60), Comments: [][]byte{[]byte("rewritten: steered-cas")}})
	w.Flush()

	r, err := pcap.NewReader(&file)
	if err != nil {
		fmt.Println(err)
		return
	}
	var p pcap.Packet
	for r.Next(&p) == nil {
		fmt.Printf("%d %s %d bytes, %s\n", p.Number, r.Interfaces()[p.Interface].Name, len(p.Data), p.Comments[0])
	}
	// Output: 1 swp1 60 bytes, rewritten: steered-cas
}
