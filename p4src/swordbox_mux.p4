/* swordbox_mux: lets several clients' connections to a server share one (SwordBox,
 * section 2.2.2), and sends their atomics as WRITEs (section 2.2.3).
 *
 * What a client sends on a connection of the table clients goes to the server over
 * a shared connection, with the next PSN there; its answer comes back with the
 * client's own PSN and MSN. All of a client's requests move, so that neither side
 * sees a hole. The server executes everything in the order of the shared PSNs.
 *
 * CAS -> WRITE: as one connection is executed in order, the value of a word that
 * only these connections change is known (words): after a WRITE of it, and after the
 * answer to its last CAS. A CAS on a known word is decided here. It goes as a WRITE
 * of the word: of the swap operand when it succeeds, of the value that is there
 * already when it fails. The acknowledgement becomes the atomic's answer.
 *
 * Coalesced ACKs: an ACK is for all that is before it, and each client, and each
 * request that was an atomic, needs an answer of its own. Two ways were thought of:
 * a multicast with a look-up per copy gives each client one answer, which is not
 * enough for two atomics of one client; so an ACK walks. A pass takes the oldest
 * request that is not answered and turns the packet into its answer. While that was
 * not the last that the ACK covers, a clone of the ACK as it came is recirculated.
 * All that walk take from one place (next_answer), so that answers leave in the
 * order of the PSNs, whoever comes between. That costs a pass a request that is
 * answered, and nothing where nothing is coalesced.
 *
 * Retransmissions are known by PSN. What was answered is answered again from the
 * record (READs are read again), what was not goes with its old shared PSN. A
 * request behind a gap, or for which there is no room (WINDOW a shared connection,
 * CLIENT_WINDOW a client), is dropped, and repeated by its client. What is lost
 * between here and the server is repeated by its clients: the server's NAK goes to
 * the client whose request is missing, others find out by their time-outs. A READ or
 * CAS whose answer was lost holds up the answers behind it until it is repeated.
 *
 * Only requests of one packet and one PSN: WRITE ONLY, READ of at most the path MTU,
 * CAS. Others on a client's connection are dropped, and the client gives up; do not
 * list such clients. Requests on a word other than 8-byte WRITEs and CASes at its
 * address must not be sent. All requests under one R_Key must be allowed to all: a
 * refusal ends the shared connection for everybody. IPv4 without options, no VLANs.
 *
 * Controller: clone session WALK_SESSION must send to one port (any); a row of
 * clients and owners for each client, of shared and answers for each shared
 * connection. An id is below CLIENTS or SHARED, a word's below WORDS. A client's row
 * is added before its first request. The registers are hard state: when they are
 * lost, clients must connect anew.
 *
 * ICRC: all that is multiplexed is parsed to its end, its ICRC is checked (a frame
 * with a wrong one is dropped), and computed anew for what leaves.
 *
 * Registers: by client client_*, CLIENT_WINDOW a client sent_as; by shared connection
 * next_*, WINDOW each slot_*; by word word_*. Counters: verdicts (the numbers below).
 */
#include <core.p4>
#include <v1model.p4>
#include "roce.p4"

#define CLIENTS 256
#define CLIENT_WINDOW 64
#define SHARED 64
#define WINDOW 256
#define WORDS 65536
#define WALK_SESSION 1

/* Indices of the counter verdicts. */
const bit<32> PASSED       = 0;  // not of these connections
const bit<32> MULTIPLEXED  = 1;
const bit<32> CAS_WRITTEN  = 2;  // went as a WRITE
const bit<32> REPEATED     = 3;  // with its old PSN
const bit<32> ANSWERED     = 4;
const bit<32> WALKED       = 5;  // answered by what covers it
const bit<32> REANSWERED   = 6;  // from the record
const bit<32> NAKED        = 7;
const bit<32> BAD_ICRC     = 8;  // dropped, as all below
const bit<32> UNSUPPORTED  = 9;
const bit<32> GAP          = 10;
const bit<32> WINDOW_FULL  = 11;
const bit<32> STALE        = 12; // answers nothing that is open
const bit<32> WAITS        = 13; // an answer before it is missing
const bit<32> NO_OWNER     = 14;

