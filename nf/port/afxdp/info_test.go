package afxdp

import "testing"

func TestInfoText(t *testing.T) {
	i := Info{Interfaces: []InterfaceInfo{
		{Name: "eth1", Driver: "veth", Mode: "native", Queues: 2, MTU: 1500, Changed: []string{
			"eth1 rx-vlan-hw-parse off", "eth1 rx-vlan-stag-hw-parse off", "eth0 tx-gso-list off", "eth0 rx-gro on", "eth0 tx-vlan-hw-insert off", "eth1 promisc on",
		}},
		{Name: "eth2", Driver: "mlx5", Mode: "native", ZeroCopy: true, Queues: 1, MTU: 9000},
	}, Notes: []string{"a note"}}
	got := i.String()
	want := `eth1: veth, native XDP, copy, 2 queues, MTU 1500
eth1: set off: rx-vlan-hw-parse, rx-vlan-stag-hw-parse; set on: promisc
eth1: its peer eth0: set off: tx-gso-list, tx-vlan-hw-insert; set on: rx-gro
eth2: mlx5, native XDP, zero-copy, 1 queue, MTU 9000
a note
`
	if got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	got = i.Brief()
	want = `eth1: veth, native XDP, copy, 2 queues, MTU 1500, 6 settings changed until the end
eth2: mlx5, native XDP, zero-copy, 1 queue, MTU 9000
a note
`
	if got != want {
		t.Errorf("brief:\n%s\nnot\n%s", got, want)
	}
}
