/* copies: every way in which a copy of a packet is made, by the first byte, and
 * every way in which a table matches. For tests of packet traces. */
#include <core.p4>
#include <v1model.p4>

header job_t {
    bit<8>  what;
    bit<8>  a;
    bit<16> b;
}

struct headers_t {
    job_t job;
}

struct metadata_t {
    @field_list(1)
    bit<8> round;
    bit<8> chosen;
}

parser copies_parser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.job);
        verify(hdr.job.what != 0xEE, error.HeaderTooShort);
        transition accept;
    }
}

control copies_verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control copies_ingress(inout headers_t hdr, inout metadata_t meta,
                       inout standard_metadata_t standard_metadata) {
    action_selector(HashAlgorithm.crc16, 16, 4) members;

    action to(bit<9> port) {
        standard_metadata.egress_spec = port;
    }
    action group(bit<16> number) {
        standard_metadata.mcast_grp = number;
    }
    action drop() {
        mark_to_drop(standard_metadata);
    }
    table kinds {
        key = {
            hdr.job.what: ternary;
            hdr.job.a: exact;
            hdr.job.b: range;
            hdr.job.isValid(): exact @name("job");
        }
        actions = { to; group; drop; }
        default_action = drop();
    }
    action choose(bit<8> value) {
        meta.chosen = value;
    }
    table selected {
        key = {
            hdr.job.what: exact;
            hdr.job.b: selector;
        }
        actions = { choose; NoAction; }
        implementation = members;
    }
    apply {
        log_msg("job {} in round {}", { hdr.job.what, meta.round });
        kinds.apply();
        if (hdr.job.what == 1) {
            clone_preserving_field_list(CloneType.I2E, 5, 1);
        } else if (hdr.job.what == 2 && meta.round == 0) {
            meta.round = 1;
            resubmit_preserving_field_list(1);
        } else if (hdr.job.what == 3) {
            selected.apply();
        }
    }
}

control copies_egress(inout headers_t hdr, inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.instance_type == 0) {
            if (hdr.job.what == 4) {
                clone_preserving_field_list(CloneType.E2E, 6, 1);
            } else if (hdr.job.what == 5) {
                hdr.job.what = 1;
                recirculate_preserving_field_list(1);
            }
        }
    }
}

control copies_update(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control copies_deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.job);
    }
}

V1Switch(copies_parser(), copies_verify(), copies_ingress(), copies_egress(),
         copies_update(), copies_deparser()) main;
