/* l2_bridge: an Ethernet bridge that learns, with VLANs (IEEE 802.1Q).
 *
 * Without any entry it is one VLAN (1): everything is flooded to multicast group
 * 1, which the controller fills with all ports; what the digest learn tells is
 * written into smac (with an idle timeout, to age) and dmac. A copy never leaves
 * by the port that its frame came by.
 *
 * VLANs: a frame without a tag, or with VID 0, belongs to its port's VLAN
 * (port_vlan, else 1), a tagged one to that of its tag. With the default of
 * vlan_member set to refuse_member, only VLANs that it lists pass a port.
 * vlan_flood gives a VLAN's group, vlan_egress says whether a VLAN leaves a port
 * with a tag.
 *
 * Frames to the addresses that bridges keep to themselves (01-80-C2-00-00-0x)
 * are dropped, as are those with a group address for a source.
 *
 * Counters: port_rx by ingress port, forwarded of dmac, verdicts (the numbers
 * below). Meter: flood_meter by ingress port, in bytes, for what is flooded; red
 * frames are dropped. No registers.
 *
 * ICRC: the RoCEv2 ICRC covers nothing of Ethernet; frames keep a valid one.
 */
#include <core.p4>
#include <v1model.p4>

const bit<16> ETHERTYPE_VLAN = 0x8100;

/* Indices of the counter verdicts. */
const bit<32> FORWARDED   = 0;
const bit<32> FLOODED     = 1;
const bit<32> RESERVED    = 2; // dropped, as all below
const bit<32> BAD_SOURCE  = 3;
const bit<32> NOT_MEMBER  = 4;
const bit<32> METERED     = 5;
const bit<32> SAME_PORT   = 6;
const bit<32> REFUSED     = 7;
const bit<32> BAD_HEADER  = 8;

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

struct headers_t {
    ethernet_t ethernet;
    vlan_t     vlan;
}

struct metadata_t {
    bit<12> vid;
    bit<2>  color;
    bit<32> verdict;
}

/* What the bridge learns: src was seen in VLAN vid at port. */
struct learn_t {
    bit<48> src;
    bit<12> vid;
    bit<9>  port;
}

parser bridge_parser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_VLAN: vlan;
            default: accept;
        }
    }
    state vlan {
        packet.extract(hdr.vlan);
        transition accept;
    }
}

