/* nt_classifier: puts flows into chains of network tasks, and passes them on.
 *
 * A chain is a service path of RFC 8300: a frame on it carries a network service
 * header (NSH) with the path's identifier (SPI) and the index of the next task
 * (SI), between an Ethernet header of its own and the frame as it came.
 *
 *  - A frame without NSH is classified by flows: ingress port, VLAN, and addresses,
 *    protocol and ports of IPv4 or IPv6. It enters a path, or goes to a port, or is
 *    dropped. Later fragments have ports 0.
 *  - service_path says where a frame with a path and an index goes: to the next
 *    task's port and address, or out of the path (leave): without NSH, by a port.
 *    Tasks lower the SI; this program does not. A frame with SI 0 is dropped.
 *  - The TTL of an NSH that came in is lowered before that, and the frame dropped
 *    when it is 0 then; 0 becomes 63 (RFC 8300, section 2.2). A frame that enters a
 *    path has 63.
 *
 * A path carries Ethernet frames; an NSH with another next protocol is dropped.
 *
 * What enters has MD type 2 without metadata: the frame grows by 22 bytes (8 of NSH
 * and 14 of Ethernet). Metadata of MD type 1 or 2 of frames that came in is kept.
 *
 * Counters: flows and paths by entry (direct), verdicts (the numbers below). No
 * registers.
 *
 * ICRC: the frame inside stays as it is; a RoCEv2 ICRC stays valid.
 */
#include <core.p4>
#include <v1model.p4>

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<16> ETHERTYPE_IPV6 = 0x86DD;
const bit<16> ETHERTYPE_NSH  = 0x894F;

const bit<8> NEXT_ETHERNET = 3;

/* Indices of the counter verdicts. */
const bit<32> ENTERED     = 0; // classified, and sent on its path
const bit<32> PASSED      = 1; // classified, to a port
const bit<32> CONTINUED   = 2; // to the next task
const bit<32> LEFT        = 3; // out of its path
const bit<32> UNCLASSIFIED = 4; // dropped, as all below
const bit<32> REFUSED     = 5;
const bit<32> NO_PATH     = 6;
const bit<32> NO_TTL      = 7;
const bit<32> NO_INDEX    = 8;
const bit<32> BAD_HEADER  = 9;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

header vlan_t {
    bit<3>  pcp;
    bit<1>  dei;
    bit<12> vid;
    bit<16> ether_type;
}

header nsh_t {
    bit<2>  version;
    bit<1>  oam;
    bit<1>  unassigned;
    bit<6>  ttl;
    bit<6>  length; // in words of 4 bytes, with metadata
    bit<4>  unassigned_flags;
    bit<4>  md_type;
    bit<8>  next_protocol;
    bit<24> spi;
    bit<8>  si;
}

header nsh_metadata_t {
    varbit<1952> data; // at most 63 - 2 words
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_len;
    bit<16> id;
    bit<3>  flags;
    bit<13> frag_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header ipv4_options_t {
    varbit<320> options;
}

header ipv6_t {
    bit<4>   version;
    bit<8>   traffic_class;
    bit<20>  flow_label;
    bit<16>  payload_len;
    bit<8>   next_header;
    bit<8>   hop_limit;
    bit<128> src;
    bit<128> dst;
}

header ports_t {
    bit<16> src;
    bit<16> dst;
}

struct headers_t {
    ethernet_t     outer;
    nsh_t          nsh;
    nsh_metadata_t nsh_metadata;
    ethernet_t     ethernet;
    vlan_t         vlan;
    ipv4_t         ipv4;
    ipv4_options_t ipv4_options;
    ipv6_t         ipv6;
    ports_t        ports;
}

/* The flow that a frame belongs to; IPv4 addresses are the low 32 bits. */
struct metadata_t {
    bit<12>  vid;
    bit<16>  ether_type;
    bit<128> src;
    bit<128> dst;
    bit<8>   protocol;
    bit<16>  src_port;
    bit<16>  dst_port;
    bit<32>  verdict;
}

parser classifier_parser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                         inout standard_metadata_t standard_metadata) {
    state start {
        transition select(packet.lookahead<ethernet_t>().ether_type) {
            ETHERTYPE_NSH: nsh;
            default: ethernet;
        }
    }
    state nsh {
        packet.extract(hdr.outer);
        packet.extract(hdr.nsh);
        verify(hdr.nsh.version == 0 && hdr.nsh.length >= 2, error.HeaderTooShort);
        packet.extract(hdr.nsh_metadata, ((bit<32>)hdr.nsh.length - 2) << 5);
        transition accept; // a frame on a path is not looked into
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        meta.ether_type = hdr.ethernet.ether_type;
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_VLAN: vlan;
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            default: accept;
        }
    }
    state vlan {
        packet.extract(hdr.vlan);
        meta.vid = hdr.vlan.vid;
        meta.ether_type = hdr.vlan.ether_type;
        transition select(hdr.vlan.ether_type) {
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version == 4 && hdr.ipv4.ihl >= 5, error.HeaderTooShort);
        meta.src = (bit<128>)hdr.ipv4.src;
        meta.dst = (bit<128>)hdr.ipv4.dst;
        meta.protocol = hdr.ipv4.protocol;
        packet.extract(hdr.ipv4_options, ((bit<32>)hdr.ipv4.ihl - 5) << 5);
        transition select(hdr.ipv4.frag_offset, hdr.ipv4.protocol) {
            (0, 6): ports;
            (0, 17): ports;
            default: accept;
        }
    }
    state ipv6 {
        packet.extract(hdr.ipv6);
        meta.src = hdr.ipv6.src;
        meta.dst = hdr.ipv6.dst;
        meta.protocol = hdr.ipv6.next_header;
        transition select(hdr.ipv6.next_header) {
            6: ports;
            17: ports;
            default: accept;
        }
    }
    state ports {
        packet.extract(hdr.ports);
        meta.src_port = hdr.ports.src;
        meta.dst_port = hdr.ports.dst;
        transition accept;
    }
}