/* What a slot of a shared connection holds. */
const bit<8> KIND_WRITE   = 1;
const bit<8> KIND_READ    = 2;
const bit<8> KIND_CAS     = 3;
const bit<8> KIND_WRITTEN = 4; // a CAS that went as a WRITE

header word_t {
    bit<64> data; // lowest byte first
}

header payload_t {
    varbit<32768> data;
}

struct headers_t {
    ethernet_t   ethernet;
    ipv4_t       ipv4;
    udp_t        udp;
    bth_t        bth;
    reth_t       reth;
    atomic_eth_t atomic_eth;
    aeth_t       aeth;
    atomic_ack_t atomic_ack;
    word_t       word; // payload of a WRITE of 8 bytes
    payload_t    payload;
    icrc_t       icrc;
}

struct metadata_t {
    bool    request;
    bool    answer;
    bool    rewritten; // needs a new ICRC
    bool    to_owner;
    bit<16> client;
    bit<16> shared;
    bit<32> shared_src;
    bit<16> shared_port;
    bit<24> server_qp;
    bit<24> first_psn;
    bit<32> mtu;
    bool    word;
    bit<16> word_at;
    bit<64> va;
    bit<32> rkey;
    bit<32> verdict;
}

parser mux_parser(packet_in packet, out headers_t hdr, inout metadata_t meta,
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
            WRITE_ONLY: write;
            READ_REQUEST: read;
            COMPARE_SWAP: compare_swap;
            READ_ONLY: read_response;
            ACKNOWLEDGE: acknowledge;
            ATOMIC_ACK: atomic_ack;
            default: accept;
        }
    }
    state write {
        packet.extract(hdr.reth);
        transition select(hdr.reth.length, hdr.udp.length) {
            (8, 48): word;
            (_, 40 .. 4136): write_payload;
            default: accept;
        }
    }
    state word {
        packet.extract(hdr.word);
        transition icrc;
    }
    state write_payload {
        packet.extract(hdr.payload, (bit<32>)(hdr.udp.length - 40) << 3);
        transition icrc;
    }
    state read {
        packet.extract(hdr.reth);
        transition icrc;
    }
    state compare_swap {
        packet.extract(hdr.atomic_eth);
        transition icrc;
    }
    state read_response {
        packet.extract(hdr.aeth);
        transition select(hdr.udp.length) {
            28 .. 4124: read_payload;
            default: accept;
        }
    }
    state read_payload {
        packet.extract(hdr.payload, (bit<32>)(hdr.udp.length - 28) << 3);
        transition icrc;
    }
    state acknowledge {
        packet.extract(hdr.aeth);
        transition icrc;
    }
    state atomic_ack {
        packet.extract(hdr.aeth);
        packet.extract(hdr.atomic_ack);
        transition icrc;
    }
    state icrc {
        packet.extract(hdr.icrc);
        transition accept;
    }
}

control mux_verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

/* The ICRC of any of the packets that are parsed to their end. */
control packet_icrc(in headers_t hdr, out bit<32> icrc) {
    apply {
        bit<32> crc;
        if (hdr.atomic_eth.isValid()) {
            hash(crc, HashAlgorithm.crc32, 32w0,
                { ICRC_FIELDS(hdr), hdr.atomic_eth.va, hdr.atomic_eth.rkey,
                  hdr.atomic_eth.swap, hdr.atomic_eth.compare }, 64w0x100000000);
        } else if (hdr.word.isValid()) {
            hash(crc, HashAlgorithm.crc32, 32w0,
                { ICRC_FIELDS(hdr), hdr.reth.va, hdr.reth.rkey, hdr.reth.length,
                  hdr.word.data }, 64w0x100000000);
        } else if (hdr.reth.isValid() && hdr.payload.isValid()) {
            hash(crc, HashAlgorithm.crc32, 32w0,
                { ICRC_FIELDS(hdr), hdr.reth.va, hdr.reth.rkey, hdr.reth.length,
                  hdr.payload.data }, 64w0x100000000);
        } else if (hdr.reth.isValid()) {
            hash(crc, HashAlgorithm.crc32, 32w0,
                { ICRC_FIELDS(hdr), hdr.reth.va, hdr.reth.rkey, hdr.reth.length },
                64w0x100000000);
        } else if (hdr.atomic_ack.isValid()) {
            hash(crc, HashAlgorithm.crc32, 32w0,
                { ICRC_FIELDS(hdr), hdr.aeth.syndrome, hdr.aeth.msn, hdr.atomic_ack.original },
                64w0x100000000);
        } else if (hdr.payload.isValid()) {
            hash(crc, HashAlgorithm.crc32, 32w0,
                { ICRC_FIELDS(hdr), hdr.aeth.syndrome, hdr.aeth.msn, hdr.payload.data },
                64w0x100000000);
        } else {
            hash(crc, HashAlgorithm.crc32, 32w0,
                { ICRC_FIELDS(hdr), hdr.aeth.syndrome, hdr.aeth.msn }, 64w0x100000000);
        }
        icrc = reverse32(crc);
    }
}

