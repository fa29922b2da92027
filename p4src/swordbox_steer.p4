/* swordbox_steer: steers the requests of Clover, a key/value store on passive
 * disaggregated memory, to where they would succeed (SwordBox, section 2.2.4).
 *
 * In Clover a key's entries form a chain. A client writes a new entry (WRITE),
 * then links it behind the last entry that it knows, the tail, with a
 * compare-and-swap (CAS) on that entry's header word. When others were faster,
 * its CAS fails. This program follows the chain's ends and sends CAS and READ
 * requests to the tail instead.
 *
 * What it knows, and when:
 *  - The controller names connections (connections): which frames are requests
 *    of connection id, and which are their answers. Everything else passes. A
 *    request of an unknown connection is told to the controller (new_connection).
 *  - An entry belongs to the key that its WRITE carries, at its address, under
 *    its R_Key, at its server: all 64 bits of keys and addresses are compared, so
 *    that no two share a state. A place in a register that somebody else has is
 *    not used: a key's is free again after KEY_IDLE; an address' goes to the
 *    latest WRITE.
 *  - A key's tail is the entry whose CAS was answered with success. A CAS that
 *    was sent to the known tail and failed makes it unknown, as do a NAK, a WRITE
 *    over the tail's entry, and a CAS at the tail that is not understood. The
 *    registers may be cleared at any time: then nothing is known.
 *  - A CAS belongs to the last WRITE of its connection. It is understood when it
 *    has the form that Clover gives it, and the version of that WRITE's entry.
 *
 * What it does (mode):
 *  - writes: a CAS of a steered key (steered_keys) that expects the version of
 *    the tail's entry goes to the tail. Its operands stay as they are, and so does
 *    its answer: nothing has to be turned back.
 *  - reads: a READ of an entry whose version and length are those of the tail's
 *    goes to the tail. The tail's entry must still be the key's own.
 *  - ahead: a CAS is believed when it passes, as the papers' programs do. Those
 *    behind it are then sent to entries that may never be linked, when frames are
 *    lost: a chain can break. Off, unless the network loses nothing.
 *  - A retransmission of one of a connection's last RING CASes takes the road of
 *    the original, by PSN.
 *
 * ICRC: CAS and READ requests are parsed to their end. Their ICRC is checked, a
 * request with a wrong one passes unchanged, and a steered one gets a new one. The
 * payload of a WRITE is not parsed and its ICRC not checked: what is learnt from a
 * damaged WRITE is that a READ of a damaged address may go to a tail. WRITEs and
 * answers are never changed.
 *
 * Not steered: IPv6, IPv4 options, VLAN tags, entries of more than one packet.
 *
 * Registers: by connection write_* (its last WRITE) and, RING a connection, cas_*;
 * by hash of server and key key_* and tail_*; by hash of server, R_Key and address
 * addr_*. Counters: verdicts (the numbers below). Frames are forwarded by exact
 * destination address, others to multicast group 1 but not back to their port.
 */
#include <core.p4>
#include <v1model.p4>
#include "roce.p4"

#define CONNECTIONS 4096
#define RING 16
#define KEYS 65536
#define ADDRESSES 65536
#define KEY_IDLE 1000000 // microseconds

/* Indices of the counter verdicts. */
const bit<32> PASSED             = 0;  // not RoCEv2, or of no interest
const bit<32> UNKNOWN_CONNECTION = 1;
const bit<32> BAD_ICRC           = 2;
const bit<32> WRITE_LEARNT       = 3;
const bit<32> CAS_STEERED        = 4;
const bit<32> CAS_AT_TAIL        = 5;
const bit<32> CAS_TAIL_UNKNOWN   = 6;
const bit<32> CAS_OTHER_VERSION  = 7;
const bit<32> CAS_REPEATED       = 8;
const bit<32> CAS_NOT_UNDERSTOOD = 9;
const bit<32> CAS_NOT_STEERED    = 10; // by mode or key
const bit<32> KEY_PLACE_TAKEN    = 11;
const bit<32> READ_STEERED       = 12;
const bit<32> READ_AT_TAIL       = 13;
const bit<32> READ_UNKNOWN       = 14; // its address, or the key's tail
const bit<32> READ_OTHER_VERSION = 15;
const bit<32> READ_NOT_STEERED   = 16; // by mode or key
const bit<32> CAS_SUCCEEDED      = 17; // an answer
const bit<32> CAS_FAILED         = 18; // an answer
const bit<32> REFUSED            = 19; // a NAK of a CAS
const bit<32> ANSWER             = 20; // any other