control classifier_verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control classifier_ingress(inout headers_t hdr, inout metadata_t meta,
                           inout standard_metadata_t standard_metadata) {
    counter(10, CounterType.packets) verdicts;
    direct_counter(CounterType.packets_and_bytes) flow_counts;
    direct_counter(CounterType.packets_and_bytes) path_counts;

    action drop_as(bit<32> verdict) {
        meta.verdict = verdict;
        mark_to_drop(standard_metadata);
    }

    action enter(bit<24> spi, bit<8> si) {
        flow_counts.count();
        hdr.outer.setValid();
        hdr.outer.ether_type = ETHERTYPE_NSH;
        hdr.nsh.setValid();
        hdr.nsh.version = 0;
        hdr.nsh.oam = 0;
        hdr.nsh.unassigned = 0;
        hdr.nsh.ttl = 63;
        hdr.nsh.length = 2;
        hdr.nsh.unassigned_flags = 0;
        hdr.nsh.md_type = 2;
        hdr.nsh.next_protocol = NEXT_ETHERNET;
        hdr.nsh.spi = spi;
        hdr.nsh.si = si;
        meta.verdict = ENTERED;
    }
    action pass(bit<9> port) {
        flow_counts.count();
        standard_metadata.egress_spec = port;
        meta.verdict = PASSED;
    }
    action refuse() {
        flow_counts.count();
        drop_as(REFUSED);
    }
    action unclassified() {
        flow_counts.count();
        drop_as(UNCLASSIFIED);
    }
    table flows {
        key = {
            standard_metadata.ingress_port: ternary;
            meta.vid: ternary;
            meta.ether_type: ternary;
            meta.src: ternary;
            meta.dst: ternary;
            meta.protocol: ternary;
            meta.src_port: range;
            meta.dst_port: range;
        }
        actions = { enter; pass; refuse; unclassified; }
        default_action = unclassified();
        counters = flow_counts;
        size = 4096;
    }

    action to_task(bit<9> port, bit<48> dst, bit<48> src) {
        path_counts.count();
        hdr.outer.dst = dst;
        hdr.outer.src = src;
        standard_metadata.egress_spec = port;
    }
    action leave(bit<9> port) {
        path_counts.count();
        hdr.outer.setInvalid();
        hdr.nsh.setInvalid();
        hdr.nsh_metadata.setInvalid();
        standard_metadata.egress_spec = port;
        meta.verdict = LEFT;
    }
    action no_path() {
        path_counts.count();
        drop_as(NO_PATH);
    }
    table service_path {
        key = {
            hdr.nsh.spi: exact;
            hdr.nsh.si: exact;
        }
        actions = { to_task; leave; @defaultonly no_path; }
        const default_action = no_path();
        counters = path_counts;
        size = 4096;
    }

    apply {
        if (standard_metadata.parser_error != error.NoError &&
            standard_metadata.parser_error != error.PacketTooShort ||
            hdr.outer.isValid() && !hdr.nsh_metadata.isValid()) {
            drop_as(BAD_HEADER);
        } else if (hdr.nsh.isValid()) {
            meta.verdict = CONTINUED;
            hdr.nsh.ttl = hdr.nsh.ttl - 1;
            if (hdr.nsh.ttl == 0) {
                drop_as(NO_TTL);
            } else if (hdr.nsh.si == 0) {
                drop_as(NO_INDEX);
            }
        } else {
            flows.apply();
        }
        if (hdr.nsh.isValid() && meta.verdict <= LEFT) {
            if (meta.verdict == CONTINUED && hdr.nsh.next_protocol != NEXT_ETHERNET) {
                drop_as(BAD_HEADER);
            } else {
                service_path.apply();
            }
        }
        verdicts.count(meta.verdict);
    }
}

control classifier_egress(inout headers_t hdr, inout metadata_t meta,
                          inout standard_metadata_t standard_metadata) {
    apply { }
}

control classifier_update(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control classifier_deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.outer);
        packet.emit(hdr.nsh);
        packet.emit(hdr.nsh_metadata);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv4_options);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.ports);
    }
}

V1Switch(classifier_parser(), classifier_verify(), classifier_ingress(),
         classifier_egress(), classifier_update(), classifier_deparser()) main;
