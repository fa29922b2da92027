package xdp

import "testing"

func TestLoads(t *testing.T) {
	k, err := New(100)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
}