/* The first 16 bytes of an entry: its header word and its key, both with the
 * lowest byte first. */
header entry_t {
    bit<64> word;
    bit<64> key;
}

struct headers_t {
    ethernet_t   ethernet;
    ipv4_t       ipv4;
    udp_t        udp;
    bth_t        bth;
    reth_t       reth;
    entry_t      entry;
    aeth_t       aeth;
    atomic_eth_t atomic_eth;
    atomic_ack_t atomic_ack;
    icrc_t       icrc; // of CAS and READ requests
}

struct metadata_t {
    bool    requester;
    bool    responder;
    bit<16> connection;
    bit<1>  writes;
    bit<1>  reads;
    bit<1>  ahead;
    bool    steer;
    bit<64> key;
    bit<32> verdict;
}

/* A request of a connection that connections does not know. */
struct new_connection_t {
    bit<32> src;
    bit<32> dst;
    bit<24> dst_qp;
    bit<24> psn;
    bit<8>  opcode;
}

parser steer_parser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.fragment & 0xBFFF, hdr.ipv4.protocol) {
            (4, 5, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst) {
            PORT_ROCE: bth;
            default: accept;
        }
    }
    state bth {
        packet.extract(hdr.bth);
        transition select(hdr.bth.opcode) {
            WRITE_FIRST: write;
            WRITE_ONLY: write;
            READ_REQUEST: read;
            COMPARE_SWAP: compare_swap;
            ATOMIC_ACK: atomic_ack;
            ACKNOWLEDGE: acknowledge;
            default: accept;
        }
    }
    state write {
        packet.extract(hdr.reth);
        transition select(hdr.reth.length) {
            0 .. 127: accept;
            default: entry;
        }
    }
    state entry {
        packet.extract(hdr.entry);
        transition accept;
    }
    state read {
        packet.extract(hdr.reth);
        packet.extract(hdr.icrc);
        transition accept;
    }
    state compare_swap {
        packet.extract(hdr.atomic_eth);
        packet.extract(hdr.icrc);
        transition accept;
    }
    state atomic_ack {
        packet.extract(hdr.aeth);
        packet.extract(hdr.atomic_ack);
        transition accept;
    }
    state acknowledge {
        packet.extract(hdr.aeth);
        transition accept;
    }
}

control steer_verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

/* The ICRC of a CAS or READ request, as it has to be on the wire. */
control request_icrc(in headers_t hdr, out bit<32> icrc) {
    apply {
        bit<32> crc;
        if (hdr.atomic_eth.isValid()) {
            hash(crc, HashAlgorithm.crc32, 32w0,
                { ICRC_FIELDS(hdr), hdr.atomic_eth.va, hdr.atomic_eth.rkey,
                  hdr.atomic_eth.swap, hdr.atomic_eth.compare }, 64w0x100000000);
        } else {
            hash(crc, HashAlgorithm.crc32, 32w0,
                { ICRC_FIELDS(hdr), hdr.reth.va, hdr.reth.rkey, hdr.reth.length },
                64w0x100000000);
        }
        icrc = reverse32(crc);
    }
}

