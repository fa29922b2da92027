package mtutest

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// PathMTU is what Linux believes to be the path MTU to an address after UDP datagrams that are IP packets
// of n bytes, with DF.
func PathMTU(t *testing.T, to string, n int) int {
	t.Helper()
	level, discover, do, get, over := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, unix.IP_MTU, 28
	if net.ParseIP(to).To4() == nil {
		level, discover, do, get, over = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, unix.IPV6_MTU, 48
	}
	x, err := net.Dial("udp", net.JoinHostPort(to, "9"))
	check(t, err)
	defer x.Close()
	raw, err := x.(*net.UDPConn).SyscallConn()
	check(t, err)
	var got int
	control := func(f func(fd int) error) {
		var e error
		check(t, raw.Control(func(fd uintptr) { e = f(int(fd)) }))
		check(t, e)
	}
	control(func(fd int) error { return unix.SetsockoptInt(fd, level, discover, do) })
	for range 250 {
		_, err = x.Write(make([]byte, n-over)) // an error tells of what was sent before: a port that is closed, too
		control(func(fd int) (e error) { got, e = unix.GetsockoptInt(fd, level, get); return e })
		if got < n {
			if _, err = x.Write(make([]byte, n-over)); !errors.Is(err, unix.EMSGSIZE) {
				t.Errorf("what is too long was sent to %s: %v", to, err)
			}
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return got
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
