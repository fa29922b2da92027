// Package mtutest asks Linux, in tests, what it has learnt of MTUs, and looks whether a function tells hosts about them.
package mtutest
