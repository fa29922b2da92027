/* ipv4_router: an IPv4 router.
 *
 * A frame for one of the router's own addresses (router_mac) with a valid IPv4
 * header is looked up in ipv4_lpm: to a next hop, to one of a group's next hops
 * by a hash of its flow (ecmp), to the controller, or dropped. The next hop
 * gives port and addresses; the time to live is lowered and the header checksum
 * updated. Multicast destinations are replicated by ipv4_multicast; a copy never
 * leaves by the port that its frame came by.
 *
 * To the controller, with a packet_in header: what is not IPv4 and for the
 * router or for everybody (ARP), what has no time left to live, and what
 * ipv4_lpm sends there. From the controller (port CPU_PORT): a packet_out header
 * names the port; such a frame is not processed further.
 *
 * Counters: port_rx by ingress port, routes of ipv4_lpm, verdicts (the numbers
 * below). Meter: port_meter by ingress port, in bytes; red frames are dropped.
 * No registers.
 *
 * ICRC: the RoCEv2 ICRC covers neither the time to live, the header checksum nor
 * Ethernet, so that routed RoCEv2 frames keep a valid one.
 */
#include <core.p4>
#include <v1model.p4>

#define CPU_PORT 510

const bit<16> ETHERTYPE_IPV4 = 0x0800;

/* Reasons in packet_in, and indices of the counter verdicts. */
const bit<8> ROUTED      = 0;
const bit<8> MULTICAST   = 1;
const bit<8> PACKET_OUT  = 2;
const bit<8> NOT_IPV4    = 3; // to the controller
const bit<8> NO_TTL      = 4; // to the controller
const bit<8> TO_CPU      = 5; // to the controller
const bit<8> NOT_OURS    = 6; // dropped, as all below
const bit<8> BAD_HEADER  = 7;
const bit<8> NO_ROUTE    = 8;
const bit<8> NO_NEXT_HOP = 9;
const bit<8> METERED     = 10;
const bit<8> REFUSED     = 11;

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> padding;
    bit<8> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> padding;
}

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

header l4_ports_t {
    bit<16> src;
    bit<16> dst;
}

struct headers_t {
    packet_in_t    packet_in;
    packet_out_t   packet_out;
    ethernet_t     ethernet;
    ipv4_t         ipv4;
    ipv4_options_t ipv4_options;
    l4_ports_t     ports;
}

struct metadata_t {
    bool    bad_header; // version or length are not IPv4's
    bit<16> next_hop;
    bit<2>  color;
    bit<8>  verdict;
}

parser router_parser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: from_cpu;
            default: ethernet;
        }
    }
    state from_cpu {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl) {
            (4, 0 .. 4): bad;
            (4, 5): payload;
            (4, 6 .. 15): options;
            default: bad;
        }
    }
    state options {
        packet.extract(hdr.ipv4_options, ((bit<32>)hdr.ipv4.ihl - 5) << 5);
        transition payload;
    }
    state payload {
        transition select(hdr.ipv4.frag_offset, hdr.ipv4.protocol) {
            (0, 6): l4_ports;
            (0, 17): l4_ports;
            default: accept;
        }
    }
    state l4_ports {
        packet.extract(hdr.ports);
        transition accept;
    }
    state bad {
        meta.bad_header = true;
        transition accept;
    }
}

