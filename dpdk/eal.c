#include "eal.h"

#include <errno.h>
#include <string.h>

/* Mbufs in memory of one's own are not yet of the stable interface. */
#define ALLOW_EXPERIMENTAL_API
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

const char *dpdk_error(int code) { return rte_strerror(code < 0 ? -code : code); }

int dpdk_init(int argc, char **argv) { return rte_eal_init(argc, argv) < 0 ? -rte_errno : 0; }

struct dpdk_port {
	struct rte_mempool *pool;
	struct rte_mbuf **of; /* the mbuf of each slot */
	int *users; /* ports of that pool that are open */
	uint8_t *mem;
	uint32_t slots, size;
	uint16_t port;
	int found; /* the device, whose number is port */
};

static uint32_t slot_of(const struct dpdk_port *p, const struct rte_mbuf *m) { return ((uint8_t *)m->buf_addr - p->mem) / p->size; }

/*
 * An mbuf for each slot of the memory, whose buffer is the slot. All are taken from the pool once, to learn which is which,
 * and all but the first are given back by dpdk_give.
 */
static int slots_open(struct dpdk_port *p, const char *name)
{
	struct rte_pktmbuf_extmem mem = {.buf_ptr = p->mem, .buf_iova = RTE_BAD_IOVA, .buf_len = (size_t)p->slots * p->size, .elt_size = p->size};
	p->pool = rte_pktmbuf_pool_create_extbuf(name, p->slots, p->slots / 16 < 256 ? p->slots / 16 : 256, 0, p->size, SOCKET_ID_ANY, &mem, 1);
	if (!p->pool)
		return -rte_errno;
	p->of = calloc(p->slots, sizeof *p->of);
	p->users = calloc(1, sizeof *p->users);
	if (!p->of || !p->users)
		return -ENOMEM;
	*p->users = 1;
	for (uint32_t i = 0; i < p->slots; i++) {
		struct rte_mbuf *m = rte_pktmbuf_alloc(p->pool);
		if (!m)
			return -ENOBUFS;
		p->of[slot_of(p, m)] = m;
	}
	return 0;
}

struct dpdk_port *dpdk_open(const char *device, struct dpdk_port *with, void *mem, uint32_t slots, uint32_t size, uint16_t ring, int *error)
{
	struct dpdk_port *p = calloc(1, sizeof *p);
	if (!p) {
		*error = -ENOMEM;
		return NULL;
	}
	if (with) {
		*p = *with;
		p->found = 0;
		++*p->users;
	}
	p->mem = mem;
	p->slots = slots;
	p->size = size;
	char name[RTE_MEMPOOL_NAMESIZE];
	struct rte_eth_conf conf;
	struct rte_eth_dev_info info;
	memset(&conf, 0, sizeof conf);
	if ((*error = rte_eth_dev_get_port_by_name(device, &p->port)) < 0)
		goto fail;
	p->found = 1;
	snprintf(name, sizeof name, "quillon%u", p->port);
	uint16_t rx = ring, tx = ring;
	if ((!with && (*error = slots_open(p, name)) < 0) || (*error = rte_eth_dev_info_get(p->port, &info)) < 0 ||
	    (*error = rte_eth_dev_configure(p->port, 1, 1, &conf)) < 0 || (*error = rte_eth_dev_adjust_nb_rx_tx_desc(p->port, &rx, &tx)) < 0 ||
	    (*error = rte_eth_rx_queue_setup(p->port, 0, rx, SOCKET_ID_ANY, NULL, p->pool)) < 0 ||
	    (*error = rte_eth_tx_queue_setup(p->port, 0, tx, SOCKET_ID_ANY, NULL)) < 0)
		goto fail;
	return p;
fail:
	dpdk_close(p);
	return NULL;
}

int dpdk_start(struct dpdk_port *p)
{
	int error = rte_eth_dev_start(p->port);
	if (error < 0)
		return error;
	error = rte_eth_promiscuous_enable(p->port);
	return error == -ENOTSUP ? 0 : error;
}

void dpdk_close(struct dpdk_port *p)
{
	/* A device that is closed is gone for the process: it is stopped, and may be opened again. */
	if (p->found)
		rte_eth_dev_stop(p->port);
	if (!p->users || --*p->users == 0) {
		free(p->of);
		free(p->users);
		rte_mempool_free(p->pool);
	}
	free(p);
}

/* Slots become the driver's, to receive into. */
void dpdk_give(struct dpdk_port *p, const uint32_t *slots, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct rte_mbuf *m = p->of[slots[i]];
		rte_mbuf_raw_free(m);
	}
}

/* Slots that the driver does not use just now become the caller's. */
uint32_t dpdk_take(struct dpdk_port *p, uint32_t *slots, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct rte_mbuf *m = rte_mbuf_raw_alloc(p->pool);
		if (!m)
			return i;
		slots[i] = slot_of(p, m);
	}
	return n;
}

uint32_t dpdk_free(struct dpdk_port *p) { return rte_mempool_avail_count(p->pool); }

/* Frames of several mbufs are not taken: *chained says how many. */
uint32_t dpdk_rx(struct dpdk_port *p, struct dpdk_frame *f, uint32_t n, uint32_t *chained)
{
	/* A thread that DPDK knows has a cache of mbufs; a worker stays on its thread. */
	static __thread int known;
	if (!known) {
		known = 1;
		if (rte_lcore_id() == LCORE_ID_ANY)
			rte_thread_register();
	}
	struct rte_mbuf *m[64];
	uint32_t got = rte_eth_rx_burst(p->port, 0, m, n), k = 0;
	for (uint32_t i = 0; i < got; i++) {
		if (m[i]->nb_segs != 1) {
			rte_pktmbuf_free(m[i]);
			++*chained;
			continue;
		}
		f[k++] = (struct dpdk_frame){slot_of(p, m[i]), m[i]->data_off, m[i]->data_len};
	}
	return k;
}

uint32_t dpdk_tx(struct dpdk_port *p, const struct dpdk_frame *f, uint32_t n)
{
	struct rte_mbuf *m[64];
	for (uint32_t i = 0; i < n; i++) {
		m[i] = p->of[f[i].slot];
		rte_pktmbuf_reset(m[i]);
		m[i]->data_off = f[i].off;
		m[i]->data_len = m[i]->pkt_len = f[i].len;
	}
	return rte_eth_tx_burst(p->port, 0, m, n);
}

int dpdk_stats(struct dpdk_port *p, uint64_t *missed, uint64_t *nombuf)
{
	struct rte_eth_stats s;
	int error = rte_eth_stats_get(p->port, &s);
	if (error == 0) {
		*missed = s.imissed;
		*nombuf = s.rx_nombuf;
	}
	return error;
}
