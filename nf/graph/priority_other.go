//go:build !linux

package graph

func prefer(int) func() { return func() {} }
