// contend - RDMA clients that contend for words of one server's memory, and
// check every answer that they get.
//
//	contend server [-c CLIENTS] [-b QPS]
//	    serves CLIENTS clients, which begin together, and says what its memory
//	    holds when they have ended; before that it makes and destroys QPS
//	    queue pairs, so that its numbers are not the clients'
//	contend client SERVER-IP -w WORKLOAD [-q QPS] [-n ROUNDS] [-d DEPTH] [-s SIZE]
//	                         [-m PATH-MTU] [-g GID] [-t TIMEOUT] [-p FIRST-PSN] [-k KEYS] [-1]
//
//	lock    acquire by compare-and-swap, READ, add one, WRITE, release
//	count   DEPTH fetch-and-adds of 1 in flight on one word
//	swap    one word counted up by compare-and-swap
//	own     WRITE, compare-and-swap, fetch-and-add and READ of words that nobody
//	        else uses, 4 x DEPTH in flight; with -1 one operation
//	bulk    DEPTH x SIZE bytes written, then read back
//	clover  appends to and reads of the chains of KEYS keys, as Clover does
//	rkey, bounds, readonly
//	        a good WRITE, then an operation with a wrong rkey, beyond the region,
//	        or without permission, then another WRITE
//
// The last line of output is a JSON object. Exit status: 0, 1 when an answer
// was wrong, 2 when an operation failed.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	MAX_CLIENTS = 8,
	MAX_QPS = 16,
	AREA = 64 << 10, // of one queue pair, at the server and at the client
	REGION = 16 << 20,
	MAX_KEYS = 16,
	ENTRY = 128,
	APPENDS = AREA / ENTRY, // entries of one queue pair
	OWN_WORDS = 64,
};

// The server's region. Its address is fixed, for those who track its words.
#define BASE ((char *)0x10000000000)
enum {
	LOCK = 0, // 8 bytes each
	GUARDED = 8,
	COUNT = 16,
	SWAP = 24,
	OWN = 4096,        // OWN_WORDS words of each queue pair
	HEADS = 128 << 10, // first entries of the keys
	BULK = 1 << 20,    // an AREA of each queue pair
	ENTRIES = BULK + MAX_CLIENTS * MAX_QPS * AREA / 2,
};
_Static_assert(OWN + MAX_CLIENTS * MAX_QPS * OWN_WORDS * 8 <= HEADS, "own words");
_Static_assert(ENTRIES + MAX_CLIENTS * MAX_QPS * AREA / 2 <= REGION, "region");

struct end { // one queue pair, as told to the other side
	uint32_t qpn, psn;
};
struct hello { // client to server, and back, over TCP
	union ibv_gid gid;
	uint64_t base;
	uint32_t rkey, readonly; // of the region, and to read it only
	uint32_t client;         // number of the client
	uint32_t qps, mtu, timeout, gid_index, keys;
	struct end end[MAX_QPS];
};

struct qp {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_comp_channel *events;
	int index; // of all queue pairs of all clients
	char *mem;
};

static int port = 18600, clients = 1, burn, qps = 4, rounds = 50, depth = 8, size = 128, path_mtu = 1024, gid_index = 1, timeout = 18, keys = 4, single;
static long first_psn = -1;
static const char *workload = "";

static struct ibv_context *device;
static struct ibv_pd *pd;
static union ibv_gid gid;

static void die(const char *what) {
	fprintf(stderr, "contend: %s: %s\n", what, strerror(errno));
	exit(3);
}

static void open_device(void) {
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (!list || !n || !(device = ibv_open_device(list[0])) || !(pd = ibv_alloc_pd(device)))
		die("no RDMA device");
	if (ibv_query_gid(device, 1, gid_index, &gid))
		die("GID");
}

static struct ibv_mr *region(void *at, size_t len, int access) {
	struct ibv_mr *mr = ibv_reg_mr(pd, at, len, access);
	if (!mr)
		die("memory region");
	return mr;
}

