/*
 * What nff-go v0.9.2 expects of DPDK 19.08, said in DPDK 22.11's words. nff-go includes
 * this header after all others of DPDK.
 */
#pragma once

#ifndef __ASSEMBLER__

#include <string.h>

#include <rte_ethdev.h>
#include <rte_ip_frag.h>
#include <rte_lpm.h>
#include <rte_mbuf.h>
#include <rte_pci.h>
#include <rte_ring.h>

/* Names that got a prefix, or another meaning, since. */
#define max_rx_pkt_len max_lro_pkt_size /* nobody reads it: no LRO is asked for */
#define ETH_MQ_RX_RSS RTE_ETH_MQ_RX_RSS
#define ETH_MQ_TX_NONE RTE_ETH_MQ_TX_NONE
#define ETH_RSS_IP RTE_ETH_RSS_IP
#define DEV_RX_OFFLOAD_JUMBO_FRAME 0 /* the MTU says it */
#define DEV_RX_OFFLOAD_TIMESTAMP RTE_ETH_RX_OFFLOAD_TIMESTAMP
#define DEV_TX_OFFLOAD_MULTI_SEGS RTE_ETH_TX_OFFLOAD_MULTI_SEGS
#define DEV_TX_OFFLOAD_IPV4_CKSUM RTE_ETH_TX_OFFLOAD_IPV4_CKSUM
#define DEV_TX_OFFLOAD_TCP_CKSUM RTE_ETH_TX_OFFLOAD_TCP_CKSUM
#define DEV_TX_OFFLOAD_UDP_CKSUM RTE_ETH_TX_OFFLOAD_UDP_CKSUM

static inline uint16_t rte_eth_dev_count(void)
{
	return rte_eth_dev_count_avail();
}

/* Of a device on a PCI bus nff-go tells the kernel interface, which is gone. Applications no longer see these types. */
struct rte_bus {
	const char *name;
};
struct rte_pci_device {
	struct rte_pci_addr addr;
	struct rte_pci_id id;
};
#define RTE_DEV_TO_PCI(device) ((struct rte_pci_device *)0)
static inline struct rte_bus *rte_bus_find_by_device(const void *device)
{
	return 0;
}

/* The kernel network interface left DPDK with 23.11, and Debian's packages before: nothing of it succeeds. */
#define RTE_KNI_NAMESIZE 16
struct rte_kni;
struct rte_kni_conf {
	char name[RTE_KNI_NAMESIZE];
	uint32_t core_id;
	uint16_t group_id;
	unsigned mbuf_size;
	struct rte_pci_addr addr;
	struct rte_pci_id id;
	uint8_t force_bind;
	uint8_t mac_addr[6];
	uint16_t mtu;
};
struct rte_kni_ops {
	uint16_t port_id;
	int (*change_mtu)(uint16_t, unsigned);
	int (*config_network_if)(uint16_t, uint8_t);
	int (*config_mac_address)(uint16_t, uint8_t[]);
	int (*config_promiscusity)(uint16_t, uint8_t);
};
static inline int rte_kni_init(unsigned max)
{
	return -1;
}
static inline struct rte_kni *rte_kni_alloc(struct rte_mempool *pool, const struct rte_kni_conf *conf, struct rte_kni_ops *ops)
{
	return 0;
}
static inline int rte_kni_release(struct rte_kni *kni)
{
	return -1;
}
static inline int rte_kni_handle_request(struct rte_kni *kni)
{
	return -1;
}
static inline unsigned rte_kni_rx_burst(struct rte_kni *kni, struct rte_mbuf **mbufs, unsigned n)
{
	return 0;
}
static inline unsigned rte_kni_tx_burst(struct rte_kni *kni, struct rte_mbuf **mbufs, unsigned n)
{
	return 0;
}

/*
 * nff-go moves the heads and tails of rings in Go. Since 20.02 they stand in anonymous unions, which cgo does not
 * show: this is the same ring without.
 */
struct nffgo_ring_ends {
	volatile uint32_t head;
	volatile uint32_t tail;
	uint32_t single;
};
struct nffgo_ring {
	char name[RTE_MEMZONE_NAMESIZE] __rte_cache_aligned;
	int flags;
	const struct rte_memzone *memzone;
	uint32_t size;
	uint32_t mask;
	uint32_t capacity;
	char pad0 __rte_cache_aligned;
	struct nffgo_ring_ends prod __rte_cache_aligned;
	char pad1 __rte_cache_aligned;
	struct nffgo_ring_ends cons __rte_cache_aligned;
	char pad2 __rte_cache_aligned;
};
_Static_assert(sizeof(struct nffgo_ring) == sizeof(struct rte_ring), "size of a ring");
_Static_assert(offsetof(struct nffgo_ring, size) == offsetof(struct rte_ring, size), "a ring's size");
_Static_assert(offsetof(struct nffgo_ring, prod) == offsetof(struct rte_ring, prod), "a ring's producers");
_Static_assert(offsetof(struct nffgo_ring, cons) == offsetof(struct rte_ring, cons), "a ring's consumers");
#define rte_ring nffgo_ring

#endif
