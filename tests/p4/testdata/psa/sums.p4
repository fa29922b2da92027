/* sums: hashes by each algorithm, checksums, a register, counters and meters of PSA, on the fields of the frame's header probe.
 *
 * It has no random number, and its meters are to have bursts and no rates, so that the outcome depends on the frames alone. It has nothing that psa_switch does not
 * do: an error of its own, and a subtraction whose first word may be 0.
 */
#include <core.p4>
#include <bmv2/psa.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header probe_t {
    bit<8>  index;  // of the counters and the register
    bit<3>  low;    // bits that are no whole bytes
    bit<13> high;
    bit<64> long;
    bit<32> data;
    bit<16> seen;   // the value of the register before: what the frame before had in data
    bit<16> sum;    // the checksum of type, data and long, corrected when data is changed
    bit<16> right;  // 1 if sum was that checksum
}

header result_t {
    bit<16> crc16;
    bit<32> crc32;
    bit<64> same;    // identity
    bit<16> custom16;
    bit<32> custom32;
    bit<16> preset;
    bit<8>  narrow;  // of CRC-32
    bit<16> bucket;  // from 100 on
    bit<8>  bits;    // a hash of low
    bit<16> state;   // of the checksum behind a subtraction
    bit<8>  packets; // color that a meter of packets gave: 0 red, 1 green, 2 yellow
    bit<8>  bytes;   // color that a meter of bytes gave
}

struct headers_t {
    ethernet_t ethernet;
    probe_t    probe;
    result_t   result;
}

struct metadata_t {
    bit<16> state;
}

struct empty_t {}

control number(in PSA_MeterColor_t color, out bit<8> n) {
    apply {
        n = 2;
        if (color == PSA_MeterColor_t.RED) {
            n = 0;
        } else if (color == PSA_MeterColor_t.GREEN) {
            n = 1;
        }
    }
}

parser ingress_parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
                     in psa_ingress_parser_input_metadata_t ist, in empty_t resubmit_meta, in empty_t recirculate_meta) {
    InternetChecksum() ck;

    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.probe);
        ck.clear();
        ck.add({ hdr.ethernet.type, hdr.probe.data, hdr.probe.long });
        ck.subtract({ hdr.ethernet.type, hdr.probe.data });
        meta.state = ck.get_state();
        ck.add({ hdr.ethernet.type, hdr.probe.data });
        verify(hdr.probe.sum == ck.get(), error.NoMatch);
        transition accept;
    }
}

parser egress_parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    in psa_egress_parser_input_metadata_t ist, in empty_t normal_meta, in empty_t i2e_meta, in empty_t e2e_meta) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.probe);
        packet.extract(hdr.result);
        transition accept;
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, in psa_ingress_input_metadata_t ist, inout psa_ingress_output_metadata_t ost) {
    Counter<bit<32>, bit<8>>(16, PSA_CounterType_t.PACKETS_AND_BYTES) both;
    Counter<bit<32>, bit<8>>(16, PSA_CounterType_t.PACKETS) packets;
    Counter<bit<32>, bit<8>>(16, PSA_CounterType_t.BYTES) bytes;
    Meter<bit<8>>(16, PSA_MeterType_t.PACKETS) packet_rate;
    Meter<bit<8>>(16, PSA_MeterType_t.BYTES) byte_rate;
    Register<bit<16>, bit<8>>(16) values;
    Hash<bit<16>>(PSA_HashAlgorithm_t.CRC16) crc16;
    Hash<bit<32>>(PSA_HashAlgorithm_t.CRC32) crc32;
    Hash<bit<64>>(PSA_HashAlgorithm_t.IDENTITY) same;
    Hash<bit<16>>(PSA_HashAlgorithm_t.CRC16_CUSTOM) custom16;
    Hash<bit<32>>(PSA_HashAlgorithm_t.CRC32_CUSTOM) custom32;
    Hash<bit<16>>(PSA_HashAlgorithm_t.TARGET_DEFAULT) target;
    Hash<bit<8>>(PSA_HashAlgorithm_t.CRC32) narrow;

    apply {
        if (!hdr.probe.isValid()) {
            exit; // dropped
        }
        both.count(hdr.probe.index);
        packets.count(hdr.probe.index);
        bytes.count(hdr.probe.index);
        hdr.result.setValid();
        hdr.result.crc16 = crc16.get_hash({ hdr.probe.index, hdr.probe.low, hdr.probe.long });
        hdr.result.crc32 = crc32.get_hash({ hdr.probe.high, hdr.probe.low, hdr.ethernet.src });
        hdr.result.same = same.get_hash({ hdr.probe.low, hdr.probe.long, hdr.probe.data });
        hdr.result.custom16 = custom16.get_hash({ hdr.probe.long });
        hdr.result.custom32 = custom32.get_hash({ hdr.probe.long, hdr.probe.data });
        hdr.result.preset = target.get_hash({ hdr.probe.data });
        hdr.result.narrow = narrow.get_hash({ hdr.probe.data });
        hdr.result.bucket = crc16.get_hash(16w100, { hdr.probe.data, hdr.probe.high }, 16w10);
        hdr.result.bits = narrow.get_hash({ hdr.probe.low });
        hdr.result.state = meta.state;
        PSA_MeterColor_t color = packet_rate.execute(hdr.probe.index & 15);
        number.apply(color, hdr.result.packets);
        color = byte_rate.execute(hdr.probe.index & 15);
        number.apply(color, hdr.result.bytes);
        hdr.probe.seen = values.read(hdr.probe.index & 15);
        values.write(hdr.probe.index, hdr.probe.data[15:0]);
        hdr.probe.right = 1;
        if (ist.parser_error != error.NoError) {
            hdr.probe.right = 0;
        }
        send_to_port(ost, (PortId_t) 3);
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, in psa_egress_input_metadata_t ist, inout psa_egress_output_metadata_t ost) {
    Counter<bit<32>, bit<8>>(16, PSA_CounterType_t.PACKETS_AND_BYTES) left;

    apply {
        left.count(hdr.probe.index);
        hdr.probe.data = hdr.probe.data + 0x10001;
    }
}

control ingress_deparse(packet_out packet, out empty_t i2e_meta, out empty_t resubmit_meta, out empty_t normal_meta,
                        inout headers_t hdr, in metadata_t meta, in psa_ingress_output_metadata_t ist) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.probe);
        packet.emit(hdr.result);
    }
}

control egress_deparse(packet_out packet, out empty_t e2e_meta, out empty_t recirculate_meta, inout headers_t hdr, in metadata_t meta,
                       in psa_egress_output_metadata_t ist, in psa_egress_deparser_input_metadata_t edst) {
    InternetChecksum() ck;

    apply {
        ck.set_state(meta.state);
        ck.add({ hdr.ethernet.type, hdr.probe.data });
        hdr.probe.sum = ck.get();
        packet.emit(hdr.ethernet);
        packet.emit(hdr.probe);
        packet.emit(hdr.result);
    }
}

IngressPipeline(ingress_parse(), ingress(), ingress_deparse()) ip;
EgressPipeline(egress_parse(), egress(), egress_deparse()) ep;
PSA_Switch(ip, PacketReplicationEngine(), ep, BufferingQueueingEngine()) main;