static void *memory(void *at, size_t len) {
	void *p = mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);
	if (p == MAP_FAILED)
		die("memory");
	return p;
}

static void make_qp(struct qp *q, struct end *mine) {
	q->events = ibv_create_comp_channel(device);
	q->cq = q->events ? ibv_create_cq(device, 1024, NULL, q->events, 0) : NULL;
	struct ibv_qp_init_attr init = {
		.send_cq = q->cq, .recv_cq = q->cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 512, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};
	if (!q->cq || !(q->qp = ibv_create_qp(pd, &init)))
		die("queue pair");
	mine->qpn = q->qp->qp_num;
	mine->psn = first_psn >= 0 ? first_psn : lrand48() & 0xffffff;
}

static void connect_qp(struct qp *q, const struct end *mine, const struct end *theirs, const struct hello *path, const union ibv_gid *to) {
	enum ibv_mtu mtu = path->mtu >= 4096 ? IBV_MTU_4096 : path->mtu >= 2048 ? IBV_MTU_2048 : path->mtu >= 1024 ? IBV_MTU_1024 : path->mtu >= 512 ? IBV_MTU_512 : IBV_MTU_256;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	if (ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = theirs->qpn, .rq_psn = theirs->psn, .max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *to, .sgid_index = path->gid_index, .hop_limit = 64}},
	};
	if (ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = path->timeout, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = mine->psn, .max_rd_atomic = 16};
	if (ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

static void tell(int to, const struct hello *h) {
	if (write(to, h, sizeof *h) != sizeof *h)
		die("TCP");
}

static void hear(int from, struct hello *h) {
	if (recv(from, h, sizeof *h, MSG_WAITALL) != sizeof *h)
		die("the other side has gone");
}

// ---- Clover's words (pointer and entry; all little-endian) ----

struct entry {
	uint64_t header, key;
	uint64_t writer, nth; // queue pair, and which of its appends to the key
	uint8_t fill[ENTRY - 32];
};

static uint64_t fresh(void) { return 1 << 11; } // version 1, no successor
static uint64_t linked(uint32_t lh) { return (uint64_t)lh << 28 | 1 << 19 | fresh(); }
static uint32_t successor(uint64_t header) { return header >> 28; }
// Handles step with addresses: the keys' first entries, then those of the queue pairs.
static uint64_t entry_at(uint32_t lh) { return lh <= MAX_KEYS ? HEADS + (lh - 1) * ENTRY : ENTRIES + (uint64_t)(lh - 1 - MAX_KEYS) * ENTRY; }

static uint8_t filled(const struct entry *e, size_t i) { return e->key * 31 + e->writer * 17 + e->nth * 7 + i; }
static int intact(const struct entry *e) {
	for (size_t i = 0; i < sizeof e->fill; i++)
		if (e->fill[i] != filled(e, i))
			return 0;
	return 1;
}
static void fill(struct entry *e, uint64_t key, uint64_t writer, uint64_t nth) {
	*e = (struct entry){fresh(), key, writer, nth, {0}};
	for (size_t i = 0; i < sizeof e->fill; i++)
		e->fill[i] = filled(e, i);
}

// chains counts the entries of all chains, and says in *wrong what is not as
// the clients left it.
static long chains(const char **wrong) {
	long n = 0;
	for (int k = 0; k < keys; k++) {
		uint64_t seen[MAX_CLIENTS * MAX_QPS] = {0};
		for (uint32_t lh = k + 1; lh;) {
			struct entry *e = (struct entry *)(BASE + entry_at(lh));
			if (!intact(e) || e->key != (uint64_t)k + 1)
				*wrong = "an entry is damaged or another key's";
			if (lh > MAX_KEYS) {
				n++;
				if (e->writer >= MAX_CLIENTS * MAX_QPS || e->nth != ++seen[e->writer])
					*wrong = "an acknowledged append is missing, or not in order";
			}
			if (n > MAX_CLIENTS * MAX_QPS * APPENDS) {
				*wrong = "a chain has no end";
				return n;
			}
			lh = successor(e->header);
		}
	}
	return n;
}

// ---- server ----

static struct qp at_server[MAX_CLIENTS * MAX_QPS];

static void server(void) {
	open_device();
	for (int i = 0; i < burn; i++) {
		struct end e;
		struct qp q = {0};
		make_qp(&q, &e);
		ibv_destroy_qp(q.qp);
		ibv_destroy_cq(q.cq);
		ibv_destroy_comp_channel(q.events);
	}
	memory(BASE, REGION);
	for (int k = 0; k < MAX_KEYS; k++)
		fill((struct entry *)(BASE + entry_at(k + 1)), k + 1, 0, 0);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr = region(BASE, REGION, access | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC), *readonly = region(BASE, REGION, access);

	int s = socket(AF_INET6, SOCK_STREAM, 0), one = 1, fd[MAX_CLIENTS];
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
	if (bind(s, (void *)&any, sizeof any) || listen(s, MAX_CLIENTS))
		die("listen");
	static struct hello theirs[MAX_CLIENTS], mine[MAX_CLIENTS];
	for (int c = 0; c < clients; c++) {
		if ((fd[c] = accept(s, NULL, NULL)) < 0)
			die("accept");
		hear(fd[c], &theirs[c]);
		if (theirs[c].qps > MAX_QPS || ibv_query_gid(device, 1, theirs[c].gid_index, &gid))
			die("hello");
		keys = theirs[c].keys;
		mine[c] = (struct hello){.gid = gid, .base = (uintptr_t)BASE, .rkey = mr->rkey, .readonly = readonly->rkey, .client = c, .qps = theirs[c].qps};
		for (unsigned i = 0; i < theirs[c].qps; i++) {
			struct qp *q = &at_server[c * MAX_QPS + i];
			make_qp(q, &mine[c].end[i]);
			connect_qp(q, &mine[c].end[i], &theirs[c].end[i], &theirs[c], &theirs[c].gid);
		}
	}
	for (int c = 0; c < clients; c++)
		tell(fd[c], &mine[c]);
	for (int c = 0; c < clients; c++)
		(void)!read(fd[c], &one, 1);
	const char *wrong = "";
	long n = chains(&wrong);
	uint64_t *w = (uint64_t *)BASE;
	printf("{\"lock\":%lu,\"guarded\":%lu,\"count\":%lu,\"swap\":%lu,\"appended\":%ld,\"wrong\":\"%s\"}\n", w[LOCK / 8], w[GUARDED / 8], w[COUNT / 8], w[SWAP / 8], n, wrong);
	exit(*wrong ? 1 : 0);
}

// ---- client ----

static struct hello peer;
static struct ibv_mr *local;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct { // of all queue pairs
	uint64_t ops, guarded, count, swap, appended, conflicts, stale;
	uint64_t sum, squares; // of the values that were counted up by one
	char wrong[200], failed[200];
} result;

// wrong notes the first answer that cannot be; the queue pair goes no further.
static void __attribute__((noreturn)) wrong(struct qp *q, const char *format, ...) {
	char text[160];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	pthread_mutex_lock(&mu);
	if (!*result.wrong)
		snprintf(result.wrong, sizeof result.wrong, "QPN %#x: %s", q->qp->qp_num, text);
	pthread_mutex_unlock(&mu);
	pthread_exit(NULL);
}

static void count(uint64_t *what, uint64_t n) { __atomic_fetch_add(what, n, __ATOMIC_RELAXED); }

// counted takes in the value that an increment by one found.
static void counted(uint64_t v) {
	count(&result.sum, v);
	count(&result.squares, v * v);
}

// post posts an operation on len bytes at remote offset at, and local offset
// here. Atomics take their operands from a and b.
static void post(struct qp *q, enum ibv_wr_opcode op, uint64_t at, uint32_t here, uint32_t len, uint64_t a, uint64_t b, uint32_t rkey, int signaled) {
	struct ibv_sge sge = {.addr = (uintptr_t)q->mem + here, .length = len, .lkey = local->lkey};
	struct ibv_send_wr wr = {.opcode = op, .sg_list = &sge, .num_sge = 1, .send_flags = signaled ? IBV_SEND_SIGNALED : 0}, *bad;
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = peer.base + at;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = a;
		wr.wr.atomic.swap = b;
	} else {
		wr.wr.rdma.remote_addr = peer.base + at;
		wr.wr.rdma.rkey = rkey;
	}
	if ((errno = ibv_post_send(q->qp, &wr, &bad)))
		die("post");
	count(&result.ops, 1);
}

