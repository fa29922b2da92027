package offload

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/netnstest"
)

// TestRecordFile: an interface that has the index of one that is gone has no record of that one's settings.
func TestRecordFile(t *testing.T) {
	netnstest.Enter(t)
	file := func(mac string) string {
		a := netlink.NewLinkAttrs()
		a.Name, a.Index = "x", 77
		a.HardwareAddr, _ = net.ParseMAC(mac)
		l := &netlink.Veth{LinkAttrs: a, PeerName: "y"}
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		path, err := RecordFile(77)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkDel(l); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, other := file("02:00:00:00:00:01"), file("02:00:00:00:00:02")
	if one == "" {
		t.Skip("the kernel does not tell the namespace's cookie")
	}
	if one == other {
		t.Errorf("both have the record %s", one)
	}
	t.Cleanup(func() { _ = WriteRecord(one, Record{}) })
	if err := WriteRecord(one, Record{1}); err != nil {
		t.Fatal(err)
	}
	if again := file("02:00:00:00:00:02"); again == one {
		t.Errorf("another interface has the record %s", one)
	}
	if again := file("02:00:00:00:00:01"); again != one {
		t.Errorf("the same interface has the records %s and %s", one, again)
	}
}

// TestRecordOfChangedAddress: an end of a veth that gets another address has its record still. One that has another address and
// another other end is another interface.
func TestRecordOfChangedAddress(t *testing.T) {
	netnstest.Enter(t)
	add := func() netlink.Link {
		a := netlink.NewLinkAttrs()
		a.Name, a.Index = "x", 77
		l := &netlink.Veth{LinkAttrs: a, PeerName: "y"}
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	file := func() string {
		path, err := RecordFile(77)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	l := add()
	was := file()
	if was == "" {
		t.Skip("the kernel does not tell the namespace's cookie")
	}
	t.Cleanup(func() { _ = WriteRecord(was, Record{}) })
	if err := WriteRecord(was, Record{1}); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 9}); err != nil {
		t.Fatal(err)
	}
	if now := file(); now != was {
		t.Errorf("with another address it has the record %s, and not %s", now, was)
	}
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
	add()
	if now := file(); now == was {
		t.Errorf("another interface has the record %s", now)
	}
}
