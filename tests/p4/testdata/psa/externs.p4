/* externs: counters, a meter, a register, hashes, a random number and checksums
 * of PSA, each on a field of the frame's header probe.
 */
#include <core.p4>
#include <bmv2/psa.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header probe_t {
    bit<8>  index;   // of the counter, the meter and the register
    bit<8>  color;   // that the meter gave: 0 red, 1 green, 2 yellow
    bit<16> value;   // goes into the register; comes back as it was before
    bit<16> crc;     // of index and value, by CRC-16
    bit<16> bucket;  // 100 + CRC-32 of data modulo 10
    bit<8>  dice;    // 1 to 6
    bit<8>  right;   // 1 if sum was the checksum of data
    bit<32> data;
    bit<16> sum;     // the checksum of data, corrected when data is changed to 0xcafe0000
}

struct headers_t {
    ethernet_t ethernet;
    probe_t    probe;
}

struct metadata_t {
    bit<16> state; // of the checksum, without data
}

struct empty_t {}

error {
    WrongSum
}

parser ingress_parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
                     in psa_ingress_parser_input_metadata_t ist, in empty_t resubmit_meta, in empty_t recirculate_meta) {
    InternetChecksum() ck;

    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.probe);
        ck.clear();
        ck.add({ hdr.probe.data });
        verify(hdr.probe.sum == ck.get(), error.WrongSum);
        ck.subtract({ hdr.probe.data });
        meta.state = ck.get_state();
        transition accept;
    }
}

parser egress_parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    in psa_egress_parser_input_metadata_t ist, in empty_t normal_meta, in empty_t i2e_meta, in empty_t e2e_meta) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.probe);
        transition accept;
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, in psa_ingress_input_metadata_t ist, inout psa_ingress_output_metadata_t ost) {
    Counter<bit<32>, bit<8>>(16, PSA_CounterType_t.PACKETS_AND_BYTES) probes;
    Meter<bit<8>>(16, PSA_MeterType_t.PACKETS) rate;
    Register<bit<16>, bit<8>>(16) values;
    Hash<bit<16>>(PSA_HashAlgorithm_t.CRC16) crc16;
    Hash<bit<16>>(PSA_HashAlgorithm_t.CRC32) crc32;
    Random<bit<8>>(1, 6) dice;

    apply {
        probes.count(hdr.probe.index);
        PSA_MeterColor_t color = rate.execute(hdr.probe.index);
        if (color == PSA_MeterColor_t.RED) {
            hdr.probe.color = 0;
        } else if (color == PSA_MeterColor_t.GREEN) {
            hdr.probe.color = 1;
        } else {
            hdr.probe.color = 2;
        }
        hdr.probe.crc = crc16.get_hash({ hdr.probe.index, hdr.probe.value });
        hdr.probe.bucket = crc32.get_hash(16w100, { hdr.probe.data }, 16w10);
        bit<16> before = values.read(hdr.probe.index);
        values.write(hdr.probe.index, hdr.probe.value);
        hdr.probe.value = before;
        hdr.probe.dice = dice.read();
        hdr.probe.right = 1;
        if (ist.parser_error != error.NoError) {
            hdr.probe.right = 0;
        }
        send_to_port(ost, (PortId_t) 3);
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, in psa_egress_input_metadata_t ist, inout psa_egress_output_metadata_t ost) {
    apply {
        hdr.probe.data = 0xcafe0000;
    }
}

control ingress_deparse(packet_out packet, out empty_t i2e_meta, out empty_t resubmit_meta, out empty_t normal_meta,
                        inout headers_t hdr, in metadata_t meta, in psa_ingress_output_metadata_t ist) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.probe);
    }
}

control egress_deparse(packet_out packet, out empty_t e2e_meta, out empty_t recirculate_meta, inout headers_t hdr, in metadata_t meta,
                       in psa_egress_output_metadata_t ist, in psa_egress_deparser_input_metadata_t edst) {
    InternetChecksum() ck;

    apply {
        ck.set_state(meta.state);
        ck.add({ hdr.probe.data });
        hdr.probe.sum = ck.get();
        packet.emit(hdr.ethernet);
        packet.emit(hdr.probe);
    }
}

IngressPipeline(ingress_parse(), ingress(), ingress_deparse()) ip;
EgressPipeline(egress_parse(), egress(), egress_deparse()) ep;
PSA_Switch(ip, PacketReplicationEngine(), ep, BufferingQueueingEngine()) main;
