// Package ycsb makes the operations of the Yahoo! Cloud Serving Benchmark's
// core workloads: a mix of reads and updates over keys whose popularity
// follows Zipf's law.
//
// A Generator belongs to one client thread; equal configurations with equal
// seeds make equal sequences. Next does not allocate.
package ycsb
