package hdr

// ECN codepoints (RFC 3168, section 5): of IPv4's TOS and IPv6's and the GRH's
// traffic class the two low bits.
const (
	NotECT uint8 = 0
	ECT1   uint8 = 1
	ECT0   uint8 = 2
	CE     uint8 = 3 // congestion experienced
)

// ECNOf is the ECN codepoint of parsed frame b.
func (f *Frame) ECNOf(b []byte) uint8 {
	switch v := b[f.L3+1]; f.Net {
	case NetIPv4:
		return v & 3
	case NetIPv6, NetGRH:
		return v >> 4 & 3
	}
	return NotECT
}

// SetECN sets the ECN codepoint of parsed frame b, and mends the checksum of its
// IPv4 header. The ICRC does not cover it.
func (f *Frame) SetECN(b []byte, v uint8) {
	switch p := &b[f.L3+1]; f.Net {
	case NetIPv4:
		if *p&3 != v {
			h := f.IPv4Of(b)
			*p = *p&^3 | v
			h.UpdateChecksum()
		}
	case NetIPv6, NetGRH:
		*p = *p&^0x30 | v<<4
	}
}