// completions waits for n completions; the status of the first one that is not
// success ends the queue pair's work when note is not set, else it is noted.
static void completions(struct qp *q, int n, int note) {
	while (n > 0) {
		struct ibv_wc wc;
		int got = ibv_poll_cq(q->cq, 1, &wc);
		if (!got) { // ask for an event, look again, then sleep
			struct ibv_cq *cq;
			void *context;
			ibv_req_notify_cq(q->cq, 0);
			if (!(got = ibv_poll_cq(q->cq, 1, &wc))) {
				if (ibv_get_cq_event(q->events, &cq, &context))
					die("event");
				ibv_ack_cq_events(cq, 1);
				continue;
			}
		}
		if (got < 0)
			die("poll");
		n--;
		if (wc.status != IBV_WC_SUCCESS) {
			pthread_mutex_lock(&mu);
			size_t len = strlen(result.failed);
			snprintf(result.failed + len, sizeof result.failed - len, "%s%s", len ? ", " : "", ibv_wc_status_str(wc.status));
			pthread_mutex_unlock(&mu);
			if (!note)
				pthread_exit(NULL);
		}
	}
}

static void wr(struct qp *q, uint64_t at, uint32_t here, uint32_t len) {
	post(q, IBV_WR_RDMA_WRITE, at, here, len, 0, 0, peer.rkey, 1);
	completions(q, 1, 0);
}
static void rd(struct qp *q, uint64_t at, uint32_t here, uint32_t len) {
	post(q, IBV_WR_RDMA_READ, at, here, len, 0, 0, peer.rkey, 1);
	completions(q, 1, 0);
}
static volatile uint64_t *word(struct qp *q, int i) { return (uint64_t *)q->mem + i; }
static uint64_t cas(struct qp *q, uint64_t at, uint64_t compare, uint64_t swap) {
	*word(q, 0) = ~0ul;
	post(q, IBV_WR_ATOMIC_CMP_AND_SWP, at, 0, 8, compare, swap, peer.rkey, 1);
	completions(q, 1, 0);
	return *word(q, 0);
}