control router_verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_len,
              hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl,
              hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4_options.options },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control router_ingress(inout headers_t hdr, inout metadata_t meta,
                       inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) port_rx;
    counter(12, CounterType.packets) verdicts;
    direct_counter(CounterType.packets_and_bytes) routes;
    meter(512, MeterType.bytes) port_meter;
    action_selector(HashAlgorithm.crc16, 1024, 14) ecmp_selector;

    action drop_as(bit<8> verdict) {
        meta.verdict = verdict;
        mark_to_drop(standard_metadata);
    }
    action to_controller(bit<8> reason) {
        meta.verdict = reason;
        standard_metadata.egress_spec = CPU_PORT;
    }

    /* Addresses at which the router takes frames, by port. */
    table router_mac {
        key = {
            standard_metadata.ingress_port: exact;
            hdr.ethernet.dst: exact;
        }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 1024;
    }

    action set_next_hop(bit<16> next_hop) {
        routes.count();
        meta.next_hop = next_hop;
    }
    action set_group() {
        routes.count();
        meta.next_hop = 0xFFFF;
    }
    action punt() {
        routes.count();
        to_controller(TO_CPU);
    }
    action refuse() {
        routes.count();
        drop_as(REFUSED);
    }
    action no_route() {
        routes.count();
        drop_as(NO_ROUTE);
    }
    table ipv4_lpm {
        key = { hdr.ipv4.dst: lpm; }
        actions = { set_next_hop; set_group; punt; refuse; @defaultonly no_route; }
        const default_action = no_route();
        counters = routes;
        size = 16384;
    }

    action choose(bit<16> next_hop) {
        meta.next_hop = next_hop;
    }
    /* The group of a route with set_group: one member a flow. */
    table ecmp {
        key = {
            hdr.ipv4.dst: lpm;
            hdr.ipv4.src: selector;
            hdr.ipv4.dst: selector;
            hdr.ipv4.protocol: selector;
            hdr.ports.src: selector;
            hdr.ports.dst: selector;
        }
        actions = { choose; NoAction; }
        implementation = ecmp_selector;
        size = 1024;
    }

    action forward(bit<48> dst, bit<48> src, bit<9> port) {
        hdr.ethernet.dst = dst;
        hdr.ethernet.src = src;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        standard_metadata.egress_spec = port;
        meta.verdict = ROUTED;
    }
    action no_next_hop() {
        drop_as(NO_NEXT_HOP);
    }
    table next_hop {
        key = { meta.next_hop: exact; }
        actions = { forward; @defaultonly no_next_hop; }
        const default_action = no_next_hop();
        size = 4096;
    }

    action replicate(bit<16> group) {
        standard_metadata.mcast_grp = group;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        meta.verdict = MULTICAST;
    }
    action no_group() {
        drop_as(NO_ROUTE);
    }
    table ipv4_multicast {
        key = {
            hdr.ipv4.dst: exact;
            standard_metadata.ingress_port: ternary;
        }
        actions = { replicate; @defaultonly no_group; }
        const default_action = no_group();
        size = 1024;
    }

    apply {
        port_rx.count((bit<32>)standard_metadata.ingress_port);
        port_meter.execute_meter((bit<32>)standard_metadata.ingress_port, meta.color);
        if (hdr.packet_out.isValid()) {
            meta.verdict = PACKET_OUT;
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else if (meta.color == 2) {
            drop_as(METERED);
        } else if (meta.bad_header || standard_metadata.checksum_error == 1 ||
                   standard_metadata.parser_error != error.NoError &&
                   standard_metadata.parser_error != error.PacketTooShort ||
                   hdr.ethernet.ether_type == ETHERTYPE_IPV4 && !hdr.ipv4.isValid()) {
            drop_as(BAD_HEADER);
        } else if (hdr.ipv4.isValid() && hdr.ipv4.dst[31:28] == 0xE) {
            if (hdr.ipv4.ttl <= 1) {
                drop_as(NO_TTL);
            } else {
                ipv4_multicast.apply();
            }
        } else if (!router_mac.apply().hit && hdr.ethernet.dst != 0xFFFFFFFFFFFF) {
            drop_as(NOT_OURS);
        } else if (!hdr.ipv4.isValid()) {
            to_controller(NOT_IPV4);
        } else if (hdr.ethernet.dst == 0xFFFFFFFFFFFF) {
            drop_as(NOT_OURS);
        } else if (hdr.ipv4.ttl <= 1) {
            to_controller(NO_TTL);
        } else {
            switch (ipv4_lpm.apply().action_run) {
                set_next_hop: { next_hop.apply(); }
                set_group: { ecmp.apply(); next_hop.apply(); }
            }
        }
        verdicts.count((bit<32>)meta.verdict);
    }
}

control router_egress(inout headers_t hdr, inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    action set_source(bit<48> src) {
        hdr.ethernet.src = src;
    }
    /* The router's address on a port, for multicast copies. */
    table port_mac {
        key = { standard_metadata.egress_port: exact; }
        actions = { set_source; NoAction; }
        const default_action = NoAction();
        size = 512;
    }
    apply {
        if (standard_metadata.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard_metadata.ingress_port;
            hdr.packet_in.padding = 0;
            hdr.packet_in.reason = meta.verdict;
        } else if (standard_metadata.mcast_grp != 0) {
            if (standard_metadata.egress_port == standard_metadata.ingress_port) {
                mark_to_drop(standard_metadata);
            } else {
                port_mac.apply();
            }
        }
    }
}

control router_update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_len,
              hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl,
              hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4_options.options },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control router_deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv4_options);
        packet.emit(hdr.ports);
    }
}

V1Switch(router_parser(), router_verify(), router_ingress(), router_egress(),
         router_update(), router_deparser()) main;