control mux_ingress(inout headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    counter(15, CounterType.packets) verdicts;

    register<bit<25>>(CLIENTS) client_next; // PSN that comes next, with a bit: known
    register<bit<24>>(CLIENTS) client_msn;
    register<bit<49>>(CLIENTS * CLIENT_WINDOW) sent_as; // a bit, PSN, shared PSN

    register<bit<25>>(SHARED) next_psn; // with a bit: known
    register<bit<24>>(SHARED) next_answer; // the oldest that is not answered
    register<bit<16>>(SHARED * WINDOW) slot_client;
    register<bit<24>>(SHARED * WINDOW) slot_psn; // the client's
    register<bit<8>>(SHARED * WINDOW) slot_kind;
    register<bit<64>>(SHARED * WINDOW) slot_original; // what a CAS finds
    register<bit<64>>(SHARED * WINDOW) slot_compare;
    register<bit<64>>(SHARED * WINDOW) slot_swap;
    register<bit<17>>(SHARED * WINDOW) slot_word; // with a bit: there is one

    register<bit<1>>(WORDS) word_known;
    register<bit<64>>(WORDS) word_value;
    register<bit<24>>(WORDS) word_last; // shared PSN of its last change

    packet_icrc() received_icrc;

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

    action join(bit<16> client, bit<16> shared) {
        meta.request = true;
        meta.client = client;
        meta.shared = shared;
    }
    table clients {
        key = {
            hdr.ipv4.src: exact;
            hdr.ipv4.dst: exact;
            hdr.bth.dst_qp: exact;
        }
        actions = { join; NoAction; }
        const default_action = NoAction();
        size = CLIENTS;
    }

    action answers_of(bit<16> shared) {
        meta.answer = true;
        meta.shared = shared;
    }
    table answers {
        key = {
            hdr.ipv4.src: exact;
            hdr.ipv4.dst: exact;
            hdr.bth.dst_qp: exact;
        }
        actions = { answers_of; NoAction; }
        const default_action = NoAction();
        size = SHARED;
    }

    /* Who sends on a shared connection, to which queue pair, from which PSN on. */
    action send_as(bit<32> src, bit<16> src_port, bit<24> server_qp, bit<24> first_psn, bit<32> mtu) {
        meta.shared_src = src;
        meta.shared_port = src_port;
        meta.server_qp = server_qp;
        meta.first_psn = first_psn;
        meta.mtu = mtu;
    }
    table shared {
        key = { meta.shared: exact; }
        actions = { send_as; NoAction; }
        const default_action = NoAction();
        size = SHARED;
    }

    action word(bit<16> id) {
        meta.word = true;
        meta.word_at = id;
    }
    table words {
        key = {
            hdr.ipv4.dst: exact;
            meta.rkey: exact;
            meta.va: exact;
        }
        actions = { word; NoAction; }
        const default_action = NoAction();
        size = WORDS;
    }

    action answer_to(bit<48> mac, bit<32> dst, bit<24> qp, bit<9> port) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = dst;
        hdr.bth.dst_qp = qp;
        standard_metadata.egress_spec = port;
        standard_metadata.mcast_grp = 0;
        meta.rewritten = true;
    }
    action no_owner() {
        standard_metadata.mcast_grp = 0;
        mark_to_drop(standard_metadata);
        meta.verdict = NO_OWNER;
    }
    table owners {
        key = { meta.client: exact; }
        actions = { answer_to; @defaultonly no_owner; }
        const default_action = no_owner();
        size = CLIENTS;
    }

    action drop_as(bit<32> verdict) {
        standard_metadata.mcast_grp = 0;
        mark_to_drop(standard_metadata);
        meta.verdict = verdict;
    }

    /* Turns the packet into an answer without payload. */
    action to_ack(bit<24> psn, bit<24> msn) {
        hdr.bth.opcode = ACKNOWLEDGE;
        hdr.bth.flags = hdr.bth.flags & 0x4F;
        hdr.bth.ack_request = 0;
        hdr.bth.psn = psn;
        hdr.aeth.setValid();
        hdr.aeth.msn = msn;
        hdr.reth.setInvalid();
        hdr.atomic_eth.setInvalid();
        hdr.atomic_ack.setInvalid();
        hdr.word.setInvalid();
        hdr.payload.setInvalid();
        hdr.udp.length = 28;
        hdr.ipv4.total_len = 48;
    }
    action to_atomic_ack(bit<64> original) {
        hdr.bth.opcode = ATOMIC_ACK;
        hdr.atomic_ack.setValid();
        hdr.atomic_ack.original = original;
        hdr.udp.length = 36;
        hdr.ipv4.total_len = 56;
    }

    action to_write(bit<64> value) {
        hdr.reth.setValid();
        hdr.reth.va = hdr.atomic_eth.va;
        hdr.reth.rkey = hdr.atomic_eth.rkey;
        hdr.reth.length = 8;
        hdr.word.setValid();
        hdr.word.data = reverse64(value);
        hdr.atomic_eth.setInvalid();
        hdr.bth.opcode = WRITE_ONLY;
        hdr.bth.ack_request = 0x80;
        hdr.udp.length = 48;
        hdr.ipv4.total_len = 68;
    }

    bit<32> shared_at = 0;
    bit<32> client_at = 0;
    bit<32> sent_at = 0;
    bit<32> slot = 0;
    bit<8>  kind = 0;
    bit<24> psn = 0;
    bit<24> oldest = 0;
    bit<64> original = 0;
    bit<24> msn = 0;

    apply {
        l2_forward.apply();
        meta.verdict = PASSED;
        if (hdr.bth.isValid()) {
            if (!clients.apply().hit) {
                answers.apply();
            }
        }
        if (meta.request || meta.answer) {
            bit<32> icrc;
            shared_at = (bit<32>)meta.shared;
            shared.apply();
            if (hdr.atomic_eth.isValid()) {
                meta.va = hdr.atomic_eth.va;
                meta.rkey = hdr.atomic_eth.rkey;
            } else if (hdr.word.isValid()) {
                meta.va = hdr.reth.va;
                meta.rkey = hdr.reth.rkey;
            }
            if (meta.request && (hdr.atomic_eth.isValid() || hdr.word.isValid())) {
                words.apply();
            }
            received_icrc.apply(hdr, icrc);
            next_answer.read(oldest, shared_at);
            if (hdr.icrc.isValid() && icrc != hdr.icrc.value) {
                drop_as(BAD_ICRC);
                meta.request = false;
                meta.answer = false;
            } else if (!hdr.icrc.isValid() || meta.request == hdr.aeth.isValid() ||
                       hdr.bth.opcode == READ_REQUEST && hdr.reth.length > meta.mtu) {
                drop_as(UNSUPPORTED);
                meta.request = false;
                meta.answer = false;
            }
        }
        if (meta.request) {
            bit<25> expected;
            bit<25> next;
            bit<49> sent;
            client_at = (bit<32>)meta.client;
            sent_at = (client_at << 6) | (bit<32>)hdr.bth.psn[5:0];
            client_next.read(expected, client_at);
            next_psn.read(next, shared_at);
            sent_as.read(sent, sent_at);
            if (next == 0) {
                next = 1w1 ++ meta.first_psn;
                oldest = meta.first_psn;
                next_answer.write(shared_at, oldest);
            }
            if (expected == 0) {
                expected = 1w1 ++ hdr.bth.psn;
            }
            if (expected[23:0] == hdr.bth.psn) {
                bit<24> open = next[23:0] - oldest;
                bit<24> old = sent[23:0] - oldest;
                if (open >= WINDOW - 1 || sent[48:48] == 1 && old[23:23] == 0) {
                    drop_as(WINDOW_FULL);
                } else {
                    bit<17> at = 0;
                    bit<1> known = 0;
                    bit<64> value = 0;
                    psn = next[23:0];
                    slot = (shared_at << 8) | (bit<32>)psn[7:0];
                    meta.verdict = MULTIPLEXED;
                    next = 1w1 ++ (psn + 1);
                    next_psn.write(shared_at, next);
                    expected = 1w1 ++ (hdr.bth.psn + 1);
                    client_next.write(client_at, expected);
                    sent_as.write(sent_at, 1w1 ++ hdr.bth.psn ++ psn);
                    slot_client.write(slot, meta.client);
                    slot_psn.write(slot, hdr.bth.psn);
                    if (meta.word) {
                        at = 1w1 ++ meta.word_at;
                        word_known.read(known, (bit<32>)meta.word_at);
                        word_value.read(value, (bit<32>)meta.word_at);
                        word_last.write((bit<32>)meta.word_at, psn);
                    }
                    if (hdr.atomic_eth.isValid()) {
                        slot_compare.write(slot, hdr.atomic_eth.compare);
                        slot_swap.write(slot, hdr.atomic_eth.swap);
                        kind = KIND_CAS;
                        if (known == 1) {
                            kind = KIND_WRITTEN;
                            original = value;
                            meta.verdict = CAS_WRITTEN;
                            if (value == hdr.atomic_eth.compare) {
                                value = hdr.atomic_eth.swap;
                                word_value.write((bit<32>)meta.word_at, value);
                            }
                            to_write(value);
                        }
                    } else if (hdr.bth.opcode == READ_REQUEST) {
                        kind = KIND_READ;
                    } else {
                        kind = KIND_WRITE;
                        if (meta.word) {
                            word_known.write((bit<32>)meta.word_at, 1);
                            word_value.write((bit<32>)meta.word_at, reverse64(hdr.word.data));
                        }
                    }
                    slot_word.write(slot, at);
                    slot_kind.write(slot, kind);
                    slot_original.write(slot, original);
                    meta.rewritten = true;
                }
            } else if (sent[48:24] == 1w1 ++ hdr.bth.psn) {
                /* A retransmission. */
                bit<24> old;
                bit<16> owner;
                bit<24> owned;
                psn = sent[23:0];
                slot = (shared_at << 8) | (bit<32>)psn[7:0];
                old = psn - oldest;
                slot_kind.read(kind, slot);
                slot_original.read(original, slot);
                slot_client.read(owner, slot);
                slot_psn.read(owned, slot);
                if (owner != meta.client || owned != hdr.bth.psn) {
                    drop_as(STALE);
                } else if (old[23:23] == 1 && kind != KIND_READ) {
                    bit<32> server = hdr.ipv4.dst;
                    client_msn.read(msn, client_at);
                    to_ack(hdr.bth.psn, msn);
                    hdr.aeth.syndrome = 0x1F;
                    if (kind != KIND_WRITE) {
                        to_atomic_ack(original);
                    }
                    hdr.ipv4.src = server;
                    hdr.ethernet.src = hdr.ethernet.dst;
                    meta.verdict = REANSWERED;
                    meta.to_owner = true;
                } else {
                    if (kind == KIND_WRITTEN && hdr.atomic_eth.isValid()) {
                        if (original == hdr.atomic_eth.compare) {
                            original = hdr.atomic_eth.swap;
                        }
                        to_write(original);
                    }
                    meta.verdict = REPEATED;
                    meta.rewritten = true;
                }
            } else {
                drop_as(GAP);
            }
            if (meta.rewritten) {
                hdr.ipv4.src = meta.shared_src;
                hdr.udp.src = meta.shared_port;
                hdr.bth.dst_qp = meta.server_qp;
                hdr.bth.psn = psn;
            }
        } else if (meta.answer) {
            bit<25> next;
            bit<24> late = hdr.bth.psn - oldest; // how far behind the oldest
            bit<24> open;
            bool nak = hdr.aeth.syndrome[6:5] != 0;
            next_psn.read(next, shared_at);
            open = next[23:0] - oldest;
            psn = oldest;
            if (late[23:23] == 1) {
                psn = hdr.bth.psn;
            }
            slot = (shared_at << 8) | (bit<32>)psn[7:0];
            slot_client.read(meta.client, slot);
            slot_kind.read(kind, slot);
            slot_original.read(original, slot);
            client_at = (bit<32>)meta.client;
            client_msn.read(msn, client_at);
            if (late[23:23] == 1) {
                /* A READ that was repeated. */
                bit<24> age = oldest - psn;
                if (next != 0 && age < WINDOW && kind == KIND_READ && hdr.bth.opcode == READ_ONLY) {
                    slot_psn.read(hdr.bth.psn, slot);
                    hdr.aeth.msn = msn;
                    meta.verdict = ANSWERED;
                    meta.to_owner = true;
                } else {
                    drop_as(STALE);
                }
            } else if (next == 0 || late >= open) {
                drop_as(STALE);
            } else if (late == 0 && nak) {
                slot_psn.read(hdr.bth.psn, slot);
                hdr.aeth.msn = msn;
                meta.verdict = NAKED;
                meta.to_owner = true;
            } else if (late == 0 && kind == KIND_READ && hdr.bth.opcode != READ_ONLY ||
                       late == 0 && kind == KIND_CAS && hdr.bth.opcode != ATOMIC_ACK ||
                       late != 0 && (kind == KIND_READ || kind == KIND_CAS)) {
                drop_as(WAITS);
            } else {
                bit<24> own;
                msn = msn + 1;
                client_msn.write(client_at, msn);
                oldest = oldest + 1;
                next_answer.write(shared_at, oldest);
                slot_psn.read(own, slot);
                meta.to_owner = true;
                meta.verdict = ANSWERED;
                if (late != 0) {
                    meta.verdict = WALKED;
                    clone(CloneType.I2E, WALK_SESSION);
                    if (nak) {
                        hdr.aeth.syndrome = 0x1F;
                    }
                }
                if (kind == KIND_READ) {
                    hdr.bth.psn = own;
                    hdr.aeth.msn = msn;
                } else if (kind == KIND_CAS) {
                    bit<17> at;
                    bit<24> last;
                    bit<64> compare;
                    bit<64> value;
                    original = hdr.atomic_ack.original;
                    slot_original.write(slot, original);
                    slot_word.read(at, slot);
                    word_last.read(last, (bit<32>)at[15:0]);
                    slot_compare.read(compare, slot);
                    value = original;
                    if (original == compare) {
                        slot_swap.read(value, slot);
                    }
                    if (at[16:16] == 1 && last == psn) {
                        word_value.write((bit<32>)at[15:0], value);
                        word_known.write((bit<32>)at[15:0], 1);
                    }
                    to_ack(own, msn);
                    to_atomic_ack(original);
                } else {
                    to_ack(own, msn);
                    if (kind == KIND_WRITTEN) {
                        to_atomic_ack(original);
                    }
                }
            }
        }
        if (meta.to_owner) {
            owners.apply();
        }
        verdicts.count(meta.verdict);
    }
}

control mux_egress(inout headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    packet_icrc() sent_icrc;
    apply {
        if (standard_metadata.instance_type == 1) {
            recirculate_preserving_field_list(0); // a walk goes on
        } else if (standard_metadata.mcast_grp != 0 &&
                   standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);
        } else if (meta.rewritten) {
            hdr.udp.checksum = 0;
            sent_icrc.apply(hdr, hdr.icrc.value);
        }
    }
}

control mux_update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.rewritten,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_len,
              hdr.ipv4.id, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol,
              hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control mux_deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
        packet.emit(hdr.reth);
        packet.emit(hdr.atomic_eth);
        packet.emit(hdr.aeth);
        packet.emit(hdr.atomic_ack);
        packet.emit(hdr.word);
        packet.emit(hdr.payload);
        packet.emit(hdr.icrc);
    }
}

V1Switch(mux_parser(), mux_verify(), mux_ingress(), mux_egress(),
         mux_update(), mux_deparser()) main;