static void *w_lock(void *arg) {
	struct qp *q = arg;
	uint64_t me = q->index + 1, was;
	for (int i = 0; i < rounds; i++) {
		while ((was = cas(q, LOCK, 0, me)) != 0) {
			count(&result.conflicts, 1);
			if (was == me || was > MAX_CLIENTS * MAX_QPS)
				wrong(q, "lock held by %#lx, which cannot be", was);
		}
		rd(q, GUARDED, 8, 8);
		(*word(q, 1))++;
		wr(q, GUARDED, 8, 8);
		count(&result.guarded, 1);
		if ((was = cas(q, LOCK, me, 0)) != me)
			wrong(q, "own lock held by %#lx", was);
	}
	return NULL;
}

static void *w_count(void *arg) {
	struct qp *q = arg;
	uint64_t next = 0;
	for (int i = 0; i < rounds; i += depth) {
		int n = rounds - i < depth ? rounds - i : depth;
		for (int k = 0; k < n; k++) {
			*word(q, k) = ~0ul;
			post(q, IBV_WR_ATOMIC_FETCH_AND_ADD, COUNT, 8 * k, 8, 1, 0, peer.rkey, k == n - 1);
		}
		completions(q, 1, 0);
		for (int k = 0; k < n; k++) {
			if (*word(q, k) < next || *word(q, k) == ~0ul)
				wrong(q, "counter is %#lx after it was %#lx", *word(q, k), next);
			next = *word(q, k) + 1;
			counted(*word(q, k));
		}
		count(&result.count, n);
	}
	return NULL;
}

