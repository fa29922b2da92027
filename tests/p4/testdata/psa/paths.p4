/* paths: a frame chooses its way through a switch for PSA.
 *
 * After Ethernet comes an order, which says what ingress and egress do with the
 * frame the first time. Ingress writes the path that it saw to the order's field
 * ingress, and egress to egress, and the instance to instance.
 */
#include <core.p4>
#include <bmv2/psa.p4>

const bit<8> DROP        = 0;
const bit<8> UNICAST     = 1;
const bit<8> MULTICAST   = 2;
const bit<8> RESUBMIT    = 3; // once, then unicast
const bit<8> RECIRCULATE = 4; // once, then unicast
const bit<8> CLONE_I2E   = 5; // and unicast
const bit<8> CLONE_DROP  = 6; // and drop
const bit<8> CLONE_E2E   = 7; // and unicast
const bit<8> CLONE_LOST  = 8; // egress clones and drops
const bit<8> EGRESS_DROP = 9;
const bit<8> FOR_EVER    = 10; // is resubmitted without end

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header order_t {
    bit<8>  what;
    bit<8>  port;
    bit<8>  group;
    bit<8>  session;
    bit<8>  class;
    bit<8>  ingress;
    bit<8>  egress;
    bit<8>  user; // what egress found in the user metadata
    bit<16> instance;
}

struct headers_t {
    ethernet_t ethernet;
    order_t    order;
}

struct metadata_t {
    bit<8> mark; // ingress sets it to 0x5a
}

struct empty_t {}

control number(in PSA_PacketPath_t path, out bit<8> n) {
    apply {
        n = 0xff;
        if (path == PSA_PacketPath_t.NORMAL) { n = 0; }
        else if (path == PSA_PacketPath_t.NORMAL_UNICAST) { n = 1; }
        else if (path == PSA_PacketPath_t.NORMAL_MULTICAST) { n = 2; }
        else if (path == PSA_PacketPath_t.CLONE_I2E) { n = 3; }
        else if (path == PSA_PacketPath_t.CLONE_E2E) { n = 4; }
        else if (path == PSA_PacketPath_t.RESUBMIT) { n = 5; }
        else if (path == PSA_PacketPath_t.RECIRCULATE) { n = 6; }
    }
}

parser ingress_parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
                     in psa_ingress_parser_input_metadata_t ist, in empty_t resubmit_meta, in empty_t recirculate_meta) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.order);
        transition accept;
    }
}

parser egress_parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    in psa_egress_parser_input_metadata_t ist, in empty_t normal_meta, in empty_t i2e_meta, in empty_t e2e_meta) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.order);
        transition accept;
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, in psa_ingress_input_metadata_t ist, inout psa_ingress_output_metadata_t ost) {
    apply {
        if (!hdr.order.isValid()) {
            exit; // dropped
        }
        bit<8> path;
        number.apply(ist.packet_path, path);
        bool first = ist.packet_path == PSA_PacketPath_t.NORMAL;
        hdr.order.ingress = path;
        meta.mark = 0x5a;
        if (hdr.order.what != DROP) {
            send_to_port(ost, (PortId_t) (PortIdUint_t) hdr.order.port);
        }
        ost.class_of_service = (ClassOfService_t) hdr.order.class;
        ost.clone_session_id = (CloneSessionId_t) (CloneSessionIdUint_t) hdr.order.session;
        if (hdr.order.what == MULTICAST) {
            multicast(ost, (MulticastGroup_t) (MulticastGroupUint_t) hdr.order.group);
        }
        if ((hdr.order.what == RESUBMIT && first) || hdr.order.what == FOR_EVER) {
            ost.resubmit = true;
        }
        if (hdr.order.what == RECIRCULATE && first) {
            send_to_port(ost, PSA_PORT_RECIRCULATE);
        }
        if (hdr.order.what == CLONE_I2E || hdr.order.what == CLONE_DROP) {
            ost.clone = true;
        }
        if (hdr.order.what == CLONE_DROP) {
            ingress_drop(ost);
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, in psa_egress_input_metadata_t ist, inout psa_egress_output_metadata_t ost) {
    apply {
        bit<8> path;
        number.apply(ist.packet_path, path);
        bool copy = ist.packet_path == PSA_PacketPath_t.CLONE_E2E;
        hdr.order.egress = path;
        hdr.order.user = meta.mark;
        hdr.order.instance = (EgressInstanceUint_t) ist.instance;
        hdr.order.class = (ClassOfServiceUint_t) ist.class_of_service;
        if ((hdr.order.what == CLONE_E2E || hdr.order.what == CLONE_LOST) && !copy) {
            ost.clone = true;
            ost.clone_session_id = (CloneSessionId_t) (CloneSessionIdUint_t) hdr.order.session;
        }
        if (hdr.order.what == EGRESS_DROP || (hdr.order.what == CLONE_LOST && !copy)) {
            egress_drop(ost);
        }
    }
}

control ingress_deparse(packet_out packet, out empty_t i2e_meta, out empty_t resubmit_meta, out empty_t normal_meta,
                        inout headers_t hdr, in metadata_t meta, in psa_ingress_output_metadata_t ist) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.order);
    }
}

control egress_deparse(packet_out packet, out empty_t e2e_meta, out empty_t recirculate_meta, inout headers_t hdr, in metadata_t meta,
                       in psa_egress_output_metadata_t ist, in psa_egress_deparser_input_metadata_t edst) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.order);
    }
}

IngressPipeline(ingress_parse(), ingress(), ingress_deparse()) ip;
EgressPipeline(egress_parse(), egress(), egress_deparse()) ep;
PSA_Switch(ip, PacketReplicationEngine(), ep, BufferingQueueingEngine()) main;
