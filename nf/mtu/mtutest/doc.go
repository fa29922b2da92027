// Package mtutest asks Linux, in tests, what it has learnt of MTUs.
package mtutest