control steer_ingress(inout headers_t hdr, inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    counter(21, CounterType.packets) verdicts;

    /* The last WRITE of a connection. */
    register<bit<64>>(CONNECTIONS) write_va;
    register<bit<32>>(CONNECTIONS) write_rkey;
    register<bit<64>>(CONNECTIONS) write_key;
    register<bit<8>>(CONNECTIONS) write_version;
    register<bit<1>>(CONNECTIONS) write_known;

    /* The last CASes of a connection, by PSN. */
    register<bit<25>>(CONNECTIONS * RING) cas_psn; // with a bit: there is one
    register<bit<1>>(CONNECTIONS * RING) cas_open; // not answered
    register<bit<64>>(CONNECTIONS * RING) cas_from; // where the client sent it
    register<bit<64>>(CONNECTIONS * RING) cas_to; // where it was sent
    register<bit<64>>(CONNECTIONS * RING) cas_compare;
    register<bit<64>>(CONNECTIONS * RING) cas_key;
    register<bit<32>>(CONNECTIONS * RING) cas_rkey;
    register<bit<64>>(CONNECTIONS * RING) cas_entry; // what it links
    register<bit<8>>(CONNECTIONS * RING) cas_version; // of the entry

    /* A key's tail. */
    register<bit<96>>(KEYS) key_tag; // server, key
    register<bit<48>>(KEYS) key_seen; // time of the last use; 0: free
    register<bit<64>>(KEYS) tail_va;
    register<bit<32>>(KEYS) tail_rkey;
    register<bit<8>>(KEYS) tail_version;
    register<bit<1>>(KEYS) tail_known;

    /* The entry at an address. */
    register<bit<128>>(ADDRESSES) addr_tag; // server, R_Key, address
    register<bit<1>>(ADDRESSES) addr_known;
    register<bit<64>>(ADDRESSES) addr_key;
    register<bit<8>>(ADDRESSES) addr_version;
    register<bit<32>>(ADDRESSES) addr_length;

    request_icrc() received_icrc;
    request_icrc() steered_icrc;

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }
    action flood() {
        standard_metadata.mcast_grp = 1;
    }
    table l2_forward {
        key = { hdr.ethernet.dst: exact; }
        actions = { forward; flood; }
        default_action = flood();
        size = 4096;
    }

    action requests(bit<16> id) {
        meta.requester = true;
        meta.connection = id;
    }
    action answers(bit<16> id) {
        meta.responder = true;
        meta.connection = id;
    }
    /* Both directions of connections. An id is below CONNECTIONS. */
    table connections {
        key = {
            hdr.ipv4.src: exact;
            hdr.ipv4.dst: exact;
            hdr.bth.dst_qp: exact;
        }
        actions = { requests; answers; NoAction; }
        const default_action = NoAction();
        size = 8192;
    }

    action set_mode(bit<1> writes, bit<1> reads, bit<1> ahead) {
        meta.writes = writes;
        meta.reads = reads;
        meta.ahead = ahead;
    }
    /* What is steered, by its default action. */
    table mode {
        actions = { set_mode; }
        default_action = set_mode(1, 1, 0);
    }

    action steer() {
        meta.steer = true;
    }
    action leave() {
        meta.steer = false;
    }
    /* Which keys are steered. */
    table steered_keys {
        key = {
            hdr.ipv4.dst: ternary;
            meta.key: range;
        }
        actions = { steer; leave; }
        default_action = steer();
        size = 1024;
    }

    bit<32> conn = 0;
    bit<32> ring = 0;
    bit<32> key_at = 0;
    bit<32> addr_at = 0;
    bit<32> tail_at = 0;

    apply {
        l2_forward.apply();
        meta.verdict = PASSED;
        if (hdr.bth.isValid() && connections.apply().hit &&
            standard_metadata.parser_error == error.NoError) {
            mode.apply();
            conn = (bit<32>)meta.connection;
            ring = (conn << 4) | (bit<32>)hdr.bth.psn[3:0];

            if (meta.requester && hdr.reth.isValid() && !hdr.icrc.isValid()) {
                /* A WRITE: what was at its address is no more. */
                bit<128> tag;
                bit<1> known;
                bit<64> old;
                hash(addr_at, HashAlgorithm.crc32, 32w0,
                    { hdr.ipv4.dst, hdr.reth.rkey, hdr.reth.va }, 32w65536);
                addr_tag.read(tag, addr_at);
                addr_known.read(known, addr_at);
                if (known == 1 && tag == hdr.ipv4.dst ++ hdr.reth.rkey ++ hdr.reth.va) {
                    bit<96> owner;
                    bit<64> va;
                    addr_key.read(old, addr_at);
                    hash(key_at, HashAlgorithm.crc32, 32w0, { hdr.ipv4.dst, old }, 32w65536);
                    key_tag.read(owner, key_at);
                    tail_va.read(va, key_at);
                    if (owner == hdr.ipv4.dst ++ old && va == hdr.reth.va) {
                        tail_known.write(key_at, 0);
                    }
                    addr_known.write(addr_at, 0);
                }
                if (hdr.bth.opcode == WRITE_ONLY && hdr.entry.isValid() &&
                    hdr.reth.length & (hdr.reth.length - 1) == 0 && hdr.reth.length <= 4096) {
                    bit<64> word = reverse64(hdr.entry.word);
                    meta.key = reverse64(hdr.entry.key);
                    write_va.write(conn, hdr.reth.va);
                    write_rkey.write(conn, hdr.reth.rkey);
                    write_key.write(conn, meta.key);
                    write_version.write(conn, word[18:11]);
                    write_known.write(conn, 1);
                    addr_tag.write(addr_at, hdr.ipv4.dst ++ hdr.reth.rkey ++ hdr.reth.va);
                    addr_key.write(addr_at, meta.key);
                    addr_version.write(addr_at, word[18:11]);
                    addr_length.write(addr_at, hdr.reth.length);
                    addr_known.write(addr_at, 1);
                    meta.verdict = WRITE_LEARNT;
                }
            } else if (meta.requester && hdr.icrc.isValid()) {
                bit<32> icrc;
                if (hdr.atomic_eth.isValid()) {
                    write_key.read(meta.key, conn);
                } else {
                    hash(addr_at, HashAlgorithm.crc32, 32w0,
                        { hdr.ipv4.dst, hdr.reth.rkey, hdr.reth.va }, 32w65536);
                    addr_key.read(meta.key, addr_at);
                }
                steered_keys.apply();
                received_icrc.apply(hdr, icrc);
                if (icrc != hdr.icrc.value) {
                    meta.verdict = BAD_ICRC;
                } else if (hdr.atomic_eth.isValid()) {
                    bit<25> psn;
                    bit<64> from;
                    bit<64> to;
                    cas_psn.read(psn, ring);
                    cas_from.read(from, ring);
                    cas_to.read(to, ring);
                    if (psn == 1w1 ++ hdr.bth.psn && from == hdr.atomic_eth.va) {
                        meta.verdict = CAS_REPEATED;
                    } else {
                        bit<1> known;
                        bit<8> version;
                        bit<32> rkey;
                        bit<64> entry;
                        from = hdr.atomic_eth.va;
                        to = hdr.atomic_eth.va;
                        write_known.read(known, conn);
                        write_version.read(version, conn);
                        write_rkey.read(rkey, conn);
                        write_va.read(entry, conn);
                        if (known == 1 && rkey == hdr.atomic_eth.rkey &&
                            hdr.atomic_eth.compare & 0x7F800 == hdr.atomic_eth.compare &&
                            hdr.atomic_eth.swap[18:0] == hdr.atomic_eth.compare[18:0] &&
                            hdr.atomic_eth.swap[26:19] == version &&
                            hdr.atomic_eth.swap[63:60] == 0) {
                            bit<96> owner;
                            bit<48> seen;
                            bit<48> now = standard_metadata.ingress_global_timestamp + 1;
                            hash(key_at, HashAlgorithm.crc32, 32w0, { hdr.ipv4.dst, meta.key }, 32w65536);
                            key_tag.read(owner, key_at);
                            key_seen.read(seen, key_at);
                            write_known.write(conn, 0);
                            if (meta.writes == 0 || !meta.steer) {
                                meta.verdict = CAS_NOT_STEERED;
                            } else if (owner != hdr.ipv4.dst ++ meta.key && seen != 0 && now - seen < KEY_IDLE) {
                                meta.verdict = KEY_PLACE_TAKEN;
                            } else {
                                bit<64> va;
                                bit<32> under;
                                bit<8> tail;
                                if (owner != hdr.ipv4.dst ++ meta.key) {
                                    key_tag.write(key_at, hdr.ipv4.dst ++ meta.key);
                                    tail_known.write(key_at, 0);
                                }
                                key_seen.write(key_at, now);
                                tail_known.read(known, key_at);
                                tail_va.read(va, key_at);
                                tail_rkey.read(under, key_at);
                                tail_version.read(tail, key_at);
                                if (known == 0 || under != rkey) {
                                    meta.verdict = CAS_TAIL_UNKNOWN;
                                } else if (va == to) {
                                    meta.verdict = CAS_AT_TAIL;
                                } else if (tail != hdr.atomic_eth.compare[18:11]) {
                                    meta.verdict = CAS_OTHER_VERSION;
                                } else {
                                    meta.verdict = CAS_STEERED;
                                    to = va;
                                }
                                if (meta.ahead == 1) {
                                    tail_va.write(key_at, entry);
                                    tail_rkey.write(key_at, rkey);
                                    tail_version.write(key_at, version);
                                    tail_known.write(key_at, 1);
                                }
                            }
                            cas_psn.write(ring, 1w1 ++ hdr.bth.psn);
                            cas_open.write(ring, 1);
                            cas_from.write(ring, from);
                            cas_to.write(ring, to);
                            cas_compare.write(ring, hdr.atomic_eth.compare);
                            cas_key.write(ring, meta.key);
                            cas_rkey.write(ring, rkey);
                            cas_entry.write(ring, entry);
                            cas_version.write(ring, version);
                        } else {
                            /* Whose tail it may move is known by its address. */
                            bit<128> tag;
                            meta.verdict = CAS_NOT_UNDERSTOOD;
                            hash(addr_at, HashAlgorithm.crc32, 32w0,
                                { hdr.ipv4.dst, hdr.atomic_eth.rkey, hdr.atomic_eth.va }, 32w65536);
                            addr_tag.read(tag, addr_at);
                            addr_known.read(known, addr_at);
                            addr_key.read(meta.key, addr_at);
                            if (known == 1 && tag == hdr.ipv4.dst ++ hdr.atomic_eth.rkey ++ hdr.atomic_eth.va) {
                                bit<96> owner;
                                bit<64> va;
                                hash(key_at, HashAlgorithm.crc32, 32w0, { hdr.ipv4.dst, meta.key }, 32w65536);
                                key_tag.read(owner, key_at);
                                tail_va.read(va, key_at);
                                if (owner == hdr.ipv4.dst ++ meta.key && va == hdr.atomic_eth.va) {
                                    tail_known.write(key_at, 0);
                                }
                            }
                        }
                    }
                    if (to != hdr.atomic_eth.va) {
                        hdr.atomic_eth.va = to;
                        hdr.udp.checksum = 0;
                        steered_icrc.apply(hdr, hdr.icrc.value);
                    }
                } else {
                    bit<128> tag;
                    bit<1> known;
                    bit<8> version;
                    bit<32> length;
                    addr_tag.read(tag, addr_at);
                    addr_known.read(known, addr_at);
                    addr_version.read(version, addr_at);
                    addr_length.read(length, addr_at);
                    if (known == 0 || tag != hdr.ipv4.dst ++ hdr.reth.rkey ++ hdr.reth.va ||
                        length != hdr.reth.length) {
                        meta.verdict = READ_UNKNOWN;
                    } else if (meta.reads == 0 || !meta.steer) {
                        meta.verdict = READ_NOT_STEERED;
                    } else {
                        bit<96> owner;
                        bit<64> va;
                        bit<32> rkey;
                        hash(key_at, HashAlgorithm.crc32, 32w0, { hdr.ipv4.dst, meta.key }, 32w65536);
                        key_tag.read(owner, key_at);
                        tail_known.read(known, key_at);
                        tail_va.read(va, key_at);
                        tail_rkey.read(rkey, key_at);
                        if (owner != hdr.ipv4.dst ++ meta.key || known == 0 || rkey != hdr.reth.rkey) {
                            meta.verdict = READ_UNKNOWN;
                        } else if (va == hdr.reth.va) {
                            meta.verdict = READ_AT_TAIL;
                        } else {
                            bit<64> key;
                            bit<8> tail;
                            hash(tail_at, HashAlgorithm.crc32, 32w0, { hdr.ipv4.dst, rkey, va }, 32w65536);
                            addr_tag.read(tag, tail_at);
                            addr_known.read(known, tail_at);
                            addr_key.read(key, tail_at);
                            addr_version.read(tail, tail_at);
                            addr_length.read(length, tail_at);
                            if (known == 0 || tag != hdr.ipv4.dst ++ rkey ++ va || key != meta.key) {
                                meta.verdict = READ_UNKNOWN;
                            } else if (tail != version || length != hdr.reth.length) {
                                meta.verdict = READ_OTHER_VERSION;
                            } else {
                                meta.verdict = READ_STEERED;
                                hdr.reth.va = va;
                                hdr.udp.checksum = 0;
                                steered_icrc.apply(hdr, hdr.icrc.value);
                            }
                        }
                    }
                }
            } else if (meta.responder) {
                meta.verdict = ANSWER;
                bool refused = hdr.bth.opcode == ACKNOWLEDGE && hdr.aeth.syndrome[7:5] == 3 &&
                               hdr.aeth.syndrome != 0x60;
                if (hdr.atomic_ack.isValid() || refused) {
                    bit<25> psn;
                    bit<1> open;
                    cas_psn.read(psn, ring);
                    cas_open.read(open, ring);
                    if (open == 1 && psn == 1w1 ++ hdr.bth.psn) {
                        bit<64> compare;
                        bit<64> to;
                        bit<64> entry;
                        bit<32> rkey;
                        bit<8> version;
                        bit<96> owner;
                        bit<64> va;
                        cas_open.write(ring, 0);
                        cas_compare.read(compare, ring);
                        cas_to.read(to, ring);
                        cas_key.read(meta.key, ring);
                        cas_rkey.read(rkey, ring);
                        cas_entry.read(entry, ring);
                        cas_version.read(version, ring);
                        hash(key_at, HashAlgorithm.crc32, 32w0, { hdr.ipv4.src, meta.key }, 32w65536);
                        key_tag.read(owner, key_at);
                        tail_va.read(va, key_at);
                        if (!refused && hdr.atomic_ack.original == compare) {
                            meta.verdict = CAS_SUCCEEDED;
                            if (owner == hdr.ipv4.src ++ meta.key && meta.ahead == 0) {
                                tail_va.write(key_at, entry);
                                tail_rkey.write(key_at, rkey);
                                tail_version.write(key_at, version);
                                tail_known.write(key_at, 1);
                            }
                        } else {
                            meta.verdict = CAS_FAILED;
                            if (refused) {
                                meta.verdict = REFUSED;
                            }
                            if (owner == hdr.ipv4.src ++ meta.key &&
                                (refused || meta.ahead == 1 || va == to)) {
                                tail_known.write(key_at, 0);
                            }
                        }
                    }
                }
            }
        } else if (hdr.bth.isValid() && (hdr.entry.isValid() || hdr.atomic_eth.isValid())) {
            meta.verdict = UNKNOWN_CONNECTION;
            digest<new_connection_t>(1, { hdr.ipv4.src, hdr.ipv4.dst, hdr.bth.dst_qp,
                                          hdr.bth.psn, hdr.bth.opcode });
        }
        verdicts.count(meta.verdict);
    }
}

control steer_egress(inout headers_t hdr, inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.mcast_grp != 0 &&
            standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);
        }
    }
}

control steer_update(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control steer_deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
        packet.emit(hdr.reth);
        packet.emit(hdr.entry);
        packet.emit(hdr.aeth);
        packet.emit(hdr.atomic_eth);
        packet.emit(hdr.atomic_ack);
        packet.emit(hdr.icrc);
    }
}

V1Switch(steer_parser(), steer_verify(), steer_ingress(), steer_egress(),
         steer_update(), steer_deparser()) main;
