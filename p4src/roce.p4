/* roce: RoCEv2 headers in IPv4 (IBTA annex A17), and what its ICRC covers.
 *
 * The ICRC is a CRC-32 of the packet behind Ethernet, with eight bytes of ones
 * in front, and ones in place of what routers change: type of service, time to
 * live, both checksums and the eight bits of the BTH that carry congestion. It
 * is sent with its lowest byte first, so that the value of v1model's crc32 has
 * to be reversed.
 */
#ifndef ROCE_P4
#define ROCE_P4

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8>  PROTOCOL_UDP   = 17;
const bit<16> PORT_ROCE      = 4791;

@noWarn("unused") const bit<8> WRITE_FIRST  = 0x06;
@noWarn("unused") const bit<8> WRITE_MIDDLE = 0x07;
@noWarn("unused") const bit<8> WRITE_LAST   = 0x08;
@noWarn("unused") const bit<8> WRITE_ONLY   = 0x0A;
@noWarn("unused") const bit<8> READ_REQUEST = 0x0C;
@noWarn("unused") const bit<8> READ_ONLY    = 0x10; // response
@noWarn("unused") const bit<8> ACKNOWLEDGE  = 0x11;
@noWarn("unused") const bit<8> ATOMIC_ACK   = 0x12;
@noWarn("unused") const bit<8> COMPARE_SWAP = 0x13;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_len;
    bit<16> id;
    bit<16> fragment; // flags and offset
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header udp_t {
    bit<16> src;
    bit<16> dst;
    bit<16> length;
    bit<16> checksum;
}

/* Base transport header. */
header bth_t {
    bit<8>  opcode;
    bit<8>  flags; // solicited event, migration state, pad count, version
    bit<16> pkey;
    bit<8>  congestion; // FECN, BECN, reserved; the ICRC does not cover it
    bit<24> dst_qp;
    bit<8>  ack_request; // the highest bit
    bit<24> psn;
}

/* RDMA extended transport header. */
header reth_t {
    bit<64> va;
    bit<32> rkey;
    bit<32> length;
}

/* ACK extended transport header. */
header aeth_t {
    bit<8>  syndrome;
    bit<24> msn;
}

header atomic_eth_t {
    bit<64> va;
    bit<32> rkey;
    bit<64> swap;
    bit<64> compare;
}

header atomic_ack_t {
    bit<64> original;
}

header icrc_t {
    bit<32> value;
}

bit<32> reverse32(in bit<32> x) {
    return x[7:0] ++ x[15:8] ++ x[23:16] ++ x[31:24];
}

bit<64> reverse64(in bit<64> x) {
    return x[7:0] ++ x[15:8] ++ x[23:16] ++ x[31:24] ++
           x[39:32] ++ x[47:40] ++ x[55:48] ++ x[63:56];
}

/* The fields that every ICRC begins with. */
#define ICRC_FIELDS(h)                                                       \
    64w0xFFFFFFFFFFFFFFFF, h.ipv4.version, h.ipv4.ihl, 8w0xFF,                   \
    h.ipv4.total_len, h.ipv4.id, h.ipv4.fragment, 8w0xFF, h.ipv4.protocol,    \
    16w0xFFFF, h.ipv4.src, h.ipv4.dst,                                        \
    h.udp.src, h.udp.dst, h.udp.length, 16w0xFFFF,                            \
    h.bth.opcode, h.bth.flags, h.bth.pkey, 8w0xFF, h.bth.dst_qp,              \
    h.bth.ack_request, h.bth.psn

#endif
