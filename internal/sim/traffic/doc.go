// Package traffic is the load of endpoints over time, and what it needs when
// it is consolidated.
//
// A Source delivers events: at a time, an endpoint of a rack sent so many
// bytes. Sources are a trace of the user (CSV, or a capture) and Facebook, a
// generator. Sources of traces stream: their memory depends on the number of
// endpoints, not on the length of the trace.
//
// A Meter cuts time into intervals, aligned to the first event, and adds up:
//
//	sum of peaks   every endpoint has its own peak provisioned
//	rack           every rack has the peak of its endpoints' sum
//	peak of sum    all endpoints together have the peak of their sum
//
// A peak is the greatest load of any interval, or a quantile of the loads of
// all intervals (idle ones included). The shorter the interval, the higher the
// peaks: it should be as long as what the devices can absorb or react to.
//
// An endpoint spikes in an interval in which its load is more than its own
// mean by at least so many of its own standard deviations, both over all
// intervals (Spikes).
//
// CSV has a line for each event:
//
//	time,endpoint,bytes[,rack]
//
// with time in seconds since any moment (a decimal fraction is exact to the
// nanosecond), the endpoint's name, and the bytes that it sent since its line
// before. Lines ascend by time; a line may be late by less than an interval.
// Empty lines and lines that begin with # mean nothing; a first line that has
// no number for a time is a header.
// Of a capture (pcap or pcapng) an endpoint is the source address of an
// Ethernet frame, or of the packet in it, and bytes are those on the wire.
//
// The generator's requests are as Atikoglu et al. published them ("Workload
// Analysis of a Large-Scale Key-Value Store", SIGMETRICS 2012, pool ETC): keys
// of generalised extreme value sizes, values of generalised Pareto sizes,
// gaps of generalised Pareto lengths. Bursts are on top of them: their
// lengths and gaps have the published shapes of values and gaps, everything
// else about them is a parameter.
package traffic
