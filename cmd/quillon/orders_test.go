package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestOrders: an order to stop is not lost among orders to reload.
func TestOrders(t *testing.T) {
	o := takeOrders()
	defer o.release()
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGTERM} {
		for range 3 {
			if err := unix.Kill(unix.Getpid(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	<-o.stop
	if s := <-o.reload; s != unix.SIGHUP {
		t.Errorf("reloads for %v", s)
	}
}