control bridge_verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control bridge_ingress(inout headers_t hdr, inout metadata_t meta,
                       inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) port_rx;
    counter(9, CounterType.packets) verdicts;
    direct_counter(CounterType.packets_and_bytes) forwarded;
    meter(512, MeterType.bytes) flood_meter;

    action drop_as(bit<32> verdict) {
        meta.verdict = verdict;
        mark_to_drop(standard_metadata);
    }

    action set_vid(bit<12> vid) {
        meta.vid = vid;
    }
    /* The VLAN of untagged frames. */
    table port_vlan {
        key = { standard_metadata.ingress_port: exact; }
        actions = { set_vid; }
        default_action = set_vid(1);
        size = 512;
    }

    action accept_member() { }
    action refuse_member() {
        drop_as(NOT_MEMBER);
    }
    table vlan_member {
        key = {
            standard_metadata.ingress_port: exact;
            meta.vid: exact;
        }
        actions = { accept_member; refuse_member; }
        default_action = accept_member();
        size = 8192;
    }

    action learn() {
        digest<learn_t>(1, { hdr.ethernet.src, meta.vid, standard_metadata.ingress_port });
    }
    action known(bit<9> port) {
        meta.verdict = (bit<32>)port; // compared below
    }
    /* Addresses that were learnt; an entry that is not hit any more ages. */
    table smac {
        key = {
            meta.vid: exact;
            hdr.ethernet.src: exact;
        }
        actions = { known; @defaultonly learn; }
        const default_action = learn();
        support_timeout = true;
        size = 65536;
    }

    action forward(bit<9> port) {
        forwarded.count();
        standard_metadata.egress_spec = port;
        meta.verdict = FORWARDED;
    }
    action replicate(bit<16> group) {
        forwarded.count();
        standard_metadata.mcast_grp = group;
        meta.verdict = FORWARDED;
    }
    action refuse() {
        forwarded.count();
        drop_as(REFUSED);
    }
    action unknown() {
        forwarded.count();
        meta.verdict = FLOODED;
    }
    table dmac {
        key = {
            meta.vid: exact;
            hdr.ethernet.dst: exact;
        }
        actions = { forward; replicate; refuse; @defaultonly unknown; }
        const default_action = unknown();
        counters = forwarded;
        size = 65536;
    }

    action flood_to(bit<16> group) {
        standard_metadata.mcast_grp = group;
    }
    action no_flood() {
        drop_as(REFUSED);
    }
    /* Where frames to unknown and group addresses go. */
    table vlan_flood {
        key = { meta.vid: exact; }
        actions = { flood_to; no_flood; }
        default_action = flood_to(1);
        size = 4096;
    }

    apply {
        port_rx.count((bit<32>)standard_metadata.ingress_port);
        if (standard_metadata.parser_error != error.NoError) {
            drop_as(BAD_HEADER);
        } else if (hdr.ethernet.dst[47:4] == 0x0180C200000) {
            drop_as(RESERVED);
        } else if (hdr.ethernet.src[40:40] == 1) {
            drop_as(BAD_SOURCE);
        } else {
            if (hdr.vlan.isValid() && hdr.vlan.vid != 0) {
                meta.vid = hdr.vlan.vid;
            } else {
                port_vlan.apply();
            }
            switch (vlan_member.apply().action_run) {
                accept_member: {
                    if (smac.apply().hit) {
                        if (meta.verdict != (bit<32>)standard_metadata.ingress_port) {
                            learn(); // moved
                        }
                    }
                    switch (dmac.apply().action_run) {
                        forward: {
                            if (standard_metadata.egress_spec == standard_metadata.ingress_port) {
                                drop_as(SAME_PORT);
                            }
                        }
                        unknown: {
                            flood_meter.execute_meter((bit<32>)standard_metadata.ingress_port, meta.color);
                            if (meta.color == 2) {
                                drop_as(METERED);
                            } else {
                                vlan_flood.apply();
                            }
                        }
                    }
                }
            }
        }
        verdicts.count(meta.verdict);
    }
}

control bridge_egress(inout headers_t hdr, inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    action keep() { }
    action untag() {
        if (hdr.vlan.isValid()) { // whatever the entry says
            hdr.ethernet.ether_type = hdr.vlan.ether_type;
            hdr.vlan.setInvalid();
        }
    }
    action tag() {
        hdr.vlan.setValid();
        hdr.vlan.pcp = 0;
        hdr.vlan.dei = 0;
        hdr.vlan.ether_type = hdr.ethernet.ether_type;
        hdr.ethernet.ether_type = ETHERTYPE_VLAN;
        hdr.vlan.vid = meta.vid;
    }
    action retag() {
        hdr.vlan.vid = meta.vid;
    }
    action prune() {
        mark_to_drop(standard_metadata);
    }
    /* How a VLAN leaves a port, by whether the frame has a tag. */
    table vlan_egress {
        key = {
            standard_metadata.egress_port: exact;
            meta.vid: exact;
            hdr.vlan.isValid(): exact;
        }
        actions = { keep; tag; retag; untag; prune; }
        default_action = keep();
        size = 16384;
    }
    apply {
        if (standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);
        } else {
            vlan_egress.apply();
        }
    }
}

control bridge_update(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control bridge_deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
    }
}

V1Switch(bridge_parser(), bridge_verify(), bridge_ingress(), bridge_egress(),
         bridge_update(), bridge_deparser()) main;