static void *w_swap(void *arg) {
	struct qp *q = arg;
	uint64_t guess = 0;
	for (int i = 0; i < rounds;) {
		uint64_t was = cas(q, SWAP, guess, guess + 1);
		if (was < guess || was == ~0ul)
			wrong(q, "word is %#lx after it was %#lx", was, guess);
		if (was == guess) {
			counted(guess);
			count(&result.swap, 1);
			guess++, i++;
		} else {
			count(&result.conflicts, 1);
			guess = was;
		}
	}
	return NULL;
}

static void *w_own(void *arg) {
	struct qp *q = arg;
	uint64_t mine = OWN + (uint64_t)q->index * OWN_WORDS * 8;
	for (int i = 0; i < rounds; i++) {
		uint64_t v = (uint64_t)q->index << 40 | (uint64_t)i << 16;
		for (int k = 0; k < depth; k++) {
			uint64_t at = mine + 8 * k;
			for (int r = 0; r < 4; r++)
				*word(q, 4 * k + r) = ~0ul;
			*word(q, 4 * k) = v + k;
			static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ};
			// One in three compares fails.
			uint64_t operand[] = {0, v + k + (k % 3 == 0), 3 + k, 0};
			for (int r = 0; r < 4; r++) {
				int last = single || (r == 3 && k == depth - 1);
				post(q, ops[r], at, 32 * k + 8 * r, 8, operand[r], ~v, peer.rkey, last);
				if (last)
					completions(q, 1, 0);
			}
		}
		for (int k = 0; k < depth; k++) {
			uint64_t want[4] = {v + k, v + k, k % 3 == 0 ? v + k : ~v, (k % 3 == 0 ? v + k : ~v) + 3 + k};
			static const char *const name[] = {"WRITE", "compare-and-swap", "fetch-and-add", "READ"};
			for (int r = 1; r < 4; r++)
				if (*word(q, 4 * k + r) != want[r])
					wrong(q, "round %d, word %d: %s found %#lx, want %#lx", i, k, name[r], *word(q, 4 * k + r), want[r]);
		}
	}
	return NULL;
}

static void *w_bulk(void *arg) {
	struct qp *q = arg;
	uint64_t at = BULK + (uint64_t)q->index * (AREA / 2);
	for (int i = 0; i < rounds; i++) {
		for (int b = 0; b < depth * size; b++) {
			q->mem[b] = (b * 7 + i * 13 + q->index * 29) % 251;
			q->mem[AREA / 2 + b] = 0;
		}
		for (int k = 0; k < depth; k++)
			post(q, IBV_WR_RDMA_WRITE, at + k * size, k * size, size, 0, 0, peer.rkey, k == depth - 1);
		completions(q, 1, 0);
		for (int k = 0; k < depth; k++)
			post(q, IBV_WR_RDMA_READ, at + k * size, AREA / 2 + k * size, size, 0, 0, peer.rkey, k == depth - 1);
		completions(q, 1, 0);
		for (int b = 0; b < depth * size; b++)
			if (q->mem[b] != q->mem[AREA / 2 + b])
				wrong(q, "round %d: byte %d of %d read is %#x, was written %#x", i, b % size, size, q->mem[AREA / 2 + b], q->mem[b]);
	}
	return NULL;
}

// find_tail goes along key k's chain by headers, which no middlebox redirects,
// to its tail, or to the entry own when that is on the way.
static uint32_t find_tail(struct qp *q, int k, uint32_t lh, uint32_t own) {
	for (int hops = 0; hops <= MAX_CLIENTS * MAX_QPS * APPENDS; hops++) {
		rd(q, entry_at(lh), 8, 8);
		uint32_t next = successor(*word(q, 1));
		if (!next)
			return lh;
		if ((lh = next) == own)
			return own;
	}
	wrong(q, "chain of key %d has no end", k + 1);
}

