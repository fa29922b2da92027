// Package clover has the tests of clover-steer among Clover's clients, their
// memory server, and others, in virtual time; see tests/bed.
package clover
