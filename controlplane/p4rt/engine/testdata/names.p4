// A switch whose controller calls ports and networks by their names.
#include <core.p4>
#include <v1model.p4>

@p4runtime_translation("quillon/port", string)
@p4runtime_translation_mappings({ { "", 0 }, { "eth1", 1 }, { "eth2", 2 }, { "cpu", 510 } })
type bit<9> port_t;

@p4runtime_translation("quillon/port", string)
type bit<16> port_in_header_t;

@p4runtime_translation("quillon/network", string)
type bit<4> network_t;

@p4runtime_translation("quillon/class", 32)
@p4runtime_translation_mappings({ { 0x10000, 1 }, { 0x20000, 2 } })
type bit<8> class_t;

@p4runtime_translation("quillon/number", 32)
type bit<8> number_t;

@controller_header("packet_in")
header packet_in_t {
    port_in_header_t ingress_port;
    class_t class;
}

@controller_header("packet_out")
header packet_out_t {
    port_in_header_t egress_port;
    class_t class;
}

header message_t {
    bit<8> kind;
    bit<8> source;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    message_t message;
}

struct meta_t {
    network_t network;
    class_t class;
    number_t number;
    port_t port;
}

struct seen_t {
    network_t network;
    number_t number;
    bit<8> source;
}

parser parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            510: from_controller;
            default: message;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        transition message;
    }
    state message {
        packet.extract(hdr.message);
        transition accept;
    }
}

control verify_nothing(inout headers_t hdr, inout meta_t meta) { apply {} }
control update_nothing(inout headers_t hdr, inout meta_t meta) { apply {} }

control ingress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    action join(network_t network, class_t class, number_t number) {
        meta.network = network;
        meta.class = class;
        meta.number = number;
    }
    action drop() { mark_to_drop(std); }
    action forward(port_t port) { std.egress_spec = (bit<9>)port; }
    action punt() {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = (port_in_header_t)(bit<16>)std.ingress_port;
        hdr.packet_in.class = meta.class;
        std.egress_spec = 510;
    }
    action learn() { digest<seen_t>(1, { meta.network, meta.number, hdr.message.source }); }
    table networks {
        key = { meta.port: optional @name("port"); hdr.message.kind: exact @name("kind"); }
        actions = { join; drop; }
        default_action = drop();
        size = 64;
    }
    table routes {
        key = { meta.network: exact @name("network"); meta.class: ternary @name("class"); }
        actions = { forward; drop; punt; learn; }
        default_action = drop();
        size = 64;
    }
    apply {
        meta.port = (port_t)std.ingress_port;
        if (hdr.packet_out.isValid()) {
            std.egress_spec = (bit<9>)(bit<16>)hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else if (networks.apply().hit) {
            routes.apply();
        }
    }
}

control egress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) { apply {} }

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.message);
    }
}

V1Switch(parse(), verify_nothing(), ingress(), egress(), update_nothing(), deparse()) main;
