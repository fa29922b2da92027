/* router: a small IPv4 router for PSA.
 *
 * Entries: routes (longest prefix) give addresses and port of the next hop; acl
 * (ternary, range) denies frames, or mirrors them to
 * a clone session; senders says which senders are known, and digests of the type
 * sender_t tell the controller of others. Frames that no route takes go to the
 * controller with the header from_switch; frames of the controller have to_switch,
 * which names the port.
 *
 * The counter routed counts the frames of each next hop's port. Entries of acl may
 * name a cell of the meter limit, which drops red frames.
 */
#include <core.p4>
#include <bmv2/psa.p4>

const PortIdUint_t CPU = 0xfffffffd; // PSA_PORT_CPU

@controller_header("packet_in")
header from_switch_t {
    PortIdInHeader_t ingress_port;
}

@controller_header("packet_out")
header to_switch_t {
    PortIdInHeader_t egress_port;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv4_t {
    bit<8>  version_ihl;
    bit<8>  dscp;
    bit<16> length;
    bit<16> id;
    bit<16> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

struct headers_t {
    from_switch_t from_switch;
    to_switch_t   to_switch;
    ethernet_t    ethernet;
    ipv4_t        ipv4;
}

struct sender_t {
    bit<48>  mac;
    PortId_t port;
}

struct metadata_t {
    sender_t         sender;
    PSA_MeterColor_t color;
}

struct empty_t {}

error {
    HasOptions,
    BadChecksum
}

parser ingress_parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
                     in psa_ingress_parser_input_metadata_t ist, in empty_t resubmit_meta, in empty_t recirculate_meta) {
    InternetChecksum() ck;

    state start {
        transition select((PortIdUint_t) ist.ingress_port) {
            CPU: controller;
            default: ethernet;
        }
    }
    state controller {
        packet.extract(hdr.to_switch);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version_ihl == 0x45, error.HasOptions);
        ck.clear();
        ck.add({ hdr.ipv4.version_ihl, hdr.ipv4.dscp, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.fragment,
                 hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst });
        verify(hdr.ipv4.checksum == ck.get(), error.BadChecksum);
        transition accept;
    }
}

parser egress_parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    in psa_egress_parser_input_metadata_t ist, in empty_t normal_meta, in empty_t i2e_meta, in empty_t e2e_meta) {
    state start {
        transition select((PortIdUint_t) ist.egress_port) {
            CPU: controller;
            default: ethernet;
        }
    }
    state controller {
        packet.extract(hdr.from_switch);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, in psa_ingress_input_metadata_t ist, inout psa_ingress_output_metadata_t ost) {
    Counter<bit<64>, PortId_t>(16, PSA_CounterType_t.PACKETS_AND_BYTES) routed;
    Meter<bit<8>>(256, PSA_MeterType_t.PACKETS) limit;
    Digest<sender_t>() unknown;

    action to_controller() {
        hdr.from_switch.setValid();
        hdr.from_switch.ingress_port = psa_PortId_int_to_header(ist.ingress_port);
        send_to_port(ost, PSA_PORT_CPU);
    }

    action forward(PortId_t port, bit<48> dst, bit<48> src) {
        hdr.ethernet.dst = dst;
        hdr.ethernet.src = src;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        routed.count(port);
        send_to_port(ost, port);
    }

    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; to_controller; }
        default_action = to_controller();
        size = 1024;
    }

    action deny() {
        ingress_drop(ost);
    }

    action mirror(CloneSessionId_t session, bit<8> cell) {
        meta.color = limit.execute(cell);
        ost.clone = true;
        ost.clone_session_id = session;
    }

    action police(bit<8> cell) {
        meta.color = limit.execute(cell);
    }

    table acl {
        key = {
            ist.ingress_port: ternary;
            hdr.ipv4.src: ternary;
            hdr.ipv4.protocol: range;
        }
        actions = { deny; mirror; police; NoAction; }
        default_action = NoAction();
        size = 256;
    }

    action learn() {
        meta.sender.mac = hdr.ethernet.src;
        meta.sender.port = ist.ingress_port;
        unknown.pack(meta.sender);
    }

    table senders {
        key = { hdr.ethernet.src: exact; }
        actions = { learn; NoAction; }
        default_action = learn();
        size = 256;
    }

    apply {
        meta.color = PSA_MeterColor_t.GREEN;
        if (hdr.to_switch.isValid()) {
            send_to_port(ost, psa_PortId_header_to_int(hdr.to_switch.egress_port));
            hdr.to_switch.setInvalid();
        } else {
            senders.apply();
            if (ist.parser_error == error.NoError && hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
                routes.apply();
                acl.apply();
                if (meta.color == PSA_MeterColor_t.RED) {
                    ingress_drop(ost);
                }
            }
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, in psa_egress_input_metadata_t ist, inout psa_egress_output_metadata_t ost) {
    apply {}
}

control ingress_deparse(packet_out packet, out empty_t i2e_meta, out empty_t resubmit_meta, out empty_t normal_meta,
                        inout headers_t hdr, in metadata_t meta, in psa_ingress_output_metadata_t ist) {
    apply {
        packet.emit(hdr.from_switch);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

control egress_deparse(packet_out packet, out empty_t e2e_meta, out empty_t recirculate_meta, inout headers_t hdr, in metadata_t meta,
                       in psa_egress_output_metadata_t ist, in psa_egress_deparser_input_metadata_t edst) {
    InternetChecksum() ck;

    apply {
        ck.clear();
        ck.add({ hdr.ipv4.version_ihl, hdr.ipv4.dscp, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.fragment,
                 hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst });
        hdr.ipv4.checksum = ck.get();
        packet.emit(hdr.from_switch);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

IngressPipeline(ingress_parse(), ingress(), ingress_deparse()) ip;
EgressPipeline(egress_parse(), egress(), egress_deparse()) ep;
PSA_Switch(ip, PacketReplicationEngine(), ep, BufferingQueueingEngine()) main;
