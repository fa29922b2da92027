//go:build !linux

package graph

func (c *Config) settle(int) (restore func(), err error) { return func() {}, nil }
