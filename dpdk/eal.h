#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* A frame in a slot of a port's memory. */
struct dpdk_frame {
	uint32_t slot, off, len;
};

struct dpdk_port;

/* Errors are negative errno values. */
const char *dpdk_error(int code);
int dpdk_init(int argc, char **argv);
/* Slots are those of another port (with), or new ones in mem. */
struct dpdk_port *dpdk_open(const char *device, struct dpdk_port *with, void *mem, uint32_t slots, uint32_t size, uint16_t ring, int *error);
int dpdk_start(struct dpdk_port *p);
void dpdk_close(struct dpdk_port *p);
void dpdk_give(struct dpdk_port *p, const uint32_t *slots, uint32_t n);
uint32_t dpdk_take(struct dpdk_port *p, uint32_t *slots, uint32_t n);
uint32_t dpdk_free(struct dpdk_port *p);
uint32_t dpdk_rx(struct dpdk_port *p, struct dpdk_frame *f, uint32_t n, uint32_t *chained);
uint32_t dpdk_tx(struct dpdk_port *p, const struct dpdk_frame *f, uint32_t n);
int dpdk_stats(struct dpdk_port *p, uint64_t *missed, uint64_t *nombuf);
