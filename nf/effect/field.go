package effect

import (
	"fmt"
	"math/bits"
	"strings"
)

// Field is a set of parts of a packet. Checksums and the lengths in headers are
// derived from the rest, and are no fields.
type Field uint16

// The parts of a packet.
const (
	Ethernet    Field = 1 << iota // MAC addresses, EtherType
	VLAN                          // tags
	Encap                         // all else in front of the inner IP header: tunnels, service headers
	IPAddresses                   // of the inner IP header
	IPOther                       // its TTL, DSCP, ECN, identification, flags, protocol
	Ports                         // of TCP and UDP; ICMP's identifier
	L4Other                       // sequence numbers, flags, BTH and the like; all of an ICMP error, with what it quotes, and of ARP
	Payload                       // what is behind the last header
	Length                        // how many bytes there are; written: bytes are added or removed

	// AllFields is every field there is.
	AllFields = 1<<iota - 1
	// Headers is what a function reads that looks for an IP header: behind the EtherType and
	// the tags, where it must tell a datagram's own from that of a tunnel.
	Headers = Ethernet | VLAN | Encap | IPOther
	// Flow is what tells flows apart, with what is read to find it.
	Flow = Headers | IPAddresses | Ports
	// Bytes is every field that has bytes in the packet.
	Bytes = AllFields &^ Length
)

var fieldNames = [...]string{"ethernet", "vlan", "encap", "ip-addresses", "ip-other", "ports", "l4-other", "payload", "length"}

// String returns the names, separated by commas; "all" stands for Bytes, "none" for
// the empty set. ParseField reads this form.
func (f Field) String() string {
	var names []string
	if f&Bytes == Bytes {
		names, f = append(names, "all"), f&^Bytes
	}
	for ; f != 0; f &= f - 1 {
		if i := bits.TrailingZeros16(uint16(f)); i < len(fieldNames) {
			names = append(names, fieldNames[i])
		} else {
			names = append(names, fmt.Sprintf("field(%d)", i))
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ",")
}

// ParseField reads names of fields, separated by commas or spaces. "all" stands for Bytes;
// "none" and "" stand for no field.
func ParseField(s string) (Field, error) {
	var f Field
next:
	for _, name := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		switch name {
		case "all":
			f |= Bytes
			continue
		case "none":
			continue
		}
		for i, n := range fieldNames {
			if n == name {
				f |= 1 << i
				continue next
			}
		}
		return 0, fmt.Errorf("no field is named %.40q (known: all, %s)", name, strings.Join(fieldNames[:], ", "))
	}
	return f, nil
}