// w_clover appends to the keys in turn, and after every append reads the next
// key's tail. Where it takes a tail to be it has from its own last visit.
static void *w_clover(void *arg) {
	struct qp *q = arg;
	uint32_t tail[MAX_KEYS], own = MAX_KEYS + 1 + q->index * (APPENDS / 2);
	uint64_t nth[MAX_KEYS] = {0};
	struct entry *e = (struct entry *)(q->mem + 1024), *got = (struct entry *)(q->mem + 2048);
	for (int k = 0; k < keys; k++)
		tail[k] = k + 1;
	for (int i = 0; i < rounds; i++) {
		int k = (i + q->index) % keys;
		uint32_t lh = own + i, last = tail[k];
		fill(e, k + 1, q->index, ++nth[k]);
		wr(q, entry_at(lh), 1024, ENTRY);
		while (cas(q, entry_at(last), fresh(), linked(lh)) != fresh()) {
			count(&result.conflicts, 1);
			if ((last = find_tail(q, k, last, lh)) == lh)
				break;
		}
		tail[k] = lh;
		count(&result.appended, 1);

		// Reads go along whole entries, by headers where one is not the key's.
		k = (k + 1) % keys;
		for (int hops = 0;; hops++) {
			memset(got, 0, sizeof *got);
			rd(q, entry_at(tail[k]), 2048, ENTRY);
			if (got->key != (uint64_t)k + 1 || (got->header & 0x7f800) != fresh()) {
				count(&result.stale, 1);
				tail[k] = find_tail(q, k, k + 1, 0);
				rd(q, entry_at(tail[k]), 2048, ENTRY / 2);
				rd(q, entry_at(tail[k]) + ENTRY / 2, 2048 + ENTRY / 2, ENTRY / 2);
			}
			if (got->key != (uint64_t)k + 1 || !intact(got))
				wrong(q, "read of key %d finds an entry of key %lu, %s", k + 1, got->key, intact(got) ? "intact" : "damaged");
			uint32_t next = successor(got->header);
			if (!next)
				break;
			tail[k] = next;
			if (hops > MAX_CLIENTS * MAX_QPS * APPENDS)
				wrong(q, "chain of key %d has no end", k + 1);
		}
	}
	return NULL;
}

static void *w_error(void *arg) {
	struct qp *q = arg;
	uint64_t at = BULK + (uint64_t)q->index * (AREA / 2);
	wr(q, at, 0, 8);
	if (!strcmp(workload, "rkey"))
		post(q, IBV_WR_RDMA_READ, at, 0, 64, 0, 0, peer.rkey ^ 0x55, 1);
	else if (!strcmp(workload, "bounds"))
		post(q, IBV_WR_RDMA_WRITE, REGION - 32, 0, 64, 0, 0, peer.rkey, 1);
	else
		post(q, IBV_WR_ATOMIC_FETCH_AND_ADD, COUNT, 0, 8, 1, 0, peer.readonly, 1);
	post(q, IBV_WR_RDMA_WRITE, at, 0, 8, 0, 0, peer.rkey, 1);
	completions(q, 2, 1);
	return NULL;
}

static int dial(const char *ip) {
	int one = 1, s;
	union {
		struct sockaddr sa;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} to = {0};
	if (inet_pton(AF_INET, ip, &to.v4.sin_addr) == 1)
		to.v4.sin_family = AF_INET, to.v4.sin_port = htons(port);
	else if (inet_pton(AF_INET6, ip, &to.v6.sin6_addr) == 1)
		to.v6.sin6_family = AF_INET6, to.v6.sin6_port = htons(port);
	else
		die(ip);
	if ((s = socket(to.sa.sa_family, SOCK_STREAM, 0)) < 0 || connect(s, &to.sa, sizeof to))
		die("connect");
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return s;
}

static int client(const char *ip) {
	static const struct {
		const char *name;
		void *(*run)(void *);
	} workloads[] = {{"lock", w_lock}, {"count", w_count}, {"swap", w_swap}, {"own", w_own}, {"bulk", w_bulk}, {"clover", w_clover}, {"rkey", w_error}, {"bounds", w_error}, {"readonly", w_error}};
	void *(*run)(void *) = NULL;
	for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
		if (!strcmp(workload, workloads[i].name))
			run = workloads[i].run;
	if (!run || qps < 1 || qps > MAX_QPS || depth < 1 || depth > OWN_WORDS || keys < 1 || keys > MAX_KEYS ||
		(run == w_clover && rounds > APPENDS / 2) || (run == w_bulk && (size < 1 || depth * size > AREA / 2))) {
		fprintf(stderr, "contend: workload %s cannot be run like this\n", workload);
		return 3;
	}
	open_device();
	char *mem = memory(NULL, (size_t)qps * AREA);
	local = region(mem, (size_t)qps * AREA, IBV_ACCESS_LOCAL_WRITE);
	int tcp = dial(ip);
	static struct qp q[MAX_QPS];
	struct hello me = {.gid = gid, .qps = qps, .mtu = path_mtu, .timeout = timeout, .gid_index = gid_index, .keys = keys};
	for (int i = 0; i < qps; i++)
		make_qp(&q[i], &me.end[i]);
	tell(tcp, &me);
	hear(tcp, &peer);
	for (int i = 0; i < qps; i++) {
		q[i].index = peer.client * MAX_QPS + i;
		q[i].mem = mem + (size_t)i * AREA;
		connect_qp(&q[i], &me.end[i], &peer.end[i], &me, &peer.gid);
	}
	pthread_t thread[MAX_QPS];
	for (int i = 0; i < qps; i++)
		if ((errno = pthread_create(&thread[i], NULL, run, &q[i])))
			die("thread");
	for (int i = 0; i < qps; i++)
		pthread_join(thread[i], NULL);
	printf("{\"ops\":%lu,\"guarded\":%lu,\"count\":%lu,\"swap\":%lu,\"appended\":%lu,\"conflicts\":%lu,\"stale\":%lu,\"sum\":%lu,\"squares\":%lu,\"wrong\":\"%s\",\"failed\":\"%s\"}\n",
		result.ops, result.guarded, result.count, result.swap, result.appended, result.conflicts, result.stale, result.sum, result.squares, result.wrong, result.failed);
	return *result.wrong ? 1 : *result.failed ? 2 : 0;
}

int main(int argc, char **argv) {
	if (argc < 2 || (strcmp(argv[1], "server") && (strcmp(argv[1], "client") || argc < 3))) {
		fprintf(stderr, "usage: contend server|client SERVER-IP [options]; see contend.c\n");
		return 3;
	}
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	srand48(now.tv_nsec ^ getpid());
	int is_server = !strcmp(argv[1], "server");
	optind = is_server ? 2 : 3;
	for (int c; (c = getopt(argc, argv, "P:c:b:w:q:n:d:s:m:g:t:p:k:1")) != -1;)
		switch (c) {
		case 'P': port = atoi(optarg); break;
		case 'c': clients = atoi(optarg); break;
		case 'b': burn = atoi(optarg); break;
		case 'w': workload = optarg; break;
		case 'q': qps = atoi(optarg); break;
		case 'n': rounds = atoi(optarg); break;
		case 'd': depth = atoi(optarg); break;
		case 's': size = atoi(optarg); break;
		case 'm': path_mtu = atoi(optarg); break;
		case 'g': gid_index = atoi(optarg); break;
		case 't': timeout = atoi(optarg); break;
		case 'p': first_psn = strtol(optarg, NULL, 0); break;
		case 'k': keys = atoi(optarg); break;
		case '1': single = 1; break;
		default: return 3;
		}
	if (clients < 1 || clients > MAX_CLIENTS)
		return 3;
	if (is_server)
		server();
	return client(argv[2]);
}
